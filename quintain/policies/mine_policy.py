"""The contract of MineStudio's policies: a module that maps sequences and a nested hidden state to logits and values.

    class Mine(MinePolicy):
        def forward(self, input, state_in, **kwargs):   # entries [B, T, ...]
            ...
            return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state_out

        def initial_state(self, batch_size=None): ...

`policy.type` `mine_policy` trains such a module as it is; `quintain.policies.mine_adapter` says how.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import gymnasium
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from quintain.errors import SettingsError, SpecMismatch

if TYPE_CHECKING:
    from quintain.typing import Action, Keyword, Observation, Tree

SMALLEST_VARIANCE = 0.01
"""Floor of the variance of returns, so that those of a task without rewards are not blown up."""
NUM_BUTTONS, NUM_CAMERA = 8641, 121
"""Options of MineStudio's action space."""
SWITCHED_ON = range(1, NUM_BUTTONS - 1, 2)
"""Buttons with the camera switch, the group that varies fastest; the last option is the inventory, without it."""


class MinePolicy(nn.Module, ABC):
    """A policy under MineStudio's contract: `pi_head`, `value_head`, `forward`, `initial_state`.

    `forward` gets observations [B, T, ...] by name and the hidden state before the first step, and returns
    `{"pi_logits", "vpred"}` with [B, T, ...] and the state after the last one. Hidden states are tensors in any nesting
    of lists, tuples and dicts, or None.
    """

    def __init__(
        self,
        hiddim: int,
        action_space: gymnasium.Space[Action] | None = None,
        temperature: float = 1.0,
        nucleus_prob: float | None = None,
        masks_camera: bool = False,
    ) -> None:
        super().__init__()
        if action_space is None:
            sizes = {"camera": NUM_CAMERA, "buttons": NUM_BUTTONS}
            action_space = spaces.Dict({name: spaces.MultiDiscrete([size]) for name, size in sizes.items()})
        self.hiddim = hiddim
        self.action_space = action_space
        self.pi_head = make_action_head(action_space, hiddim, temperature, nucleus_prob, masks_camera)
        self.value_head = ScaledMSEHead(hiddim)

    @abstractmethod
    def forward(self, input: Observation, state_in: Tree, **kwargs: Keyword) -> tuple[dict[str, Tree], Tree]:
        """Returns `pi_logits` and `vpred` of sequences, and the hidden state after them.

        `context["first"]` [B, T] is passed by name: the steps that begin an episode. Sequences given to it have such
        steps only at their beginning, with a state of `initial_state`, so it may be ignored.
        """

    @abstractmethod
    def initial_state(self, batch_size: int | None = None) -> Tree:
        """Returns the hidden state of so many sequences at the beginning of an episode."""

    def merge_state(self, states: Sequence[Tree]) -> Tree:
        """Returns the hidden states of single sequences as one of a batch; only needed if its layout is unusual."""
        raise NotImplementedError

    def split_state(self, state: Tree, split_num: int) -> list[Tree]:
        """Returns the hidden state of a batch as states of single sequences; see `merge_state`."""
        raise NotImplementedError

    def split_action(self, action: Action, split_num: int) -> list[Action]:
        """Returns actions of a batch as single ones."""
        if isinstance(action, dict):
            parts = {name: self.split_action(each, split_num) for name, each in action.items()}
            return [{name: part[i] for name, part in parts.items()} for i in range(split_num)]
        return [action[i] for i in range(split_num)]

    @torch.inference_mode()
    def get_action(
        self,
        input: Observation,
        state_in: Tree,
        deterministic: bool = False,
        input_shape: str = "BT*",
        **kwargs: Keyword,
    ) -> tuple[Action, Tree]:
        """Returns an action drawn from torch's generator, and the next hidden state; `input_shape` `*` is one step."""
        is_single = input_shape == "*"
        if input_shape not in ("BT*", "*"):
            raise SpecMismatch(f"get_action() got input_shape {input_shape!r}; expected BT* or *")
        if is_single:
            input = {name: torch.as_tensor(each, device=self.device)[None, None] for name, each in input.items()}
        state_in = self.initial_state(1) if state_in is None else state_in
        result, state_out = self(input, state_in, **kwargs)
        action = self.pi_head.sample(result["pi_logits"], deterministic=deterministic)
        if not is_single:
            return action, state_out
        return _each_leaf(action, lambda leaf: leaf[0, 0].cpu().numpy()), state_out

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class ActionHead(nn.Module):
    """Maps features to the logits of an action space; actions and logits have the structure of the space."""

    def logprob(self, action: Action, logits: Tree) -> torch.Tensor:
        """Returns log-probabilities [...] of actions, of several the sum."""
        raise self._has_no_probabilities()

    def entropy(self, logits: Tree) -> torch.Tensor:
        """Returns entropies [...], of several actions the sum."""
        raise self._has_no_probabilities()

    def kl_divergence(self, logits_q: Tree, logits_p: Tree) -> torch.Tensor:
        """Returns KL(q || p) [...], of several actions the sum."""
        raise self._has_no_probabilities()

    def sample(self, logits: Tree, deterministic: bool = False) -> Action:
        """Returns actions drawn from torch's generator, or the likeliest ones."""
        return logits

    def _has_no_probabilities(self) -> SpecMismatch:
        return SpecMismatch(
            f"a {type(self).__name__} gives means only; the policy around it (type mine_policy) has the probabilities "
            f"of continuous actions"
        )


class CategoricalActionHead(ActionHead):
    """Log-probabilities of one or several discrete actions: `[..., n]`, `[..., k, n]`, or `[..., sum of sizes]`.

    Several of unequal sizes lie one after another.
    """

    def __init__(
        self,
        hiddim: int,
        sizes: Sequence[int],
        shape: tuple[int, ...],
        temperature: float = 1.0,
        nucleus_prob: float | None = None,
    ) -> None:
        super().__init__()
        if temperature <= 0.0 or (nucleus_prob is not None and not 0.0 < nucleus_prob <= 1.0):
            raise SettingsError(
                f"found temperature {temperature} and nucleus_prob {nucleus_prob}; expected a temperature above 0 and "
                f"a nucleus_prob above 0 and at most 1, or None",
                code="E0244",
            )
        self.sizes = [int(size) for size in sizes]
        self.shape = shape
        self.temperature = temperature
        self.nucleus_prob = nucleus_prob
        self.linear_layer = nn.Linear(hiddim, sum(self.sizes))
        nn.init.orthogonal_(self.linear_layer.weight, gain=0.01)
        nn.init.zeros_(self.linear_layer.bias)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        flat = self.linear_layer(latent).float() / self.temperature
        parts = [functional.log_softmax(part, dim=-1) for part in torch.split(flat, self.sizes, dim=-1)]
        if len(set(self.sizes)) > 1:
            return torch.cat(parts, dim=-1)
        return torch.stack(parts, dim=-2).view(*latent.shape[:-1], *self.shape, self.sizes[0])

    def logprob(self, action: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        flat = action.reshape(*action.shape[: action.ndim - len(self.shape)], len(self.sizes)).long()
        parts = [part.gather(-1, flat[..., i : i + 1]).squeeze(-1) for i, part in enumerate(self._parts(logits))]
        return torch.stack(parts).sum(dim=0)

    def entropy(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.stack([-(part.exp() * part).sum(dim=-1) for part in self._parts(logits)]).sum(dim=0)

    def kl_divergence(self, logits_q: torch.Tensor, logits_p: torch.Tensor) -> torch.Tensor:
        pairs = zip(self._parts(logits_q), self._parts(logits_p), strict=True)
        return torch.stack([(q.exp() * (q - p)).sum(dim=-1) for q, p in pairs]).sum(dim=0)

    def sample(self, logits: torch.Tensor, deterministic: bool = False) -> torch.Tensor:
        drawn = []
        for part in self._parts(logits):
            if self.nucleus_prob is not None:
                part = part.masked_fill(~nucleus(part, self.nucleus_prob), -math.inf)
            noise = 0.0 if deterministic else -torch.empty_like(part).exponential_().log()
            drawn.append((part + noise).argmax(dim=-1))
        return torch.stack(drawn, dim=-1).view((*drawn[0].shape, *self.shape))

    def _parts(self, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leading = logits.ndim - (1 if len(set(self.sizes)) > 1 else len(self.shape) + 1)
        return torch.split(logits.reshape(*logits.shape[:leading], sum(self.sizes)), self.sizes, dim=-1)


class MeanActionHead(ActionHead):
    """Means of continuous actions; `mine_policy` draws around them, with deviations that it learns itself."""

    def __init__(self, hiddim: int, size: int) -> None:
        super().__init__()
        self.linear_layer = nn.Linear(hiddim, size)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.linear_layer(latent)
        return mean


class DictActionHead(ActionHead):
    """Heads by name; log-probabilities, entropies and divergences are sums.

    A head with a condition counts only with some options of another, because what is drawn from it has no effect with
    the rest: its log-probability is left out there, its entropy and divergence are weighted by their probability.
    """

    def __init__(
        self, heads: Mapping[str, ActionHead], conditions: Mapping[str, tuple[str, Sequence[int]]] | None = None
    ) -> None:
        super().__init__()
        self.heads = dict(heads)
        self.conditions = dict(conditions or {})
        """For each head that does not always count, the head that decides, and the options with which it counts."""
        for name, (other, options) in self.conditions.items():
            decides = self.heads.get(other)
            sizes = decides.sizes if isinstance(decides, CategoricalActionHead) else []
            if name not in self.heads or len(sizes) != 1 or not set(options) <= set(range(sizes[0])):
                raise SettingsError(
                    f"conditions[{name!r}] names {other!r}; expected two of {', '.join(self.heads)}, of which the "
                    f"second is one discrete action that has these options",
                    code="E0244",
                )
        for name, head in heads.items():
            self.add_module(name, head)

    def forward(self, latent: torch.Tensor) -> dict[str, Tree]:
        return {name: head(latent) for name, head in self.heads.items()}

    def logprob(self, action: Action, logits: Tree) -> torch.Tensor:
        parts = []
        for name, head in self.heads.items():
            part = head.logprob(action[name], logits[name])
            if name in self.conditions:
                other, options = self.conditions[name]
                part = part * torch.isin(action[other].reshape(part.shape), torch.tensor(options, device=part.device))
            parts.append(part)
        return torch.stack(parts).sum(dim=0)

    def entropy(self, logits: Tree) -> torch.Tensor:
        parts = [self._weight(name, logits) * head.entropy(logits[name]) for name, head in self.heads.items()]
        return torch.stack(parts).sum(dim=0)

    def kl_divergence(self, logits_q: Tree, logits_p: Tree) -> torch.Tensor:
        parts = [
            self._weight(name, logits_q) * head.kl_divergence(logits_q[name], logits_p[name])
            for name, head in self.heads.items()
        ]
        return torch.stack(parts).sum(dim=0)

    def _weight(self, name: str, logits: Tree) -> torch.Tensor | float:
        """Returns the probability [...] that a head counts; 1 without a condition."""
        if name not in self.conditions:
            return 1.0
        other, options = self.conditions[name]
        head = self.heads[other]
        assert isinstance(head, CategoricalActionHead)
        [log_probs] = head._parts(logits[other])
        return log_probs.exp()[..., list(options)].sum(dim=-1)

    def sample(self, logits: Tree, deterministic: bool = False) -> Action:
        return {name: head.sample(logits[name], deterministic) for name, head in self.heads.items()}


def make_action_head(
    action_space: gymnasium.Space[Action],
    hiddim: int,
    temperature: float = 1.0,
    nucleus_prob: float | None = None,
    masks_camera: bool = False,
) -> ActionHead:
    """Makes the head of an action space: Discrete, MultiDiscrete (of any sizes), Box, or a Dict of these.

    With `masks_camera` the camera of MineStudio's action space counts only with buttons that switch it on.
    """
    if isinstance(action_space, spaces.Dict):
        heads = {name: make_action_head(each, hiddim, temperature, nucleus_prob) for name, each in action_space.items()}
        options = {name: head.sizes for name, head in heads.items() if isinstance(head, CategoricalActionHead)}
        is_minecraft = (options.get("buttons"), options.get("camera")) == ([NUM_BUTTONS], [NUM_CAMERA])
        switch = {"camera": ("buttons", SWITCHED_ON)}
        return DictActionHead(heads, switch if masks_camera and is_minecraft else None)
    if isinstance(action_space, spaces.Discrete):
        return CategoricalActionHead(hiddim, (int(action_space.n),), (), temperature, nucleus_prob)
    if isinstance(action_space, spaces.MultiDiscrete):
        sizes, shape = action_space.nvec.reshape(-1).tolist(), tuple(action_space.nvec.shape)
        return CategoricalActionHead(hiddim, sizes, shape, temperature, nucleus_prob)
    if isinstance(action_space, spaces.Box):
        return MeanActionHead(hiddim, math.prod(action_space.shape))
    raise SpecMismatch(
        f"make_action_head() got {action_space}; expected Discrete, MultiDiscrete, Box or a Dict of these"
    )


class NormalizeEwma(nn.Module):
    """Mean and deviation of returns by exponentially weighted averages, debiased as Adam's moments are."""

    running_mean: torch.Tensor
    running_mean_sq: torch.Tensor
    debiasing_term: torch.Tensor

    def __init__(self, input_shape: int = 1, beta: float = 0.99999, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.beta = beta
        self.epsilon = epsilon
        for name, shape in (
            ("running_mean", (input_shape,)),
            ("running_mean_sq", (input_shape,)),
            ("debiasing_term", ()),
        ):
            self.register_buffer(name, torch.zeros(shape))

    def running_mean_var(self) -> tuple[torch.Tensor, torch.Tensor]:
        return ewma_moments(self)

    def normalize(self, values: torch.Tensor) -> torch.Tensor:
        mean, variance = ewma_moments(self)
        return (values - mean) / variance.sqrt()

    def denormalize(self, values: torch.Tensor) -> torch.Tensor:
        mean, variance = ewma_moments(self)
        return values * variance.sqrt() + mean


class ScaledMSEHead(nn.Linear):
    """Predicts returns in the scale of its normaliser, whose statistics only the optimizer's steps move."""

    def __init__(self, hiddim: int, output_size: int = 1) -> None:
        super().__init__(hiddim, output_size)
        nn.init.orthogonal_(self.weight, gain=1.0)
        nn.init.zeros_(self.bias)
        self.normalizer = NormalizeEwma(output_size)

    def normalize(self, values: torch.Tensor) -> torch.Tensor:
        return self.normalizer.normalize(values)

    def denormalize(self, values: torch.Tensor) -> torch.Tensor:
        return self.normalizer.denormalize(values)


def ewma_moments(normalizer: NormalizeEwma) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the debiased mean and variance of a normaliser, MineStudio's own included; 0 and the floor before any."""
    weight = normalizer.debiasing_term.clamp(min=normalizer.epsilon)
    mean = normalizer.running_mean / weight
    return mean, (normalizer.running_mean_sq / weight - mean.square()).clamp(min=SMALLEST_VARIANCE)


@torch.no_grad()
def ewma_update(normalizer: NormalizeEwma, mean: torch.Tensor, mean_square: torch.Tensor) -> None:
    """Moves the statistics towards the moments of one batch of returns; moments that are not finite move nothing."""
    # The optimizer skips the step of such a batch, too. Statistics that took it in would stay not finite for ever.
    is_finite = torch.isfinite(mean) & torch.isfinite(mean_square)
    parts = (
        (normalizer.running_mean, mean),
        (normalizer.running_mean_sq, mean_square),
        (normalizer.debiasing_term, 1.0),
    )
    for running, now in parts:
        moved = running * normalizer.beta + now * (1.0 - normalizer.beta)
        running.copy_(torch.where(is_finite, moved, running))


def nucleus(log_probs: torch.Tensor, nucleus_prob: float) -> torch.Tensor:
    """Returns the fewest likeliest options whose probabilities sum to at least `nucleus_prob`, as a mask.

    >>> nucleus(torch.tensor([0.5, 0.3, 0.2]).log(), 0.6)
    tensor([ True,  True, False])
    """
    probs = log_probs.exp()
    if torch.compiler.is_exporting():
        # ONNX has no stable sort.
        ordered, places = probs.topk(probs.shape[-1])
    else:
        ordered, places = probs.sort(dim=-1, descending=True, stable=True)
    is_inside = ordered.cumsum(dim=-1) - ordered < nucleus_prob
    return torch.zeros_like(is_inside).scatter(-1, places, is_inside)


def _each_leaf(tree: Tree, function: Keyword) -> Tree:
    if isinstance(tree, dict):
        return {name: _each_leaf(each, function) for name, each in tree.items()}
    return function(tree)
