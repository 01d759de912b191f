"""The floor: forward, backward and Adam of the networks that quintain learns with, as often as it uses them.

Plain modules of torch on rows that lie ready: no environment, no losses, no replay, no statistics. Nothing is chosen
and nothing is learned; the outputs are summed and sent back.
"""

from __future__ import annotations

from typing import Any

import image_agents
from image_agents import BATCH_SIZE, BUFFER_SIZE, NUM_CHOICES, NUM_EPOCHS, NUM_NUMBERS

from peers import Tick

KIT = "quintain"
PACKAGES = ("torch", "numpy")


def ppo_image(num_agents: int, tick: Tick) -> None:
    """Acts and learns with one encoder under an actor and a critic."""
    batch_size = BATCH_SIZE["ppo"]
    torch, rows = _torch_and_rows("ppo", BUFFER_SIZE)
    encoder, size = _encoder("ppo")
    heads = [_perceptron("ppo", size, NUM_CHOICES), _perceptron("ppo", size, 1)]
    optimizer = torch.optim.Adam([p for each in (encoder, *heads) for p in each.parameters()], lr=3e-4)
    seen = [image[:num_agents] for image in rows]
    num_steps, is_over = 0, False
    while not is_over:
        with torch.no_grad():
            for _ in range(BUFFER_SIZE // num_agents):
                features = encoder(seen)
                for head in heads:
                    head(features)
        for start in list(range(0, BUFFER_SIZE, batch_size)) * NUM_EPOCHS:
            features = encoder([image[start : start + batch_size] for image in rows])
            loss = heads[0](features).sum() + heads[1](features).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        num_steps += BUFFER_SIZE
        is_over = tick(num_steps)


def sac_images(num_agents: int, tick: Tick) -> None:
    """Acts, and learns once per step with an actor, two critics on one encoder, and their targets."""
    batch_size = BATCH_SIZE["sac"]
    torch, rows = _torch_and_rows("sac", max(num_agents, batch_size))
    num_outputs = 2 * NUM_NUMBERS + NUM_CHOICES
    (encoder, size), (critic_encoder, _), (target_encoder, _) = (_encoder("sac") for _ in range(3))
    actor = _perceptron("sac", size, num_outputs)
    critics, targets = ([_perceptron("sac", size + NUM_NUMBERS, NUM_CHOICES) for _ in range(2)] for _ in range(2))
    trained = [p for each in (encoder, actor, critic_encoder, *critics) for p in each.parameters()]
    optimizer = torch.optim.Adam(trained, lr=3e-4)
    seen, batch = [image[:num_agents] for image in rows], [image[:batch_size] for image in rows]
    numbers = torch.zeros(batch_size, NUM_NUMBERS)
    num_steps, next_tick, is_over = 0, 0, False
    while not is_over:
        with torch.no_grad():
            actor(encoder(seen))
        for _ in range(num_agents):
            with torch.no_grad():
                drawn = actor(encoder(batch))[:, :NUM_NUMBERS]
                features = torch.cat((target_encoder(batch), drawn), dim=1)
                for target in targets:
                    target(features)
            features = critic_encoder(batch)
            taken = torch.cat((features, numbers), dim=1)
            output = actor(encoder(batch))
            proposed = torch.cat((features.detach(), output[:, :NUM_NUMBERS]), dim=1)
            loss = sum((critic(taken).sum() + critic(proposed).sum() for critic in critics), output.sum())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        num_steps += num_agents
        if num_steps >= next_tick:
            next_tick = num_steps + image_agents.NUM_TICK_STEPS
            is_over = tick(num_steps)


def _torch_and_rows(trainer_type: str, num_rows: int) -> tuple[Any, list[Any]]:
    import torch

    torch.set_num_threads(1)
    count = image_agents.NUM_IMAGES[trainer_type]
    return torch, [torch.rand(num_rows, *image_agents.SHAPE) for _ in range(count)]


def _encoder(trainer_type: str) -> tuple[Any, int]:
    """Returns what reads all images side by side, and how many features that gives."""
    import torch
    from torch import nn

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.ModuleList(_convolutions(hidden) for _ in range(count))

        def forward(self, images: list[Any]) -> Any:
            # To the order that torch's convolutions expect; the memory stays as it is.
            parts = [read(image.permute(0, 3, 1, 2)) for read, image in zip(self.each, images, strict=True)]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    hidden, count = image_agents.HIDDEN[trainer_type], image_agents.NUM_IMAGES[trainer_type]
    return Images(), hidden * count


def _convolutions(num_features: int) -> Any:
    import torch
    from torch import nn

    height, width, channels = image_agents.SHAPE
    layers = [nn.Conv2d(channels, 16, 8, 4), nn.LeakyReLU(), nn.Conv2d(16, 32, 4, 2), nn.LeakyReLU(), nn.Flatten()]
    size = nn.Sequential(*layers)(torch.zeros(1, channels, height, width)).shape[1]
    return nn.Sequential(*layers, nn.Linear(size, num_features), nn.LeakyReLU())


def _perceptron(trainer_type: str, inputs: int, outputs: int) -> Any:
    from torch import nn

    hidden = image_agents.HIDDEN[trainer_type]
    return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, outputs))
