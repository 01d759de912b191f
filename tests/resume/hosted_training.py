"""A user's own training, in plain torch: its momentum, its data order, its schedule and its draws are its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

NUM_EXAMPLES, BATCH_SIZE = 40, 8


@dataclass
class Position:
    """Where the function stands in its data: which example of which epoch is next."""

    epoch: int = 0
    cursor: int = 0
    order: np.ndarray = field(default_factory=lambda: np.arange(NUM_EXAMPLES))
    best_loss: float = float("inf")


def learning_rate(fraction: float) -> float:
    return 0.05 * (1.0 - fraction)


def train(host, hidden=6):
    """Fits noisy targets with momentum of its own beside an Adam of torch's on one layer."""
    inputs = torch.randn(NUM_EXAMPLES, 3)  # set-up: a resumed run draws the same again
    targets = inputs.sum(1, keepdim=True).sin()
    model = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Dropout(0.2), nn.Linear(hidden, 1))
    momentum = [torch.zeros_like(each) for each in model[0].parameters()]
    adam = torch.optim.Adam(model[3].parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(adam, step_size=7, gamma=0.7)
    shuffle, position = host.rng.generator("order"), Position()
    host.keep(model=model, adam=adam, schedule=schedule, shuffle=shuffle, position=position,
              momentum_0=momentum[0], momentum_1=momentum[1])  # fmt: skip
    while position.epoch < 100:
        if position.cursor == 0:
            position.order[:] = shuffle.permutation(NUM_EXAMPLES)
        chosen = position.order[position.cursor : position.cursor + BATCH_SIZE]
        noise = torch.randn(BATCH_SIZE, 1) * 0.1 + random.gauss(0, 0.1) + np.random.normal() * 0.1  # noqa: NPY002
        loss = (model(inputs[chosen]) - targets[chosen] - noise).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for velocity, weight in zip(momentum, model[0].parameters(), strict=True):
                velocity.mul_(0.9).add_(weight.grad)
                weight.sub_(learning_rate(host.fraction) * velocity)
        adam.step()
        schedule.step()
        position.best_loss = min(position.best_loss, float(loss.detach()))
        position.cursor = (position.cursor + BATCH_SIZE) % NUM_EXAMPLES
        position.epoch += position.cursor == 0
        host.tick(
            env_steps=BATCH_SIZE if host.iteration % 2 else 0, metrics={"loss": loss, "fit/best": position.best_loss}
        )
