"""Events are due when they say, are called in order, and an interrupted round goes on where it stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quintain.core.progress import Progress
from quintain.errors import EventError, SettingsError
from quintain.services.events import CYCLE_END, After, EventManager, Every, On


def trainer_at(env_steps: int = 10, previous: int = 0, updates: int = 1, budget: int = 100) -> Any:
    progress = Progress(budget)
    progress.previous_env_steps, progress.env_steps, progress.updates = previous, env_steps, updates
    return SimpleNamespace(progress=progress)


@pytest.mark.parametrize(
    ("when", "previous", "env_steps", "updates", "expected"),
    [
        (Every(env_steps=10), 0, 9, 1, False),
        (Every(env_steps=10), 9, 10, 2, True),
        (Every(env_steps=10), 10, 19, 2, False),
        (Every(env_steps=10), 10, 45, 2, True),
        (Every(updates=3), 0, 9, 3, True),
        (Every(updates=3), 0, 9, 4, False),
        (Every(env_steps=1000, at_end=True), 90, 99, 9, False),
        (Every(env_steps=1000, at_end=True), 90, 100, 9, True),
        (Every(env_steps=1000), 90, 100, 9, False),
    ],
)
def test_every_is_due_at_the_end_of_the_cycle_that_passed_its_mark(
    when: Every, previous: int, env_steps: int, updates: int, expected: bool
) -> None:
    progress = trainer_at(env_steps, previous, updates).progress
    assert when.is_due(CYCLE_END, progress) is expected
    assert not when.is_due("after_update", progress)


def test_after_and_on_are_due_at_their_point_only() -> None:
    progress = trainer_at().progress
    assert After("update").is_due("after_update", progress)
    assert not After("update").is_due("after_collect", progress)
    assert not After("update").is_due(CYCLE_END, progress)
    assert On("level_up").is_due("level_up", progress)
    assert not On("level_up").is_due("level_down", progress)


class Notes:
    """Notes its calls, and is interrupted as often as it is told."""

    def __init__(self, calls: list[str], name: str, interruptions: int = 0) -> None:
        self.calls, self.name, self.interruptions = calls, name, interruptions

    def __call__(self, trainer: Any) -> bool | None:
        self.calls.append(self.name)
        self.interruptions -= 1
        return False if self.interruptions >= 0 else None


def manager(*names: str, interrupted: str = "", times: int = 1) -> tuple[EventManager, list[str]]:
    calls: list[str] = []
    events = EventManager()
    for name in names:
        events.add(On(CYCLE_END), Notes(calls, name, times if name == interrupted else 0))
    return events, calls


def test_events_are_called_in_the_order_they_were_added() -> None:
    events, calls = manager("a", "b", "c")
    assert events.fire(CYCLE_END, trainer_at())
    assert calls == ["a", "b", "c"]


def test_parameters_are_passed_on() -> None:
    events, given = EventManager(), []
    events.add(On("x"), lambda trainer, text: given.append(text), text="hello")
    events.fire("x", trainer_at())
    assert given == ["hello"]


def test_an_interrupted_round_goes_on_with_the_same_event() -> None:
    events, calls = manager("a", "b", "c", interrupted="b", times=2)
    assert not events.fire(CYCLE_END, trainer_at())
    assert not events.fire(CYCLE_END, trainer_at())
    assert events.fire(CYCLE_END, trainer_at())
    assert calls == ["a", "b", "b", "b", "c"]
    assert events.fire(CYCLE_END, trainer_at())
    assert calls[5:] == ["a", "b", "c"]


def test_an_interrupted_round_goes_on_after_a_resume() -> None:
    events, calls = manager("a", "b", "c", interrupted="b")
    events.fire(CYCLE_END, trainer_at())
    restored, calls_after = manager("a", "b", "c")
    restored.load_state_dict(events.state_dict())
    assert restored.fire(CYCLE_END, trainer_at())
    assert (calls, calls_after) == (["a", "b"], ["b", "c"])


def test_an_interruption_inside_a_cycle_makes_no_later_event_skip() -> None:
    """Stages go on whatever their events say, so only the end of a cycle can be continued."""
    calls: list[str] = []
    events = EventManager()
    events.add(After("update"), Notes(calls, "after update"))
    events.add(After("collect"), Notes(calls, "interrupted", 1))
    events.add(On(CYCLE_END), Notes(calls, "end"))
    for point in ("after_collect", "after_update", CYCLE_END):
        events.fire(point, trainer_at())
    assert calls == ["interrupted", "after update", "end"]


def test_an_event_that_fires_others_does_not_lose_its_place() -> None:
    calls: list[str] = []
    events = EventManager()
    events.add(On("level_up"), Notes(calls, "level up"))
    events.add(On(CYCLE_END), Notes(calls, "long", 1))
    events.add(On(CYCLE_END), lambda trainer: events.fire("level_up", trainer))
    assert not events.fire(CYCLE_END, trainer_at())
    assert events.fire(CYCLE_END, trainer_at())
    assert calls == ["long", "long", "level up"]


class Remembers:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, trainer: Any) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_events_with_memory_are_saved_by_their_place() -> None:
    memories, restored_memories = [Remembers(), Remembers()], [Remembers(), Remembers()]
    events, restored = EventManager(), EventManager()
    for manager_, pair in ((events, memories), (restored, restored_memories)):
        manager_.add(On("a"), pair[0])
        manager_.add(On("b"), lambda trainer: None)
        manager_.add(On("b"), pair[1])
    events.fire("a", trainer_at())
    events.fire("b", trainer_at())
    events.fire("b", trainer_at())
    restored.load_state_dict(events.state_dict())
    assert [memory.count for memory in restored_memories] == [1, 2]


def test_startup_is_fired_once_in_a_run_and_not_again_after_a_resume() -> None:
    calls: list[str] = []

    def started() -> EventManager:
        events = EventManager()
        events.add(On("startup"), lambda trainer: calls.append("startup"))
        return events

    trainer = SimpleNamespace(progress=Progress(10), stages=("collect",))
    events = started()
    events.start(trainer)
    events.start(trainer)
    resumed = started()
    resumed.load_state_dict(events.state_dict())
    resumed.start(trainer)
    assert calls == ["startup"]


def test_an_event_that_waits_for_a_stage_that_is_not_there_is_refused_at_the_start() -> None:
    events = EventManager()
    events.add(After("updat"), print)
    with pytest.raises(SettingsError, match="event print can never happen: it waits for stage 'updat'") as failed:
        events.start(SimpleNamespace(progress=Progress(10), stages=("collect", "update")))
    assert failed.value.code == "E0214"


def test_events_that_were_never_called_are_known_by_their_names_over_all_processes() -> None:
    def make() -> EventManager:
        events = EventManager()
        for trigger in ("a", "b", "c"):
            events.add(On(trigger), Notes([], trigger))
        return events

    first, second = make(), make()
    first.fire("a", trainer_at())
    assert first.never_fired() == ["b", "c"]
    second.firings.load_state_dict(first.firings.state_dict())
    second.fire("c", trainer_at())
    assert second.never_fired() == ["b"]


def test_an_interrupted_event_has_not_happened_yet() -> None:
    events, _ = manager("a", interrupted="a")
    events.fire(CYCLE_END, trainer_at())
    assert events.never_fired() == ["a"]
    events.fire(CYCLE_END, trainer_at())
    assert events.never_fired() == []


def test_events_of_one_name_are_told_apart() -> None:
    events = EventManager()
    assert [events.add(On("x"), print) for _ in range(3)] == ["print", "print-2", "print-3"]


def test_an_event_that_raises_is_named_with_what_and_where() -> None:
    def promote(trainer: Any) -> None:
        raise KeyError("level")

    events = EventManager()
    events.add(On("up"), promote)
    with pytest.raises(EventError, match=r"event promote failed: KeyError: 'level', raised in test_events\.py:\d+"):
        events.fire("up", trainer_at())
    assert events.never_fired() == ["promote"]


def test_errors_of_ours_pass_an_event_unchanged() -> None:
    def refuse(trainer: Any) -> None:
        raise SettingsError("no such field", code="E0205")

    events = EventManager()
    events.add(On("up"), refuse)
    with pytest.raises(SettingsError, match="no such field"):
        events.fire("up", trainer_at())
