"""Encoders from observations to features: flat continuous values, one-hot discrete values and convolved images."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from quintain.core import registry
from quintain.data.spaces import gym_space
from quintain.data.spec import BoxSpec, DictSpec, DiscreteSpec, LeafSpec, MultiDiscreteSpec
from quintain.errors import SettingsError
from quintain.policies.networks import BareConv2d, linear
from quintain.policies.normalizer import FirstLayer, Fold, ObsNormalizer
from quintain.policies.settings import NetworkSettings
from quintain.services.user_code import named_failure

if TYPE_CHECKING:
    from gymnasium import Space

    from quintain.typing import Array, Tree

SMALLEST_STRIDED = 20
"""Shorter side, in pixels, from which the strides of a simple encoder fit."""
SMALLEST_LARGE = 36
"""Shorter side from which three convolutions fit, and their arithmetic exceeds torch's overhead."""


MAX_FREE = 8
"""Number of buffers for patches that an encoder keeps."""
MAX_PATCH_VALUES = 1 << 18
"""Size of patches up to which convolutions by patches are faster: one megabyte."""


class Encoder(nn.Module):
    """Encodes the leaves of an observation, by field name, to features [B, output_size].

    The normaliser applies to Box leaves that are not images; discrete values and images have known scales.
    """

    def __init__(self, specs: Mapping[str, LeafSpec], settings: NetworkSettings, generator: torch.Generator) -> None:
        super().__init__()
        if settings.image_encoder == "flatten":
            images = {}
        else:
            images = {k: s for k, s in specs.items() if isinstance(s, BoxSpec) and s.is_image}
        self.continuous = {k: s for k, s in specs.items() if isinstance(s, BoxSpec) and k not in images}
        self.discrete = {k: s for k, s in specs.items() if not isinstance(s, BoxSpec)}
        self.image_names = list(images)
        is_simple = settings.image_encoder == "simple"
        self.images = nn.ModuleList(
            ImageEncoder(s, settings.image_features, generator, is_simple=is_simple) for s in images.values()
        )
        num_continuous = sum(spec.size for spec in self.continuous.values())
        self.normalizer = (
            ObsNormalizer(num_continuous, settings.obs_clip) if settings.normalize_obs and num_continuous else None
        )
        sizes = [num_continuous, *(_num_options(s) for s in self.discrete.values())]
        self.output_size = sum(sizes) + settings.image_features * len(images)
        self.is_plain = len(self.continuous) == 1 and not self.discrete and not images

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self.is_plain:
            (name,) = self.continuous
            return self._scaled(obs[name].reshape(obs[name].shape[0], -1).float())
        parts = self.beside_images(obs)
        parts += [encode(obs[name]) for name, encode in self.named_images.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def named_images(self) -> dict[str, ImageEncoder]:
        """The image encoders, by field."""
        return dict(zip(self.image_names, cast("Iterable[ImageEncoder]", self.images), strict=True))

    def beside_images(self, obs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Returns the features before those of images: normalized continuous and one-hot discrete values."""
        parts = []
        if self.continuous:
            numbers = [obs[name].reshape(obs[name].shape[0], -1).float() for name in self.continuous]
            parts.append(self._scaled(torch.cat(numbers, dim=1)))
        return [*parts, *(_one_hot(obs[name], spec) for name, spec in self.discrete.items())]

    def observe(self, obs: Mapping[str, Array], readers: Iterable[FirstLayer] = ()) -> list[Fold]:
        """Updates the normaliser from a batch, and folds the change into the layers that read the features."""
        if self.normalizer is None:
            return []
        move = self.normalizer.update(
            np.concatenate([obs[n].reshape(len(obs[n]), math.prod(obs[n].shape[1:])) for n in self.continuous], axis=1)
        )
        folds = [] if move is None else [Fold(layer, move) for layer in readers]
        for fold in folds:
            fold.apply()
        return folds

    def share_scale(self, other: Encoder) -> None:
        """Shares the normaliser of another encoder; it is no longer part of this module."""
        if self.normalizer is not None:
            del self.normalizer
            # Past the module's own bookkeeping: saved twice, it could come back as two.
            self.__dict__["normalizer"] = other.normalizer

    def _scaled(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers if self.normalizer is None else self.normalizer(numbers)


class NetworkEncoder(Encoder):
    """Encodes observations by a torch module of the user's own.

    The module gets a tensor, or a dict of tensors where observations are a Dict: continuous values as float32, scaled
    with `normalize_obs`, images of uint8 between 0 and 1, and discrete values as integers from 0. It returns features
    [B, output_size].
    """

    def __init__(self, specs: Mapping[str, LeafSpec], settings: NetworkSettings, generator: torch.Generator) -> None:
        # Without encoders of images, which the module replaces.
        super().__init__({}, settings, generator)
        self.specs = dict(specs)
        self.continuous = {k: s for k, s in specs.items() if isinstance(s, BoxSpec) and not s.is_image}
        num_continuous = sum(spec.size for spec in self.continuous.values())
        if settings.normalize_obs and num_continuous:
            self.normalizer = ObsNormalizer(num_continuous, settings.obs_clip)
        assert settings.network is not None, "make_encoder chooses this class"
        make = registry.get("network", settings.network.type).load()
        given = {name: value for name, value in settings.network if name != "type"}
        if "observation_space" in inspect.signature(make).parameters:
            given["observation_space"] = _space_of(specs)
        # Torch's layers draw from its global generator: seeded here, weights depend on nothing that drew before.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            with torch.no_grad(), named_failure(f"policy.network {settings.network.type}", SettingsError, "E0224"):
                self.network: nn.Module = make(**given)
                rows = {name: np.zeros((_NUM_TRIED, *spec.shape), spec.dtype) for name, spec in specs.items()}
                features = self({name: torch.from_numpy(each) for name, each in rows.items()})
        if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != _NUM_TRIED:
            found = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
            raise SettingsError(
                f"policy.network: {settings.network.type} returned {found} for {_NUM_TRIED} observations; expected "
                f"features of shape ({_NUM_TRIED}, any)",
                code="E0224",
            )
        self.output_size = features.shape[1]

    def forward(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        values = {name: obs[name] for name in self.specs}
        if self.continuous:
            sizes = [spec.size for spec in self.continuous.values()]
            rows = self._scaled(torch.cat([obs[name].flatten(1).float() for name in self.continuous], dim=1))
            parts = torch.split(rows, sizes, dim=1)
            values |= {name: part.view(obs[name].shape) for name, part in zip(self.continuous, parts, strict=True)}
        for name, spec in self.specs.items():
            if isinstance(spec, BoxSpec) and spec.is_image:
                values[name] = obs[name].float() * (1.0 / 255.0 if spec.dtype == "uint8" else 1.0)
        features: torch.Tensor = self.network(_nested(values))
        return features

    def observe(self, obs: Mapping[str, Array], readers: Iterable[FirstLayer] = ()) -> list[Fold]:
        """Updates the normaliser; which layers of the module read the scaled values is not known, so none is folded."""
        return super().observe(obs)


_NUM_TRIED = 2
"""Number of observations with which a module is tried when it is made; one would hide a missing batch axis."""


def make_encoder(
    specs: Mapping[str, LeafSpec],
    settings: NetworkSettings,
    generator: torch.Generator,
    encoder_class: type[Encoder] = Encoder,
) -> Encoder:
    """Makes the encoder of observations: by their spaces, or by `policy.network`."""
    return (NetworkEncoder if settings.network is not None else encoder_class)(specs, settings, generator)


def _nested(values: Mapping[str, Tree]) -> Tree:
    """Returns leaves by field name in the structure that their dots give: the leaf itself, or dicts.

    >>> _nested({"obs": 1}), _nested({"obs.arm.left": 2, "obs.at": 3})
    (1, {'arm': {'left': 2}, 'at': 3})
    """
    result: Tree = {}
    for name, value in values.items():
        _, *path = name.split(".")
        if not path:
            return value
        node = result
        for step in path[:-1]:
            node = node.setdefault(step, {})
        node[path[-1]] = value
    return result


def _space_of(specs: Mapping[str, LeafSpec]) -> Space[object]:
    """Returns the Gymnasium space of the observations in the structure that a module gets."""

    def joined(tree: Tree) -> DictSpec | LeafSpec:
        return DictSpec(tuple((k, joined(v)) for k, v in tree.items())) if isinstance(tree, dict) else tree

    return gym_space(joined(_nested(specs)))


class ImageEncoder(nn.Module):
    """Three convolutions and a linear layer (Mnih et al. 2015); two for images under 36 pixels, of 3x3 under 20.

    Layers are leaky (decision 0029): the last has thousands of inputs, which one step of Adam may move all alike, and a
    feature that is then zero for every image would never learn again.

    A simple one has two wide strides at any size, as ML-Agents' encoder of that name: a tenth of the arithmetic.
    """

    def __init__(self, spec: BoxSpec, output_size: int, generator: torch.Generator, *, is_simple: bool = False) -> None:
        super().__init__()
        # The channel axis is the shorter of the first and the last; stacked frames come first, colours last. A stack of
        # frames with colours has the channels of all frames, those of the first frame first.
        self.is_stack = spec.is_stack
        frame = spec.shape[-3:]
        self.is_channel_last = frame[2] <= frame[0]
        channels = frame[2 if self.is_channel_last else 0] * (spec.shape[0] if self.is_stack else 1)
        height, width = frame[:2] if self.is_channel_last else frame[1:]
        self.shape = (channels, height, width)
        self.scale = 1.0 / 255.0 if spec.dtype == "uint8" else 1.0
        side = min(height, width)
        self.is_small = side < SMALLEST_LARGE
        self.free_patches: list[torch.Tensor] = []
        """Buffers for patches that no graph holds: the system would free and clear them at every minibatch."""
        shapes: Sequence[tuple[int, int, int]]
        if side < SMALLEST_STRIDED:
            shapes = ((16, 3, 1), (32, 3, 1))
        elif is_simple or self.is_small:
            shapes = ((16, 8, 4), (32, 4, 2))
        else:
            shapes = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
        # Learning takes up to a third less with the channels innermost, but not through kernels of three pixels.
        self.memory_format = torch.contiguous_format if shapes[0][1] == 3 else torch.channels_last
        layers: list[nn.Module] = []
        (_, kernel, stride), *_ = shapes
        num_patches = ((height - kernel) // stride + 1) * ((width - kernel) // stride + 1)
        self.num_patch_values = num_patches * channels * kernel**2
        """Size of all patches of one image in the first layer, which has the most."""
        for out_channels, kernel, stride in shapes:
            layers += [_convolution(channels, out_channels, kernel, stride, generator), nn.LeakyReLU(inplace=True)]
            channels = out_channels
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        last = linear(channels * height * width, output_size, math.sqrt(2.0), generator)
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.LeakyReLU(inplace=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if self.is_stack:
            pixels = (image.permute(0, 1, 4, 2, 3) if self.is_channel_last else image).flatten(1, 2)
        else:
            pixels = image.permute(0, 3, 1, 2) if self.is_channel_last else image
        # Bytes are rearranged faster than floats.
        features = pixels.contiguous(memory_format=self.memory_format).float()
        # Only where gradients are wanted: torch's own convolutions of many images are faster forwards, not backwards.
        # And only where they are few: memory for more patches is given back to the system and zeroed at every call.
        by_patches = (
            torch.is_grad_enabled()
            and self.is_small
            and self.memory_format is torch.channels_last
            # Last: asking for the number of images makes it a constant of an exported graph.
            and len(image) * self.num_patch_values <= MAX_PATCH_VALUES
        )
        *convolutions, last = self.weighted
        for number, layer in enumerate(convolutions):
            assert isinstance(layer, nn.Conv2d)
            # To scale the weights is to scale the pixels, with a thousandth of the numbers.
            weight = layer.weight if self.scale == 1.0 or number else layer.weight * self.scale
            if by_patches and features.device.type == "cpu":
                features = leaky_convolution(features, weight, layer.bias, layer.stride[0], self.free_patches)
            else:
                features = functional.leaky_relu_(functional.conv2d(features, weight, layer.bias, layer.stride))
        return functional.leaky_relu_(functional.linear(features.flatten(1), last.weight, last.bias))

    @property
    def weighted(self) -> list[nn.Conv2d | nn.Linear]:
        """The layers with weights: calling the modules would take longer than the arithmetic of a small image."""
        return [layer for layer in self.layers if isinstance(layer, nn.Conv2d | nn.Linear)]


class LeakyConvolution(torch.autograd.Function):
    """Convolution and leaky ReLU of small images as products with patches: two thirds of the time.

    Images are [N, C, H, W] with the channels innermost in memory, and so are the outputs.
    """

    @staticmethod
    def forward(
        ctx: Any, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, free: list[torch.Tensor]
    ) -> torch.Tensor:
        num_images, channels, height, width = images.shape
        num_filters, kernel = weight.shape[0], weight.shape[2]
        rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        steps = (channels * height * width, stride * width * channels, stride * channels, width * channels, 1)
        # A row of a patch is one stretch of memory: as many pixels as the kernel is wide, each with its channels.
        shape = (num_images, rows, columns, kernel, kernel * channels)
        number = next((i for i, each in enumerate(free) if each.shape == shape), -1)
        memory = free.pop(number) if number >= 0 else images.new_empty(shape)
        patches = memory.copy_(images.as_strided(shape, steps)).view(num_images * rows * columns, -1)
        filters = weight.permute(0, 2, 3, 1).reshape(num_filters, -1)
        outputs = functional.leaky_relu_(torch.addmm(bias, patches, filters.t()))
        ctx.save_for_backward(patches, filters, outputs)
        ctx.geometry, ctx.memory, ctx.free = (*images.shape, kernel, stride, rows, columns), memory, free
        return outputs.view(num_images, rows, columns, num_filters).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, by_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, None, None]:
        patches, filters, outputs = ctx.saved_tensors
        num_images, channels, height, width, kernel, stride, rows, columns = ctx.geometry
        by_outputs = by_outputs.permute(0, 2, 3, 1).reshape(outputs.shape)
        # From the outputs, which have the signs of the sums.
        by_sums = torch.ops.aten.leaky_relu_backward(by_outputs, outputs, 0.01, True)
        by_weight = torch.mm(by_sums.t(), patches).view(-1, kernel, kernel, channels).permute(0, 3, 1, 2)
        # Used again by the next minibatch; torch refuses to go back once more through a graph whose memory was.
        if len(ctx.free) < MAX_FREE:
            ctx.free.append(ctx.memory)
        if not ctx.needs_input_grad[0]:
            return None, by_weight, by_sums.sum(0), None, None
        by_patches = torch.mm(by_sums, filters).view(num_images, rows, columns, kernel, kernel, channels)
        by_images = by_sums.new_zeros(num_images, height, width, channels)
        # Patches overlap, so that they are added one place after the other; small images have few.
        for row in range(rows):
            for column in range(columns):
                top, left = row * stride, column * stride
                by_images[:, top : top + kernel, left : left + kernel] += by_patches[:, row, column]
        return by_images.permute(0, 3, 1, 2), by_weight, by_sums.sum(0), None, None


leaky_convolution: Callable[..., torch.Tensor] = LeakyConvolution.apply


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    layer = BareConv2d(inputs, outputs, kernel, stride)
    nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def _num_options(spec: LeafSpec) -> int:
    if isinstance(spec, DiscreteSpec):
        return spec.n
    assert isinstance(spec, MultiDiscreteSpec)
    return sum(spec.nvec)


def _one_hot(chosen: torch.Tensor, spec: LeafSpec) -> torch.Tensor:
    if isinstance(spec, DiscreteSpec):
        return functional.one_hot(chosen, spec.n).float()
    assert isinstance(spec, MultiDiscreteSpec)
    return torch.cat([functional.one_hot(chosen[:, i], n) for i, n in enumerate(spec.nvec)], dim=1).float()
