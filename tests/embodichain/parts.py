"""What a user of EmbodiChain brings: an environment, a policy, an algorithm and a TensorBoard writer, small."""

from __future__ import annotations

from typing import Any

from quintain import PPO, ActorCritic, ActorCriticSettings, PPOSettings, Trainer
from tests.envs.point_mass import PointMass


class SummaryWriter:
    """Has what of TensorBoard's writer is needed, and keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.num_flushes = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))

    def flush(self) -> None:
        self.num_flushes += 1

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _, _ in self.scalars}


class Keeps:
    """A writer of ours that keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def open(self, header: Any) -> None: ...
    def write(self, step: int, row: Any) -> None: ...
    def close(self, summary: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def parts(num_lanes: int = 4, **settings: Any) -> tuple[ActorCritic, PointMass, PPO]:
    env = PointMass(num_lanes)
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec)
    return policy, env, PPO(PPOSettings(num_epochs=2, **settings), policy)


def quiet_trainer(*more: Any, **keywords: Any) -> Trainer:
    policy, env, algorithm = parts()
    return Trainer(policy, env, algorithm, *more, **{"writers": [], **keywords})
