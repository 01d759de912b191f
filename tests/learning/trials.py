"""What is trained to a score, one run of it, and the files in docs/results/ that remember the outcome."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintain import RunFile
from quintain.runs import launch
from quintain.runs import results as stored
from quintain.runs.output import code_names
from quintain.settings.agent_rules import has_agents

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
EPISODES = 100


@dataclass(frozen=True)
class Task:
    """A command that a user would type, and the mean return over 100 episodes that it must reach."""

    name: str
    command: str
    target: float
    num_seeds: int
    is_control: bool = False
    """Whether the return must stay below the target, because something is missing that the task needs."""
    missed: tuple[int, ...] = ()
    """Seeds that are on record as not reaching it: what is too hard still, and why, is in decision 0029."""

    def is_met_by(self, mean_return: float) -> bool:
        return (mean_return < self.target) if self.is_control else (mean_return >= self.target)

    def settings(self, seed: int) -> RunFile:
        what, *rest = self.command.split()[2:]
        overrides = [word for word in rest if "=" in word] + [f"experiment.seed={seed}"]
        if what.endswith(".yaml"):
            return RunFile.load(ROOT / what, *overrides)
        return RunFile.from_names(what, rest[0], *overrides)


_A2C = "quintain train a2c CartPole-v1 total_timesteps=150k"
_GRPO = "quintain train grpo CartPole-v1"
TASKS = {
    task.name: task
    for task in (
        Task("cartpole-demo", "quintain train examples/cartpole.yaml", target=475.0, num_seeds=10),
        Task("cartpole-defaults", "quintain train ppo CartPole-v1 total_timesteps=150k", target=475.0, num_seeds=3),
        Task("a2c", f"{_A2C} learning_rate=1e-3 learning_rate.end=0", target=400.0, num_seeds=3),
        Task("grpo", f"{_GRPO} group_size=8 num_steps=500 total_timesteps=150k", target=400.0, num_seeds=3),
        Task("acrobot", "quintain train examples/acrobot.yaml", target=-100.0, num_seeds=3),
        Task("pendulum", "quintain train examples/pendulum.yaml", target=-300.0, num_seeds=3),
        Task("pendulum-sac", "quintain train examples/pendulum_sac.yaml", target=-200.0, num_seeds=3),
        Task("memory", "quintain train examples/memory.yaml", target=400.0, num_seeds=3),
        Task("memory-lstm", "quintain train examples/memory.yaml memory.cell=lstm", target=400.0, num_seeds=1),
        Task(
            "memory-none", "quintain train examples/memory.yaml memory=null", target=200.0, num_seeds=3, is_control=True
        ),
        Task("workshop", "quintain train examples/workshop.yaml env_workers.num_workers=2", target=16.0, num_seeds=3),
        Task("door-poca", "quintain train examples/door.yaml", target=4.5, num_seeds=3),
        Task(
            "door-ppo", "quintain train examples/door.yaml algorithm.type=ppo", target=1.5, num_seeds=3, is_control=True
        ),
        Task("recall-ppo", "quintain train examples/recall.yaml", target=0.9, num_seeds=3),
        Task("recall-lstm", "quintain train examples/recall.yaml memory.cell=lstm", target=0.9, num_seeds=3),
        Task(
            "recall-transformer", "quintain train examples/recall.yaml memory.cell=transformer", target=0.9, num_seeds=3
        ),
        Task(
            "recall-ppo-none",
            "quintain train examples/recall.yaml memory=null",
            target=0.6,
            num_seeds=3,
            is_control=True,
        ),
        Task("recall-sac", "quintain train examples/recall_sac.yaml", target=0.9, num_seeds=3),
        Task(
            "recall-none",
            "quintain train examples/recall_sac.yaml memory=null",
            target=0.6,
            num_seeds=3,
            is_control=True,
        ),
        Task("couriers-ppo", "quintain train examples/couriers.yaml", target=6.0, num_seeds=3),
        Task("couriers-poca", "quintain train examples/couriers.yaml algorithm.type=poca", target=6.0, num_seeds=3),
        Task("couriers-sac", "quintain train examples/couriers_sac.yaml", target=6.0, num_seeds=3),
        Task("balls-sac", "quintain train examples/balls_sac.yaml", target=18.0, num_seeds=3),
        Task("gates-sac", "quintain train examples/gates_sac.yaml", target=8.0, num_seeds=3),
        Task("catch", "quintain train examples/catch.yaml", target=0.9, num_seeds=3),
        # At best 0.96, or 0.99 with two strides to an end: 3 wrong ends in 100 are too many.
        Task("clue-image-sac", "quintain train examples/clue_image_sac.yaml", target=0.9, num_seeds=5),
        Task("clue-images-sac", "quintain train examples/clue_images_sac.yaml", target=0.9, num_seeds=5, missed=(4,)),
        Task("clue-images-ppo", "quintain train examples/clue_images.yaml", target=0.9, num_seeds=5, missed=(1, 2)),
        Task("clue-memory-sac", "quintain train examples/clue_memory_sac.yaml", target=0.9, num_seeds=5),
        Task(
            "clue-memory-mixed-sac",
            "quintain train examples/clue_memory_sac.yaml kwargs.num_choices=1 kwargs.stride=0.5",
            target=0.9,
            num_seeds=5,
        ),
        # The best return is 1 in both. Frames of 16 x 16, at most 20 steps, the colour 3 steps before the question.
        Task("minecraft-look", "quintain train examples/minecraft_look.yaml", target=0.9, num_seeds=3),
        # With the transformer's settings an LSTM's policy settles on one side before it remembers (docs/log.md). These
        # were chosen on seeds 10 to 17.
        Task(
            "minecraft-recall-lstm",
            "quintain train examples/minecraft_recall.yaml memory.cell=lstm learning_rate=1e-3 entropy_coef=0.05 "
            "total_timesteps=40k",
            target=0.9,
            num_seeds=3,
        ),
        # A recurrent MinePolicy by online_ppo.
        Task("minecraft-online", "quintain train examples/minecraft_online.yaml", target=0.9, num_seeds=3),
        Task(
            "minecraft-recall-transformer",
            "quintain train examples/minecraft_recall.yaml memory.cell=transformer",
            target=0.9,
            num_seeds=3,
        ),
        # A guess is right one time in two; of 100 episodes 65 are, or more, once in 500 tries.
        Task(
            "minecraft-recall-none",
            "quintain train examples/minecraft_recall.yaml memory=null",
            target=0.65,
            num_seeds=3,
            is_control=True,
        ),
    )
}


@dataclass(frozen=True)
class Outcome:
    """How one seed fared."""

    seed: int
    steps: int
    best_mean: float
    """Mean return of the best checkpoint, which `quintain eval RUN` plays."""
    latest_mean: float
    """Mean return of the last checkpoint."""
    seconds: float
    cpu_seconds: float
    curve: list[tuple[int, float]]
    """Step and mean return of the last 100 training episodes."""


def run(task: Task, seed: int, runs_dir: Path) -> Outcome:
    """Trains as the command does, and plays 100 episodes with the best and the latest checkpoint."""
    started, cpu_started = time.perf_counter(), time.process_time()
    settings = task.settings(seed)
    launched = launch.start(settings, runs_dir=runs_dir, run_id="trial", quiet=True)
    summary = launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    assert summary.state == "finished", "a run that was stopped says nothing about learning"
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    best, latest = (_mean_return(settings, runs_dir, which) for which in ("best", "latest"))
    return Outcome(
        seed=seed,
        steps=summary.env_steps,
        best_mean=best,
        latest_mean=latest,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        curve=_curve(launched.directory.metrics),
    )


def _mean_return(settings: RunFile, runs_dir: Path, which: str) -> float:
    """Plays 100 episodes with a checkpoint; of agents the latest is the best, because nothing is evaluated before."""
    how: dict[str, Any] = {"num_episodes": EPISODES, "deterministic": True, "seed": None}
    how["allow"] = code_names(settings.to_dict())
    chosen = "latest" if has_agents(settings.experiment) else which
    [results] = stored.evaluate(runs_dir, f"trial@{chosen}", **how).results.values()
    return results.mean_return


def remember(task: Task, outcome: Outcome) -> None:
    """Writes the outcome into docs/results/, beside other seeds of the same settings; others stay as earlier."""
    path = RESULTS / f"learning-{task.name}.json"
    fingerprint = task.settings(0).fingerprint()
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    outcomes = known["outcomes"] if known.get("fingerprint") == fingerprint else []
    kept = [old for old in outcomes if old["seed"] != outcome.seed]
    earlier = known.get("earlier", [])
    if known and known["fingerprint"] != fingerprint:
        earlier = [*earlier, {name: known[name] for name in ("command", "target", "fingerprint", "outcomes")}]
    record = {
        "task": task.name,
        "command": task.command,
        "target": task.target,
        "is_control": task.is_control,
        "fingerprint": fingerprint,
        "outcomes": sorted([*kept, _as_json(outcome)], key=lambda row: row["seed"]),
        **({"earlier": earlier} if earlier else {}),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "steps": outcome.steps,
        # Four digits, for returns of hundreds as for those below 1.
        "best_mean": float(f"{outcome.best_mean:.4g}"),
        "latest_mean": float(f"{outcome.latest_mean:.4g}"),
        "seconds": round(outcome.seconds, 1),
        "cpu_seconds": round(outcome.cpu_seconds, 1),
        # One string, so that a curve is one line of the file and not three hundred.
        "curve": " ".join(f"{step}:{value:.4g}" for step, value in outcome.curve),
    }


def _curve(metrics: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    name = "rollout/ep_rew_mean"
    return [(row["step"], row[name]) for row in rows if name in row]
