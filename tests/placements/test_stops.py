"""A source that works ahead can be stopped after any step, saved, restored elsewhere, and goes on as if nothing was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from quintain import Trainer
from quintain.services.checkpoints.state_files import decode, encode
from quintain.services.events import After
from quintain.testing import assert_all_state_saved
from tests.envs.fragile import Windy
from tests.placements.gated import Gated, wait_for
from tests.placements.runs import AHEAD, EITHER, LANES, STEPS, make, outcome, walk_of

CYCLES = 6
BUDGET = CYCLES * LANES * STEPS


def through_files(state: dict[str, Any]) -> dict[str, Any]:
    return decode(encode(state, allow_nonfinite=("training", "records")))


def gated(placement: str, max_staleness: int, gate: Path, wait_at: int) -> Trainer:
    return make(placement, max_staleness, env=walk_of(Gated, gate=str(gate), wait_at=wait_at))


def train_to_the_gate(trainer: Trainer, gate: Path, *, stage: str) -> None:
    """Stops the trainer when its collector stands inside a block; opens the gate when that was passed on."""
    source: Any = trainer.source
    interrupt = source.remote.interrupt

    def interrupt_and_open(is_wanted: bool) -> None:
        interrupt(is_wanted)
        if is_wanted:
            gate.touch()

    source.remote.interrupt = interrupt_and_open
    if stage == "collect":
        # The learner asks before it waits for the block, and again after it has waited a little.
        asked = iter([False])

        def ask() -> bool:
            if next(asked, True):
                wait_for(gate.with_suffix(".waiting"))
                trainer.stop_reason = "test"
            return trainer.stop_reason != ""

        trainer.should_stop = ask  # type: ignore[method-assign]
    else:

        def stop(trainer: Trainer) -> None:
            if trainer.progress.iteration == 0:
                wait_for(gate.with_suffix(".waiting"))
                trainer.stop("test")

        trainer.events.add(After(stage), stop)
    trainer.train(BUDGET)
    # As a checkpoint does that is in a hurry.
    trainer.source.pause(lambda: True)
    source.remote.interrupt = interrupt
    vars(trainer).pop("should_stop", None)
    trainer.stop_reason = ""
    assert gate.exists()


CASES = [
    # In turns, the collector stands in the only block, and the learner waits for it.
    pytest.param(0, 7, "collect", id="in turns"),
    # Ahead, the learner waits for the first block, with another ordered behind it.
    pytest.param(1, 7, "collect", id="waiting, with another block ordered"),
    # Ahead, the learner has the first block, and the collector stands in the second.
    pytest.param(1, STEPS + 7, "estimate", id="learning, with the next block half full"),
    pytest.param(1, STEPS + 7, "update", id="learned and not published, with the next block half full"),
    pytest.param(2, STEPS + 7, "update", id="two blocks ahead, one of them not begun"),
]


@pytest.mark.parametrize("placement", EITHER)
@pytest.mark.parametrize(("max_staleness", "wait_at", "stage"), CASES)
def test_a_stop_inside_a_block_changes_nothing(
    tmp_path: Path, placement: str, max_staleness: int, wait_at: int, stage: str
) -> None:
    whole = make("threads", max_staleness, env=walk_of(Gated, gate="/", wait_at=0))
    whole.train(BUDGET)
    gate = tmp_path / "gate"
    stopped = gated(placement, max_staleness, gate, wait_at)
    train_to_the_gate(stopped, gate, stage=stage)
    saved = through_files(stopped.state_dict())
    half = [block for block in saved["training"]["learners"]["default"]["store"]["blocks"].values() if block["is_open"]]
    assert 0 < saved["training"]["source"]["collector"]["cursor"] < STEPS
    assert len(half) == max_staleness + (stage == "collect")

    resumed = gated(placement, max_staleness, gate, wait_at=0)
    resumed.load_state_dict(saved)
    resumed.train(BUDGET)
    assert outcome(resumed) == outcome(whole)
    # The process that was stopped can go on as well.
    stopped.train(BUDGET)
    assert outcome(stopped) == outcome(whole)
    for trainer in (whole, stopped, resumed):
        trainer.close()


def test_plans_that_are_left_out_are_missed(tmp_path: Path) -> None:
    """Guards the test above: a checkpoint needs the lent blocks with their weights."""
    whole = make("threads", 1, env=walk_of(Gated, gate="/", wait_at=0))
    whole.train(BUDGET)
    gate = tmp_path / "gate"
    stopped = gated("threads", 1, gate, STEPS + 7)
    train_to_the_gate(stopped, gate, stage="update")
    saved = copy.deepcopy(through_files(stopped.state_dict()))
    ahead = saved["training"]["source"]["ahead"]
    ahead["lent"] = {"default": []}
    resumed = gated("threads", 1, gate, wait_at=0)
    with pytest.raises(ValueError, match="fills 1 blocks, and 0 are lent"):
        resumed.load_state_dict(saved)
    ahead["commands"] = []
    resumed.load_state_dict(saved)
    resumed.train(BUDGET)
    assert outcome(resumed) != outcome(whole)
    for trainer in (whole, stopped, resumed):
        trainer.close()


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("placement", EITHER)
def test_all_state_is_saved(placement: str, max_staleness: int) -> None:
    one, other = make(placement, max_staleness), make(placement, max_staleness)
    for _ in range(3):
        one.advance()
    other.load_state_dict(through_files(one.state_dict()))
    assert outcome(one) == outcome(other)
    for trainer in (one, other):
        trainer.train(BUDGET)
    assert outcome(one) == outcome(other)
    for trainer in (one, other):
        trainer.close()


def test_a_pause_for_a_checkpoint_changes_nothing() -> None:
    quiet, saving = make("threads", 1), make("threads", 1)
    for _ in range(CYCLES):
        quiet.advance()
        saving.advance()
        state = saving.state_dict()
        # A checkpoint that is not hurried finds every ordered block full.
        assert not any(
            block["is_open"] for block in state["training"]["learners"]["default"]["store"]["blocks"].values()
        )
    assert outcome(saving) == outcome(quiet)
    for trainer in (quiet, saving):
        trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_run_can_be_taken_up_in_another_placement(max_staleness: int) -> None:
    placements = AHEAD if max_staleness else ("local", *AHEAD)
    whole = make("threads", max_staleness)
    for _ in range(CYCLES):
        whole.advance()
    state = None
    for cycle in range(CYCLES):
        trainer = make(placements[cycle % len(placements)], max_staleness)
        if state is not None:
            trainer.load_state_dict(state)
        trainer.advance()
        state = through_files(trainer.state_dict())
        found = outcome(trainer)
        trainer.close()
    assert found == outcome(whole)
    whole.close()


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("placement", EITHER)
def test_parameters_reach_the_lanes_at_the_same_step_every_time(placement: str, max_staleness: int) -> None:
    """What is asked of the environment happens after the blocks that were ordered before, and before all others."""

    def winds(placement: str) -> list[list[float]]:
        trainer = make(placement, max_staleness, env=Windy, normalize_obs=False)
        seen: list[list[float]] = []

        def look(trainer: Trainer) -> None:
            # The third number of what is seen is the wind, which each observation after a change shows.
            seen.append(trainer.taken.rollout["obs"][0, 1:, 2].unique().tolist())

        trainer.events.add(After("collect"), look)
        trainer.events.add(After("publish"), lambda t: t.source.set_env_parameters({"wind": 0.01 * t.progress.version}))
        trainer.train(BUDGET)
        trainer.close()
        return seen

    found = winds(placement)
    # Set after update k, and so by then already ordered with the wind before: the blocks that are ahead.
    expected = [[0.0]] * (1 + max_staleness) + [[0.01 * k] for k in range(1, CYCLES - max_staleness)]
    assert [pytest.approx(wind) for wind in expected] == found
    if max_staleness == 0:
        assert found == winds("local")


@pytest.mark.parametrize("placement", EITHER)
def test_episodes_can_be_cut_from_outside(placement: str) -> None:
    def cut(placement: str) -> Any:
        trainer = make(placement)
        trainer.events.add(After("publish"), lambda t: t.source.end_episode())
        trainer.train(BUDGET)
        found = outcome(trainer)
        trainer.close()
        return found

    assert cut(placement) == cut("local")


def test_a_listener_sees_every_step_in_a_thread() -> None:
    trainer = make("threads", 1)
    steps: list[Any] = []
    trainer.source.listen(lambda step, info: steps.append(step["reward"].clone()))
    trainer.train(BUDGET)
    trainer.source.pause(lambda: False)
    # One block is filled ahead and not learned from.
    assert len(steps) == (CYCLES + 1) * STEPS
    trainer.close()


@pytest.mark.parametrize("placement", ["local", "threads"])
def test_a_listener_of_one_rollout_hears_it_and_no_other(placement: str) -> None:
    trainer = make(placement)
    always: list[Any] = []
    once: list[Any] = []
    trainer.source.listen(lambda step, info: always.append(step["reward"].clone()))
    assert trainer._collect_rollout(lambda step, info: once.append(step["reward"].clone()))
    trainer.store.take()
    trainer.store.release()
    assert trainer._collect_rollout()
    assert (len(once), len(always)) == (STEPS, 2 * STEPS)
    assert all(one.equal(other) for one, other in zip(once, always, strict=False))
    trainer.close()


def test_the_shipped_check_of_saved_state_holds_in_turns() -> None:
    one, other = make("threads"), make("threads")
    assert_all_state_saved(one, other)
    for trainer in (one, other):
        trainer.close()
