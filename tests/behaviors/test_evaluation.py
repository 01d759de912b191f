"""Evaluation of agents while they train: what it reports, and that training does not notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from quintain.core.state import KeepsState
from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.errors import EnvError, SettingsError
from quintain.events import After
from quintain.runs.launch import resume, start
from quintain.runs.results import evaluate
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, poca_file, run_file


class Clockwork(KeepsState):
    """Two agents that live for 3 and 5 steps and get 1 for each, whatever they do; a third, if any, never ends."""

    def __init__(self, has_immortal: bool = False, prize: float = 1.0) -> None:
        self.lives = np.array([3, 5] + [10**9] * has_immortal)
        self.ids = np.arange(len(self.lives))
        self.ages = np.zeros(len(self.lives), np.int64)
        self.prize = prize
        self.has_begun = False
        self.num_resets = 0

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        return {"Clock": BehaviorSpec([ObservationSpec((2,))], ActionSpec(0, (2,)))}

    def reset(self) -> None:
        self.ages[:] = 0
        self.ids = self.ids.max() + 1 + np.arange(len(self.lives))
        self.has_begun = False
        self.num_resets += 1

    def set_actions(self, behavior_name: str, action: Any) -> None:
        assert len(action.discrete) == len(self.lives)

    def set_parameters(self, values: dict[str, float]) -> None:
        self.prize = float(values["prize"])

    def step(self) -> None:
        ended = self.ages == self.lives
        self.ages[ended] = 0
        self.ids[ended] = self.ids.max() + 1 + np.arange(np.count_nonzero(ended))
        self.ages += 1
        self.has_begun = True

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """An agent that ended begins anew in the same step, under another id."""
        obs = np.stack([self.ages, self.lives % 7], axis=1).astype(np.float32)
        reward = np.full(len(self.lives), self.prize if self.has_begun else 0.0, np.float32)
        ended = self.ages == self.lives
        ends = TerminalSteps(
            [obs[ended]], reward[ended], np.zeros(np.count_nonzero(ended), np.bool_), self.ids[ended].astype(np.int32)
        )
        fresh = self.ids.max() + 1 + np.arange(np.count_nonzero(ended))
        ids = self.ids.copy()
        ids[ended] = fresh
        return DecisionSteps([obs], np.where(ended, 0.0, reward).astype(np.float32), ids.astype(np.int32)), ends

    def close(self) -> None: ...


class Drawn(Clockwork):
    """The same, with a picture that is as bright as the first agent is old."""

    metadata: ClassVar[dict[str, int]] = {"render_fps": 10}

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), 50 * int(self.ages[0] % 5), np.uint8)


def clock_file(*overrides: str, env: dict[str, Any] | None = None, **evaluate: Any) -> RunFile:
    behavior = {
        "algorithm": {"type": "ppo", "batch_size": 32, "num_epochs": 1},
        "policy": {"hidden_sizes": [4]},
        "rollout": {"buffer_size": 64, "time_horizon": 8},
        "events": [{"type": "evaluate", "every_env_steps": 64, "num_episodes": 4, **evaluate}],
    }
    place = {"type": "agents", "id": "tests.behaviors.test_evaluation:Clockwork", **(env or {})}
    experiment = {"budget": {"env_steps": 256}, "env": place, "behaviors": {"Clock": behavior}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}}, *overrides)


def with_evaluation(settings: RunFile, **evaluate: Any) -> RunFile:
    for name in settings.experiment.behaviors:
        event = {"type": "evaluate", "every_env_steps": 128, "num_episodes": 3, **evaluate}
        settings = settings.replace(f"experiment.behaviors.{name}.events", [event])
    return settings


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def trained(settings: RunFile, runs_dir: Path, run_id: str) -> Path:
    launched = start(settings, runs_dir=runs_dir, run_id=run_id, quiet=True)
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    return launched.directory.path


def test_returns_and_lengths_are_those_of_the_first_episodes_that_begin(tmp_path: Path) -> None:
    rows = rows_of(trained(clock_file(), tmp_path, "a"))
    # Agents begin in the order of their lives: 3, 5, then 3 again at step 3 and, at steps 5 and 6, one of 5 and one
    # of 3. Of these the first four to begin have 3, 5, 3 and 5 steps, with a reward of 1 for each.
    found = [(row["eval/mean_reward"], row["eval/mean_ep_length"]) for row in rows if "eval/mean_reward" in row]
    assert found == [(4.0, 4.0)] * 4


def test_an_episode_without_end_is_cut(tmp_path: Path) -> None:
    settings = clock_file(env={"kwargs": {"has_immortal": True}}, num_episodes=3, max_episode_steps=30)
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    warnings: list[str] = []
    launched.run.writer.note = warnings.append  # type: ignore[method-assign]
    launched.trainer.train()
    launched.run.close()
    row = next(row for row in rows_of(tmp_path / "a") if "eval/mean_reward" in row)
    assert (row["eval/cut_episodes"], row["eval/mean_ep_length"]) == (1.0, (3 + 5 + 30) / 3)
    assert any("W0504" in line and "cut after 30 steps" in line for line in warnings)
    played, *_ = evaluate(tmp_path, "a", num_episodes=3, deterministic=True, seed=None)
    assert played["Clock"].num_cut == 1


@pytest.mark.parametrize(
    ("task", "placement", "staleness"),
    [("balance_ball", "local", 0), ("ball_and_gates", "local", 1), ("ball_and_gates", "threads", 1),
     ("door", "threads", 0), ("door", "local", 1)],
)  # fmt: skip
def test_training_does_not_notice(task: str, placement: str, staleness: int) -> None:
    chosen = {"rollout": {"max_staleness": staleness}}
    settings = poca_file(400, **chosen) if task == "door" else run_file(task, 400, **chosen)
    settings = settings.replace("run.placement", {"type": placement})
    digests = []
    for each in (settings, with_evaluation(settings)):
        trainer = make(each)
        trainer.train()
        digests.append(digest_of(trainer.state_dict()))
        trainer.close()
    assert digests[0] == digests[1]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_that_evaluates_resumes_exactly(staleness: int) -> None:
    assert_resumes_exactly(
        with_evaluation(run_file("ball_and_gates", 400, rollout={"max_staleness": staleness})), stop_after_steps=[9, 31]
    )


def test_a_resumed_run_evaluates_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    settings = with_evaluation(run_file("ball_and_gates", 400))
    whole = rows_of(trained(settings, tmp_path, "whole"))
    launched = start(settings, runs_dir=tmp_path, run_id="cut", quiet=True)
    launched.trainer.learners["Ball"].events.add(  # type: ignore[attr-defined]
        After("update"), lambda trainer: launched.trainer.stop("test") if trainer.progress.updates == 1 else None
    )
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    again = resume(tmp_path, "cut", quiet=True)
    again.trainer.train()
    again.trainer.close()
    again.run.close()

    def evaluations(rows: list[dict[str, float]]) -> list[dict[str, float]]:
        return [{name: value for name, value in row.items() if "eval/" in name} for row in rows]

    assert evaluations(rows_of(tmp_path / "cut")) == evaluations(whole)
    assert {"Ball/eval/mean_reward", "Gate/eval/mean_reward"} <= {name for row in whole for name in row}


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    launched = start(clock_file(), runs_dir=tmp_path, run_id="a", quiet=True)
    summary = launched.trainer.train()
    launched.run.close()
    assert (summary.best_eval, summary.num_eval_episodes) == (4.0, 4)


def test_a_run_ends_at_the_return_that_was_asked_for(tmp_path: Path) -> None:
    settings = clock_file()
    events = [
        *settings.to_dict()["experiment"]["behaviors"]["Clock"]["events"],
        {"type": "stop_at_return", "mean_return": 4.0},
    ]
    launched = start(
        settings.replace("experiment.behaviors.Clock.events", events), runs_dir=tmp_path, run_id="a", quiet=True
    )
    launched.trainer.train()
    launched.run.close()
    assert launched.trainer.progress.env_steps < 128


def test_evaluations_are_played_in_the_lesson_that_is_on(tmp_path: Path) -> None:
    until = {"measure": "reward", "behavior": "Clock", "threshold": 3.0, "min_episodes": 1}
    lessons = [{"name": "small", "value": 1.0, "until": until}, {"name": "large", "value": 2.0}]
    settings = clock_file(env={"curricula": {"prize": lessons}})
    rows = [row for row in rows_of(trained(settings, tmp_path, "a")) if "eval/mean_reward" in row]
    assert rows[0]["eval/mean_reward"] == 4.0
    assert rows[-1]["eval/mean_reward"] == 8.0
    played, *_ = evaluate(tmp_path, "a@latest", num_episodes=4, deterministic=True, seed=None)
    assert played["Clock"].mean_return == 8.0


def test_events_of_lanes_are_refused_in_an_evaluation_of_agents() -> None:
    with pytest.raises(SettingsError, match="has no lanes that an event could be called with") as error:
        clock_file(env_events=[{"type": "randomize_parameters", "mode": "reset", "ranges": {"prize": [1, 2]}}])
    assert error.value.code == "E0226"


@pytest.mark.parametrize("staleness", [0, 1])
def test_parameters_of_a_task_are_drawn_as_training_goes_on(staleness: int) -> None:
    settings = run_file("balance_ball", 400, rollout={"max_staleness": staleness})
    event = {"type": "randomize_env", "every_updates": 1, "ranges": {"push": [0.5, 2.0]}}
    drawn = settings.replace("experiment.behaviors.Ball.events", [event])
    digests = set()
    for each in (settings, drawn, drawn):
        trainer = make(each)
        trainer.train()
        digests.add(digest_of(trainer.state_dict()))
        trainer.close()
    assert len(digests) == 2
    assert_resumes_exactly(drawn, stop_after_steps=[9, 31])


def test_the_first_copy_is_filmed_while_episodes_are_played(tmp_path: Path) -> None:
    from PIL import Image

    trained(clock_file(env={"id": "tests.behaviors.test_evaluation:Drawn"}), tmp_path, "a")
    found = evaluate(tmp_path, "a", num_episodes=2, deterministic=True, seed=None, has_video=True)
    assert found is not None
    [path] = (tmp_path / "a" / "videos").glob("*.webp")
    assert found[2] is not None
    assert found[2].endswith(path.name)
    with Image.open(path) as film:
        # Two episodes begin at once and end after 3 and 5 steps: one picture before the first step, and one after each.
        assert (film.n_frames, film.size) == (6, (6, 4))


def test_an_environment_without_pictures_cannot_be_filmed(tmp_path: Path) -> None:
    trained(clock_file(), tmp_path, "a")
    with pytest.raises(EnvError, match="gives no pictures") as error:
        evaluate(tmp_path, "a", num_episodes=2, deterministic=True, seed=None, has_video=True)
    assert error.value.code == "E0522"
