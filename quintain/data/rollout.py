"""A block of experience: named fields of batch shape [N, T+1] over time-major memory, allocated once and reused.

On the CPU every field is one piece of memory with two faces: a tensor for the learner and a numpy array for the loop
that steps environments. A step's slot is contiguous, and the first T steps flatten without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, DiscreteSpec
from quintain.state import as_tensor

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Array, State


@dataclass(slots=True)
class Slot:
    """One step of all lanes: views that were made with the block, so that acting builds no objects."""

    obs: torch.Tensor
    action: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor
    noise: torch.Tensor


class Rollout:
    """Holds N lanes of T steps and where they came from."""

    def __init__(
        self,
        spec: BehaviorSpec,
        *,
        num_lanes: int,
        num_steps: int,
        noise_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec = spec
        self.num_lanes = num_lanes
        self.num_steps = num_steps
        self.device = torch.device(device)
        self.sequence = 0
        self.num_final = 0
        self.storage = _allocate(spec, num_lanes, num_steps, noise_size, self.device)
        self.final_obs = self._final_rows(max(num_lanes, num_lanes * num_steps // 8))
        # Off the CPU a numpy face would be a copy, and writes to it would be lost: there are none.
        self.arrays: dict[str, Array] = (
            {name: tensor.numpy() for name, tensor in self.storage.items()} if self.device.type == "cpu" else {}
        )
        self.slots = [
            Slot(*(self.storage[name][t] for name in (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE, f.NOISE)))
            for t in range(num_steps + 1)
        ]

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

    def final_array(self) -> Array:
        """Returns the true last observations that were kept, on the CPU, in the order of `final_index`."""
        return self.final_obs[: self.num_final].cpu().numpy()

    def write(self, name: str, t: int, value: Any) -> None:
        """Copies one step of a field from what an environment returned, tensor or array."""
        if isinstance(value, np.ndarray) and self.arrays:
            np.copyto(self.arrays[name][t], value, casting="same_kind")
        else:
            self.storage[name][t].copy_(torch.as_tensor(value))

    def add_final_obs(self, t: int, lanes: Array, rows: Any) -> None:
        """Keeps the true last observation of the episodes that ended at step t in `lanes`."""
        end = self.num_final + len(lanes)
        if end > len(self.final_obs):
            grown = self._final_rows(max(end, 2 * len(self.final_obs)))
            grown[: self.num_final] = self.final_obs[: self.num_final]
            self.final_obs = grown
        self.final_obs[self.num_final : end].copy_(torch.as_tensor(rows))
        index = torch.arange(self.num_final, end, dtype=torch.int32, device=self.device)
        self.storage[f.FINAL_INDEX][t, torch.as_tensor(lanes, device=self.device)] = index
        self.num_final = end

    def begin(self, sequence: int, version: int) -> None:
        """Clears what the last use of this memory left behind."""
        self.sequence = sequence
        self.num_final = 0
        for name in (f.FINAL_INDEX, f.FINAL_VALUE, f.TERMINATED, f.TRUNCATED, f.DONE, f.REWARD):
            self.storage[name].fill_(-1 if name == f.FINAL_INDEX else 0)
        self.storage[f.VALID].fill_(True)
        self.storage[f.POLICY_VERSION].fill_(version)

    def td(self) -> TensorDict:
        """Returns the rollout as a TensorDict of batch [N, T+1] that shares this memory."""
        from tensordict import TensorDict

        return TensorDict({name: self[name] for name in self.storage}, batch_size=[self.num_lanes, self.num_steps + 1])

    def state_dict(self) -> State:
        saved: State = {name: tensor.clone() for name, tensor in self.storage.items()}
        return {"fields": saved, "final_obs": self.final_obs[: self.num_final].clone(), "sequence": self.sequence}

    def load_state_dict(self, state: State) -> None:
        for name, tensor in self.storage.items():
            tensor.copy_(as_tensor(state["fields"][name]))
        rows = as_tensor(state["final_obs"])
        self.num_final, self.sequence = len(rows), state["sequence"]
        self.final_obs = self._final_rows(max(len(self.final_obs), len(rows)))
        self.final_obs[: len(rows)] = rows

    def _final_rows(self, capacity: int) -> torch.Tensor:
        obs = self.spec.obs
        # Growing happens while acting; what is made in inference mode could never take part in learning.
        with torch.inference_mode(False):
            return torch.zeros((capacity, *obs.shape), dtype=_torch_dtype(obs.dtype), device=self.device)


class Batch:
    """What one update consumes: rollouts, and which of their steps count."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        valid = rollout.flat(f.VALID)
        self.valid_rows = valid.nonzero().squeeze(1)
        self.num_valid = len(self.valid_rows)
        self.num_episodes = int(rollout.flat(f.DONE).sum())

    def __iter__(self) -> Iterator[Rollout]:
        yield self.rollout


def _allocate(
    spec: BehaviorSpec, num_lanes: int, num_steps: int, noise_size: int, device: torch.device
) -> dict[str, torch.Tensor]:
    def field(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros((num_steps + 1, num_lanes, *shape), dtype=dtype, device=device)

    is_discrete = isinstance(spec.action, DiscreteSpec)
    return {
        f.OBS: field(*spec.obs.shape, dtype=_torch_dtype(spec.obs.dtype)),
        f.ACTION: field(dtype=torch.int64) if is_discrete else field(*spec.action.shape),  # type: ignore[union-attr]  # a BoxSpec
        f.LOG_PROB: field(),
        f.VALUE: field(),
        f.REWARD: field(),
        f.TERMINATED: field(dtype=torch.bool),
        f.TRUNCATED: field(dtype=torch.bool),
        f.DONE: field(dtype=torch.bool),
        f.FIRST: field(dtype=torch.bool),
        f.VALID: field(dtype=torch.bool),
        f.FINAL_INDEX: field(dtype=torch.int32),
        f.FINAL_VALUE: field(),
        f.NOISE: field(noise_size),
        f.POLICY_VERSION: field(dtype=torch.int64),
        f.ADVANTAGE: field(),
        f.RETURN: field(),
    }


def _torch_dtype(name: str) -> torch.dtype:
    return {"float32": torch.float32, "uint8": torch.uint8}[name]
