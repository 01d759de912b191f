"""Running mean and variance of observations, part of the policy: it is saved, exported and evaluated with it.

The statistics are kept in float64 and updated once per cycle, after the update. In between, acting and learning use a
frozen float32 copy, so a rollout is replayed with the observations it was collected with.

A change of the statistics is folded into the layers that read the observations: their weights and biases change so that
their outputs stay the same (decision 0028). Otherwise every change would alter the functions whose change an update has
just bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from quintain.core.process_group import ProcessGroup, SingleProcess, joint_moments

if TYPE_CHECKING:
    from quintain.typing import Array

MIN_VARIANCE = 1e-8
"""Added to every variance; an observation that varies less has no scale yet."""
SETTLED_ROWS = 10_000
"""Number of rows from which changes are folded. Weights are initialised for observations of deviation 1. The scale of
the first rows, which often show only the starts of episodes, is a guess; folded from there on, weights would keep
its error."""


class Scale(NamedTuple):
    """Maps x to (x - shift) * scale, clipped; float64 copies of the published values."""

    shift: Array
    scale: Array
    clip: float

    def of(self, rows: Array) -> Array:
        scaled: Array = (rows - self.shift) * self.scale
        return scaled.clip(-self.clip, self.clip)


class Move(NamedTuple):
    """A change of scale: old = factor * new + offset."""

    factor: torch.Tensor
    offset: torch.Tensor


class FirstLayer(NamedTuple):
    """A linear layer that reads an encoder's features, of which the continuous ones come first."""

    weight: torch.Tensor
    """[outputs, features], or [..., features, outputs] where `is_transposed`."""
    bias: torch.Tensor
    is_transposed: bool = False

    def columns(self, weight: torch.Tensor, num_continuous: int) -> torch.Tensor:
        """Returns the view [..., outputs, num_continuous] of the weights, or of a tensor of their shape."""
        return (weight.transpose(-1, -2) if self.is_transposed else weight)[..., :num_continuous]


class Fold(NamedTuple):
    """A layer into which a change of scale was folded."""

    layer: FirstLayer
    move: Move

    @torch.no_grad()
    def apply(self) -> None:
        """Changes the layer so that its outputs from newly scaled inputs equal the old ones."""
        factor, offset = self.move
        columns = self.layer.columns(self.layer.weight, len(factor))
        exact = columns.double()
        self.layer.bias.add_((exact @ offset).reshape(self.layer.bias.shape))
        columns.copy_(exact * factor)

    @torch.no_grad()
    def carry_over(self, first: Iterable[tuple[torch.Tensor, torch.Tensor]], second: Iterable[torch.Tensor]) -> None:
        """Turns first moments of the old layer's gradient, of weights and biases, and second ones into the new layer's.

        new = (old - offset) / factor, so that is how the gradient by the weights changes; that by the bias stays. The
        second moment is only scaled: it would take products with the bias' gradient that Adam does not keep.
        """
        factor, offset = self.move
        for of_weight, of_bias in first:
            columns = self.layer.columns(of_weight, len(factor))
            by_bias = of_bias.reshape(columns.shape[:-1]).double()
            columns.copy_((columns.double() - by_bias[..., None] * offset) / factor)
        for of_weight in second:
            columns = self.layer.columns(of_weight, len(factor))
            columns.copy_(columns.double() / factor.square())


class ObsNormalizer(nn.Module):
    """Maps observations to (obs - mean) / std, clipped."""

    count: torch.Tensor
    mean: torch.Tensor
    sum_of_squares: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, size: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.world: ProcessGroup = SingleProcess()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return ((obs - self.shift) * self.scale).clamp(-self.clip, self.clip)

    def update(self, obs: Array) -> Move | None:
        """Adds a batch [B, size] to the statistics (Chan et al. 1979) and publishes the new shift and scale.

        Returns the change, or None if there is none to fold. Ranks add the rows of all ranks, so that they have the
        same statistics.
        """
        rows = obs.astype(np.float64)
        num_rows, batch_mean, batch_squares = self._moments(rows)
        if num_rows == 0:
            return None
        count, mean = float(self.count), self.mean.cpu().numpy()
        total = count + num_rows
        gap = batch_mean - mean
        new_mean = mean + gap * (num_rows / total)
        old_squares, old_scale = self.sum_of_squares.cpu().numpy().copy(), self._published()
        squares = old_squares + batch_squares + np.square(gap) * (count * num_rows / total)
        self.count.fill_(total)
        self.mean.copy_(torch.from_numpy(new_mean))
        self.sum_of_squares.copy_(torch.from_numpy(squares))
        self.shift.copy_(torch.from_numpy(new_mean))
        self.scale.copy_(torch.from_numpy(1.0 / np.sqrt(squares / total + MIN_VARIANCE)))
        if count < SETTLED_ROWS:
            return None
        factor, offset = self._relation(old_scale, self._published(), count, old_squares / count, rows)
        device = self.shift.device
        return Move(torch.from_numpy(factor).to(device), torch.from_numpy(offset).to(device))

    def _published(self) -> Scale:
        return Scale(self.shift.double().cpu().numpy(), self.scale.double().cpu().numpy(), self.clip)

    def _relation(self, old: Scale, new: Scale, count: float, variance: Array, rows: Array) -> tuple[Array, Array]:
        """Returns factor and offset of a change by `rows` from a scale that `count` rows of that `variance` made."""
        factor, offset = old.scale / new.scale, (new.shift - old.shift) * old.scale
        is_clipped = np.asarray(self.world.sum(list(self._num_clipped(old, new, rows)))) > 0
        if is_clipped.any():
            fitted = self._fit(old, new, count, variance, rows)
            factor, offset = (np.where(is_clipped, *both) for both in zip(fitted, (factor, offset), strict=True))
        # A number that never varied had no scale for weights to be learned at: they stay, and so does the output where
        # the number stood.
        is_still = variance <= MIN_VARIANCE
        return np.where(is_still, 1.0, factor), np.where(is_still, (new.shift - old.shift) * new.scale, offset)

    def _num_clipped(self, old: Scale, new: Scale, rows: Array) -> Array:
        """Returns how often the smallest and the largest value of each column are clipped, on either scale."""
        if not len(rows):
            return np.zeros(len(old.shift))
        ends = np.stack((rows.min(axis=0), rows.max(axis=0)))
        beyond = [np.abs((ends - scale.shift) * scale.scale) > self.clip for scale in (old, new)]
        return np.asarray(np.sum(beyond, axis=(0, 1), dtype=np.float64))

    def _fit(self, old: Scale, new: Scale, count: float, variance: Array, rows: Array) -> tuple[Array, Array]:
        """Returns the line through clipped values, old against new, that fits all rows so far best.

        The earlier rows count by their mean and variance, as if none was clipped. No factor is outside of 1 and its
        value without clipping: each row's own lies between.
        """
        before, after = old.of(rows), new.of(rows)
        sums = [x.sum(axis=0) for x in (before, after, before * after, np.square(after))]
        num_rows, *joint = self.world.sum([float(len(rows)), *np.concatenate(sums)])
        old_sum, new_sum, products, squares = np.asarray(joint).reshape(4, -1)
        total = count + num_rows
        # The mean of earlier rows is 0 on the old scale, and this on the new one.
        center = (old.shift - new.shift) * new.scale
        old_mean, new_mean = old_sum / total, (new_sum + count * center) / total
        covariance = (products + count * variance * old.scale * new.scale) / total - old_mean * new_mean
        spread = (squares + count * (variance * new.scale**2 + np.square(center))) / total - np.square(new_mean)
        straight = old.scale / new.scale
        slope = np.divide(covariance, spread, out=np.ones_like(spread), where=spread > 0.0)
        factor = slope.clip(np.minimum(straight, 1.0), np.maximum(straight, 1.0))
        return factor, old_mean - factor * new_mean

    def _moments(self, rows: Array) -> tuple[float, Array, Array]:
        """Returns the number, the means and the sums of squared deviations of a batch's rows, over all ranks."""
        nothing = np.zeros(rows.shape[1:])
        mean = rows.mean(axis=0) if len(rows) else nothing
        squares = np.square(rows - mean).sum(axis=0) if len(rows) else nothing
        if self.world.size == 1:
            return len(rows), mean, squares
        return joint_moments(self.world, len(rows), mean, squares)
