"""A block of experience: named fields of batch shape [N, T+1] over time-major memory, allocated once and reused.

On the CPU every field is one memory with two views: a tensor for the learner and a numpy array for the loop that steps
environments. A time step is contiguous, and the first T steps flatten without a copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
import torch

from quintain.core.state import as_tensor, copied, copy_into, require_count, require_shapes, require_within
from quintain.data import fields as f
from quintain.data.fields import Declared, resolve_fields
from quintain.data.final_rows import FinalRows
from quintain.data.replay_memory import ReplayMemory
from quintain.data.spec import BehaviorSpec, build, flatten, leaves, require_choices
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Action, Array, Metrics, Observation, State, Values

Allocator = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Allocates zeroed memory of this shape and dtype."""

Prepared: TypeAlias = Any
"""A policy's cached views for acting at one time step; only that policy uses it."""

TORCH_DTYPES = {
    "float32": torch.float32,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}


@dataclass(slots=True)
class Slot:
    """One time step of all lanes: views that were made with the block, so that acting allocates no objects."""

    obs: Observation
    """In the spec's structure: a tensor, or dicts and tuples of tensors."""
    action: Action
    log_prob: torch.Tensor
    value: torch.Tensor
    noise: torch.Tensor
    leaves: dict[str, torch.Tensor]
    """The leaves of obs and action, `first`, the mask if there is one, and all declared fields, by name."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """The same memory and that of all other fields as numpy arrays; empty off the CPU."""
    prepared: Prepared = None
    """A policy's cached views for acting here."""

    def mask(self) -> torch.Tensor | None:
        """Returns the action mask; None if all actions are known to be allowed."""
        mask = self.leaves.get(f.ACTION_MASK)
        return None if mask is None or (self.arrays and self.arrays[f.ACTION_MASK].all()) else mask


class Rollout:
    """A rollout: N lanes of T steps, with their origin."""

    is_whole: ClassVar[bool] = False
    """Whether every trajectory ends inside it, as those of agents do; episodes of lanes continue in the next block."""

    over_borders: Callable[..., Array] | None = None
    """Applies a recursion over time where columns continue each other; None where each is a sequence of its own."""

    def __init__(
        self,
        spec: BehaviorSpec,
        fields: Declared | None = None,
        *,
        num_lanes: int,
        num_steps: int,
        num_parts: int = 1,
        device: torch.device | str = "cpu",
        allocate: Allocator | None = None,
    ) -> None:
        """Allocates the block with the fields of its spec, the standard ones and the declared ones.

        Memory of the caller (`allocate`) has a fixed size, with capacity for every final row. So has a block of several
        parts, which are filled by one collector each.
        """
        self.spec = spec
        self.fields = resolve_fields(spec, fields)
        self.num_lanes = num_lanes
        self.num_steps = num_steps
        self.num_parts = num_parts
        self.device = torch.device(device)
        self.sequence = 0
        self.obs_names = tuple(leaves(spec.obs, f.OBS))
        new = allocate or partial(_zeros, self.device)
        self.storage: dict[str, torch.Tensor] = {}
        for name, each in self.fields.items():
            if each.per != "lane":
                # Fields of teammates begin without room for any.
                leading = (num_steps + 1, num_lanes, *([0] if each.per == "teammate" else []))
                self.storage[name] = new((*leading, *each.shape), TORCH_DTYPES[each.dtype])
        standard = {*self.obs_names, *leaves(spec.action, f.ACTION), f.ACTION_MASK, *f.STANDARD}
        self.declared_names = tuple(name for name in self.storage if name not in standard)
        """Fields in addition to the standard ones."""
        (state_size,) = self.fields[f.POLICY_STATE].shape
        self.policy_state = new((num_lanes, state_size), torch.float32)
        of_teammates = [f.TEAMMATES, *f.names_of(f.TEAMMATE_OBS, self.storage)] if f.TEAMMATES in self.storage else []
        most = num_lanes * num_steps
        self.final = FinalRows(
            {name: self.storage[name] for name in (*self.obs_names, *of_teammates)},
            state_size,
            most if allocate or num_parts > 1 else max(num_lanes, most // 8),
            new,
        )
        if num_parts > 1:
            # Each part counts its own.
            self.final.count = most
        # Off the CPU a numpy face would be a copy, and writes to it would be lost: there are none.
        self.arrays: dict[str, Array] = (
            {name: tensor.numpy() for name, tensor in self.storage.items()} if self.device.type == "cpu" else {}
        )

    @property
    def has_many_values(self) -> bool:
        """Whether there is one value per reward signal."""
        return bool(self.fields[f.VALUE].shape)

    @property
    def keeps_all_ends(self) -> bool:
        """Whether agents' last observations are kept after true ends too, for values or signals that read them."""
        return self.has_many_values or f.ENDS in self.fields

    @cached_property
    def slots(self) -> list[Slot]:
        """The time steps as views, made once, on first access."""
        return [self._slot(t) for t in range(self.num_steps + 1)]

    def _slot(self, t: int) -> Slot:
        step = {name: tensor[t] for name, tensor in self.storage.items()}
        seen = [*self.obs_names, *leaves(self.spec.action, f.ACTION), f.FIRST]
        seen += [*([f.ACTION_MASK] if f.ACTION_MASK in step else []), *self.declared_names]
        return Slot(
            obs=build(self.spec.obs, step, f.OBS),
            action=build(self.spec.action, step, f.ACTION),
            log_prob=step[f.LOG_PROB],
            value=step[f.VALUE],
            noise=step[f.NOISE],
            leaves={name: step[name] for name in seen},
            arrays={name: array[t] for name, array in self.arrays.items()},
        )

    def part(self, lanes: slice) -> Rollout:
        """Returns some neighbouring lanes as a block in the same memory; both add to the same final rows."""
        part = copy.copy(self)
        vars(part).pop("slots", None)
        part.storage = {name: tensor[:, lanes] for name, tensor in self.storage.items()}
        part.arrays = {name: array[:, lanes] for name, array in self.arrays.items()}
        part.policy_state = self.policy_state[lanes]
        part.num_lanes = len(part.policy_state)
        part.num_parts = 1
        return part

    @cached_property
    def parts(self) -> list[Rollout]:
        """Equal shares of the lanes as blocks in the same memory, each with final rows of its own."""
        return self.split(self.num_lanes // self.num_parts)

    def split(self, size: int) -> list[Rollout]:
        """Returns parts of `size` lanes each."""
        parts = []
        for first in range(0, self.num_lanes, size):
            part = self.part(slice(first, first + size))
            part.final = self.final.region(first * self.num_steps)
            parts.append(part)
        return parts

    def __getitem__(self, name: str) -> torch.Tensor:
        """Returns the field as [N, T+1, ...], a view."""
        return self.storage[name].transpose(0, 1)

    def flat(self, name: str) -> torch.Tensor:
        """Returns the first T steps of the field as [T*N, ...], a view, in time-major order."""
        field = self.storage[name]
        return field[:-1].reshape(self.num_steps * self.num_lanes, *field.shape[2:])

    def array(self, name: str) -> Array:
        """Returns the field on the CPU as a numpy array [T+1, N, ...]; a view where memory allows."""
        return self.arrays[name] if self.arrays else self.storage[name].cpu().numpy()

    def write(self, name: str, t: int, value: Values) -> None:
        """Copies one time step of a field from an environment's tensor or array."""
        if isinstance(value, np.ndarray) and self.arrays:
            np.copyto(self.arrays[name][t], value, casting="same_kind")
        else:
            self.storage[name][t].copy_(torch.as_tensor(value))

    def write_obs(self, t: int, obs: Observation) -> None:
        """Copies the observation of one time step, given in the spec's structure."""
        if len(self.obs_names) == 1 and not isinstance(obs, Mapping | tuple):
            self.write(self.obs_names[0], t, obs)
            return
        for name, value in flatten(self.spec.obs, obs, f.OBS).items():
            self.write(name, t, value)

    def add_final_obs(self, t: int, lanes: Array, rows: Mapping[str, Values], state: torch.Tensor) -> None:
        """Stores the true last observations of the episodes that ended at step t: rows of `lanes`, by field name."""
        where = torch.as_tensor(lanes, device=self.device)
        self.storage[f.FINAL_INDEX][t, where] = self.final.add(rows, state[where])

    @property
    def has_steps(self) -> bool:
        """Whether it holds any valid step."""
        return bool(self.array(f.VALID)[:-1].any())

    def begin(self, sequence: int, version: int) -> None:
        """Clears the contents of the last use."""
        self.sequence = sequence
        if self.num_parts > 1:
            for part in self.parts:
                part.begin(sequence, version)
            return
        self.final.clear()
        written = (f.FINAL_VALUE, f.TERMINATED, f.TRUNCATED, f.DONE, f.REWARD, f.ADVANTAGE, f.RETURN)
        cleared = dict.fromkeys((*written, *self.declared_names), 0)
        fields: Mapping[str, Values] = self.arrays or self.storage
        # Both faces of a field take a whole assignment; for a block of few steps numpy's costs a tenth.
        for name, value in {**cleared, f.FINAL_INDEX: -1, f.VALID: True, f.POLICY_VERSION: version}.items():
            fields[name][...] = value

    def count_episodes(self) -> int:
        """Returns the number of episodes that ended in it."""
        return int(np.count_nonzero(self.array(f.DONE)[:-1]))

    def td(self) -> TensorDict:
        """Returns the rollout as a TensorDict of batch [N, T+1] that shares this memory."""
        from tensordict import TensorDict

        fields = {tuple(name.split(".")): self[name] for name in self.storage}
        return TensorDict(fields, batch_size=[self.num_lanes, self.num_steps + 1])

    def state_dict(self) -> State:
        return copied(self.contents())

    def contents(self) -> State:
        """Returns the state in the memory of the block, for a reader that is done before the next step is written."""
        fields = dict(self.storage)
        fields[f.FINAL_INDEX] = fields[f.FINAL_INDEX].clone()
        final = self.final.contents() if self.num_parts == 1 else self._packed_final(fields)
        if self.final.start:
            # A part counts its rows from the first of its region.
            fields[f.FINAL_INDEX].sub_(self.final.start).clamp_(min=-1)
        return {"fields": fields, "policy_state": self.policy_state, "final": final, "sequence": self.sequence}

    def _packed_final(self, fields: dict[str, torch.Tensor]) -> State:
        """Returns the final rows of all parts, ordered by step and lane, and sets their new indices in the fields."""
        index = fields[f.FINAL_INDEX]
        is_used = fields[f.DONE] & (index >= 0)
        packed = self.final.take(index[is_used].long())
        index.fill_(-1)
        index[is_used] = torch.arange(int(is_used.sum()), dtype=index.dtype, device=index.device)
        return dict(packed)

    def _unpack_final(self, final: State) -> None:
        """Moves packed final rows to the regions of the parts, which may then add more."""
        self.final.require_rows(final)
        self.storage[f.FINAL_INDEX][-1] = -1
        for part in self.parts:
            index = part.storage[f.FINAL_INDEX][:-1]
            is_used = index >= 0
            part.final.clear()
            rows = {name: as_tensor(each).to(self.device)[index[is_used].long()] for name, each in final.items()}
            state = rows.pop("policy_state")
            index[is_used] = part.final.add(rows, state)

    def load_state_dict(self, state: State) -> None:
        require_shapes("fields", state["fields"], self.storage)
        require_shapes("policy_state", state["policy_state"], self.policy_state)
        require_found(self.spec, state)
        for name, tensor in self.storage.items():
            copy_into(tensor, state["fields"][name])
        copy_into(self.policy_state, state["policy_state"])
        if self.num_parts == 1:
            self.final.load_state_dict(state["final"])
            index = self.storage[f.FINAL_INDEX]
            index[index >= 0] += self.final.start
        else:
            self._unpack_final(state["final"])
        self.sequence = require_count("sequence", state["sequence"])


def require_found(spec: BehaviorSpec, state: State) -> None:
    """Refuses a saved block with discrete values out of range, or with indices of final rows that do not exist."""
    fields, final = state["fields"], state["final"]
    for name, leaf in {**leaves(spec.obs, f.OBS), **leaves(spec.action, f.ACTION)}.items():
        require_choices(leaf, name, fields[name])
        if name in final:
            require_choices(leaf, f"final.{name}", final[name])
    # Where there are none, what an earlier use of the memory left there is not looked up.
    require_within(f.FINAL_INDEX, fields[f.FINAL_INDEX], -1, max(len(final["policy_state"]) - 1, 0))


class WritesTransitions(Protocol):
    """Makes transitions from the steps of a block, and writes them to a replay buffer."""

    @property
    def memory(self) -> ReplayMemory: ...

    def write(self, rollout: Rollout, reward: Array, gamma: float) -> None: ...


class Batch:
    """The data of one update: a block, which of its steps are valid, and the replay buffer of off-policy algorithms."""

    def __init__(self, rollout: Rollout, writer: WritesTransitions | None = None) -> None:
        self.rollout = rollout
        self.writer = writer
        valid = rollout.array(f.VALID)[:-1]
        self.valid_rows = torch.from_numpy(np.flatnonzero(valid)).to(rollout.device)
        """Which of the first T steps are valid, flat and in time-major order."""
        self.num_valid = len(self.valid_rows)
        self.num_new = self.num_valid
        """Number of valid steps that were not in an earlier batch."""
        self.num_episodes = rollout.count_episodes()
        """Number of episodes that ended in new steps."""
        self.metrics: Metrics = {}
        """Metrics of the store, for the row of this update."""

    def __iter__(self) -> Iterator[Rollout]:
        yield self.rollout

    @property
    def memory(self) -> ReplayMemory:
        """The contents of the replay buffer."""
        return self._writer.memory

    def remember(self, reward: Array, gamma: float) -> None:
        """Writes the steps of the block to the replay buffer, with their rewards [T, N]."""
        self._writer.write(self.rollout, reward, gamma)

    @property
    def _writer(self) -> WritesTransitions:
        if self.writer is None:
            raise SettingsError(
                "the algorithm learns from replay, and this batch has none; set rollout.type to replay, or to "
                "trajectory_replay for agents",
                code="E0224",
            )
        return self.writer

    def valid_obs(self) -> dict[str, Array]:
        """Returns the observations of valid steps, by field name, in time-major order."""
        flat = {}
        for name in self.rollout.obs_names:
            field = self.rollout.array(name)[:-1]
            flat[name] = field.reshape(-1, *field.shape[2:])
        if self.num_valid == self.rollout.num_steps * self.rollout.num_lanes:
            return flat
        rows = self.valid_rows.cpu().numpy()
        return {name: field[rows] for name, field in flat.items()}


def values_shape(num_values: int) -> tuple[int, ...]:
    """Returns the shape of one step's value: a scalar, or one value per reward signal."""
    return () if num_values == 1 else (num_values,)


def _zeros(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
