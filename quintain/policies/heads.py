"""Policy heads: from a network's output to actions, log-probabilities and entropies.

Sampling is a pure function of the output and of noise that the collector drew, which makes acting reproducible; no
distribution objects are built in the loop. A mask is a bool tensor, True where a discrete action is allowed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from quintain.data.spec import BoxSpec, DiscreteSpec, MultiDiscreteSpec

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# Finite, because 0 * -inf is NaN in the entropy; small enough that its probability is exactly zero in float32.
_FORBIDDEN = -1e9
_LOG_STD_RANGE = (-5.0, 2.0)
_LARGEST_TANH = 1.0 - 1e-6
_SMALLEST_VARIANCE = 1e-6

LOGISTIC_WEIGHTS = (0.0469060, 0.3041091, 0.4296890, 0.1985835, 0.0207124)
LOGISTIC_STDS = (0.4477658, 0.6268409, 0.8766396, 1.2310878, 1.7353614)
"""Five zero-mean Gaussians whose mixture is the logistic density, the slope of tanh over 2.

Fitted to the least largest error of tanh(u) and log cosh(u), which is 1.5e-6; docs/decisions/0027 says what for.
"""


@dataclass(frozen=True)
class NoiseSpec:
    """Size of the noise for one action, by kind; uniform noise comes first."""

    num_uniform: int = 0
    num_normal: int = 0
    hold: int = 1
    """Steps for which normal noise stays the same, before it is drawn again."""

    @property
    def size(self) -> int:
        return self.num_uniform + self.num_normal


class HeadSettings(Protocol):
    """Settings of heads for continuous actions."""

    @property
    def initial_log_std(self) -> float: ...
    @property
    def clip_actions(self) -> bool: ...
    @property
    def squash_actions(self) -> bool: ...
    @property
    def state_dependent_std(self) -> bool: ...
    @property
    def use_sde(self) -> bool: ...
    @property
    def noise_hold(self) -> int | Literal["auto"]: ...


class Head(nn.Module, ABC):
    """Converts `output [B, output_size]` to one leaf of an action."""

    output_size: int
    noise: NoiseSpec
    num_options: int = 0
    has_state_noise: bool = False
    """Whether the features of the network's last hidden layer follow its columns of the output."""

    @abstractmethod
    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Writes an action sampled with the given noise and returns its log-probability [B]."""

    @abstractmethod
    def mode(self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Writes the most likely action and returns its log-probability [B]."""

    @abstractmethod
    def evaluate(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probability [B] and entropy [B] of given actions, with gradients."""

    @abstractmethod
    def evaluate_components(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probability and entropy of each component of given actions, [B, K], with gradients."""

    def env_action(self, action: torch.Tensor) -> torch.Tensor:
        """Converts a sampled action to the environment's format."""
        return action

    def explore(self, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Writes an action sampled uniformly from the action space and returns its log-probability [B]."""
        even = noise.new_zeros((len(noise), self.output_size))
        return self.sample(even, noise, action, mask)


class CategoricalHead(Head):
    """A categorical distribution over one discrete action: probabilities softmax(output)."""

    def __init__(self, spec: DiscreteSpec) -> None:
        super().__init__()
        self.output_size = self.num_options = spec.n
        self.noise = NoiseSpec(num_uniform=1)

    def log_probs(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the log-probabilities of all options [B, options], with gradients."""
        return _log_softmax(output, mask)

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        log_probs = _log_softmax(output, mask)
        below = log_probs.exp().cumsum(dim=-1) <= noise
        # Rounding may leave the last cumulative value below one: the last possible action takes what is left.
        torch.sum(below[:, :-1], dim=-1, out=action)
        if mask is not None:
            action.clamp_(max=_last_allowed(mask))
        return _at(log_probs, action)

    def mode(self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        log_probs = _log_softmax(output, mask)
        action.copy_(log_probs.argmax(dim=-1))
        return _at(log_probs, action)

    def evaluate(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = _log_softmax(output, mask)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return _at(log_probs, action), entropy

    def evaluate_components(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_prob, entropy = self.evaluate(output, action, mask)
        return log_prob.unsqueeze(1), entropy.unsqueeze(1)


class MultiCategoricalHead(Head):
    """Independent categorical distributions over several discrete actions."""

    def __init__(self, spec: MultiDiscreteSpec) -> None:
        super().__init__()
        self.nvec = list(spec.nvec)
        self.output_size = self.num_options = sum(spec.nvec)
        self.noise = NoiseSpec(num_uniform=len(spec.nvec))
        self.choices = nn.ModuleList(CategoricalHead(DiscreteSpec(n)) for n in spec.nvec)

    def log_probs(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Returns the log-probabilities of the options of all actions, concatenated [B, options]."""
        return torch.cat([head.log_probs(part, allowed) for head, part, allowed in self._parts(output, mask)], dim=1)

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        parts = self._parts(output, mask)
        if len(parts) == 1:
            [(head, part, allowed)] = parts
            return head.sample(part, noise, action[:, 0], allowed)
        chosen = torch.empty_like(action[:, 0])
        log_prob = torch.zeros_like(output[:, 0])
        for i, (head, part, allowed) in enumerate(parts):
            log_prob = log_prob + head.sample(part, noise[:, i : i + 1], chosen, allowed)
            action[:, i].copy_(chosen)
        return log_prob

    def mode(self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        log_prob = torch.zeros_like(output[:, 0])
        for i, (head, part, allowed) in enumerate(self._parts(output, mask)):
            log_prob = log_prob + head.mode(part, action[:, i], allowed)
        return log_prob

    def evaluate(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, entropies = self._judged(output, action, mask)
        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)

    def evaluate_components(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs, entropies = self._judged(output, action, mask)
        return torch.stack(log_probs, dim=1), torch.stack(entropies, dim=1)

    def _judged(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Returns log-probability and entropy of each discrete action, [B] each."""
        judged = [
            head.evaluate(part, action[:, i], allowed)
            for i, (head, part, allowed) in enumerate(self._parts(output, mask))
        ]
        log_probs, entropies = zip(*judged, strict=True)
        return log_probs, entropies

    def _parts(
        self, output: torch.Tensor, mask: torch.Tensor | None
    ) -> list[tuple[CategoricalHead, torch.Tensor, torch.Tensor | None]]:
        if len(self.nvec) == 1:
            [head] = self.choices
            assert isinstance(head, CategoricalHead)
            return [(head, output, mask)]
        masks = [None] * len(self.nvec) if mask is None else torch.split(mask, self.nvec, dim=-1)
        return list(zip(self.choices, torch.split(output, self.nvec, dim=-1), masks, strict=True))  # type: ignore[arg-type]  # the modules are heads


class GaussianHead(Head):
    """A diagonal Gaussian around the network's output; bounded actions are clipped, or squashed by tanh if set.

    The stored action is the one before clipping or squashing: it is the distribution's sample, and the inverse of tanh
    would not be exact.
    """

    def __init__(self, spec: BoxSpec, settings: HeadSettings, hold: int = 1) -> None:
        super().__init__()
        self.spec = spec
        self.has_state_std = settings.state_dependent_std
        self.initial_log_std = settings.initial_log_std
        self.is_squashed = settings.squash_actions
        self.output_size = spec.size * (2 if self.has_state_std else 1)
        self.noise = NoiseSpec(num_normal=spec.size, hold=hold)
        if not self.has_state_std:
            self.log_std = nn.Parameter(torch.full(self.std_shape, settings.initial_log_std))
        low, high = (torch.from_numpy(bound) for bound in spec.bounds())
        self.is_clipped = settings.clip_actions and spec.is_bounded and not self.is_squashed
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("logistic_weights", torch.tensor(LOGISTIC_WEIGHTS), persistent=False)
        self.register_buffer("logistic_variances", torch.tensor(LOGISTIC_STDS).square(), persistent=False)

    low: torch.Tensor
    high: torch.Tensor
    logistic_weights: torch.Tensor
    logistic_variances: torch.Tensor

    @property
    def std_shape(self) -> tuple[int, ...]:
        """Shape of the learned log standard deviations, which do not depend on the state."""
        return (self.spec.size,)

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        drawn, log_prob = self.draw(output, noise)
        action.copy_(drawn.view_as(action))
        return log_prob

    def draw(self, output: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns an action [B, size] before clipping or squashing and its log-probability, both with gradients."""
        mean, log_std = self.mean_and_log_std(output)
        drawn = mean + log_std.exp() * noise
        return drawn, self._log_prob(noise, log_std, drawn)

    def explore(self, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if not self.is_squashed:
            return super().explore(noise, action, mask)
        # erf maps a standard normal over sqrt(2) evenly onto (-1, 1); at the ends the inverse of tanh is infinite.
        even = torch.erf(noise * math.sqrt(0.5)).clamp(-_LARGEST_TANH, _LARGEST_TANH)
        action.copy_(torch.atanh(even).view_as(action))
        return even.new_full((len(even),), -math.log(2.0) * even.shape[1])

    def mode(self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        mean, log_std = self.mean_and_log_std(output)
        action.copy_(mean.view_as(action))
        return self._log_prob(torch.zeros_like(mean), log_std, mean)

    def evaluate(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.mean_and_log_std(output)
        flat = action.reshape(len(action), -1)
        log_prob = self._log_prob((flat - mean) * (-log_std).exp(), log_std, flat)
        entropy = (log_std + (_HALF_LOG_2PI + 0.5)).sum(dim=-1).expand_as(log_prob)
        return log_prob, entropy + self._mean_log_slopes(mean, log_std).sum(dim=-1) if self.is_squashed else entropy

    def evaluate_components(
        self, output: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.mean_and_log_std(output)
        flat = action.reshape(len(action), -1)
        slope, mean_slope = (
            (_log_slopes(flat), self._mean_log_slopes(mean, log_std))
            if self.is_squashed
            else (torch.zeros_like(flat), torch.zeros_like(flat))
        )
        log_probs = -0.5 * ((flat - mean) * (-log_std).exp()).square() - log_std - _HALF_LOG_2PI - slope
        return log_probs, (log_std + (_HALF_LOG_2PI + 0.5)).expand_as(flat) + mean_slope

    def _mean_log_slopes(self, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        """Returns the expectation of log |d tanh(u) / du| of each component before squashing, u ~ N(mean, std^2).

        The slope of tanh is a mixture of Gaussians, and 2 log cosh(u) its second integral. Over Gaussians of u each has
        a closed expectation: that of |x| for x ~ N(mean, std^2 + variance), see docs/decisions/0027.
        """
        std = ((2.0 * log_std).exp().unsqueeze(-1) + self.logistic_variances).sqrt()
        distance = mean.unsqueeze(-1)
        scaled = distance / (math.sqrt(2.0) * std)
        absolute = distance * torch.erf(scaled) + math.sqrt(2.0 / math.pi) * std * (-scaled.square()).exp()
        return 2.0 * (math.log(2.0) - (self.logistic_weights * absolute).sum(dim=-1))

    def env_action(self, action: torch.Tensor) -> torch.Tensor:
        if self.is_squashed:
            return self.low + 0.5 * (torch.tanh(action) + 1.0) * (self.high - self.low)
        return torch.clamp(action, self.low, self.high) if self.is_clipped else action

    def mean_and_log_std(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns mean and log standard deviation of the Gaussian, before clipping or squashing."""
        if not self.has_state_std:
            return output, self.log_std
        mean, log_std = output.chunk(2, dim=-1)
        return mean, (log_std + self.initial_log_std).clamp(*_LOG_STD_RANGE)

    def _log_prob(self, noise: torch.Tensor, log_std: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        log_prob = (-0.5 * noise.square() - log_std - _HALF_LOG_2PI).sum(dim=-1)
        return log_prob - _log_slope(drawn) if self.is_squashed else log_prob


class StateDependentNoiseHead(GaussianHead):
    """A Gaussian whose noise is a function of the state: generalized state-dependent exploration (gSDE).

    The noise of an action is `features @ matrix`, with the features of the actor's last hidden layer and a matrix that
    is drawn from N(0, std^2) and kept for some steps (Raffin et al. 2022, "Smooth exploration for robotic reinforcement
    learning"). Over draws of the matrix the action is Gaussian, with variance `features^2 @ std^2`; that is the
    distribution which is learned. Features get no gradient from the variance.
    """

    has_state_noise = True

    def __init__(self, spec: BoxSpec, settings: HeadSettings, num_features: int, hold: int = 1) -> None:
        self.num_features = num_features
        super().__init__(spec, settings)
        self.noise = NoiseSpec(num_normal=num_features * spec.size, hold=hold)

    @property
    def std_shape(self) -> tuple[int, ...]:
        return (self.num_features, self.spec.size)

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        mean, log_std = self.mean_and_log_std(output)
        features = output[:, self.spec.size :].unsqueeze(1)
        matrix = noise.view(-1, *self.std_shape) * self.log_std.exp()
        moved = (features @ matrix).squeeze(1)
        action.copy_((mean + moved).view_as(action))
        return self._log_prob(moved * (-log_std).exp(), log_std, mean + moved)

    def explore(self, noise: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super().explore(noise[:, : self.spec.size] if self.is_squashed else noise, action, mask)

    def mean_and_log_std(self, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, features = output[:, : self.spec.size], output[:, self.spec.size :]
        variance = features.detach().square() @ (2.0 * self.log_std).exp()
        return mean, 0.5 * torch.log(variance + _SMALLEST_VARIANCE)


def _log_softmax(output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return torch.log_softmax(output if mask is None else output.masked_fill(~mask, _FORBIDDEN), dim=-1)


def _at(log_probs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return log_probs.gather(1, action.unsqueeze(1)).squeeze(1)


def _last_allowed(mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(mask.shape[-1], device=mask.device)
    return torch.where(mask, places, places.new_zeros(())).amax(dim=-1)


def _log_slope(drawn: torch.Tensor) -> torch.Tensor:
    return _log_slopes(drawn).sum(dim=-1)


def _log_slopes(drawn: torch.Tensor) -> torch.Tensor:
    """Returns log |d tanh(u) / du| of each component, in a numerically stable form for large u."""
    return 2.0 * (math.log(2.0) - drawn - nn.functional.softplus(-2.0 * drawn))
