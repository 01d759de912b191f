"""Agents that come and go act inline, in a thread and in a process, on one rank and on several: the same numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from quintain.core.process_group import ProcessGroup
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.services.checkpoints.state_files import decode, digest_of, encode
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer
from tests.hold import Hold, wait_for
from tests.ranks.party import Arrays, on_ranks
from tests.ranks.test_parity import Deaf
from tests.resume.outcome import digest_of as digest_of_run
from tests.resume.outcome import rows_of
from tests.resume.test_workers import command, kill_after_checkpoint, newest_checkpoint, run
from tests.trainers.small_runs import NoSession

TASKS: dict[str, tuple[str, str, tuple[str, ...], dict[str, Any]]] = {
    "ppo": ("tasks:balance_ball", "num_agents", ("Ball",), {}),
    "poca": (
        "group_tasks:door",
        "num_groups",
        ("Door",),
        {"algorithm": {"type": "poca", "embedding_size": 8}, "policy": {"type": "actor_only"}},
    ),
    "components": ("tasks:balance_ball", "num_agents", ("Ball",), {"algorithm": {"clip_per_component": True}}),
    "two behaviours": ("tasks:ball_and_gates", "num_agents", ("Ball", "Gate"), {}),
}
LAST_HOLD = 8
EVALUATION = [{"type": "evaluate", "every_updates": 2, "num_episodes": 2}]


def settings(task: str, placement: str, max_staleness: int, env_steps: int = 600, **changes: Any) -> dict[str, Any]:
    where, size, names, chosen = TASKS[task]
    behavior: dict[str, Any] = {
        "algorithm": {"type": "ppo", "batch_size": 64, "num_epochs": 2, **chosen.get("algorithm", {})},
        "policy": {"hidden_sizes": [8, 8], "normalize_obs": True, **chosen.get("policy", {})},
        "rollout": {"buffer_size": 128, "time_horizon": 16, "max_staleness": max_staleness},
        "events": changes.pop("events", []),
    }
    env = {"type": "agents", "id": f"quintain.envs.agents.{where}", "kwargs": {size: 4}, "num_lanes": 2}
    where_it_runs = {"type": placement, "num_ranks": changes.pop("num_ranks", 1)}
    return {
        "experiment": {
            "seed": 3,
            "budget": {"env_steps": env_steps},
            "env": env,
            "behaviors": dict.fromkeys(names, behavior),
        },
        "run": {"threads": 1, "writers": [], "placement": where_it_runs, **changes},
    }


def make(*what: Any, **changes: Any) -> Trainer:
    run_file = RunFile.from_mapping(settings(*what, **changes))
    around = Run(run_file, [])
    return assemble(run_file, around, around.writer)


def outcome(trainer: Trainer) -> tuple[str, dict[str, list[float]]]:
    state = digest_of(trainer.state_dict())
    return state, {name: list(learner.episodes.returns) for name, learner in trainer.learners.items()}


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_every_placement_gives_the_same_numbers(task: str, max_staleness: int) -> None:
    found = {}
    for placement in ("local", "threads", "processes"):
        trainer = make(task, placement, max_staleness)
        trainer.train()
        found[placement] = outcome(trainer)
        trainer.close()
    assert found["threads"] == found["local"]
    assert found["processes"] == found["local"]


def test_acting_behind_is_another_run_than_acting_in_turns() -> None:
    """Guards the test above, and says what staleness is: every block but the first is acted by the version before."""
    behind, in_turns = make("ppo", "local", 1), make("ppo", "local", 0)
    acted = []
    for _ in range(4):
        in_turns.advance()
        behind.advance()
        # Trajectories that were begun before the block was have older steps too.
        acted.append(int(behind.taken.rollout.array("policy_version")[:-1].max()))
    assert acted == [0, 0, 1, 2]
    assert outcome(behind) != outcome(in_turns)


@pytest.mark.parametrize("task", ["ppo", "two behaviours"])
def test_an_evaluation_while_training_leaves_the_digest_alone(task: str) -> None:
    quiet, watched = make(task, "threads", 1), make(task, "threads", 1, events=EVALUATION)
    for trainer in (quiet, watched):
        trainer.train()
    assert all(learner.records.evaluated_at > 0 for learner in watched.learners.values())
    assert outcome(quiet) == outcome(watched)
    for trainer in (quiet, watched):
        trainer.close()


@pytest.mark.parametrize("placement", ["threads", "processes"])
@pytest.mark.parametrize("task", ["ppo", "two behaviours"])
def test_a_stop_anywhere_changes_nothing(task: str, placement: str) -> None:
    """The actor is interrupted while blocks are half full, some of them ordered with older weights."""
    whole = make(task, placement, 1)
    whole.train()
    trainer = make(task, placement, 1)
    chance = random.Random(0)
    is_half_full = False
    for _ in range(4):
        looks = chance.randrange(1, 12)

        def should_stop(left: list[int] = [looks]) -> bool:  # noqa: B006  # a counter of its own for each round
            left[0] -= 1
            return left[0] < 0

        trainer.should_stop = should_stop  # type: ignore[method-assign]
        trainer.advance()
        # As a checkpoint in a hurry does.
        trainer.source.pause(lambda: True)
        saved = decode(encode(trainer.state_dict(), allow_nonfinite=("training", "records")))
        blocks = [b for each in saved["training"]["learners"].values() for b in each["store"]["blocks"].values()]
        is_half_full |= any(block["is_open"] for block in blocks)
        trainer.close()
        trainer = make(task, placement, 1)
        trainer.load_state_dict(saved)
    assert is_half_full
    trainer.train()
    assert outcome(trainer) == outcome(whole)
    for each in (whole, trainer):
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "placement", "max_staleness"), [("poca", "processes", 1), ("two behaviours", "threads", 1)]
)
def test_kills_change_no_number(tmp_path: Path, task: str, placement: str, max_staleness: int) -> None:
    checkpoint = {"every_updates": 1, "every_seconds": None, "keep": 2}
    chosen = settings(task, placement, max_staleness, 2000, checkpoint=checkpoint, events=EVALUATION)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(chosen))
    status, printed = run(tmp_path, "train", "run.yaml", "--run-id", "whole")
    assert status == 0, printed
    assert len(rows_of(tmp_path / "runs" / "whole")) > LAST_HOLD, "or it would not be held"
    directory, chance = tmp_path / "runs" / "killed", random.Random(task)
    words = ("train", "run.yaml", "--run-id", "killed")
    for _ in range(3):
        kill_after_checkpoint(tmp_path, words, directory, chance.uniform(0.0, 0.1), row=LAST_HOLD)
        words = ("resume", "killed")
    status, printed = run(tmp_path, "resume", "killed")
    assert status == 0, printed
    assert digest_of_run(directory) == digest_of_run(tmp_path / "runs" / "whole")
    assert rows_of(directory) == rows_of(tmp_path / "runs" / "whole")


def learn(world: ProcessGroup, task: str, max_staleness: int, is_deaf: bool = False) -> Arrays:
    if is_deaf:
        world.__class__ = Deaf
    run_file = RunFile.from_mapping(settings(task, "local", max_staleness, 10**6, num_ranks=2))
    trainer = assemble(run_file, NoSession(), WriterGroup([]), world=world)
    seen = []
    for _ in range(6):
        assert trainer.advance()
        seen.append(trainer.taken.rollout.array("reward")[:-1].sum())
    weights = {
        f"{name}.{key}": value.numpy().copy()
        for name, learner in trainer.learners.items()
        for key, value in {**learner.policy.state_dict(), "flat": learner.algorithm.optimizer.flat.detach()}.items()
    }
    return {**weights, "steps": np.array(trainer.progress.env_steps), "seen": np.array(seen)}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "max_staleness"), [("ppo", 0), ("poca", 1), ("two behaviours", 0)])
def test_two_ranks_hold_equal_weights(tmp_path: Path, task: str, max_staleness: int) -> None:
    one, other = on_ranks(2, tmp_path, learn, task, max_staleness)
    assert [name for name in one if name != "seen" and one[name].tobytes() != other[name].tobytes()] == []
    assert one["seen"].tolist() != other["seen"].tolist(), "each rank has agents of its own"
    # Six batches of at least 128 steps of both ranks.
    assert 6 * 128 <= int(one["steps"]) < 6 * 256


@pytest.mark.slow
def test_without_the_all_reduce_ranks_of_agents_drift_apart(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn, "ppo", 0, True)
    assert not np.allclose(one["Ball.flat"], other["Ball.flat"], atol=1e-6)


@pytest.mark.slow
def test_a_run_of_agents_over_ranks_that_is_stopped_resumes_exactly(tmp_path: Path) -> None:
    checkpoint = {"every_updates": 2, "every_seconds": None}
    chosen = settings("two behaviours", "threads", 1, 2000, num_ranks=2, checkpoint=checkpoint)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(chosen))
    status, printed = run(tmp_path, "train", "run.yaml", "--run-id", "whole")
    assert status == 0, printed
    hold = Hold(tmp_path, LAST_HOLD)
    process = command(tmp_path, "train", "run.yaml", "--run-id", "stopped", hold=hold)
    directory = tmp_path / "runs" / "stopped"
    wait_for(lambda: newest_checkpoint(directory) > "000002", process)
    process.terminate()
    hold.let_go()
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 143, printed
    status, printed = run(tmp_path, "resume", "stopped")
    assert status == 0, printed
    assert digest_of_run(directory) == digest_of_run(tmp_path / "runs" / "whole")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ahead: ahead["commands"].append({"do": "close", "arguments": {}}), "commands"),
        (lambda ahead: ahead["lent"]["Ball"][0].update(block=7), "block is 7"),
        (lambda ahead: ahead["lent"]["Ball"][0].update(version="1"), "version is '1'"),
        (lambda ahead: ahead["lent"]["Ball"][0]["weights"].popitem(), "other names"),
        (lambda ahead: ahead["commands"].append({"do": "fill", "arguments": {}}), "fills 2 blocks, and 1 are lent"),
    ],
)
def test_a_plan_that_was_changed_in_a_checkpoint_is_refused(change: Any, said: str) -> None:
    trainer = make("ppo", "local", 1)
    trainer.should_stop = iter([False] * 40 + [True] * 10**6).__next__  # type: ignore[method-assign]
    trainer.advance()
    trainer.source.pause(lambda: True)
    saved = decode(encode(trainer.state_dict(), allow_nonfinite=("training", "records")))
    change(saved["training"]["source"]["ahead"])
    with pytest.raises(ValueError, match=said):
        make("ppo", "local", 1).load_state_dict(saved)
