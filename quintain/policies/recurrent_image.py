"""A recurrent policy for images under the contract of MineStudio's policies; the example of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import gymnasium
import torch
from gymnasium import spaces
from torch import nn

from quintain.data.spec import LeafSpec, box, discrete, multi_discrete
from quintain.errors import SpecMismatch
from quintain.policies.encoders import Encoder
from quintain.policies.memory import make_memory
from quintain.policies.mine_policy import MinePolicy
from quintain.policies.settings import MemorySettings, NetworkSettings

if TYPE_CHECKING:
    from quintain.typing import Action, Keyword, Observation, Tree


class RecurrentImagePolicy(MinePolicy):
    """Convolutions over each image, a memory over time, and MineStudio's heads.

    Entries of an observation that are no images are read as they are. The hidden state is `{"memory": [B, size]}`, or
    None without memory.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Observation],
        action_space: gymnasium.Space[Action] | None = None,
        *,
        hidden_size: int = 64,
        image_features: int = 64,
        memory: MemorySettings | None = MemorySettings(size=64),  # noqa: B008  # frozen
        temperature: float = 1.0,
        nucleus_prob: float | None = None,
        dropout: float = 0.0,
        masks_camera: bool = True,
    ) -> None:
        super().__init__(hidden_size, action_space, temperature, nucleus_prob, masks_camera)
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.encoder = Encoder(_leaves(observation_space), NetworkSettings(image_features=image_features), generator)
        self.reads_dict = isinstance(observation_space, spaces.Dict)
        self.memory = None if memory is None else make_memory(memory, self.encoder.output_size, generator)
        size = self.encoder.output_size if self.memory is None else self.memory.size
        self.latent = nn.Sequential(nn.Linear(size, hidden_size), nn.Tanh(), nn.Dropout(dropout))

    def forward(self, input: Observation, state_in: Tree, **kwargs: Keyword) -> tuple[dict[str, Tree], Tree]:
        [*given] = input.values()
        rows = _tensors(input) if self.reads_dict else {"obs": given[0]}
        batch, steps = next(iter(rows.values())).shape[:2]
        features = self.encoder({name: each.flatten(0, 1) for name, each in rows.items()})
        state_out = state_in
        if self.memory is not None:
            # Memories are time-major, this contract is not.
            inputs = self.memory.read(features).view(batch, steps, -1).transpose(0, 1)
            outputs, state = self.memory.run(inputs, state_in["memory"], None)
            features, state_out = outputs.view(steps, batch, -1).transpose(0, 1).flatten(0, 1), {"memory": state}
        latent = self.latent(features).view(batch, steps, -1)
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent).squeeze(-1)}, state_out

    def initial_state(self, batch_size: int | None = None) -> Tree:
        if self.memory is None:
            return None
        return {"memory": torch.zeros((batch_size or 1, self.memory.state_size), device=self.device)}


def _leaves(space: gymnasium.Space[Observation], name: str = "obs") -> dict[str, LeafSpec]:
    """Returns the leaves of an observation space by field name."""
    if isinstance(space, spaces.Dict):
        return {path: leaf for key, each in space.items() for path, leaf in _leaves(each, f"{name}.{key}").items()}
    if isinstance(space, spaces.Box):
        return {
            name: box(*space.shape, low=float(space.low.min()), high=float(space.high.max()), dtype=str(space.dtype))
        }
    if isinstance(space, spaces.Discrete):
        return {name: discrete(int(space.n))}
    if isinstance(space, spaces.MultiDiscrete):
        return {name: multi_discrete(*map(int, space.nvec.reshape(-1)))}
    raise SpecMismatch(f"{name} is {space}; RecurrentImagePolicy reads Box, Discrete, MultiDiscrete and Dicts of these")


def _tensors(input: Mapping[str, Tree], name: str = "obs") -> dict[str, torch.Tensor]:
    """Returns the tensors of a Dict observation by field name."""
    found: dict[str, torch.Tensor] = {}
    for key, each in input.items():
        found |= _tensors(each, f"{name}.{key}") if isinstance(each, Mapping) else {f"{name}.{key}": each}
    return found
