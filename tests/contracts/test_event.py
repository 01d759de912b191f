"""What every event promises: it can be named in a run file, is called when due, and leaves training as it was."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.core import registry
from quintain.events import After, Every
from quintain.testing import assert_resumes_exactly, differences
from tests.contracts.cases import ENVS, make_trainer, run_file

CASES: dict[str, list[dict[str, Any]]] = {
    "evaluate": [{"type": "evaluate", "every_env_steps": 128, "num_episodes": 3}],
    "stop_at_return": [
        {"type": "evaluate", "every_env_steps": 128, "num_episodes": 3},
        {"type": "stop_at_return", "mean_return": 1e9},
    ],
    "collect_data": [{"type": "collect_data", "every_updates": 1, "keep": 2}],
    "record_video": [{"type": "record_video", "every_updates": 1}],
    "log_data": [{"type": "log_data", "every_updates": 1, "fields": ["reward", "action"]}],
    "randomize_env": [{"type": "randomize_env", "every_updates": 1, "ranges": {"friction": [0.5, 1.0]}}],
    "reset_env": [{"type": "reset_env", "every_updates": 2}],
    "sample_conversations": [{"type": "sample_conversations", "every_updates": 1, "num_conversations": 2}],
    "pretrain_bodies": [{"type": "pretrain_bodies", "on": "startup"}],
    "anneal_friction": [{"type": "anneal_friction", "every_updates": 1, "low": 0.5}],
}


def test_every_registered_event_has_a_case() -> None:
    # The entry none leaves the defaults out, and is no event.
    assert set(CASES) == set(registry.names("event")) - {"none"}


@pytest.mark.parametrize("name", CASES)
def test_a_run_with_the_event_resumes_exactly(name: str) -> None:
    chosen: dict[str, Any] = {"env": ENVS["corridor"]}
    if name in ("sample_conversations", "pretrain_bodies"):
        chosen = {"algorithm": "team_ppo"}
    assert_resumes_exactly(run_file(**chosen, cycles=3, events=CASES[name]))


WATCHING = ["evaluate", "stop_at_return", "collect_data", "record_video", "log_data", "sample_conversations"]


@pytest.mark.parametrize("name", WATCHING)
def test_events_that_only_watch_change_no_number(name: str) -> None:
    algorithm = "team_ppo" if name == "sample_conversations" else "ppo"
    with_event, without = (
        make_trainer(run_file(algorithm=algorithm, events=CASES[name])),
        make_trainer(run_file(algorithm=algorithm)),
    )
    for trainer in (with_event, without):
        trainer.train()
    left, right = with_event.state_dict()["training"], without.state_dict()["training"]
    for state in (left, right):
        del state["learners"]["default"]["events"]
    assert not list(differences(left, right))


def test_an_event_function_gets_its_parameters_from_the_run_file() -> None:
    settings = run_file(
        ENVS["corridor"], cycles=4, events=[{"type": "anneal_friction", "every_updates": 2, "low": 0.2}]
    )
    trainer = make_trainer(settings)
    frictions = []
    trainer.events.add(Every(updates=1), lambda trainer: frictions.append(trainer.source.collector.env.friction))
    trainer.train()
    # Due after updates 2 and 4, when 1/2 and all of the budget is spent: 1 - 0.8 * fraction.
    assert frictions == pytest.approx([1.0, 0.6, 0.6, 0.2])


def test_an_event_can_be_added_in_python_with_its_parameters() -> None:
    trainer = make_trainer(run_file(cycles=2))
    seen: list[tuple[str, int]] = []

    def look(trainer: Any, word: str) -> None:
        seen.append((word, trainer.progress.env_steps))

    trainer.events.add(Every(env_steps=128), look, word="every")
    trainer.events.add(After("estimate"), look, word="after")
    trainer.train()
    # A cycle is 4 * 32 = 128 steps; the counters move in its last stage.
    assert seen == [("after", 0), ("every", 128), ("after", 128), ("every", 256)]


def test_an_event_with_memory_remembers_across_a_resume() -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, trainer: Any) -> None:
            self.calls += 1

        def state_dict(self) -> dict[str, int]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    first, second = make_trainer(run_file()), make_trainer(run_file())
    for trainer in (first, second):
        trainer.events.add(Every(updates=1), Counter())
    first.advance()
    first.advance()
    second.load_state_dict(first.state_dict())
    second.advance()
    assert second.events.entries[0].function.calls == 3
