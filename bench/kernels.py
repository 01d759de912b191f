"""Measures acting and minibatch steps by kernels and by torch's own operations, in turns, and prints one table.

python bench/kernels.py [REPETITIONS]

The least of many short measurements is reported: whatever else the machine does can only add to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from quintain import Trainer

SHAPES = ((8, 256), (64, 2048))
"""Lanes, and rows of a minibatch."""


def main(repetitions: int = 300) -> None:
    torch.set_num_threads(1)
    print("| what | plain, µs | compiled, µs | ratio |\n|---|---|---|---|")
    for num_lanes, batch_size in SHAPES:
        trainers = {is_compiled: trained(num_lanes, batch_size, is_compiled) for is_compiled in (False, True)}
        show(f"act, {num_lanes} lanes", {key: acting(trainer) for key, trainer in trainers.items()}, repetitions)
        learn = {key: learning(trainer, batch_size) for key, trainer in trainers.items()}
        show(f"one minibatch of {batch_size}", learn, repetitions // 3)


def trained(num_lanes: int, batch_size: int, is_compiled: bool) -> Trainer:
    """Returns a trainer of two 64x64 tanh networks on CartPole after one update."""
    trainer = Trainer(
        "ppo", "CartPole-v1", num_lanes=num_lanes, num_steps=128, num_epochs=1, batch_size=batch_size,
        compiled=is_compiled, writers=[], events=[],
    )  # fmt: skip
    trainer.train(num_lanes * 128)
    return trainer


def acting(trainer: Trainer) -> Callable[[], object]:
    slot = trainer.batch.rollout.slots[0]  # type: ignore[union-attr]  # there is a batch after an update

    def act() -> None:
        with torch.inference_mode():
            trainer.policy.act(slot)

    return act


def learning(trainer: Trainer, batch_size: int) -> Callable[[], object]:
    """Returns one step with the minibatch's gathering, as an epoch takes it."""
    algorithm, batch, progress = trainer.algorithm, trainer.batch, trainer.progress
    assert batch is not None
    first = algorithm.sampler.row_numbers(batch, batch_size, 0)[:1]
    algorithm.sampler.row_numbers = lambda *given: first
    take_steps = algorithm._steps(batch, progress, 1e-5)
    return lambda: list(take_steps(0))


def show(what: str, calls: dict[bool, Callable[[], object]], repetitions: int) -> None:
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repetitions):
        for key, call in calls.items():
            started = time.perf_counter()
            call()
            best[key] = min(best[key], (time.perf_counter() - started) * 1e6)
    print(f"| {what} | {best[False]:.0f} | {best[True]:.0f} | {best[False] / best[True]:.1f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
