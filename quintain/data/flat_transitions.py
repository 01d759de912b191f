"""The steps of a rollout as transitions between flat vectors, for small networks of reward signals.

The next observation is the true one: where an episode ended or was cut it is the episode's last, never that of the
reset which follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.nn.functional import one_hot

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, Spec, leaves
from quintain.errors import SettingsError


class Transitions(NamedTuple):
    """Transitions with true next observations: [T, N, ...] in time-major order, or [B, ...] as rows."""

    obs: torch.Tensor
    """[..., D] observations as flat vectors of `flat_size(spec.obs)`."""
    action: torch.Tensor
    """[..., A] actions as flat vectors of `flat_size(spec.action)`, before clipping or squashing."""
    next_obs: torch.Tensor
    """[..., D] the true next observations."""
    terminated: torch.Tensor
    """[...] bool, nothing follows."""
    done: torch.Tensor
    """[...] bool, the next step is of another episode."""
    valid: torch.Tensor
    """[...] bool, the step counts."""

    def rows(self) -> Transitions:
        """Returns only the steps that count, one after another, [B, ...]."""
        return Transitions(*(field[self.valid] for field in self))


def transitions(rollout: Rollout) -> Transitions:
    """Returns the steps of a rollout as flat vectors on the CPU, [T, N, ...].

    Continuous values are flattened, bytes are scaled to [0, 1], and discrete values are one-hot.
    """
    seen = {name: torch.from_numpy(rollout.array(name)) for name in rollout.obs_names}
    done_by = {name: torch.from_numpy(rollout.array(name)[:-1]) for name in leaves(rollout.spec.action, f.ACTION)}
    terminated, done, valid, place = (
        torch.from_numpy(rollout.array(name)[:-1]) for name in (f.TERMINATED, f.DONE, f.VALID, f.FINAL_INDEX)
    )
    is_kept = place >= 0
    if bool((done & valid & ~is_kept).any()):
        raise SettingsError(
            "the last observations of terminated trajectories were not kept; a reward signal that reads next "
            "observations has sees_next_obs = True",
            code="E0224",
        )
    after = {}
    for name, field in seen.items():
        after[name] = field[1:].clone()
        after[name][is_kept] = torch.from_numpy(rollout.final.array(name))[place[is_kept].long()]
    return Transitions(
        flat(rollout.spec.obs, {name: field[:-1] for name, field in seen.items()}, f.OBS),
        flat(rollout.spec.action, done_by, f.ACTION),
        flat(rollout.spec.obs, after, f.OBS),
        terminated,
        done,
        valid,
    )


def flat(spec: Spec, values: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Returns the leaves of observations or actions [..., *shape], by field name, side by side: [..., size]."""
    parts = []
    for path, leaf in leaves(spec, name).items():
        value = values[path]
        rows = value.reshape(*value.shape[: value.dim() - len(leaf.shape)], math.prod(leaf.shape))
        if isinstance(leaf, BoxSpec):
            parts.append(rows.float() / 255.0 if leaf.dtype == "uint8" else rows.float())
        else:
            parts += [one_hot(rows[..., i].long(), size).float() for i, size in enumerate(_sizes(leaf))]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def flat_size(spec: Spec) -> int:
    """Returns the width of flat vectors of a spec.

    Example:
        >>> from quintain.data.spec import TupleSpec, box, discrete
        >>> flat_size(TupleSpec((box(2, 2), discrete(3))))
        7
    """
    return sum(leaf.size if isinstance(leaf, BoxSpec) else sum(_sizes(leaf)) for leaf in leaves(spec, "").values())


def _sizes(leaf: LeafSpec) -> tuple[int, ...]:
    """Returns between how many options each discrete value of a leaf is; none for continuous ones."""
    if isinstance(leaf, BoxSpec):
        return ()
    return (leaf.n,) if isinstance(leaf, DiscreteSpec) else leaf.nvec
