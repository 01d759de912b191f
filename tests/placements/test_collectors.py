"""Several collectors: for one number of them, where they act and when they are stopped changes no number."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quintain
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec
from quintain.envs.hosts.faults import FaultNews
from quintain.errors import NonFiniteError, SettingsError
from quintain.placements.fleet import Fleet, joined_news
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.services.checkpoints.state_files import digest_of
from quintain.services.events import After
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer
from tests.envs.fragile import Fragile, Walk, Windy
from tests.placements import test_agents as agents
from tests.placements.broken import Wrong
from tests.placements.collector_cells import AXES, Cell, pairwise
from tests.placements.gated import Gated, wait_for
from tests.placements.runs import STEPS, make, outcome, walk_of
from tests.placements.test_parity import REPLAY
from tests.placements.test_stops import through_files

LANES = 4
BUDGET = 5 * LANES * STEPS
PROCESSES = {"type": "processes", "num_processes": 2}


def grouped(placement: Any, num_collectors: int, max_staleness: int = 0, **settings: Any) -> Trainer:
    return make(placement, max_staleness, num_lanes=LANES, num_collectors=num_collectors, **settings)


def whole(num_collectors: int, max_staleness: int = 0, **settings: Any) -> Any:
    trainer = grouped("local", num_collectors, max_staleness, **settings)
    trainer.train(BUDGET)
    found = outcome(trainer)
    trainer.close()
    return found


def done_by(state: dict[str, Any]) -> list[int]:
    """Returns how many commands each collector has done that others have not."""
    return [len(each["done"]) for each in state["training"]["source"]["collector"]["fleet"]["members"].values()]


def cursors(state: dict[str, Any]) -> list[int]:
    return [each["cursor"] for each in state["training"]["source"]["collector"]["collectors"].values()]


def stop_when(trainer: Trainer, is_time: Any) -> dict[str, Any]:
    """Trains until `is_time`, stops as a signal does, and returns what a checkpoint in a hurry has."""

    def ask() -> bool:
        trainer.stop_reason = trainer.stop_reason or ("test" if is_time() else "")
        return trainer.stop_reason != ""

    trainer.should_stop = ask  # type: ignore[method-assign]
    trainer.train(BUDGET)
    trainer.source.pause(lambda: True)
    vars(trainer).pop("should_stop")
    trainer.stop_reason = ""
    return through_files(trainer.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("cell", pairwise(), ids=str)
def test_a_cell_has_the_digest_of_the_undisturbed_run_elsewhere(cell: Cell, tmp_path: Path) -> None:
    assert cell.play(tmp_path) == cell.reference.play(tmp_path)


def test_the_selection_has_every_value_of_every_axis() -> None:
    for axis, values in AXES.items():
        assert {getattr(cell, axis) for cell in pairwise()} == set(values)
    assert sum(cell.is_killed for cell in pairwise()) >= 3


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_stop_that_some_had_finished_before_changes_nothing(max_staleness: int) -> None:
    """Stopped in the third of four collectors, and taken up in threads, which may be stopped in any."""
    asked = iter(range(2 * STEPS + STEPS // 2))
    first = grouped("local", 4, max_staleness)
    saved = stop_when(first, lambda: next(asked, None) is None)
    assert done_by(saved) == [1, 1, 0, 0]
    assert [cursor > 0 for cursor in cursors(saved)] == [False, False, True, False]
    resumed = grouped("threads", 4, max_staleness)
    resumed.load_state_dict(saved)
    assert digest_of(resumed.state_dict()) == digest_of(first.state_dict())
    resumed.train(BUDGET)
    assert outcome(resumed) == whole(4, max_staleness)
    # The process that was stopped can go on as well.
    first.train(BUDGET)
    assert outcome(first) == outcome(resumed)
    for trainer in (first, resumed):
        trainer.close()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_replay_goes_on_from_a_stop_that_some_had_finished_before(max_staleness: int) -> None:
    """SAC, stopped in the third of four collectors when it has learned, and taken up in threads."""

    def make_sac(placement: str) -> Trainer:
        more = {"num_lanes": LANES, "num_collectors": 4, "placement": placement, "max_staleness": max_staleness}
        return quintain.Trainer("sac", "Pendulum-v1", **{**REPLAY, **more})

    first, reference = make_sac("local"), make_sac("local")
    reference.train(BUDGET)
    third = first.source.remote.members[2].remote.collector.actor.collector.lanes
    saved = stop_when(first, lambda: first.progress.updates > 0 and third.cursor == 2)
    assert done_by(saved) == [1, 1, 0, 0]
    resumed = make_sac("threads")
    resumed.load_state_dict(saved)
    resumed.train(BUDGET)
    assert resumed.progress.updates > 0
    assert outcome(resumed) == outcome(reference)
    for trainer in (first, reference, resumed):
        trainer.close()


class OneGated(Gated):
    """Of all copies the first that gets there waits, and no other."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.num_steps + 1 == self.wait_at:
            try:
                os.close(os.open(self.gate.with_suffix(".taken"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.num_steps += 1
        return super().step(action)


def test_one_collector_may_be_two_blocks_behind_the_others(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    trainer = grouped("threads", 2, 1, env=walk_of(OneGated, gate=str(gate), wait_at=STEPS // 2))
    fleet: Any = trainer.source.remote
    assert isinstance(fleet, Fleet)
    interrupt = fleet.interrupt

    def interrupt_and_open(is_wanted: bool) -> None:
        interrupt(is_wanted)
        gate.touch()

    fleet.interrupt = interrupt_and_open  # type: ignore[method-assign]

    def is_one_ahead() -> bool:
        threads = [member.remote.collector for member in fleet.members]
        answered = [
            thread._outbox.qsize() + sum(each is not None for each in member.answers)
            for thread, member in zip(threads, fleet.members, strict=True)
        ]
        if sorted(answered) != [0, 2]:
            return False
        wait_for(gate.with_suffix(".waiting"))
        return True

    saved = stop_when(trainer, is_one_ahead)
    trainer.close()
    assert sorted(done_by(saved)) == [0, 2]
    resumed = grouped("local", 2, 1, env=walk_of(Gated, gate="/", wait_at=0))
    resumed.load_state_dict(saved)
    resumed.train(BUDGET)
    assert outcome(resumed) == whole(2, 1, env=walk_of(Gated, gate="/", wait_at=0))
    resumed.close()


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_stops_at_any_time_and_moves_change_nothing(max_staleness: int) -> None:
    env = walk_of(Walk, step_seconds=0.0002)
    expected, chance = whole(4, max_staleness, env=env), random.Random(max_staleness)
    saved, num_mixed = None, 0
    for placement in ("local", "threads", PROCESSES, "local", "processes", "threads", PROCESSES):
        trainer = grouped(placement, 4, max_staleness, env=env)
        if saved is not None:
            trainer.load_state_dict(saved)
        left = iter(range(chance.randrange(10, 50) if placement == "local" else chance.randrange(1, 4)))
        saved = stop_when(trainer, lambda left=left: next(left, None) is None)
        num_mixed += len(set(done_by(saved))) > 1
        trainer.close()
    assert num_mixed
    trainer = grouped("processes", 4, max_staleness, env=env)
    trainer.load_state_dict(saved)
    trainer.train(BUDGET)
    assert outcome(trainer) == expected
    trainer.close()


def agents_of(placement: str, num_collectors: int, max_staleness: int, task: str) -> Trainer:
    chosen = agents.settings(task, placement, max_staleness)
    chosen["experiment"]["env"] |= {"num_lanes": LANES, "num_collectors": num_collectors}
    run_file = RunFile.from_mapping(chosen)
    around = Run(run_file, [])
    return assemble(run_file, around, around.writer)


@pytest.mark.parametrize("task", ["poca", "two behaviours"])
def test_agents_that_are_stopped_half_way_go_on_elsewhere(task: str) -> None:
    """Parts of blocks that were full, half full and not begun come back, and so do groups of agents."""
    reference = agents_of("local", 2, 1, task)
    reference.train()
    stops, saved, has_parts = random.Random(task), None, False
    for placement in ("local", "threads", "local", "processes"):
        trainer = agents_of(placement, 2, 1, task)
        if saved is not None:
            trainer.load_state_dict(saved)
        # In turns every such stop is inside a block; in threads and processes it depends on the machine.
        looks = iter(range(stops.randrange(5, 13)))
        trainer.should_stop = lambda looks=looks: next(looks, None) is None  # type: ignore[method-assign,misc]
        trainer.advance()
        trainer.source.pause(lambda: True)
        saved = through_files(trainer.state_dict())
        members = saved["training"]["source"]["collector"]["fleet"]["members"].values()
        has_parts |= any(blocks for member in members for blocks in member["parts"].values())
        trainer.close()
    assert has_parts
    resumed = agents_of("threads", 2, 1, task)
    resumed.load_state_dict(saved)
    resumed.train()
    assert agents.outcome(resumed) == agents.outcome(reference)
    for trainer in (reference, resumed):
        trainer.close()


def test_a_batch_of_agents_has_as_many_steps_for_any_number_of_collectors() -> None:
    for num_collectors in (1, 2, 4):
        trainer = agents_of("local", num_collectors, 0, "ppo")
        trainer.advance()
        # At least 128; all 16 agents reach the horizon of 16 steps at once.
        assert trainer.taken.num_valid == 256
        trainer.close()


@pytest.mark.parametrize("placement", ["local", "threads"])
def test_parameters_of_each_lane_and_cuts_reach_their_collector(placement: str) -> None:
    winds = np.array([0.1, 0.2, 0.3, 0.4])
    trainer = grouped(placement, 2, env=Windy, normalize_obs=False)
    trainer.source.set_env_parameters({"wind": winds})
    trainer.source.end_episode()
    trainer.advance()
    assert trainer.taken.rollout["obs"][:, 1, 2].tolist() == pytest.approx(winds.tolist())
    assert trainer.taken.rollout["first"][:, 0].all()
    trainer.source.trigger("not waited for", [0, 3])
    trainer.close()


def test_environment_events_fire_in_the_lanes_they_are_meant_for() -> None:
    pushed = {"push": {"func": push, "mode": "push"}}
    trainer = make("local", 0, num_lanes=LANES, num_collectors=2, env=Windy, normalize_obs=False, event_cfg=pushed)
    trainer.events.add(After("publish"), lambda t: t.trigger("push", [1, 2]))
    trainer.advance()
    trainer.advance()
    assert (trainer.taken.rollout["obs"][:, 2, 2] > 0.5).tolist() == [False, True, True, False]
    trainer.close()


def push(env: Any, env_ids: Any) -> None:
    """Sets the wind of some lanes."""
    env.set_parameters({"wind": 0.9}, env_ids)


@pytest.mark.slow
def test_environments_break_on_the_same_steps_everywhere() -> None:
    more = {"env_workers.max_restarts": 1000, "env_workers.max_failures_in_a_row": 1000}
    env = walk_of(Fragile, how="raise", chance=0.02)
    found = []
    for placement in ("local", "threads", "processes"):
        trainer = grouped(placement, 2, 1, env=env, **more)
        trainer.train(BUDGET)
        found.append((outcome(trainer), trainer.faults.restarts))
        trainer.close()
    assert found[0][1] > 0
    assert found[0] == found[1] == found[2]


def test_a_number_that_is_not_finite_is_named_by_its_lane() -> None:
    trainer = grouped("threads", 2, env=walk_of(Wrong, how="nan", at=3))
    with pytest.raises(NonFiniteError, match=r"not finite in lane [02], step 3 of the rollout"):
        trainer.train(BUDGET)
    trainer.close()


def test_a_listener_hears_the_steps_of_each_group() -> None:
    trainer = grouped("local", 2)
    seen: list[torch.Tensor] = []
    trainer.source.listen(lambda step, info: seen.append(step["reward"].clone()))
    trainer.advance()
    assert [len(step) for step in seen] == [2] * (2 * STEPS)
    first, second = torch.stack(seen, dim=1).split(STEPS, dim=1)
    assert torch.equal(torch.cat((first, second)), trainer.taken.rollout["reward"][:, :-1])
    trainer.close()


def test_parts_of_a_block_keep_final_rows_apart_and_are_saved_as_one() -> None:
    spec = BehaviorSpec(obs=BoxSpec((1,), "float32", -np.inf, np.inf), action=DiscreteSpec(2))
    block = Rollout(spec, num_lanes=4, num_steps=3, num_parts=2)
    for part in block.parts:
        part.begin(1, 0)
    # The second part ends two episodes before the first ends one.
    for number, t, lane, seen in ((1, 0, 0, 20.0), (1, 2, 1, 31.0), (0, 1, 1, 11.0)):
        part = block.parts[number]
        part.write("done", t, np.arange(2) == lane)
        part.add_final_obs(t, np.array([lane]), {"obs": np.array([[seen]])}, torch.zeros((2, 0)))
    saved = block.state_dict()
    # By step, then by lane: whichever part was quicker.
    assert saved["final"]["obs"].tolist() == [[20.0], [11.0], [31.0]]
    assert saved["fields"]["final_index"][:3].tolist() == [[-1, -1, 0, -1], [-1, 1, -1, -1], [-1, -1, -1, 2]]
    other = Rollout(spec, num_lanes=4, num_steps=3, num_parts=2)
    other.load_state_dict(saved)
    assert [part.final.count for part in other.parts] == [1, 2]
    other.parts[0].add_final_obs(2, np.array([0]), {"obs": np.array([[2.0]])}, torch.zeros((2, 0)))
    other.parts[0].write("done", 2, np.array([True, False]))
    assert other.state_dict()["final"]["obs"].tolist() == [[20.0], [11.0], [2.0], [31.0]]


def test_faults_of_all_collectors_are_told_in_their_order() -> None:
    first, second = FaultNews(restarts=1), FaultNews(restarts=2, aborted=1)
    assert joined_news([first, second]) == FaultNews(restarts=3, aborted=1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"num_collectors": 3}, "3 collectors cannot share experiment.env.num_lanes = 4 equally"),
        ({"num_collectors": 2, "placement": {"type": "processes", "num_processes": 3}}, "3 is more than experiment"),
        ({"num_collectors": 2, "env_workers.num_workers": 1}, "1 is less than experiment.env.num_collectors, 2"),
        ({"num_collectors": 2, "env": Walk()}, "an environment that exists already cannot be made once for each"),
    ],
)
def test_what_collectors_cannot_share_is_refused_with_a_sentence(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        make(**{"placement": "local", "num_lanes": LANES, **settings})


def test_a_state_of_another_number_of_collectors_is_refused() -> None:
    two, four = grouped("local", 2), grouped("local", 4)
    with pytest.raises(ValueError, match="it is of 2 collectors, and there are 4"):
        four.load_state_dict(two.state_dict())
    for trainer in (two, four):
        trainer.close()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4), (4, 2)])
def test_lanes_are_dealt_anew_to_another_number_of_collectors(before: int, after: int) -> None:
    old, new = grouped("threads", before, 1), grouped("threads", after, 1)
    old.train(BUDGET)
    state = old.state_dict()["training"]
    collector = state["source"]["collector"]
    parts = list(collector["collectors"].values()) if before > 1 else [collector]
    new.begin_anew([state])
    begun = new.state_dict()["training"]["source"]["collector"]
    # Every lane begins an episode, and a step of its own, that none of the old ones had.
    for each in begun["collectors"].values() if after > 1 else [begun]:
        assert each["env"]["episode"].min() > max(part["env"]["episode"].max() for part in parts)
        assert each["lane_step"] == max(part["lane_step"] + part["cursor"] for part in parts)
    new.train(2 * LANES * STEPS)
    old.close()
    new.close()
