"""Finds the bottleneck of training in an environment: the cost of its steps, of acting and of learning.

All values are measured: the environment alone in short loops, the rest in one short real run that leaves nothing
behind. The advice names the setting that reduces the largest cost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.envs.check.play import random_actions
from quintain.envs.settings import GymSettings
from quintain.runs.assemble import assemble
from quintain.runs.env_maker import env_maker
from quintain.runs.output import env_name
from quintain.runs.run import Run
from quintain.services.events import Every
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunHeader, RunSummary

ENV, ACT, LEARN, OTHER = "environment", "acting", "learning", "the rest"
_SHARES = {
    ENV: "time/env_fraction",
    ACT: "time/act_fraction",
    LEARN: "time/learn_fraction",
    OTHER: "time/other_fraction",
}
_PREPARED_ACTIONS = 16
_CLEARLY_FASTER = 1.2
_ENDLESS = 10**12


@dataclass(frozen=True)
class RawRate:
    """Steps per second of an environment without acting and learning."""

    num_lanes: int
    num_workers: int
    """Number of workers that share the lanes; 0 is this process alone."""
    steps_per_second: float


@dataclass(frozen=True)
class Pace:
    """Steps per second of a real run, and the cost of its parts."""

    steps_per_second: float
    microseconds: Mapping[str, float]
    """Microseconds per step, by part."""

    @property
    def bottleneck(self) -> str:
        return max(self.microseconds, key=lambda what: self.microseconds[what])


@dataclass(frozen=True)
class Limits:
    """Upper bounds on the speed of a run, in steps per second."""

    serial: float
    """With only the environment, acting and learning, one after the other."""
    overlapped: float
    """With learning in parallel, on another core."""
    fraction: float
    """The fraction of `serial` that the real run reached."""


def raw_rates(run_file: RunFile, seconds: float) -> Iterator[RawRate]:
    """Steps the environment with random actions: one lane, all lanes, and in workers if possible."""
    settings: Any = run_file.experiment.env
    for num_lanes in sorted({1, settings.num_lanes}):
        yield RawRate(num_lanes, 0, _raw_rate(run_file, num_lanes, seconds))
    num_workers = min(os.cpu_count() or 1, settings.num_lanes)
    if num_workers > 1 and isinstance(settings, GymSettings) and settings.vectorization == "lanes":
        hosted = run_file.replace("run.env_workers.num_workers", num_workers)
        yield RawRate(settings.num_lanes, num_workers, _raw_rate(hosted, settings.num_lanes, seconds))


def _raw_rate(run_file: RunFile, num_lanes: int, seconds: float) -> float:
    rng = Rng(run_file.experiment.seed).child("bench")
    env = env_maker(run_file)(num_lanes, rng)
    try:
        env.reset()
        mask, number, spent = env.action_mask(), 0, 0.0
        prepared = [
            random_actions(env.spec, num_lanes, rng.generator("actions", i), mask) for i in range(_PREPARED_ACTIONS)
        ]
        while spent < seconds:
            action = prepared[number % _PREPARED_ACTIONS]
            if mask is not None:
                action = random_actions(env.spec, num_lanes, rng.generator("actions", number), mask)
            started = time.perf_counter()
            mask = env.step(action).action_mask
            spent += time.perf_counter() - started
            number += 1
    finally:
        env.close()
    return number * num_lanes / spent


class RowKeeper:
    """A writer that keeps rows, for their timings."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def open(self, header: RunHeader) -> None: ...

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self.rows.append((step, dict(row)))

    def note(self, text: str) -> None: ...

    def close(self, summary: RunSummary) -> None: ...


def real_pace(run_file: RunFile, seconds: float) -> Pace:
    """Trains for a while, without a directory, and returns the speed."""
    behavior = next(iter(run_file.experiment.behaviors))
    run_file = run_file.replace(f"experiment.behaviors.{behavior}.events", [])
    run_file = run_file.replace("experiment.budget", {"env_steps": _ENDLESS})
    keeper = RowKeeper()
    run = Run(run_file, [keeper])
    trainer = assemble(run_file, run, run.writer)
    started = time.perf_counter()

    def stop_in_time(trainer: Any) -> None:
        # The first row is the warm-up.
        if time.perf_counter() - started >= seconds and len(keeper.rows) > 1:
            trainer.stop("measured")

    trainer.events.add(Every(updates=1), stop_in_time)
    try:
        trainer.train()
    finally:
        trainer.close()
        run.close()
    return pace_of(keeper.rows)


def pace_of(rows: list[tuple[int, dict[str, float]]]) -> Pace:
    """Averages over the rows after the first, weighted by duration."""
    (first_step, first), (last_step, last) = rows[0], rows[-1]
    seconds = last["time/total_seconds"] - first["time/total_seconds"]
    rate = (last_step - first_step) / seconds
    shares = dict.fromkeys(_SHARES, 0.0)
    for (_, before), (_, row) in pairwise(rows):
        weight = (row["time/total_seconds"] - before["time/total_seconds"]) / seconds
        for what, name in _SHARES.items():
            shares[what] += weight * row[name]
    return Pace(rate, {what: 1e6 * share / rate for what, share in shares.items()})


def limits_of(raw: RawRate, pace: Pace) -> Limits:
    """Computes the upper bounds from the speed of the environment alone."""
    act, learn = pace.microseconds[ACT], pace.microseconds[LEARN]
    collect = 1e6 / raw.steps_per_second + act
    serial = 1e6 / (collect + learn)
    return Limits(serial, 1e6 / max(collect, learn), pace.steps_per_second / serial)


def advice(run_file: RunFile, raw: tuple[RawRate, ...], pace: Pace) -> list[str]:
    """Returns advice for the largest cost, as sentences that name a setting."""
    settings: Any = run_file.experiment.env
    if pace.bottleneck == ENV:
        return _advice_for_env(settings, raw, env_name(run_file))
    if pace.bottleneck == ACT:
        more = 4 * settings.num_lanes
        return [f"more lanes: num_lanes={more}. Acting costs by the call more than by the lane"]
    if pace.bottleneck == LEARN:
        return _advice_for_learning(run_file)
    return [
        "most time is spent outside all of these: fewer rows of metrics (run.report.every_updates), longer rollouts"
    ]


def _advice_for_env(settings: Any, raw: tuple[RawRate, ...], name: str) -> list[str]:
    said = []
    here = next(rate for rate in reversed(raw) if rate.num_workers == 0)
    for hosted in (rate for rate in raw if rate.num_workers):
        factor = hosted.steps_per_second / here.steps_per_second
        if factor > _CLEARLY_FASTER:
            said.append(f"workers: run.env_workers.num_workers={hosted.num_workers} steps {factor:.1f} x as fast here")
        else:
            said.append(f"no workers: {hosted.num_workers} of them step only {factor:.1f} x as fast here")
    if settings.type == "gym" and _has_native(name):
        said.append(f"the compiled version that gives the same results: native/{name}")
    elif settings.type == "gym" and _has_vector_entry_point(settings):
        said.append("the environment's own vector version: vectorization=native")
    if settings.type == "gym":
        said.append("EnvPool, if it has this task (type: envpool), or a step() that costs less")
    return said


def _advice_for_learning(run_file: RunFile) -> list[str]:
    algorithm: Any = next(iter(run_file.experiment.behaviors.values())).algorithm
    said = []
    if (num_epochs := getattr(algorithm, "num_epochs", 1)) > 1:
        said.append(f"fewer epochs: num_epochs={max(1, num_epochs // 2)} halves what learning costs")
    if batch_size := getattr(algorithm, "batch_size", None):
        said.append(f"larger minibatches: batch_size={4 * batch_size}, with a learning rate that fits")
    cores = os.cpu_count() or 1
    if run_file.run.threads < cores:
        said.append(f"more threads: run.threads={cores} pays for large networks and minibatches, not for small ones")
    return said


def _has_native(name: str) -> bool:
    if "native" not in registry.names("env"):
        return False
    known: Any = registry.get("env", "native").settings_class.model_fields["id"].annotation
    return name in getattr(known, "__args__", ())


def _has_vector_entry_point(settings: Any) -> bool:
    import gymnasium

    spec = gymnasium.registry.get(settings.id)
    return settings.vectorization == "lanes" and spec is not None and spec.vector_entry_point is not None
