"""Hooks of a user's own beside a collector thread: all in one thread, exactly one version behind, resumed exactly."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.behaviors import PPOTrainer, RLTrainer, SimpleEnvManager, Trajectory
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.envs.agents.tasks import ball_and_gates, gates
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.services.checkpoints.state_files import digest_of
from quintain.trainers.base import Trainer
from tests.behaviors.runs import world_of
from tests.behaviors.test_facades import SETTINGS, Reinforce, controller

THREADED = SETTINGS.model_copy(update={"threaded": True})
SOME = {"Ball": SETTINGS, "Gate": THREADED}
ALL = {"Ball": THREADED, "Gate": THREADED}
SLOW = pytest.mark.slow


def prepared(
    folder: Path,
    config: dict[str, TrainerSettings],
    gate: type[RLTrainer] = Reinforce,
    *,
    load_model: bool = False,
    max_steps: int = 400,
) -> tuple[Any, SimpleEnvManager, Trainer]:
    """Returns a controller, its environment and its trainers; gates are trained by hooks."""
    config = {name: each.model_copy(update={"max_steps": max_steps}) for name, each in config.items()}
    control = controller(folder, config, trainer_classes={"Gate": gate}, load_model=load_model)
    made = ball_and_gates if len(config) > 1 else gates
    manager = SimpleEnvManager(made(seed=1))
    return control, manager, control.prepare(manager)


def trained(
    folder: Path,
    config: dict[str, TrainerSettings] | None = None,
    gate: type[RLTrainer] = Reinforce,
    *,
    stops: Sequence[int] = (),
    max_steps: int = 400,
    is_cut_ahead: bool = False,
) -> Any:
    """Trains to the end, in as many pieces as there are stops and one more; returns the state.

    `is_cut_ahead` asks that at one of the stops there was a block with steps in it that no hook had seen.
    """
    were_ahead = []
    for number, stop in enumerate([*stops, None]):
        control, _, joint = prepared(
            folder, config or {"Gate": THREADED}, gate, load_model=number > 0, max_steps=max_steps
        )
        if stop is not None:
            stop_after(joint, stop)
        state = finished(control, joint)
        blocks = state["training"]["learners"]["Gate"]["store"]["blocks"].values()
        were_ahead.append(stop is not None and any(each["block"] and each["block"]["waiting"] for each in blocks))
    assert any(were_ahead) or not is_cut_ahead, "the collector was ahead at none of the stops"
    return state


def finished(control: Any, joint: Trainer) -> Any:
    """Trains to the end or to a stop and returns the state, which is asked for before the collector is closed."""
    joint.train()
    state = joint.state_dict()
    joint.close()
    control.resources.close()
    return state


def stop_after(joint: Trainer, num_steps: int) -> None:
    """Stops when it was asked so many times; a learner that waits for its collector asks whenever it has heard."""
    asked, is_stopping = 0, joint.should_stop

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        # One that has finished is asked again while it waits for blocks that no update will see.
        if asked > num_steps and not is_stopping() and not joint.is_finished:
            joint.stop("test")
        return is_stopping()

    joint.should_stop = should_stop  # type: ignore[method-assign]


def kept_rows(joint: Trainer) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    joint.session.after_cycle = lambda trainer: rows.append(trainer.stats.write_stats(0))  # type: ignore[method-assign]
    return rows


class Careful(Reinforce):
    """Notes in which thread each hook ran, and refuses to be called while another hook runs."""

    inside = 0

    def noted(self, hook: str, call: Callable[[], Any]) -> Any:
        assert self.inside == 0, f"{hook} was called while another hook ran"
        self.inside += 1
        seen: set[tuple[str, str]] = self.__dict__.setdefault("seen", set())
        seen.add((hook, threading.current_thread().name))
        try:
            return call()
        finally:
            self.inside -= 1

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        self.noted("process", lambda: super(Careful, self)._process_trajectory(trajectory))

    def _is_ready_update(self) -> bool:
        return bool(self.noted("ready", super()._is_ready_update))

    def _update_policy(self) -> bool:
        def update() -> bool:
            # Time for the collector to do what it must not.
            time.sleep(0.01)
            return super(Careful, self)._update_policy()

        return bool(self.noted("update", update))


def test_all_hooks_run_in_one_thread(tmp_path: Path) -> None:
    control, manager, _ = prepared(tmp_path, {"Gate": THREADED}, Careful)
    control.start_learning(manager)
    main = threading.current_thread().name
    gate = control.trainers["Gate"]
    assert gate.seen == {("process", main), ("ready", main), ("update", main)}
    assert gate.progress.updates >= 3


def test_agents_act_on_while_hooks_learn(tmp_path: Path) -> None:
    seen = []

    class Waiting(Reinforce):
        def _update_policy(self) -> bool:
            world = world_of(self.trainer)
            before, deadline = world.num_steps, time.monotonic() + 5.0
            while world.num_steps == before and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append(world.num_steps > before)
            return super()._update_policy()

    control, manager, _ = prepared(tmp_path, {"Gate": THREADED}, Waiting)
    [env] = manager.copies
    step = env.step

    def slow() -> None:
        # Else the next block may be full before the update begins.
        time.sleep(0.01)
        step()

    env.step = slow  # type: ignore[method-assign]
    control.start_learning(manager)
    assert len(seen) >= 3
    assert all(seen)


def test_experience_is_exactly_one_version_behind_and_that_is_reported(tmp_path: Path) -> None:
    lags: list[int] = []

    class Watched(Reinforce):
        newest = 0

        def _process_trajectory(self, trajectory: Trajectory) -> None:
            super()._process_trajectory(trajectory)
            self.newest = max(self.newest, int(trajectory.fields[f.POLICY_VERSION].max()))

        def _update_policy(self) -> bool:
            lags.append(self.progress.version - self.newest)
            return super()._update_policy()

    control, manager, joint = prepared(tmp_path, {"Gate": THREADED}, Watched, max_steps=1500)
    rows = kept_rows(joint)
    control.start_learning(manager)
    assert len(lags) > 8
    assert lags == [0] + [1] * (len(lags) - 1)
    reported = [row["rollout/staleness"] for row in rows if "rollout/staleness" in row]
    assert reported == lags


def test_what_made_one_batch_larger_makes_the_next_one_no_larger_still(tmp_path: Path) -> None:
    """Twelve agents, trajectories of about ten steps: ready at 96 there are few more, and 192 is all that fits."""
    sizes: list[int] = []

    class Measured(Reinforce):
        def _update_policy(self) -> bool:
            sizes.append(self.update_buffer.num_experiences)
            return super()._update_policy()

    trained(tmp_path, gate=Measured, max_steps=4000)
    assert len(sizes) > 20
    assert min(sizes) >= 96
    assert np.mean(sizes[-8:]) < 130


def test_weights_that_act_are_those_of_a_whole_version(tmp_path: Path) -> None:
    """Every log-probability is that of one of the versions that were published, whole."""
    versions: dict[int, dict[str, Any]] = {}
    checked: set[int] = set()

    class Judged(Reinforce):
        def _process_trajectory(self, trajectory: Trajectory) -> None:
            super()._process_trajectory(trajectory)
            steps = {name: np.asarray(rows) for name, rows in trajectory.fields.items()}
            for version in set(steps[f.POLICY_VERSION].tolist()):
                fresh = ActorCritic(self.policy.settings, self.policy.spec)  # type: ignore[arg-type, attr-defined]
                fresh.load_state_dict(versions[version])
                rows = {name: torch_of(each[steps[f.POLICY_VERSION] == version]) for name, each in steps.items()}
                now = fresh.evaluate_actions(rows)[f.LOG_PROB].detach()
                np.testing.assert_allclose(now.numpy(), rows[f.LOG_PROB].numpy(), atol=1e-5)
                checked.add(version)

        def _update_policy(self) -> bool:
            weights = {name: value.clone() for name, value in self.policy.state_dict().items()}
            versions.setdefault(self.progress.version, weights)
            done = super()._update_policy()
            versions[self.progress.version + 1] = {
                name: value.clone() for name, value in self.policy.state_dict().items()
            }
            return done

    control, manager, _joint = prepared(tmp_path, {"Gate": THREADED}, Judged, max_steps=900)
    policy = control.trainers["Gate"].policy
    versions[0] = {name: value.clone() for name, value in policy.state_dict().items()}
    control.start_learning(manager)
    assert len(checked) > 5


def torch_of(rows: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(rows))


@pytest.mark.parametrize("config", [{"Gate": THREADED}, SOME, pytest.param(ALL, marks=SLOW)])
def test_runs_repeat_themselves_whoever_is_quicker(config: Any, tmp_path: Path) -> None:
    class Slow(Reinforce):
        def _update_policy(self) -> bool:
            time.sleep(0.03)
            return super()._update_policy()

    expected = trained(tmp_path / "a", config, max_steps=250)
    assert digest_of(trained(tmp_path / "b", config, max_steps=250)) == digest_of(expected)
    assert digest_of(trained(tmp_path / "c", config, Slow, max_steps=250)) == digest_of(expected)
    in_turns = trained(tmp_path / "d", dict.fromkeys(config, SETTINGS), max_steps=250)
    assert digest_of(expected) != digest_of(in_turns)
    weights = [each["training"]["learners"]["Gate"]["policy"] for each in (expected, in_turns)]
    assert list(differences(*weights)) != []


def test_rows_do_not_depend_on_speed(tmp_path: Path) -> None:
    class Reporting(Reinforce):
        seconds = 0.0

        def _update_policy(self) -> bool:
            self.stats_reporter.add_stat("Policy/Size", self.update_buffer.num_experiences)
            self.stats.set_stat("train/version", self.progress.version)
            time.sleep(self.seconds)
            return super()._update_policy()

    class Slow(Reporting):
        seconds = 0.03

    def rows(folder: str, gate: type[RLTrainer]) -> list[dict[str, float]]:
        control, manager, joint = prepared(tmp_path / folder, SOME, gate)
        kept = kept_rows(joint)
        control.start_learning(manager)
        return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in kept]

    quick = rows("quick", Reporting)
    assert quick == rows("slow", Slow)
    assert [row["Gate/train/version"] for row in quick if "Gate/train/version" in row][:3] == [0, 1, 2]
    assert all(row["Gate/Policy/Size"] >= 96 for row in quick if "Gate/Policy/Size" in row)


@pytest.mark.parametrize(
    ("config", "stops"),
    [({"Gate": THREADED}, [1]), (SOME, [3, 2]), pytest.param(ALL, [2, 1, 1], marks=SLOW)],
)
def test_stopped_anywhere_it_ends_with_the_same_numbers(config: Any, stops: list[int], tmp_path: Path) -> None:
    expected = trained(tmp_path / "whole", config)
    found = trained(tmp_path / "cut", config, stops=stops, is_cut_ahead=len(stops) > 1)
    assert list(differences(expected["training"], found["training"])) == []


class Early(Reinforce):
    """Says that it needs few steps, and is ready at many."""

    def _steps_per_update(self) -> int:
        return 20


def test_a_number_of_steps_that_is_too_small_only_ends_the_overlap_sooner(tmp_path: Path) -> None:
    control, _, joint = prepared(tmp_path / "whole", {"Gate": THREADED}, Early)
    rows = kept_rows(joint)
    whole = finished(control, joint)
    # The first block of an update was acted ahead, and those that had to follow it were not.
    staleness = [row["rollout/staleness"] for row in rows]
    assert staleness[0] == 0
    assert all(0 < each < 1 for each in staleness[1:])
    found = trained(tmp_path / "cut", gate=Early, stops=[7, 3, 8], is_cut_ahead=True)
    assert list(differences(whole["training"], found["training"])) == []


def test_rows_of_a_run_that_was_stopped_are_those_of_one_that_was_not(tmp_path: Path) -> None:
    class Reporting(Reinforce):
        def _update_policy(self) -> bool:
            self.stats_reporter.add_stat("Policy/Size", self.update_buffer.num_experiences)
            self.stats.set_stat("train/version", self.progress.version)
            return super()._update_policy()

    settings = THREADED.model_copy(update={"summary_freq": 1})

    def rows(folder: str, stops: Sequence[int]) -> list[dict[str, float]]:
        trained(tmp_path / folder, {"Gate": settings}, Reporting, stops=stops, is_cut_ahead=bool(stops))
        lines = (tmp_path / folder / "run" / "metrics.jsonl").read_text().splitlines()
        return [
            {key: value for key, value in json.loads(line).items() if not key.startswith("time/")} for line in lines
        ]

    whole = rows("whole", [])
    assert len(whole) >= 3
    assert all("Policy/Size" in row and "train/version" in row for row in whole)
    assert rows("cut", [3, 2]) == whole


def test_a_state_taken_at_any_time_goes_on_the_same(tmp_path: Path) -> None:
    first, other = (prepared(tmp_path / name, SOME, max_steps=10_000)[2] for name in ("a", "b"))
    is_ahead = False
    for _ in range(8):
        first.advance()
        saved = first.state_dict()
        is_ahead |= bool(saved["training"]["source"]["ahead"]["lent"]["Gate"])
        other.load_state_dict(saved)
        assert list(differences(saved["training"], other.state_dict()["training"])) == []
    assert is_ahead, "no block was lent in any of the states"
    first.advance()
    other.global_streams.load_state_dict(saved["training"]["global_streams"])
    other.advance()
    assert list(differences(first.state_dict()["training"], other.state_dict()["training"])) == []
    first.close()
    other.close()


def test_training_for_longer_is_the_longer_run(tmp_path: Path) -> None:
    expected = trained(tmp_path / "long", max_steps=900)
    trained(tmp_path / "short", max_steps=300)
    control, _, joint = prepared(tmp_path / "short", {"Gate": THREADED}, load_model=True, max_steps=900)
    found = finished(control, joint)
    assert list(differences(expected["training"], found["training"])) == []


@pytest.mark.parametrize("fault", [ZeroDivisionError("of all things"), NonFiniteError("no loss", code="E0604")])
@pytest.mark.parametrize("config", [{"Gate": THREADED}, SOME])
def test_an_update_that_fails_ends_the_run_and_its_thread(config: Any, fault: Exception, tmp_path: Path) -> None:
    # One that hangs, as tests of placements let it, ends with its process.
    before = {*threading.enumerate()}

    class Broken(Reinforce):
        def _update_policy(self) -> bool:
            raise fault

    control, manager, _ = prepared(tmp_path, config, Broken, max_steps=100_000)
    with pytest.raises(type(fault), match=str(fault)):
        control.start_learning(manager)
    left = {*threading.enumerate()} - before
    assert [thread.name for thread in left if thread.name == "collector"] == []


def test_checkpoints_change_no_number(tmp_path: Path) -> None:
    often = {name: each.model_copy(update={"checkpoint_interval": 1}) for name, each in SOME.items()}
    assert digest_of(trained(tmp_path / "often", often)) == digest_of(trained(tmp_path / "seldom", SOME))
    assert len(list((tmp_path / "often" / "run" / "checkpoints").iterdir())) > 2


def test_an_update_may_save_the_run(tmp_path: Path) -> None:
    class Saving(Reinforce):
        def _update_policy(self) -> bool:
            self.save_model()
            return super()._update_policy()

    control, manager, _ = prepared(tmp_path, {"Gate": THREADED}, Saving)
    control.start_learning(manager)
    assert control.trainers["Gate"].progress.updates >= 3


@pytest.mark.parametrize("settings", [SETTINGS, THREADED])
def test_queues_get_the_policy_of_every_update(settings: Any, tmp_path: Path) -> None:
    control, manager, _joint = prepared(tmp_path, {"Gate": settings})
    control.start_learning(manager)
    gate = control.trainers["Gate"]
    published = gate.policy_queues[0].get_nowait()
    assert published is gate.policies["Gate"]
    assert published.get_current_step() == gate.progress.env_steps
    assert gate.policy_queues[0].num_dropped == gate.progress.updates - 1


class Always(Reinforce):
    """Is ready whenever there is a batch to draw from, and keeps everything: what learns from replay."""

    def _is_ready_update(self) -> bool:
        return self.update_buffer.num_experiences >= 32

    def _clear_update_buffer(self) -> None:
        self.__dict__.setdefault("learned_at", []).append(self.get_step)


@pytest.mark.parametrize("settings", [SETTINGS, THREADED])
def test_hooks_that_are_always_ready_learn_whenever_something_is_new(settings: Any, tmp_path: Path) -> None:
    control, manager, _joint = prepared(tmp_path, {"Gate": settings}, Always, max_steps=600)
    control.start_learning(manager)
    gate: Any = control.trainers["Gate"]
    assert gate.progress.env_steps >= 600
    assert gate.learned_at == sorted(set(gate.learned_at))
    assert len(gate.learned_at) == gate.progress.updates >= 3


def test_hooks_that_take_nothing_in_any_more_end_the_run(tmp_path: Path) -> None:
    class Once(Reinforce):
        def _is_ready_update(self) -> bool:
            return super()._is_ready_update() and self.progress.updates < 1 and not self.__dict__.get("is_done")

        def _update_policy(self) -> bool:
            self.is_done = True
            return super()._update_policy()

    control, manager, _joint = prepared(tmp_path, {"Gate": THREADED}, Once, max_steps=300)
    control.start_learning(manager)
    assert control.trainers["Gate"].progress.updates == 1


def test_a_run_is_not_taken_up_by_a_trainer_that_learns_otherwise(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(SettingsError) as refused:
        prepared(tmp_path, {"Gate": SETTINGS}, load_model=True)
    assert refused.value.code == "E0207"
    _, _, beside = prepared(tmp_path / "b", {"Gate": THREADED})
    _, _, turns = prepared(tmp_path / "c", {"Gate": SETTINGS})
    with pytest.raises(ValueError, match="longer"):
        turns.load_state_dict(beside.state_dict())
    beside.close()
    turns.close()


@pytest.mark.slow
def test_hooks_learn_one_version_behind(tmp_path: Path) -> None:
    control, manager, joint = prepared(tmp_path, {"Gate": THREADED}, max_steps=6000)
    control.start_learning(manager)
    episodes = joint.learners["Gate"].episodes
    # A guess brings 0.42 a step; both always right 1.
    assert episodes.mean_return / episodes.mean_length > 0.6


def test_names_of_algorithms_are_threaded_by_their_settings(tmp_path: Path) -> None:
    control = controller(tmp_path, {"default": THREADED})
    control.start_learning(SimpleEnvManager(ball_and_gates(seed=1)))
    assert {type(each) for each in control.trainers.values()} == {PPOTrainer}
    assert all(len(each.store.shelves) == 2 for each in control.trainers.values())
