"""Every single item of the training state matters: a resume without it ends differently, or is refused.

The runs are stopped at different points of a cycle, because what must be saved depends on where one stops.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from quintain.errors import QuintainError
from quintain.services.checkpoints import state_files
from quintain.services.events import CYCLE_END, After, On, ScheduledEvent
from quintain.services.processes import restart_budget
from quintain.trainers import Trainer
from quintain.trainers.learner import Learner
from tests.resume.moody import CYCLES, LANES, SETTINGS, STEPS, TOTAL, Moody, Rows, begin, build


@dataclass(frozen=True)
class Setup:
    """Says what is trained and where it is stopped."""

    name: str
    stop: Callable[[Trainer], None]
    kind: str = "choices"
    stops_again: bool = False


@dataclass(frozen=True)
class Outcome:
    """What must be the same for every way to arrive."""

    digest: str
    inside: str
    """The digest in the last cycle, when the rollout that was learned from is still there."""
    rows: list[tuple[int, dict[str, float]]]
    exactness: str


def stop_collecting(trainer: Trainer) -> None:
    # Three of eight steps into the last rollout: 35 steps of three lanes leave half a pair in each Gaussian generator.
    steps_left = ((CYCLES - 1) * STEPS + 3) * LANES

    def count() -> None:
        nonlocal steps_left
        steps_left -= 1
        if steps_left == 0:
            trainer.stop("test")

    Moody.on_step = staticmethod(count)


def stop_after(stage: str) -> Callable[[Trainer], None]:
    def arrange(trainer: Trainer) -> None:
        trainer.events.add(After(stage), lambda t: t.stop("test") if t.progress.iteration == CYCLES - 1 else None)

    return arrange


def stop_closing(trainer: Trainer) -> None:
    """Interrupts the event between the two that nudge, as a signal interrupts an evaluation."""
    trainer.events.entries[1] = ScheduledEvent(
        "interrupted", On(CYCLE_END), lambda t: _interrupt(t) if t.progress.iteration == CYCLES - 1 else None
    )


def stop_closed(trainer: Trainer) -> None:
    trainer.events.add(On(CYCLE_END), lambda t: t.stop("test") if t.progress.iteration == CYCLES - 1 else None)


def stop_released(trainer: Trainer) -> None:
    stop_closed(trainer)
    trainer.events.add(On(CYCLE_END), lambda t: t.store.release() if t.stop_reason else None)


def _interrupt(trainer: Trainer) -> bool:
    trainer.stop("test")
    return False


SETUPS = (
    Setup("collecting", stop_collecting),
    Setup("collecting with Box actions", stop_collecting, "numbers"),
    Setup("collected", stop_after("collect")),
    Setup("estimated", stop_after("estimate")),
    Setup("updated", stop_after("update")),
    Setup("closing", stop_closing),
    Setup("closed", stop_closed),
    Setup("closed, with the block free again", stop_released),
    Setup("collecting, stopped again at once", stop_collecting, stops_again=True),
    Setup("collecting in what breaks", stop_collecting, "fragile"),
    Setup("closed in what breaks", stop_closed, "fragile"),
    Setup("collecting with memory and masks", stop_collecting, "memory"),
    Setup("collected with memory and masks", stop_after("collect"), "memory"),
    Setup("closed with memory and masks", stop_closed, "memory"),
    Setup("collecting with replay", stop_collecting, "replay"),
    Setup("collected with replay", stop_after("collect"), "replay"),
    Setup("estimated with replay", stop_after("estimate"), "replay"),
    Setup("updated with replay", stop_after("update"), "replay"),
    Setup("closed with replay", stop_closed, "replay"),
    Setup("collecting with groups", stop_collecting, "groups"),
    Setup("estimated with groups", stop_after("estimate"), "groups"),
    Setup("closed with groups", stop_closed, "groups"),
    Setup("closed with groups, with the block free again", stop_released, "groups"),
    Setup("collecting with events", stop_collecting, "events"),
    Setup("closed with events", stop_closed, "events"),
)


def finish(trainer: Trainer, rows: Rows, before: Rows | None = None) -> Outcome:
    before = before or Rows()
    digest = state_files.digest_of(trainer.state_dict())
    exactness = trainer.source.exactness
    trainer.close()
    return Outcome(digest, before.inside or rows.inside, [*before.rows, *rows.rows], exactness)


@pytest.fixture(scope="module", autouse=True)
def nobody_waits() -> Iterator[None]:
    """Lets environments that broke again and again be made anew at once: how long that takes changes no number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restart_budget, "_BACK_OFF_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Outcome]:
    outcomes = {}
    for kind in SETTINGS:
        trainer, rows = begin(kind)
        trainer.train(TOTAL)
        outcomes[kind] = finish(trainer, rows)
    return outcomes


@pytest.fixture(scope="module")
def stopped() -> dict[str, tuple[dict[str, Any], Rows]]:
    """Stops each setup once; the state goes through the files that a checkpoint would have."""
    found = {}
    for setup in SETUPS:
        trainer, rows = begin(setup.kind)
        setup.stop(trainer)
        trainer.train(TOTAL)
        assert trainer.progress.env_steps < TOTAL, setup.name
        found[setup.name] = (through_files(trainer.state_dict()), rows)
        trainer.close()
    return found


def through_files(state: Mapping[str, object]) -> dict[str, Any]:
    encoded = state_files.encode(state)
    bulk = {name: array.copy() for name, array in encoded.bulk.items()}
    return state_files.decode(state_files.parse(encoded.tensor_bytes(), encoded.document_bytes(), bulk))


def resume(
    setup: Setup,
    stopped: dict[str, tuple[dict[str, Any], Rows]],
    *,
    leave_out: str = "",
    before_restore: Callable[[], object] = lambda: None,
) -> Outcome:
    state, before = stopped[setup.name]
    trainer, rows = build(setup.kind)
    if leave_out:
        state = without(leave_out, state, trainer)
    before_restore()
    trainer.load_state_dict(state)
    if setup.stops_again:
        state = through_files(trainer.state_dict())
        trainer.close()
        trainer, rows = build(setup.kind)
        trainer.load_state_dict(state)
    trainer.train()
    return finish(trainer, rows, before)


def without(item: str, state: dict[str, Any], fresh: Trainer) -> dict[str, Any]:
    """Returns the state with one item as an untrained trainer has it."""
    fresh_state = through_files(fresh.state_dict())
    block = through_files({"training": fresh.store.block.state_dict()})["training"]  # type: ignore[attr-defined]
    fresh_state["training"]["learners"]["default"]["store"]["blocks"]["0"]["block"] = block
    changed = copy.deepcopy(state)
    *parents, name = split(item)
    there, here = fresh_state["training"], changed["training"]
    if parents[0] in Learner.training_parts:
        parents = [*split(LEARNER)[:-1], *parents]
    for parent in parents:
        there, here = there[parent], here[parent]
    here[name] = there[name]
    return changed


LEARNER = "learners/default/"


def split(item: str) -> list[str]:
    return item.split("/")


def leaves(tree: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}" if path else key)
    else:
        # There is one learner here, whose parts are called by their own names.
        yield path.removeprefix(LEARNER)


def has(item: str, state: dict[str, Any]) -> bool:
    return item in set(leaves(state["training"]))


def layers(nets: str, places: tuple[int, ...]) -> list[str]:
    return [f"{net}.{place}.{kind}" for net in nets.split() for place in places for kind in ("weight", "bias")]


LSTM = [f"trunk.memory.{part}_{kind}" for part in ("input", "state") for kind in ("weight", "bias")]
WEIGHTS = {
    "choices": layers("actor critic", (0, 2, 4)),
    "fragile": layers("actor critic", (0, 2, 4)),
    "numbers": ["head.heads.0.log_std", *layers("actor critic", (0, 2, 4))],
    "memory": ["head.heads.1.log_std", *layers("actor critic", (0, 2)), *LSTM],
    "groups": layers("actor", (0, 2)),
    "replay": layers("actor", (0, 2)),
    "events": layers("actor critic", (0, 2, 4)),
}
EVERY_WEIGHT = sorted({name for names in WEIGHTS.values() for name in names})
SCALES = [f"trunk.encoder.normalizer.{name}" for name in ("count", "mean", "sum_of_squares", "shift", "scale")]
CRITICS = ["weights.0", "weights.1", "biases.0", "biases.1"]
COEFS = ["log_coefs.numbers", "log_coefs.choices"]
REPLAYED = [*(f"critics.{name}" for name in CRITICS), *(f"temperature.{name}" for name in COEFS)]
CRITIC_SCALES = [name.removeprefix("trunk.") for name in SCALES]
DTYPES = ("float32", "int64", "bool")
BLOCK = "store/blocks/0"
COUNTERS = "budget_env_steps iteration stage is_closing env_steps previous_env_steps episodes updates version"
OBS = ("obs", "obs.place", "obs.age")
ACTIONS = ("action", "action.go", "action.push")
LANE_STATE = "first episode_return episode_length lane_step cursor mask policy_state playing"
FIELDS = (
    "action_mask sample_log_prob value reward terminated truncated done first valid final_index final_value noise "
    "policy_version advantage return"
)
ITEMS = (
    *(f"progress/{name}" for name in COUNTERS.split()),
    *(f"policy/{name}" for name in (*EVERY_WEIGHT, *SCALES)),
    "algorithm/optimizer/step",
    *(f"algorithm/optimizer/{moment}/{name}" for moment in ("exp_avg", "exp_avg_sq")
      for name in (*EVERY_WEIGHT, *REPLAYED)),
    *(f"policy/{name}" for name in (*CRITIC_SCALES, "acts_at_random")),
    *(f"algorithm/critics/{name}" for name in (*CRITICS, *CRITIC_SCALES)),
    *(f"algorithm/targets/{name}" for name in CRITICS),
    *(f"algorithm/temperature/{name}" for name in COEFS),
    "algorithm/adapted_learning_rate",
    *(f"algorithm/reference/{name}" for name in (*WEIGHTS["groups"], *SCALES)),
    "algorithm/learning_rate_scale",
    *(f"source/collector/{env}/{name}" for env in ("env", "env/env")
      for name in ("episode", "incarnation", "action_log/length", "action_log/start")),
    "source/collector/env/down",
    *(f"source/collector/env/obs/{name}" for name in OBS),
    *(f"source/collector/env/action_log/rows/{name}" for name in ACTIONS),
    *(f"source/collector/env/env/{name}" for name in ("obs/obs", "action_log/rows/action")),
    *(f"source/collector/env/env/parameter_log/{name}" for name in ("before", "changes")),
    *(f"source/collector/env/events/counters/{name}" for name in ("gust", "calm")),
    *(f"source/collector/env/events/firings/{name}" for name in ("gust", "turn")),
    *(f"source/collector/env/events/memories/{name}/strength" for name in ("gust", "turn")),
    "source/collector/gate/num_dropped_episodes",
    *(f"source/collector/obs/{name}" for name in OBS),
    *(f"source/collector/{name}" for name in LANE_STATE.split()),
    "source/versions/default",
    *(f"{BLOCK}/{name}" for name in ("is_open", "is_committed", "is_taken", "number")),
    *(f"{BLOCK}/block/{name}" for name in ("sequence", "policy_state")),
    *(f"{BLOCK}/block/final/{name}" for name in (*OBS, "policy_state")),
    *(f"{BLOCK}/block/fields/{name}" for name in (*OBS, *ACTIONS, *FIELDS.split())),
    "store/memory/num_added",
    *(f"store/memory/rows/{dtype}" for dtype in DTYPES),
    *(f"store/writer/{name}" for name in ("num_open", "num_steps", *(f"window/{dtype}" for dtype in DTYPES))),
    "events/next_event",
    "events/has_started",
    "events/memories/0/num_calls",
    "events/memories/1/num_calls",
    "global_streams/python/words",
    "global_streams/python/gauss",
    *(f"global_streams/numpy/{name}" for name in ("key", "pos", "has_gauss", "gauss")),
    "global_streams/torch",
)  # fmt: skip
CONSTANTS = {
    "global_streams/python/version",
    # There is one behaviour here; tests/placements/test_agents.py has several.
    "turn/behavior",
    # The actor does not work ahead of the learner here; tests/placements leaves these out where it does.
    "source/ahead/commands",
    "source/ahead/reports",
    "source/collector/env/parameter_log/before",
    "source/collector/env/parameter_log/changes",
    "source/collector/env/env/down",
    "source/collector/env/events/firings/calm",
    "source/collector/gate/num_clamped_steps",
}
"""What is the same whatever happens here: the number of Python's own format (so that another format is refused), the
parameters of environments that have none set, lanes that are down below events (none is where these setups stop, and
without events they are tried above), the firings of an event that draws nothing, and a count of the gate's
other mode."""


def test_the_list_is_the_whole_state(stopped) -> None:
    saved = {item for state, _ in stopped.values() for item in leaves(state["training"])}
    # How often lanes broke is there only once one did; tests/resume/test_workers.py holds it.
    saved = {item for item in saved if "/faults/" not in item}
    assert saved - {f"{BLOCK}/block"} == {*ITEMS, *CONSTANTS}


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_with_everything_it_is_as_if_nothing_had_happened(setup: Setup, stopped, uninterrupted) -> None:
    assert resume(setup, stopped) == uninterrupted[setup.kind]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_what_was_drawn_before_the_restore_does_not_matter(setup: Setup, stopped, uninterrupted) -> None:
    def draw() -> None:
        random.gauss(0.0, 1.0)
        np.random.normal(size=7)  # noqa: NPY002
        torch.rand(5)

    assert resume(setup, stopped, before_restore=draw) == uninterrupted[setup.kind]


def test_evaluation_draws_from_no_stream_of_the_training(uninterrupted) -> None:
    setup = SETUPS[0]
    trainer, rows = build(setup.kind, events=({"type": "evaluate", "every_env_steps": 1, "num_episodes": 2},))
    trainer.train(TOTAL)
    assert all("eval/mean_reward" in row for _, row in rows.rows)
    assert state_files.digest_of(trainer.state_dict()) == uninterrupted[setup.kind].digest
    trainer.close()


@pytest.mark.parametrize("item", ITEMS)
def test_without_one_item_it_is_noticed(item: str, stopped, uninterrupted) -> None:
    for setup in SETUPS:
        if has(item, stopped[setup.name][0]) and is_noticed(item, setup, stopped, uninterrupted):
            return
    pytest.fail(f"{item} matters nowhere: it need not be saved, or the setups miss what it is for")


def is_noticed(item: str, setup: Setup, stopped, uninterrupted) -> bool:
    try:
        return resume(setup, stopped, leave_out=item) != uninterrupted[setup.kind]
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, AssertionError, Warning, QuintainError):
        return True
