"""Checkpoints in which a stranger changed one number: refused in one line, or gone on from; never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer
from tests.behaviors import runs
from tests.resume import moody, spoiled
from tests.resume.test_leave_one_out import stop_after, stop_collecting

ACCEPTABLE = {spoiled.RUNS_ON: "goes on", 4: "the checkpoint is refused", 5: "the environment refuses", 6: "not finite"}


@dataclass(frozen=True)
class Case:
    make: Callable[[], Trainer]
    stop: Callable[[Trainer], None] = lambda trainer: None


def made(run_file: RunFile) -> Trainer:
    run = Run(run_file, [])
    return assemble(run_file, run, run.writer)


def names(algorithm: str, env: str, *overrides: str) -> Callable[[], Trainer]:
    return lambda: made(RunFile.from_names(algorithm, env, "num_lanes=3", "budget.env_steps=96", *overrides))


def stop_at(num_steps: int) -> Callable[[Trainer], None]:
    """Stops in the middle of a rollout."""

    def arrange(trainer: Trainer) -> None:
        env, left = trainer.source.env, num_steps
        step = env.step

        def counted(action: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                trainer.stop("test")
            return step(action)

        env.step = counted

    return arrange


def stop_in_world(trainer: Trainer) -> None:
    """Stops agents in the middle of their trajectories."""
    env, left = trainer.source.env, 37
    step = env.step

    def counted(*words: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            trainer.stop("test")
        return step(*words)

    env.step = counted


CASES = {
    "choices": Case(lambda: moody.build("choices")[0], stop_collecting),
    "choices learned from": Case(lambda: moody.build("choices")[0], stop_after("estimate")),
    "memory": Case(lambda: moody.build("memory")[0], stop_collecting),
    "groups": Case(lambda: moody.build("groups")[0], stop_collecting),
    "replay": Case(lambda: moody.build("replay")[0], stop_collecting),
    "events": Case(lambda: moody.build("events")[0], stop_collecting),
    "native": Case(names("ppo", "native/CartPole-v1", "num_steps=8", "batch_size=12", "num_epochs=1"), stop_at(12)),
    "native sac": Case(names("sac", "native/Pendulum-v1", "learning_starts=30", "batch_size=12"), stop_at(12)),
    "agents": Case(lambda: runs.make(runs.run_file("gates", 400)), stop_in_world),
    "groups of agents": Case(lambda: runs.make(runs.poca_file(400)), stop_in_world),
}


def go_on(trainer: Trainer) -> None:
    """Trains for two more cycles."""
    last = trainer.progress.iteration + 2
    trainer.events.add(moody.On(moody.CYCLE_END), lambda t: t.stop("test") if t.progress.iteration >= last else None)
    trainer.train()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_spoiled_number_never_ends_in_a_crash(name: str) -> None:
    torch.set_num_threads(1)
    case = CASES[name]
    trainer = case.make()
    case.stop(trainer)
    trainer.train()
    state = spoiled.saved(trainer)
    assert [*spoiled.ends_of(case.make, [state], go_on)] == [(spoiled.RUNS_ON, "")]
    # A larger budget is trained for longer, and what events remember is for them to judge.
    edits = [
        (path, value)
        for path, value in spoiled.chosen(state)
        if path[-1] != "budget_env_steps" and "memories" not in path
    ]
    found = []
    ends = spoiled.ends_of(case.make, [spoiled.put(state, *edit) for edit in edits], go_on)
    for (path, value), (code, said) in zip(edits, ends, strict=True):
        if code not in ACCEPTABLE or "\n" in said.strip():
            found.append((".".join(map(str, path)), repr(value)[:60], code, said.strip().splitlines()[-1:]))
    assert not found, f"{len(found)} of them crash: {found[:10]}"
