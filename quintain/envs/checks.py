"""Looks an environment over before anyone trains in it: each finding in one line, with what to do about it.

The checks play with random actions in this process, compare two environments of one seed, and at last make one in a
worker. An environment may do anything, so whatever it raises is a finding too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from quintain.envs import play, tendencies, verdicts
from quintain.envs.base import Env
from quintain.envs.factories import factory_of
from quintain.envs.gymnasium_lanes import LaneEnv
from quintain.envs.hosting import Hosting
from quintain.envs.lane_host import EnvFactory
from quintain.envs.recipes import Recipe
from quintain.envs.settings import GymSettings
from quintain.envs.workers import WorkerEnv
from quintain.errors import QuintainError
from quintain.rng import Rng
from quintain.settings.run import EnvWorkerSettings

Level = Literal["ok", "note", "warning", "problem"]
_ANYTHING = (Exception, SystemExit)
_WORKER_STEPS = 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    check: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f" Fix: {self.fix}" if self.fix else ""
        return f"{self.level:8} {self.check:14} {self.what}{fix}"


def check_env(settings: GymSettings, *, num_steps: int = 1000, seed: int = 0, in_worker: bool = True) -> list[Finding]:
    """Checks what `{type: gym, id: ...}` names, and returns what was found, in the order in which it was looked for."""
    factory = factory_of(settings)
    findings: list[Finding] = []

    def passes(found: Iterator[verdicts.Said]) -> bool:
        new = [Finding(*each) for each in found]
        findings.extend(new)
        return all(each.level != "problem" for each in new)

    env = _made(factory, findings)
    if env is None:
        return findings
    if not passes(verdicts.interface(env)):
        return findings
    is_described = passes(verdicts.spaces(settings.id, env, encode_text=settings.text_observations == "encode"))
    if is_described and passes(verdicts.first_reset(env, seed)):
        played = play.play(env, seed=seed, num_steps=num_steps)
        if passes(verdicts.steps(env, played)):
            passes(verdicts.masks(settings, factory, seed))
            passes(tendencies.ends(played))
            passes(tendencies.seeds(factory, seed))
            passes(tendencies.scales(played))
            if in_worker:
                passes(_worker(settings, factory, seed))
            passes(tendencies.speed(played, num_cores=os.cpu_count() or 1))
    passes(tendencies.closing(env))
    return findings


def check_lanes(make: Callable[[int, Rng], Env], *, num_steps: int = 200, seed: int = 0) -> list[Finding]:
    """Checks an environment that steps all its lanes itself."""
    return [Finding(*each) for each in tendencies.lanes(make, num_steps, seed)]


def _made(factory: EnvFactory, findings: list[Finding]) -> Any:
    try:
        env = factory()
    except QuintainError as error:
        findings.append(Finding("problem", "creation", error.message, "see the message"))
    except _ANYTHING as error:
        what = f"making it raises {type(error).__name__}: {verdicts.first_line(error)}"
        findings.append(Finding("problem", "creation", what, f"look at {verdicts.place(error)}"))
    else:
        findings.append(Finding("ok", "creation", f"makes a {type(env).__name__}"))
        return env
    return None


def _worker(settings: GymSettings, factory: EnvFactory, seed: int) -> Iterator[verdicts.Said]:
    """Plays the same steps here and in a worker, and compares them."""
    rng, encode_text = Rng(seed), settings.text_observations == "encode"
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=1))
    assert hosting.team is not None
    fix = "make it from importable code and JSON arguments, and draw random numbers from self.np_random only"
    try:
        recipe = Recipe.from_settings(settings)
        there = WorkerEnv(settings.id, recipe, 1, rng, hosting.team, encode_text=encode_text)
    except QuintainError as error:
        yield "problem", "worker", f"it cannot be made in a worker: {error.message}", fix
        return
    try:
        here = LaneEnv(settings.id, [factory], rng, encode_text=encode_text)
        difference = play.first_difference(here, there, rng, _WORKER_STEPS)
        here.close()
    except QuintainError as error:
        yield "problem", "worker", f"it fails in a worker: {error.message}", fix
    else:
        if difference:
            yield "problem", "worker", f"in a worker {difference} than in this process", fix
        else:
            yield "ok", "worker", f"the same {_WORKER_STEPS} steps in a worker as in this process", ""
    finally:
        there.close()
