"""Checks an environment before training: each finding is one line, with a fix.

The checks step with random actions in this process, compare two environments with the same seed, and run one in a
worker. An environment is user code, so any exception it raises is a finding too.
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
from quintain.envs.check import agents, interface, play, side_effects, statistics
from quintain.envs.gym.factories import factory_of
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.make import lane_options
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import AgentsSettings, GymSettings
from quintain.errors import QuintainError
from quintain.services.user_code import ANYTHING
from quintain.settings.run import EnvWorkerSettings

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv

_WORKER_STEPS = 20


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    level: interface.Level
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
    before: side_effects.Surroundings
    printed: side_effects.LineCount


def check_env(settings: GymSettings, *, num_steps: int = 1000, seed: int = 0, in_worker: bool = True) -> list[Finding]:
    """Checks the environment of `{type: gym, id: ...}`, and returns the findings in order."""
    before, printed = side_effects.Surroundings.now(), side_effects.LineCount()
    findings: list[Finding] = []
    try:
        with redirect_stdout(printed):
            _look(settings, findings, _Request(num_steps, seed, in_worker, before, printed))
    finally:
        before.restore()
    return findings


def _look(settings: GymSettings, findings: list[Finding], request: _Request) -> None:
    factory, seed = factory_of(settings), request.seed

    def passes(found: Iterator[interface.Said]) -> bool:
        new = [Finding(*each) for each in found]
        findings.extend(new)
        return all(each.level != "problem" for each in new)

    env = _made(factory, findings)
    if env is None or not passes(interface.interface(env)):
        return
    is_described = passes(interface.spaces(settings.id, env, encode_text=settings.text_observations == "encode"))
    if is_described and passes(interface.first_reset(env, seed)):
        played = play.play(env, seed=seed, num_steps=request.num_steps)
        if passes(interface.steps(env, played)):
            passes(interface.masks(settings, factory, seed))
            passes(statistics.ends(played))
            passes(statistics.seeds(factory, seed))
            passes(statistics.scales(settings, env, played))
            passes(side_effects.find_side_effects(request.before, request.printed))
            if request.in_worker:
                passes(_worker(settings, factory, seed))
            passes(statistics.speed(played, num_workers=min(os.cpu_count() or 1, settings.num_lanes)))
    passes(statistics.closing(env))


def check_agents(settings: AgentsSettings, *, num_steps: int = 1000, seed: int = 0) -> list[Finding]:
    """Checks an environment of agents."""
    return [Finding(*each) for each in agents.agents(settings, num_steps, seed)]


def check_lanes(make: Callable[[int, Rng], Env], *, num_steps: int = 200, seed: int = 0) -> list[Finding]:
    """Checks a vectorized environment."""
    return [Finding(*each) for each in statistics.lanes(make, num_steps, seed)]


def _made(factory: EnvFactory, findings: list[Finding]) -> GymEnv | None:
    try:
        env = factory()
    except QuintainError:
        # A name that is not there, or code that cannot be imported: nothing was made that could be judged.
        raise
    except ANYTHING as error:
        what = f"making it raises {type(error).__name__}: {interface.first_line(error)}"
        is_missing = isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled)
        fix = "install what it needs" if is_missing else f"look at {interface.place(error)}"
        findings.append(Finding("problem", "creation", what, fix))
    else:
        inner = type(getattr(env, "unwrapped", env)).__name__
        wrapped = f" in a {type(env).__name__}" if type(env).__name__ != inner else ""
        findings.append(Finding("ok", "creation", f"makes a {inner}{wrapped}"))
        return env
    return None


def _worker(settings: GymSettings, factory: EnvFactory, seed: int) -> Iterator[interface.Said]:
    """Compares the same steps in this process and in a worker."""
    rng, options = Rng(seed), {**lane_options(settings), "group_size": 1}
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=1))
    assert hosting.team is not None
    fix = (
        "make it from importable code and JSON arguments, draw from self.np_random only, and pass on variables that it "
        "needs with env_workers.pass_environment"
    )
    try:
        recipe = Recipe.from_settings(settings)
        there = WorkerEnv(settings.id, recipe, 1, rng, hosting.team, **options)
    except QuintainError as error:
        yield "problem", "worker", f"it cannot be made in a worker: {error.message}", fix
        return
    try:
        here = LaneEnv(settings.id, [factory], rng, **options)
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
