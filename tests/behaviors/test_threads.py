"""Acting in a thread beside learning: the same numbers in turns, exactly one version behind otherwise."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.algorithms.ppo import PPO
from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.policies.actor_critic import ActorCritic
from quintain.runs.infer import _player
from quintain.runs.launch import checkpoint_of, start
from quintain.runs.run import Run
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, poca_file, run_file, world_of
from tests.behaviors.test_sac import sac_file
from tests.trainers.test_guard import nan_loss, spoil

SLOW = pytest.mark.slow


# A learner beside a thread asks a few times an update whether to stop. The last of these come when it only waits for
# the block that was acted ahead, after the last update.
SOON = [0, 1, 2]


def threaded(task: str = "ball_and_gates", env_steps: int = 600, *, staleness: int | None = 1, **more: Any) -> RunFile:
    """Returns settings with threads; without a staleness of its own the second behaviour learns in turns."""
    settings = run_file(task, env_steps, **more).replace("run.placement", {"type": "threads"})
    names = list(settings.experiment.behaviors)
    for name in names if staleness is not None else names[:1]:
        stale = 1 if staleness is None else staleness
        settings = settings.replace(f"experiment.behaviors.{name}.rollout.max_staleness", stale)
    return settings


def trained(settings: RunFile) -> Any:
    trainer = make(settings)
    trainer.train()
    state = trainer.state_dict()
    trainer.close()
    return state


@pytest.mark.parametrize("changes", [{}, {"policy": {"compiled": True}}, {"policy": {"normalize_obs": True}}])
def test_without_staleness_a_thread_gives_the_numbers_of_turns(changes: Any) -> None:
    in_turns = trained(run_file("ball_and_gates", **changes))
    beside = trained(threaded(staleness=0, **changes))
    assert list(differences(in_turns["training"], beside["training"])) == []
    assert digest_of(in_turns) == digest_of(beside)


def test_replay_is_learned_from_beside_acting_too() -> None:
    """What agents do meanwhile is remembered when its batch is taken, in its order, and not before."""

    def beside(staleness: int) -> RunFile:
        settings = sac_file("ball_and_gates", 600).replace("run.placement", {"type": "threads"})
        for name in settings.experiment.behaviors:
            settings = settings.replace(f"experiment.behaviors.{name}.rollout.max_staleness", staleness)
        return settings

    in_turns = trained(sac_file("ball_and_gates", 600))
    assert digest_of(trained(beside(0))) == digest_of(in_turns)
    assert digest_of(trained(beside(1))) == digest_of(trained(beside(1))) != digest_of(in_turns)
    assert_resumes_exactly(beside(1), stop_after_steps=[9, 14])


def test_with_staleness_runs_repeat_themselves_and_are_others() -> None:
    first, again = trained(threaded()), trained(threaded())
    assert digest_of(first) == digest_of(again)
    assert digest_of(first) != digest_of(trained(threaded(staleness=0)))


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    update = PPO.update

    def slow(self: Any, *args: Any) -> Any:
        time.sleep(seconds)
        return update(self, *args)

    monkeypatch.setattr(PPO, "update", slow)


def test_numbers_do_not_depend_on_who_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest_of(trained(threaded(env_steps=300)))
    slowed(monkeypatch, 0.05)
    assert digest_of(trained(threaded(env_steps=300))) == expected


def test_agents_act_on_while_their_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(threaded("gates"))
    update, seen = PPO.update, []

    def watched(self: Any, *args: Any) -> Any:
        before = world_of(trainer).num_steps
        deadline = time.monotonic() + 60.0
        while world_of(trainer).num_steps == before and time.monotonic() < deadline:
            time.sleep(0.001)
        seen.append((threading.current_thread().name, world_of(trainer).num_steps > before))
        return update(self, *args)

    monkeypatch.setattr(PPO, "update", watched)
    trainer.train()
    trainer.close()
    assert len(seen) >= 3
    assert set(seen) == {("MainThread", True)}


def test_actions_are_exactly_one_version_behind_and_that_is_reported() -> None:
    rows: list[dict[str, float]] = []
    trainer = make(threaded("gates", 1500))
    trainer.stats._writer = type("Writer", (), {"write": lambda self, step, row: rows.append(row)})()  # type: ignore[assignment]
    gate = trainer.learners["Gate"]
    take, lags = gate.store.take, []

    def taken() -> Any:
        batch = take()
        lags.append(gate.progress.version - int(batch.rollout.array(f.POLICY_VERSION)[:-1].max()))
        return batch

    gate.store.take = taken  # type: ignore[method-assign]
    trainer.train()
    trainer.close()
    assert lags == [0] + [1] * (len(lags) - 1)
    assert len(lags) > 5
    assert [row["rollout/staleness"] for row in rows] == lags


def test_weights_that_act_are_those_of_a_whole_version() -> None:
    """Every log-probability in a batch is that of one of the versions that were published, whole."""
    trainer = make(threaded("gates", 1500))
    gate = trainer.learners["Gate"]
    versions: dict[int, dict[str, Any]] = {}
    publish, take = trainer.source.publish, gate.store.take
    checked = 0

    def published(behavior: str, version: int, policy: Any) -> None:
        versions[version] = {name: value.clone() for name, value in policy.state_dict().items()}
        publish(behavior, version, policy)

    def taken() -> Any:
        nonlocal checked
        batch = take()
        rollout = batch.rollout
        fresh = ActorCritic(gate.policy.settings, gate.policy.spec)  # type: ignore[arg-type]
        flat = {name: rollout.flat(name) for name in (f.OBS, f.ACTION, f.ACTION_MASK, f.LOG_PROB, f.POLICY_VERSION)}
        for version in set(flat[f.POLICY_VERSION].tolist()):
            fresh.load_state_dict(versions[version])
            rows = {name: value[flat[f.POLICY_VERSION] == version] for name, value in flat.items()}
            now = fresh.evaluate_actions(rows)[f.LOG_PROB].detach()
            np.testing.assert_allclose(now.numpy(), rows[f.LOG_PROB].numpy(), atol=1e-5)
            checked += 1
        return batch

    trainer.source.publish = published  # type: ignore[method-assign]
    gate.store.take = taken  # type: ignore[method-assign]
    published("Gate", 0, gate.policy)
    trainer.train()
    trainer.close()
    assert checked > 5


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_stopped_anywhere_it_ends_with_the_same_numbers(staleness: int | None) -> None:
    assert_resumes_exactly(threaded(staleness=staleness), stop_after_steps=[1, 9, 26, 3])


@pytest.mark.slow
def test_groups_learn_beside_too() -> None:
    settings = poca_file(400).replace("run.placement", {"type": "threads"})
    for name in settings.experiment.behaviors:
        settings = settings.replace(f"experiment.behaviors.{name}.rollout.max_staleness", 1)
    assert_resumes_exactly(settings, stop_after_steps=SOON[:2])


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"policy": {"compiled": True}}, {"policy": {"memory": {"size": 4}}}])
def test_kernels_and_memory_resume_exactly_too(changes: Any) -> None:
    assert_resumes_exactly(threaded(env_steps=400, **changes), stop_after_steps=SOON)


def test_a_state_taken_at_any_time_goes_on_the_same() -> None:
    settings = threaded(policy={"normalize_obs": True})
    trainer, other = make(settings), make(settings)
    is_ahead = False
    for _ in range(6):
        trainer.advance()
        saved = trainer.state_dict()
        is_ahead |= any(saved["training"]["source"]["ahead"]["lent"].values())
        other.load_state_dict(saved)
        assert list(differences(saved["training"], other.state_dict()["training"])) == []
    assert is_ahead, "no block was lent in any of the states"
    trainer.advance()
    other.global_streams.load_state_dict(saved["training"]["global_streams"])
    other.advance()
    assert list(differences(trainer.state_dict()["training"], other.state_dict()["training"])) == []
    trainer.close()
    other.close()


def test_an_update_that_fails_ends_the_run_and_its_thread(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = threaded("gates", 100_000, rollout={"buffer_size": 4000, "time_horizon": 16})

    def broken(self: Any, *args: Any) -> Any:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(PPO, "update", broken)
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    with pytest.raises(ZeroDivisionError, match="of all things"):
        launched.trainer.train()
    launched.trainer.close()
    assert collectors() == []
    launched.run.close()


def test_numbers_that_are_not_finite_are_skipped_as_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda number: number == 3, nan_loss)
    trainer = make(threaded("gates", 900))
    trainer.train()
    assert trainer.learners["Gate"].guard.failed_at == [4]
    trainer.close()


def test_a_run_that_goes_back_drops_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = threaded(env_steps=700).replace("run.on_nonfinite_update", "rollback")
    launched = start(settings.replace("run.checkpoint.every_updates", 1), runs_dir=tmp_path, run_id="a", quiet=True)
    slowed(monkeypatch, 0.01)
    spoil(monkeypatch, lambda number: number == 5, nan_loss)
    launched.trainer.train()
    joint: Any = launched.trainer
    scales = sorted(each.algorithm.learning_rate_scale for each in joint.learners.values())
    assert scales == [0.5, 1.0]
    assert all(each.progress.env_steps >= 700 for each in joint.learners.values())
    assert all(bool(weight.isfinite().all()) for weight in joint.policy.parameters())
    joint.close()
    launched.run.close()


def test_agents_act_with_the_weights_that_a_run_is_given(tmp_path: Path) -> None:
    """Not with the copy that was made before they came: at the start of a run, and where nothing is learned."""
    first = start(threaded("gates", 300), runs_dir=tmp_path, run_id="a", quiet=True)
    first.trainer.train()
    first.trainer.close()
    first.run.close()
    checkpoint = checkpoint_of(tmp_path, "a")
    other = start(threaded("gates"), runs_dir=tmp_path, run_id="b", quiet=True, initialize_from=checkpoint)
    player = _player(Run(threaded("gates"), []), checkpoint, is_deterministic=True)
    trained_weights = first.trainer.learners["Gate"].policy.state_dict()  # type: ignore[attr-defined]
    assert other.trainer._stage_collect()  # type: ignore[attr-defined]  # it is a trainer
    for trainer in (other.trainer, player):
        joint: Any = trainer
        acting = world_of(joint).collectors["Gate"].policy
        assert list(differences(trained_weights, acting.state_dict())) == []
        joint.close()
    other.run.close()


HUNG: set[threading.Thread] = set()
"""Threads that were there before a test: one that hangs, as tests of placements let it, ends with its process."""


@pytest.fixture(autouse=True)
def _forget_what_hangs() -> None:
    HUNG.update(threading.enumerate())


def collectors() -> list[str]:
    return [thread.name for thread in {*threading.enumerate()} - HUNG if thread.name == "collector"]


def test_no_thread_outlives_its_trainer() -> None:
    trainer = make(threaded())
    trainer.train()
    assert collectors() == ["collector"]
    trainer.close()
    assert collectors() == []
    forgotten = make(threaded("gates", 300))
    forgotten.train()
    del forgotten
    deadline = time.monotonic() + 5.0
    gc.collect()
    while collectors() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert collectors() == []


@pytest.mark.parametrize("changes", [{}, {"policy": {"memory": {"size": 4}}}])
def test_without_a_thread_agents_act_one_version_behind_all_the_same(changes: Any) -> None:
    beside = threaded(staleness=1, **changes)
    inline = trained(beside.replace("run.placement", {"type": "local"}))
    assert list(differences(inline["training"], trained(beside)["training"])) == []
