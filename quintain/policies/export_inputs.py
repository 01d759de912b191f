"""Random inputs of an exported policy, for comparing the file with the original."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.env_values import env_shape
from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, discrete_sizes, leaves
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder

if TYPE_CHECKING:
    from quintain.typing import Array

STATE, FIRST, MASK = "state", f.FIRST, f.ACTION_MASK


def random_inputs(policy: Policy, num_rows: int, rng: Rng) -> dict[str, torch.Tensor]:
    """Samples inputs of the exported graph from the spaces."""
    draw = rng.generator("export", num_rows)
    specs = leaves(policy.spec.obs, f.OBS)
    drawn = {name: _draw(leaf, num_rows, draw) for name, leaf in specs.items()}
    for name, rows in _familiar(policy, num_rows, draw).items():
        # Half as the spaces allow, half as the policy knows them: its normaliser maps all else to the same few numbers.
        drawn[name][::2] = rows[::2]
    inputs = {name: torch.from_numpy(rows) for name, rows in drawn.items()}
    if policy.spec.mask_size:
        allowed = draw.random((num_rows, policy.spec.mask_size)) < 0.7
        # One choice of each is always allowed: the first of every head.
        allowed[:, _first_choices(policy)] = True
        inputs[MASK] = torch.from_numpy(allowed)
    if policy.state_size:
        inputs[FIRST] = torch.from_numpy(draw.random(num_rows) < 0.3)
        inputs[STATE] = torch.from_numpy(draw.standard_normal((num_rows, policy.state_size)).astype(np.float32))
    return inputs


def graph_shape(leaf: LeafSpec) -> tuple[int, ...]:
    """Returns the shape of one value in the graph: the environment's own; a text is its character codes."""
    is_text = not isinstance(leaf, BoxSpec | DiscreteSpec) and leaf.characters
    return leaf.shape if is_text else env_shape(leaf)


def _first_choices(policy: Policy) -> list[int]:
    return [0, *np.cumsum(discrete_sizes(policy.spec.action))[:-1].tolist()]


def _draw(leaf: LeafSpec, num_rows: int, draw: np.random.Generator) -> Array:
    if isinstance(leaf, DiscreteSpec):
        return draw.integers(leaf.start, leaf.start + leaf.n, num_rows)
    if not isinstance(leaf, BoxSpec):
        chosen = np.stack([draw.integers(0, n, num_rows) for n in leaf.nvec], axis=1)
        return np.asarray(chosen + np.asarray(leaf.starts or 0)).reshape(num_rows, *graph_shape(leaf))
    if leaf.dtype == "uint8":
        return draw.integers(0, 256, (num_rows, *leaf.shape)).astype(np.uint8)
    low, high = (np.clip(bound, -3.0, 3.0) for bound in leaf.bounds())
    return np.asarray(draw.uniform(low, high, (num_rows, *leaf.shape)), dtype=np.float32)


def _familiar(policy: Policy, num_rows: int, draw: np.random.Generator) -> dict[str, Array]:
    """Samples continuous values with the means and deviations of the policy's normalisers."""
    found: dict[str, Array] = {}
    for encoder in policy.modules():
        if isinstance(encoder, Encoder) and encoder.normalizer is not None:
            shift, scale = encoder.normalizer.shift.numpy(), encoder.normalizer.scale.numpy()
            numbers = shift + draw.standard_normal((num_rows, len(shift))) / scale
            ends = np.cumsum([leaf.size for leaf in encoder.continuous.values()])
            for (name, leaf), rows in zip(
                encoder.continuous.items(), np.split(numbers, ends[:-1], axis=1), strict=True
            ):
                low, high = leaf.bounds()
                found[name] = np.clip(rows.reshape(num_rows, *leaf.shape), low, high).astype(leaf.dtype)
    return found
