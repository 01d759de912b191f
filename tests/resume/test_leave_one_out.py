"""Every single item of the training state matters: a resume without it ends differently, or is refused.

The runs are stopped at different points of a cycle, because what must be saved depends on where one stops.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain.assemble import Slots, assemble
from quintain.errors import QuintainError
from quintain.run import Run
from quintain.services import state_files
from quintain.services.events import CYCLE_END, After, Every, On
from quintain.services.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer

LANES, STEPS, CYCLES = 3, 8, 5
TOTAL = LANES * STEPS * CYCLES


class Moody(gymnasium.Env[Any, Any]):
    """Rewards noisily, by all three global generators; its observations depend on seed and actions alone.

    Episodes end by themselves or by running out of time, after a number of steps that the actions decide.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    on_step: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *, is_continuous: bool) -> None:
        self.is_continuous = is_continuous
        bounds = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = bounds if is_continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.age = float(self.np_random.uniform(-1.0, 1.0)), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).on_step()
        self.place += (float(action[0]) if self.is_continuous else 2.0 * action - 1.0) + self.np_random.normal() / 4
        self.age += 1
        noise = random.gauss(0.0, 1.0) + np.random.normal() + float(torch.rand(()))  # noqa: NPY002
        return self._obs(), noise - abs(self.place), abs(self.place) > 2.5, self.age == 5, {}

    def _obs(self) -> Any:
        return np.array([self.place, self.age, math.sin(self.place)], np.float32)


class Rows:
    """Keeps the rows of a run without the columns that depend on the clock, and what it was like in its last cycle."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.inside = ""

    def open(self, header: object) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, summary: object) -> None: ...

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self.rows.append((step, {k: v for k, v in row.items() if not k.startswith("time/")}))


class Nudge:
    """An event with a memory that changes the policy a little more at each call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, trainer: Trainer) -> None:
        self.num_calls += 1
        with torch.no_grad():
            next(trainer.policy.parameters()).add_(1e-3 * self.num_calls)

    def state_dict(self) -> dict[str, int]:
        return {"num_calls": self.num_calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_calls = state["num_calls"]


@dataclass(frozen=True)
class Setup:
    """Says what is trained and where it is stopped."""

    name: str
    stop: Callable[[Trainer], None]
    is_continuous: bool = False
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
    trainer.events.events[1] = (On(CYCLE_END), lambda t: _interrupt(t) if t.progress.iteration == CYCLES - 1 else None)


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
    Setup("collecting with Box actions", stop_collecting, is_continuous=True),
    Setup("collected", stop_after("collect")),
    Setup("estimated", stop_after("estimate")),
    Setup("updated", stop_after("update")),
    Setup("closing", stop_closing),
    Setup("closed", stop_closed),
    Setup("closed, with the block free again", stop_released),
    Setup("collecting, stopped again at once", stop_collecting, stops_again=True),
)


def build(setup: Setup, events: tuple[dict[str, Any], ...] = ()) -> tuple[Trainer, Rows]:
    Moody.on_step = staticmethod(lambda: None)
    rows = Rows()
    run_file = RunFile.from_mapping(
        {
            "experiment": {
                "env": {"type": "gym", "id": "Moody", "num_lanes": LANES},
                "behaviors": {"default": {"algorithm": {"type": "ppo"}, "events": events}},
            }
        },
        changes={"num_steps": STEPS, "batch_size": 12, "num_epochs": 2, "normalize_obs": True, "hidden_sizes": [4, 4],
                 "budget.env_steps": 2 * TOTAL, "learning_rate": {"start": 1e-2, "end": 1e-3}},
    )  # fmt: skip
    writer = WriterGroup([rows])
    trainer = assemble(
        run_file, Run(run_file, [rows]), writer, Slots(env=lambda: Moody(is_continuous=setup.is_continuous))
    )
    trainer.events.add(On(CYCLE_END), Nudge())
    trainer.events.add(On(CYCLE_END), lambda trainer: None)
    trainer.events.add(After("update"), lambda trainer: look_inside(trainer, rows))
    # Not due at 4 cycles of 24 steps (72 and 96 are both in the second 50), unless the step before is forgotten.
    trainer.events.add(Every(env_steps=50), Nudge())
    return trainer, rows


def look_inside(trainer: Trainer, rows: Rows) -> None:
    if trainer.progress.iteration == CYCLES - 1:
        rows.inside = state_files.digest_of(trainer.state_dict())


def finish(trainer: Trainer, rows: Rows, before: Rows | None = None) -> Outcome:
    before = before or Rows()
    digest = state_files.digest_of(trainer.state_dict())
    exactness = trainer.source.exactness
    trainer.close()
    return Outcome(digest, before.inside or rows.inside, [*before.rows, *rows.rows], exactness)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[bool, Outcome]:
    outcomes = {}
    for setup in SETUPS[:2]:
        trainer, rows = build(setup)
        trainer.train(TOTAL)
        outcomes[setup.is_continuous] = finish(trainer, rows)
    return outcomes


@pytest.fixture(scope="module")
def stopped() -> dict[str, tuple[dict[str, Any], Rows]]:
    """Stops each setup once; the state goes through the files that a checkpoint would have."""
    found = {}
    for setup in SETUPS:
        trainer, rows = build(setup)
        setup.stop(trainer)
        trainer.train(TOTAL)
        assert trainer.progress.env_steps < TOTAL, setup.name
        found[setup.name] = (through_files(trainer.state_dict()), rows)
        trainer.close()
    return found


def through_files(state: Mapping[str, object]) -> dict[str, Any]:
    encoded = state_files.encode(state)
    return state_files.decode(state_files.parse(encoded.tensor_bytes(), encoded.document_bytes()))


def resume(
    setup: Setup,
    stopped: dict[str, tuple[dict[str, Any], Rows]],
    *,
    leave_out: str = "",
    before_restore: Callable[[], object] = lambda: None,
) -> Outcome:
    state, before = stopped[setup.name]
    trainer, rows = build(setup)
    if leave_out:
        state = without(leave_out, state, trainer)
    before_restore()
    trainer.load_state_dict(state)
    if setup.stops_again:
        state = through_files(trainer.state_dict())
        trainer.close()
        trainer, rows = build(setup)
        trainer.load_state_dict(state)
    trainer.train()
    return finish(trainer, rows, before)


def without(item: str, state: dict[str, Any], fresh: Trainer) -> dict[str, Any]:
    """Returns the state with one item as an untrained trainer has it."""
    fresh_state = through_files(fresh.state_dict())
    fresh_state["training"]["store"]["block"] = through_files({"training": fresh.store.block.state_dict()})["training"]  # type: ignore[attr-defined]
    changed = copy.deepcopy(state)
    *parents, name = split(item)
    there, here = fresh_state["training"], changed["training"]
    for parent in parents:
        there, here = there[parent], here[parent]
    here[name] = there[name]
    return changed


def split(item: str) -> list[str]:
    return item.split("/")


def leaves(tree: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}" if path else key)
    else:
        yield path


def has(item: str, state: dict[str, Any]) -> bool:
    return item in set(leaves(state["training"]))


WEIGHTS = [f"{net}.{layer}.{kind}" for net in ("actor", "critic") for layer in (0, 2, 4) for kind in ("weight", "bias")]
WEIGHTS.append("head.log_std")
COUNTERS = "budget_env_steps iteration stage is_closing env_steps previous_env_steps episodes updates version"
LANE_STATE = "obs first episode_return episode_length lane_step cursor"
FIELDS = (
    "obs action sample_log_prob value reward terminated truncated done first valid final_index final_value noise "
    "policy_version advantage return"
)
ITEMS = (
    *(f"progress/{name}" for name in COUNTERS.split()),
    *(f"policy/{name}" for name in WEIGHTS),
    *(f"policy/normalizer.{name}" for name in ("count", "mean", "sum_of_squares", "shift", "scale")),
    "algorithm/optimizer/step",
    *(f"algorithm/optimizer/{moment}/{name}" for moment in ("exp_avg", "exp_avg_sq") for name in WEIGHTS),
    *(f"source/collector/env/{name}" for name in ("obs", "episode", "action_log/rows", "action_log/start")),
    *(f"source/collector/{name}" for name in LANE_STATE.split()),
    "source/version",
    *(f"store/{name}" for name in ("is_open", "is_committed", "sequence", "block/sequence", "block/final_obs")),
    *(f"store/block/fields/{name}" for name in FIELDS.split()),
    "events/next_event",
    "events/memories/0/num_calls",
    "events/memories/1/num_calls",
    "global_streams/python/words",
    "global_streams/python/gauss",
    *(f"global_streams/numpy/{name}" for name in ("key", "pos", "has_gauss", "gauss")),
    "global_streams/torch",
)  # fmt: skip
CONSTANTS = {"global_streams/python/version"}
"""The number of Python's own format, the same in every process; it is there so that another format is refused."""


def test_the_list_is_the_whole_state(stopped) -> None:
    saved = {item for state, _ in stopped.values() for item in leaves(state["training"])}
    assert saved - {"store/block"} == {*ITEMS, *CONSTANTS}


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_with_everything_it_is_as_if_nothing_had_happened(setup: Setup, stopped, uninterrupted) -> None:
    assert resume(setup, stopped) == uninterrupted[setup.is_continuous]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_what_was_drawn_before_the_restore_does_not_matter(setup: Setup, stopped, uninterrupted) -> None:
    def draw() -> None:
        random.gauss(0.0, 1.0)
        np.random.normal(size=7)  # noqa: NPY002
        torch.rand(5)

    assert resume(setup, stopped, before_restore=draw) == uninterrupted[setup.is_continuous]


def test_evaluation_draws_from_no_stream_of_the_training(uninterrupted) -> None:
    setup = SETUPS[0]
    trainer, rows = build(setup, events=({"type": "evaluate", "every_env_steps": 1, "num_episodes": 2},))
    trainer.train(TOTAL)
    assert all("eval/mean_reward" in row for _, row in rows.rows)
    assert state_files.digest_of(trainer.state_dict()) == uninterrupted[setup.is_continuous].digest
    trainer.close()


@pytest.mark.parametrize("item", ITEMS)
def test_without_one_item_it_is_noticed(item: str, stopped, uninterrupted) -> None:
    for setup in SETUPS:
        if has(item, stopped[setup.name][0]) and is_noticed(item, setup, stopped, uninterrupted):
            return
    pytest.fail(f"{item} matters nowhere: it need not be saved, or the setups miss what it is for")


def is_noticed(item: str, setup: Setup, stopped, uninterrupted) -> bool:
    try:
        return resume(setup, stopped, leave_out=item) != uninterrupted[setup.is_continuous]
    except (KeyError, ValueError, TypeError, RuntimeError, IndexError, AssertionError, Warning, QuintainError):
        return True
