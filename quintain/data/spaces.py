"""Converts specs back to Gymnasium spaces, for users of a trained policy. Imports Gymnasium when it is first asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data.spec import BoxSpec, DictSpec, DiscreteSpec, Spec, TupleSpec

if TYPE_CHECKING:
    from gymnasium import Space


def gym_space(spec: Spec) -> Space[object]:
    """Returns the Gymnasium space of the values that an environment with this spec gives or takes.

    A policy computes in float32, so continuous spaces are of float32, or of uint8 where images are.
    """
    from gymnasium import spaces

    if isinstance(spec, DictSpec):
        return spaces.Dict([(name, gym_space(below)) for name, below in spec.entries])
    if isinstance(spec, TupleSpec):
        return spaces.Tuple([gym_space(below) for below in spec.entries])
    if isinstance(spec, DiscreteSpec):
        return spaces.Discrete(spec.n, start=spec.start)
    if isinstance(spec, BoxSpec):
        dtype = np.dtype(spec.dtype)
        # Not by bounds(), which are float32: the bounds of uint8 have to be of its own type.
        low, high = (np.asarray(bound, np.float64).reshape(spec.shape).astype(dtype) for bound in (spec.low, spec.high))
        return spaces.Box(low, high, dtype=dtype.type)
    if spec.characters:
        return spaces.Text(len(spec.nvec), min_length=0, charset=spec.characters)
    shape = spec.env_shape or spec.shape
    starts = np.asarray(spec.starts or [0] * len(spec.nvec)).reshape(shape)
    return spaces.MultiDiscrete(np.asarray(spec.nvec).reshape(shape), start=starts)
