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
        # 35 x 28 with two: 7 x 6, then 2 x 2.
        ((35, 28, 1), 32 * 2 * 2),
        ((20, 20, 3), 32),
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


@pytest.mark.parametrize(
    ("shape", "convolved"),
    [
        # 84: (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9, with 32 channels.
        ((84, 84, 3), 32 * 9 * 9),
        # 20: (20 - 8) / 4 + 1 = 4, (4 - 4) / 2 + 1 = 1.
        ((20, 20, 3), 32),
        # Wide strides do not fit: two less on each side.
        ((19, 24, 1), 32 * 15 * 20),
    ],
)
def test_a_simple_encoder_has_two_wide_strides_as_ml_agents_has(shape: tuple[int, ...], convolved: int) -> None:
    made = encoder({"image": box(*shape)}, image_encoder="simple", image_features=16)
    [image_encoder] = made.images
    (last,) = (layer for layer in image_encoder.layers if isinstance(layer, nn.Linear))
    assert last.in_features == convolved
    features = made({"image": images(5, *shape).float()})
    assert features.shape == (5, 16)
    # Leaky: what is below zero is not lost.
    assert bool((features < 0).any())


@pytest.mark.parametrize("kind", ["convolution", "simple"])
@pytest.mark.parametrize("size", [84, 20, 10])
def test_functions_and_modules_give_the_same_features_and_gradients(kind: str, size: int) -> None:
    made = encoder({"image": box(size, size, 3)}, image_encoder=kind, image_features=8)
    [image_encoder] = made.images
    seen = images(3, size, size, 3).float() / 255
    found = []
    for features in (made({"image": seen}), image_encoder.layers(seen.permute(0, 3, 1, 2))):
        made.zero_grad()
        features.square().sum().backward()
        found.append([features.detach(), *(parameter.grad.clone() for parameter in made.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [40, 12])
def test_height_width_channels_and_channels_height_width_are_the_same_image(size: int) -> None:
    last = ImageEncoder(box(size, size + 3, 3, dtype="uint8"), 8, generator())
    first = ImageEncoder(box(3, size, size + 3, dtype="uint8"), 8, generator())
    seen = images(4, size, size + 3, 3)
    torch.testing.assert_close(last(seen), first(seen.permute(0, 3, 1, 2)), atol=1e-6, rtol=1e-5)
    assert (last.is_channel_last, first.is_channel_last) == (True, False)


@pytest.mark.parametrize("size", [40, 12])
def test_a_stack_of_frames_with_colours_is_one_image_with_the_channels_of_all(size: int) -> None:
    stack = images(2, 4 * size, size + 3, 3).reshape(2, 4, size, size + 3, 3)
    whole = ImageEncoder(box(12, size, size + 3, dtype="uint8"), 8, generator())
    folded = torch.cat([frame.permute(0, 3, 1, 2) for frame in stack.unbind(1)], dim=1)
    last = ImageEncoder(box(4, size, size + 3, 3, dtype="uint8"), 8, generator())
    first = ImageEncoder(box(4, 3, size, size + 3, dtype="uint8"), 8, generator())
    for encoder, seen in ((last, stack), (first, stack.permute(0, 1, 4, 2, 3))):
        assert encoder.shape == (12, size, size + 3)
        torch.testing.assert_close(encoder(seen), whole(folded), atol=1e-6, rtol=1e-5)


def test_bytes_are_scaled_to_one_and_floats_are_taken_as_they_are() -> None:
    from_bytes = ImageEncoder(box(8, 8, 1, dtype="uint8"), 8, generator())
    from_floats = ImageEncoder(box(8, 8, 1), 8, generator())
    seen = images(3, 8, 8, 1)
    torch.testing.assert_close(from_bytes(seen), from_floats(seen.float() / 255), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [40, 20, 12])
def test_a_feature_that_is_low_for_every_image_goes_on_learning(size: int) -> None:
    """A hundredth of the gradient is left, in every layer: otherwise one large step could end a feature for good."""
    made = ImageEncoder(box(size, size, 1, dtype="uint8"), 8, generator())
    weighted = [layer for layer in made.layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in weighted:
        assert layer.bias is not None
        layer.bias.data.fill_(-1e4)
    made(images(3, size, size, 1)).sum().backward()
    # Each layer after a layer passes on a hundredth: what reaches the last bias is a hundredth of each of three rows.
    torch.testing.assert_close(weighted[-1].bias.grad, torch.full((8,), 0.03))
    for layer in weighted:
        assert layer.weight.grad is not None
        assert (layer.weight.grad.flatten(1).abs().sum(dim=1) > 0).all()


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


def test_gradients_of_gradients_through_small_images_are_refused_and_not_wrong() -> None:
    made = ImageEncoder(box(20, 20, 3, low=0.0, high=1.0), 4, generator())
    pixels = torch.rand(2, 20, 20, 3, requires_grad=True)
    [slope] = torch.autograd.grad(made(pixels).sum(), pixels, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


def test_memory_of_patches_is_used_again_and_never_while_a_graph_needs_it() -> None:
    made = ImageEncoder(box(20, 20, 3, low=0.0, high=1.0), 4, generator())
    pixels = [torch.rand(2, 20, 20, 3, generator=torch.Generator().manual_seed(n)) for n in range(2)]

    def gradients(*batches: torch.Tensor) -> list[torch.Tensor]:
        made.zero_grad()
        losses = [made(batch).square().sum() for batch in batches]
        for loss in losses:
            loss.backward()
        return [parameter.grad.clone() for parameter in made.parameters()]

    one, two = gradients(pixels[0]), gradients(pixels[1])
    num_pieces = len(made.free_patches)
    assert num_pieces == len(made.weighted) - 1
    # Both graphs at once: each has memory of its own.
    for both, first, second in zip(gradients(*pixels), one, two, strict=True):
        torch.testing.assert_close(both, first + second)
    made.free_patches.clear()
    kept = made(pixels[0]).sum()
    kept.backward(retain_graph=True)
    made(pixels[1]).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
