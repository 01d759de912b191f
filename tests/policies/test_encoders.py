"""Observations become features side by side: scaled numbers, one-hot choices and convolved images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from quintain.data.spec import DiscreteSpec, MultiDiscreteSpec, box
from quintain.policies.encoders import Encoder, ImageEncoder
from quintain.policies.settings import ActorCriticSettings


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def encoder(specs: dict, **settings: object) -> Encoder:
    return Encoder(specs, ActorCriticSettings(**settings), generator())


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))


def test_choices_are_one_hot_behind_the_numbers() -> None:
    specs = {"a": DiscreteSpec(3), "b": box(2), "c": MultiDiscreteSpec((2, 2)), "d": box(1)}
    made = encoder(specs)
    assert made.output_size == 3 + 3 + 4
    seen = {"a": torch.tensor([2, 0]), "b": torch.tensor([[5.0, 6.0], [7.0, 8.0]]),
            "c": torch.tensor([[1, 0], [0, 1]]), "d": torch.tensor([[9.0], [10.0]])}  # fmt: skip
    # Numbers of b and d first, then the choices in their order.
    assert made(seen).tolist() == [[5, 6, 9, 0, 0, 1, 0, 1, 1, 0], [7, 8, 10, 1, 0, 0, 1, 0, 0, 1]]


def test_only_numbers_are_scaled() -> None:
    made = encoder({"a": DiscreteSpec(2), "b": box(1), "c": box(1)}, normalize_obs=True)
    made.observe({"a": np.array([0, 1]), "b": np.array([[0.0], [2.0]]), "c": np.array([[10.0], [30.0]])})
    # b has mean 1 and deviation 1, c mean 20 and deviation 10.
    features = made({"a": torch.tensor([1]), "b": torch.tensor([[3.0]]), "c": torch.tensor([[0.0]])})
    torch.testing.assert_close(features, torch.tensor([[2.0, -2.0, 0.0, 1.0]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("shape", "convolved"),
    [
        # 84: (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9, 9 - 3 + 1 = 7, with 64 channels.
        ((84, 84, 3), 64 * 7 * 7),
        ((4, 84, 84), 64 * 7 * 7),
        # 64 x 48: 15 x 11, then 6 x 4, then 4 x 2.
        ((64, 48, 3), 64 * 4 * 2),
        # Small ones lose two on each side: 10 x 8 becomes 6 x 4 with 32 channels.
        ((10, 8, 1), 32 * 6 * 4),
        ((1, 10, 8), 32 * 6 * 4),
        ((7, 7, 2), 32 * 3 * 3),
    ],
)
def test_images_are_reduced_to_features_in_either_order_of_axes(shape: tuple[int, ...], convolved: int) -> None:
    made = ImageEncoder(box(*shape, low=0, high=255, dtype="uint8"), 16, generator())
    (last,) = (layer for layer in made.layers if isinstance(layer, nn.Linear))
    assert last.in_features == convolved
    assert made(images(5, *shape)).shape == (5, 16)


@pytest.mark.parametrize("size", [40, 12])
def test_height_width_channels_and_channels_height_width_are_the_same_image(size: int) -> None:
    last = ImageEncoder(box(size, size + 3, 3, dtype="uint8"), 8, generator())
    first = ImageEncoder(box(3, size, size + 3, dtype="uint8"), 8, generator())
    seen = images(4, size, size + 3, 3)
    torch.testing.assert_close(last(seen), first(seen.permute(0, 3, 1, 2)), atol=1e-6, rtol=1e-5)
    assert (last.is_channel_last, first.is_channel_last) == (True, False)


def test_bytes_are_scaled_to_one_and_floats_are_taken_as_they_are() -> None:
    from_bytes = ImageEncoder(box(8, 8, 1, dtype="uint8"), 8, generator())
    from_floats = ImageEncoder(box(8, 8, 1), 8, generator())
    seen = images(3, 8, 8, 1)
    torch.testing.assert_close(from_bytes(seen), from_floats(seen.float() / 255), atol=1e-6, rtol=1e-5)


def test_images_may_be_flattened_instead() -> None:
    specs = {"image": box(8, 8, 1, dtype="uint8"), "x": box(1)}
    assert encoder(specs, image_features=16).output_size == 17
    made = encoder(specs, image_encoder="flatten")
    assert made.output_size == 65
    assert not made.images
    seen = images(2, 8, 8, 1)
    features = made({"image": seen, "x": torch.zeros(2, 1)})
    assert torch.equal(features[:, :64], seen.reshape(2, 64).float())


def test_every_weight_of_an_image_gets_a_gradient() -> None:
    made = encoder({"image": box(40, 40, 3, dtype="uint8"), "a": DiscreteSpec(2)}, image_features=8)
    made({"image": images(4, 40, 40, 3), "a": torch.zeros(4, dtype=torch.int64)}).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in made.parameters())
