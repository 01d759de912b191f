"""From a policy to the tables that kernels read: where its parameters and outputs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import nn

from quintain.compiled.tables import ACTIVATIONS, FIRST_OUTPUT, NUM_INPUTS, NUM_OUTPUTS, PolicyTables
from quintain.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from quintain.policies.joint_head import JointHead
from quintain.policies.networks import Mlp

if TYPE_CHECKING:
    from quintain.policies.actor_critic import ActorCritic
    from quintain.policies.soft_actor import SoftActor
    from quintain.typing import Array

    KernelPolicy: TypeAlias = ActorCritic | SoftActor
    """A policy that kernels can act for."""

MAX_TILE = 256
"""Rows that go through a network at once: enough for whole vectors, few enough for the cache."""
_VECTOR = 16


def tables_of(policy: KernelPolicy) -> PolicyTables:
    """Returns the tables of a policy whose parameters lie one after the other in flat memory."""
    sizes = [parameter.numel() for parameter in policy.parameters()]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    places = {id(parameter): start for parameter, start in zip(policy.parameters(), starts, strict=True)}
    critic = getattr(policy, "critic", None)
    choices, numbers = _head_table(policy.head, places)
    return PolicyTables(
        actor=_layer_table(policy.actor, places),
        critic=np.zeros((0, 6), np.int64) if critic is None else _layer_table(critic, places),
        activation=ACTIVATIONS.index(policy.settings.activation),
        choices=choices,
        numbers=numbers,
        has_state_std=policy.settings.state_dependent_std,
        is_squashed=policy.settings.squash_actions,
        initial_log_std=policy.settings.initial_log_std,
    )


def num_units(tables: PolicyTables) -> int:
    """Returns how many features and outputs the larger network has in all its layers."""
    return max(int(layers[-1, FIRST_OUTPUT] + layers[-1, NUM_OUTPUTS]) for layers in _networks(tables))


def widest_layer(tables: PolicyTables) -> int:
    return max(int(layers[:, [NUM_INPUTS, NUM_OUTPUTS]].max()) for layers in _networks(tables))


def num_outputs(tables: PolicyTables) -> int:
    return max(int(layers[-1, NUM_OUTPUTS]) for layers in _networks(tables))


def tile_size(num_rows: int) -> int:
    """Returns how many rows go through a network at once: tiles of equal size, so that few columns stay empty."""
    num_tiles = max(1, -(-num_rows // MAX_TILE))
    size = -(-num_rows // num_tiles)
    return size + -size % _VECTOR


def aligned_zeros(*shape: int) -> Array:
    """Makes memory for kernels to work in: it begins with a cache line, or every vector would lie across two."""
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


def _head_table(head: JointHead, places: dict[int, int]) -> tuple[Array, Array]:
    """Returns one row for each choice and one for each number, in the order of the action's leaves."""
    choices: list[tuple[int, int, int]] = []
    numbers: list[tuple[int, int]] = []
    output = allowed = 0
    for part in head.parts:
        if isinstance(part, CategoricalHead | MultiCategoricalHead):
            for size in [part.num_choices] if isinstance(part, CategoricalHead) else part.nvec:
                choices.append((output, size, allowed))
                output, allowed = output + size, allowed + size
        else:
            assert isinstance(part, GaussianHead)
            log_std = output + part.spec.size if part.has_state_std else places[id(_parameter(part))]
            numbers += [(output + i, log_std + i) for i in range(part.spec.size)]
            output += part.output_size
    return np.array(choices, np.int64).reshape(-1, 3), np.array(numbers, np.int64).reshape(-1, 2)


def _parameter(head: GaussianHead) -> nn.Parameter:
    return head.log_std
