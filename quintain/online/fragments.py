"""Fragments as MineStudio's trainers know them: plain values of one environment's steps, by index."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.env_values import to_env
from quintain.data.fragments import FragmentBlock
from quintain.data.spec import build, leaves

if TYPE_CHECKING:
    from quintain.typing import Action, Array, Observation, Tree

Value = TypeVar("Value")


@dataclass(frozen=True, order=True)
class FragmentIndex:
    """The identity of a fragment: its environment, and its number there."""

    worker_uuid: str
    fid_in_worker: int


@dataclass
class SampleFragment:
    """T steps of one environment, over ends of episodes."""

    obs: Observation
    """[T, ...] in the environment's structure"""
    action: Action
    """[T, ...] in the environment's structure"""
    reward: Array
    """[T] each with the step that earned it"""
    terminated: Array
    """[T] whether the episode terminated in this step"""
    truncated: Array
    """[T] whether it was truncated: by a time limit, a crash or a restart"""
    first: Array
    """[T] whether the step begins an episode"""
    valid: Array
    """[T] whether the step counts; one in which a broken environment was made again does not"""
    in_state: torch.Tensor
    """[S] the hidden state before the first step, as one row"""
    next_obs: Observation
    """The observation after the last step."""
    worker_uuid: str
    fid_in_worker: int
    follows: bool
    """Whether it follows the fragment before it without a gap."""
    column: int
    """Its place in the batch that it was fetched with."""

    @property
    def index(self) -> FragmentIndex:
        return FragmentIndex(self.worker_uuid, self.fid_in_worker)

    @property
    def next_done(self) -> Array:
        """[T] whether the episode ended after the step"""
        return np.asarray(self.terminated | self.truncated)

    @property
    def episode_uuids(self) -> list[str]:
        """A name for each step's episode, within the fragment."""
        return [f"{self.worker_uuid}/{self.fid_in_worker}/{number}" for number in np.cumsum(self.first)]

    def print(self) -> None:
        """Prints its index, length and rewards."""
        sys.stdout.write(f"{self.index}: {len(self.reward)} steps, reward {float(self.reward.sum()):g}\n")


class FragmentRecord(NamedTuple):
    """A fetched fragment: its index, and the key under which `data_iter` finds it."""

    fragment: FragmentIndex
    fragment_id: str


class FragmentDataDict(dict[FragmentIndex, Value], Generic[Value]):
    """Values by fragment, such as advantages [T]."""

    def format_batch(
        self, fragments: Sequence[SampleFragment], device: torch.device | str = "cpu"
    ) -> torch.Tensor | dict[str, Tree]:
        """Returns the values of these fragments as one batch [B, ...], in their own structure."""
        found: torch.Tensor | dict[str, Tree] = _stacked([self[each.index] for each in fragments], device)
        return found


def sample_fragments(block: FragmentBlock) -> list[SampleFragment]:
    """Returns the fragments of a block; observations and rewards share its memory."""
    spec, made = block.spec, []
    actions = leaves(spec.action, f.ACTION)
    for column in range(block.num_fragments):
        steps = {name: rows[:, column] for name, rows in block.arrays.items()}
        obs = {name: steps[name] for name in block.obs_names}
        chosen = {name: to_env(leaf, steps[name][:-1]) for name, leaf in actions.items()}
        made.append(
            SampleFragment(
                obs=build(spec.obs, {name: rows[:-1] for name, rows in obs.items()}, f.OBS),
                action=build(spec.action, chosen, f.ACTION),
                reward=steps[f.REWARD][:-1],
                terminated=steps[f.TERMINATED][:-1],
                # Of both flags the termination holds, as in the estimates.
                truncated=steps[f.TRUNCATED][:-1] & ~steps[f.TERMINATED][:-1],
                first=steps[f.FIRST][:-1],
                valid=steps[f.VALID][:-1],
                in_state=block.policy_state[column],
                next_obs=build(spec.obs, {name: rows[-1] for name, rows in obs.items()}, f.OBS),
                worker_uuid=f"env-{int(steps[f.LANE][0])}",
                fid_in_worker=int(steps[f.FRAGMENT][0]),
                follows=bool(steps[f.FOLLOWS][0]),
                column=column,
            )
        )
    return made


def data_iter(
    loader_pool: Mapping[str, SampleFragment],
    records: Sequence[tuple[FragmentIndex, str]],
    batch_size: int,
    prefetch_batches: int = 0,
) -> Iterator[list[SampleFragment]]:
    """Yields the fragments of records in batches, in their order; nothing has to be read ahead."""
    for start in range(0, len(records), batch_size):
        yield [loader_pool[key] for _, key in records[start : start + batch_size]]


def batch_of(fragments: Sequence[SampleFragment], device: torch.device | str = "cpu") -> dict[str, Tree]:
    """Returns observations, actions, rewards and flags of fragments as one batch [B, T, ...]."""
    names = ("obs", "action", "reward", "first", "next_done", "valid")
    return {name: _stacked([getattr(each, name) for each in fragments], device) for name in names}


def mapped(function: Callable[..., Tree], *trees: Tree) -> Tree:
    """Returns a tree with what a function makes of the leaves of trees that have one structure."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {name: mapped(function, *(each[name] for each in trees)) for name in first}
    if isinstance(first, tuple):
        return tuple(mapped(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def _stacked(values: Sequence[Tree], device: torch.device | str) -> Tree:
    return mapped(lambda *parts: torch.stack([torch.as_tensor(each) for each in parts]).to(device), *values)
