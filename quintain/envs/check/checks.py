"""Looks an environment over before anyone trains in it: each finding in one line, with what to do about it.

The checks play with random actions in this process, compare two environments of one seed, and at last make one in a
worker. An environment may do anything, so whatever it raises is a finding too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium

from quintain.core.rng import Rng
from quintain.envs.base import Env
from quintain.envs.check import interface as verdicts
from quintain.envs.check import play
from quintain.envs.check import side_effects as manners
from quintain.envs.check import statistics as tendencies
from quintain.envs.gym.factories import factory_of
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import GymSettings
from quintain.errors import QuintainError
from quintain.services.user_code import ANYTHING
from quintain.settings.run import EnvWorkerSettings

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv

_WORKER_STEPS = 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: verdicts.Level
    check: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f" Fix: {self.fix}" if self.fix else ""
        return f"{self.level:8} {self.check:14} {self.what}{fix}"


@dataclass(frozen=True)
class _Request:
    num_steps: int
    seed: int
    in_worker: bool
    before: manners.Surroundings
    printed: manners.LineCount


def check_env(settings: GymSettings, *, num_steps: int = 1000, seed: int = 0, in_worker: bool = True) -> list[Finding]:
    """Checks what `{type: gym, id: ...}` names, and returns what was found, in the order in which it was looked for."""
    before, printed = manners.Surroundings.now(), manners.LineCount()
    findings: list[Finding] = []
    try:
        with redirect_stdout(printed):
            _look(settings, findings, _Request(num_steps, seed, in_worker, before, printed))
    finally:
        before.restore()
    return findings


def _look(settings: GymSettings, findings: list[Finding], request: _Request) -> None:
    factory, seed = factory_of(settings), request.seed

    def passes(found: Iterator[verdicts.Said]) -> bool:
        new = [Finding(*each) for each in found]
        findings.extend(new)
        return all(each.level != "problem" for each in new)

    env = _made(factory, findings)
    if env is None or not passes(verdicts.interface(env)):
        return
    is_described = passes(verdicts.spaces(settings.id, env, encode_text=settings.text_observations == "encode"))
    if is_described and passes(verdicts.first_reset(env, seed)):
        played = play.play(env, seed=seed, num_steps=request.num_steps)
        if passes(verdicts.steps(env, played)):
            passes(verdicts.masks(settings, factory, seed))
            passes(tendencies.ends(played))
            passes(tendencies.seeds(factory, seed))
            passes(tendencies.scales(played))
            passes(manners.manners(request.before, request.printed))
            if request.in_worker:
                passes(_worker(settings, factory, seed))
            passes(tendencies.speed(played, num_cores=os.cpu_count() or 1))
    passes(tendencies.closing(env))


def check_lanes(make: Callable[[int, Rng], Env], *, num_steps: int = 200, seed: int = 0) -> list[Finding]:
    """Checks an environment that steps all its lanes itself."""
    return [Finding(*each) for each in tendencies.lanes(make, num_steps, seed)]


def _made(factory: EnvFactory, findings: list[Finding]) -> GymEnv | None:
    try:
        env = factory()
    except QuintainError:
        # A name that is not there, or code that cannot be imported: nothing was made that could be judged.
        raise
    except ANYTHING as error:
        what = f"making it raises {type(error).__name__}: {verdicts.first_line(error)}"
        is_missing = isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled)
        fix = "install what it needs" if is_missing else f"look at {verdicts.place(error)}"
        findings.append(Finding("problem", "creation", what, fix))
    else:
        inner = type(getattr(env, "unwrapped", env)).__name__
        wrapped = f" in a {type(env).__name__}" if type(env).__name__ != inner else ""
        findings.append(Finding("ok", "creation", f"makes a {inner}{wrapped}"))
        return env
    return None


def _worker(settings: GymSettings, factory: EnvFactory, seed: int) -> Iterator[verdicts.Said]:
    """Plays the same steps here and in a worker, and compares them."""
    rng, encode_text = Rng(seed), settings.text_observations == "encode"
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=1))
    assert hosting.team is not None
    fix = (
        "make it from importable code and JSON arguments, draw from self.np_random only, and pass on variables that it "
        "needs with env_workers.pass_environment"
    )
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
