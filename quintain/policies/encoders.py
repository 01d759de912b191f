"""From observations to features: flat numbers, one-hot choices and convolved images, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, MultiDiscreteSpec
from quintain.policies.networks import BareConv2d, linear
from quintain.policies.normalizer import ObsNormalizer
from quintain.policies.settings import NetworkSettings

if TYPE_CHECKING:
    from quintain.typing import Array


class Encoder(nn.Module):
    """Turns the leaves of an observation, by field name, into features [B, output_size].

    The normaliser sees the numbers of Box leaves that are not images; choices and images have known scales.
    """

    def __init__(self, specs: Mapping[str, LeafSpec], settings: NetworkSettings, generator: torch.Generator) -> None:
        super().__init__()
        if settings.image_encoder == "flatten":
            images = {}
        else:
            images = {k: s for k, s in specs.items() if isinstance(s, BoxSpec) and s.is_image}
        self.numbers = {k: s for k, s in specs.items() if isinstance(s, BoxSpec) and k not in images}
        self.choices = {k: s for k, s in specs.items() if not isinstance(s, BoxSpec)}
        self.image_names = list(images)
        self.images = nn.ModuleList(ImageEncoder(s, settings.image_features, generator) for s in images.values())
        num_numbers = sum(spec.size for spec in self.numbers.values())
        self.normalizer = (
            ObsNormalizer(num_numbers, settings.obs_clip) if settings.normalize_obs and num_numbers else None
        )
        sizes = [num_numbers, *(_num_choices(s) for s in self.choices.values())]
        self.output_size = sum(sizes) + settings.image_features * len(images)
        self.is_plain = len(self.numbers) == 1 and not self.choices and not images

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.is_plain:
            (name,) = self.numbers
            return self._scaled(obs[name].reshape(obs[name].shape[0], -1).float())
        parts = []
        if self.numbers:
            numbers = [obs[name].reshape(obs[name].shape[0], -1).float() for name in self.numbers]
            parts.append(self._scaled(torch.cat(numbers, dim=1)))
        parts += [_one_hot(obs[name], spec) for name, spec in self.choices.items()]
        parts += [encode(obs[name]) for name, encode in zip(self.image_names, self.images, strict=True)]
        return torch.cat(parts, dim=1)

    def observe(self, obs: Mapping[str, Array]) -> None:
        """Learns the scale of the numbers from a batch."""
        if self.normalizer is not None:
            self.normalizer.update(np.concatenate([obs[n].reshape(len(obs[n]), -1) for n in self.numbers], axis=1))

    def share_scale(self, other: Encoder) -> None:
        """Scales numbers as another does from now on; the scale is no longer part of this module."""
        if self.normalizer is not None:
            del self.normalizer
            # Past the module's own bookkeeping: saved twice, it could come back as two.
            self.__dict__["normalizer"] = other.normalizer

    def _scaled(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers if self.normalizer is None else self.normalizer(numbers)


class ImageEncoder(nn.Module):
    """Three convolutions and a linear layer (Mnih et al. 2015); two small convolutions for images under 36 pixels."""

    def __init__(self, spec: BoxSpec, output_size: int, generator: torch.Generator) -> None:
        super().__init__()
        # The channel axis is the shorter of the first and the last; stacked frames come first, colours last.
        self.is_channel_last = spec.shape[2] <= spec.shape[0]
        channels = spec.shape[2] if self.is_channel_last else spec.shape[0]
        height, width = spec.shape[:2] if self.is_channel_last else spec.shape[1:]
        self.scale = 1.0 / 255.0 if spec.dtype == "uint8" else 1.0
        shapes: Sequence[tuple[int, int, int]] = (
            ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if min(height, width) >= 36 else ((16, 3, 1), (32, 3, 1))
        )
        layers: list[nn.Module] = []
        for out_channels, kernel, stride in shapes:
            layers += [_convolution(channels, out_channels, kernel, stride, generator), nn.ReLU(inplace=True)]
            channels = out_channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        last = linear(channels * height * width, output_size, math.sqrt(2.0), generator)
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pixels = image.permute(0, 3, 1, 2) if self.is_channel_last else image
        # Learning takes a fifth less with the channels innermost; bytes are rearranged faster than floats.
        pixels = pixels.contiguous(memory_format=torch.channels_last).float()
        first, *others = self.layers
        assert isinstance(first, nn.Conv2d)
        # To scale the weights is to scale the pixels, with a thousandth of the numbers.
        features = functional.conv2d(pixels, first.weight * self.scale, first.bias, first.stride)
        for layer in others:
            features = layer(features)
        return features


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    layer = BareConv2d(inputs, outputs, kernel, stride)
    nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _num_choices(spec: LeafSpec) -> int:
    if isinstance(spec, DiscreteSpec):
        return spec.n
    assert isinstance(spec, MultiDiscreteSpec)
    return sum(spec.nvec)


def _one_hot(chosen: torch.Tensor, spec: LeafSpec) -> torch.Tensor:
    if isinstance(spec, DiscreteSpec):
        return functional.one_hot(chosen, spec.n).float()
    assert isinstance(spec, MultiDiscreteSpec)
    return torch.cat([functional.one_hot(chosen[:, i], n) for i, n in enumerate(spec.nvec)], dim=1).float()
