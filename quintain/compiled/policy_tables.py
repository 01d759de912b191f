"""A policy as kernels read it: one flat array of weights, and tables of the offsets of its parameters and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import nn

from quintain.compiled.kernels.tables import (
    ACTIVATIONS,
    CELLS,
    CHANNELS,
    FILTER_HEIGHT,
    FILTER_WIDTH,
    FIRST_OUTPUT,
    HEIGHT,
    NUM_FILTERS,
    NUM_INPUTS,
    NUM_OUTPUTS,
    STRIDE,
    WIDTH,
    MemoryTables,
    PolicyTables,
)
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.encoders import ImageEncoder
from quintain.policies.flat_parameters import flat_memory, require_like
from quintain.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from quintain.policies.joint_head import JointHead
from quintain.policies.memory import GatedMemory
from quintain.policies.networks import Mlp

if TYPE_CHECKING:
    from quintain.policies.deterministic_actor import DeterministicActor
    from quintain.policies.q_network import QNetwork
    from quintain.policies.soft_actor import SoftActor
    from quintain.typing import Array

    KernelPolicy: TypeAlias = ActorCritic | SoftActor | QNetwork | DeterministicActor
    """A policy that kernels can act for."""

MAX_TILE = 256
"""Rows per tile: enough for whole vectors, few enough for the cache."""
_VECTOR = 16


class KernelWeights:
    """All parameters of a module in one array, which moves only if all of them are moved together."""

    def __init__(self, module: nn.Module) -> None:
        self.names, self.parameters = map(list, zip(*module.named_parameters(), strict=True))
        # Where the modules themselves keep them, so that one that was replaced is seen.
        self.held = [(part, name) for part in module.modules() for name, _ in part.named_parameters(recurse=False)]
        self.addresses: list[int] = []
        self.flat: Array = np.zeros(0, np.float32)

    def array(self) -> Array:
        """Returns the flat weights, after looking where they are."""
        now: list[nn.Parameter] = [module._parameters[name] for module, name in self.held]  # type: ignore[misc]
        if [parameter.data_ptr() for parameter in now] != self.addresses:
            for name, parameter, before in zip(self.names, now, self.parameters, strict=True):
                require_like(name, parameter, before.shape, self.parameters[0])
            self.flat = flat_memory(now).numpy()
            self.parameters, self.addresses = now, [parameter.data_ptr() for parameter in now]
        return self.flat

    def is_at(self, address: int) -> bool:
        """Whether the weights are still where the first one had this address."""
        # Parameters move to other memory all at once.
        return bool(self.parameters[0].data_ptr() == address)


def tables_of(policy: KernelPolicy) -> PolicyTables:
    """Returns the tables of a policy whose parameters are in flat memory."""
    places = places_of(policy)
    critic = policy.critic if isinstance(policy, ActorCritic) and policy.has_values else None
    actor = _layer_table(policy.actor, places)
    choices, numbers = _head_table(policy.head, places)
    if policy.head is None:
        # Outputs are actions. No density is asked for, so that any weight may stand for a log-deviation.
        numbers = np.stack((np.arange(actor[-1, NUM_OUTPUTS]), np.zeros(actor[-1, NUM_OUTPUTS], np.int64)), axis=1)
    return PolicyTables(
        actor=actor,
        critic=np.zeros((0, 6), np.int64) if critic is None else _layer_table(critic, places),
        activation=ACTIVATIONS.index(policy.settings.activation),
        choices=choices,
        numbers=numbers,
        has_state_std=policy.settings.state_dependent_std,
        is_squashed=policy.settings.squash_actions,
        initial_log_std=policy.settings.initial_log_std,
    )


def discrete_tables_of(head: JointHead) -> PolicyTables:
    """Returns the tables of a head of discrete actions, without networks."""
    no_layers = np.zeros((0, 6), np.int64)
    choices, numbers = _head_table(head, {})
    return PolicyTables(no_layers, no_layers, 0, choices, numbers, False, False, 0.0)


def memory_tables_of(policy: KernelPolicy) -> MemoryTables | None:
    """Returns the tables of a policy's recurrent layers, in the order of its state; None without any."""
    places, memories = places_of(policy), policy.memories
    if not memories:
        return None
    rows, column = [], 0
    for memory in memories:
        assert isinstance(memory, GatedMemory), "there are kernels of LSTM and GRU only"
        parts = (memory.input_weight, memory.state_weight, memory.input_bias, memory.state_bias)
        num_gates, num_features = memory.input_weight.shape
        rows.append((*(places[id(part)] for part in parts), num_features, memory.size, num_gates, column))
        column += memory.state_size
    return MemoryTables(CELLS.index(memories[0].kind), np.array(rows, np.int64))


def image_table_of(policy: KernelPolicy, image: ImageEncoder) -> Array:
    """Returns the table of an image encoder's layers."""
    places = places_of(policy)
    rows, (channels, height, width) = [], image.shape
    for layer in image.weighted:
        assert layer.bias is not None
        kernel, stride = (height, width), 1
        if isinstance(layer, nn.Conv2d):
            kernel, stride = (layer.kernel_size[0], layer.kernel_size[1]), layer.stride[0]
        where = (places[id(layer.weight)], places[id(layer.bias)])
        rows.append((*where, channels, height, width, *kernel, stride, len(layer.weight)))
        channels = len(layer.weight)
        height, width = (height - kernel[0]) // stride + 1, (width - kernel[1]) // stride + 1
    return np.array(rows, np.int64)


def widest_image(layers: Array) -> int:
    """Returns the size of the largest input, patch matrix or output of an image encoder's layers."""
    channels, height, width = layers[:, CHANNELS], layers[:, HEIGHT], layers[:, WIDTH]
    tall, wide, stride = layers[:, FILTER_HEIGHT], layers[:, FILTER_WIDTH], layers[:, STRIDE]
    num_patches = ((height - tall) // stride + 1) * ((width - wide) // stride + 1)
    sizes = (channels * height * width, num_patches * channels * tall * wide, num_patches * layers[:, NUM_FILTERS])
    return int(np.max(sizes))


def places_of(module: nn.Module) -> dict[int, int]:
    """Returns the offset of each parameter in flat memory."""
    sizes = [parameter.numel() for parameter in module.parameters()]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return {id(parameter): start for parameter, start in zip(module.parameters(), starts, strict=True)}


def num_units(tables: PolicyTables) -> int:
    """Returns the number of features and outputs of the larger network in all its layers."""
    return max(int(layers[-1, FIRST_OUTPUT] + layers[-1, NUM_OUTPUTS]) for layers in _networks(tables))


def widest_layer(tables: PolicyTables) -> int:
    return max(int(layers[:, [NUM_INPUTS, NUM_OUTPUTS]].max()) for layers in _networks(tables))


def num_outputs(tables: PolicyTables) -> int:
    return max(int(layers[-1, NUM_OUTPUTS]) for layers in _networks(tables))


def tile_size(num_rows: int) -> int:
    """Returns the rows per tile: tiles of equal size, so that few columns stay empty."""
    num_tiles = max(1, -(-num_rows // MAX_TILE))
    size = -(-num_rows // num_tiles)
    return size + -size % _VECTOR


def aligned_zeros(*shape: int) -> Array:
    """Allocates memory for kernels, aligned to a cache line: otherwise every vector would cross two."""
    zeros: Array = torch.zeros(shape).numpy()
    return zeros


def _networks(tables: PolicyTables) -> list[Array]:
    return [layers for layers in (tables.actor, tables.critic) if len(layers)]


def _layer_table(network: Mlp, places: dict[int, int]) -> Array:
    rows, unit = [], 0
    for weight, bias in network.weights_and_biases:
        num_outputs, num_inputs = weight.shape
        rows.append((places[id(weight)], places[id(bias)], num_inputs, num_outputs, unit, unit + num_inputs))
        unit += num_inputs
    return np.array(rows, np.int64)


def _head_table(head: JointHead | None, places: dict[int, int]) -> tuple[Array, Array]:
    """Returns one row per discrete and one per continuous action, in the order of the leaves."""
    choices: list[tuple[int, int, int]] = []
    numbers: list[tuple[int, int]] = []
    output = allowed = 0
    for part in [] if head is None else head.parts:
        if isinstance(part, CategoricalHead | MultiCategoricalHead):
            for size in [part.num_options] if isinstance(part, CategoricalHead) else part.nvec:
                choices.append((output, size, allowed))
                output, allowed = output + size, allowed + size
        else:
            assert isinstance(part, GaussianHead)
            log_std = output + part.spec.size if part.has_state_std else places[id(part.log_std)]
            numbers += [(output + i, log_std + i) for i in range(part.spec.size)]
            output += part.output_size
    return np.array(choices, np.int64).reshape(-1, 3), np.array(numbers, np.int64).reshape(-1, 2)
