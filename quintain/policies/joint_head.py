"""One head for a whole action: its leaves are independent of each other, given the network's output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, MultiDiscreteSpec, Spec, leaves
from quintain.policies.heads import (
    CategoricalHead,
    GaussianHead,
    Head,
    HeadSettings,
    MultiCategoricalHead,
    NoiseSpec,
    StateDependentNoiseHead,
)

HELD_STEPS = 16
"""Steps for which noise is held where the settings leave it to the spaces."""


class JointHead(nn.Module):
    """Samples all leaves of an action, independently given the network's output.

    With state-dependent exploration the features of the network's last hidden layer follow its output; there are
    `num_features` of them.
    """

    def __init__(self, spec: Spec, settings: HeadSettings, num_features: int = 0) -> None:
        super().__init__()
        self.names = list(leaves(spec, "action"))
        self.num_features = num_features if settings.use_sde else 0
        hold = settings.noise_hold
        if hold == "auto":
            is_one_number = isinstance(spec, BoxSpec) and spec.size == 1
            hold = HELD_STEPS if is_one_number or self.num_features else 1
        made = [_make_head(leaf, settings, self.num_features, hold) for leaf in leaves(spec, "action").values()]
        self.heads = nn.ModuleList(made)
        self.parts = parts = made
        self.output_size = sum(head.output_size for head in parts)
        self.noise = NoiseSpec(
            sum(h.noise.num_uniform for h in parts),
            sum(h.noise.num_normal for h in parts),
            max(h.noise.hold for h in parts),
        )
        self.columns = self._assign_columns()
        self.conditions: dict[str, tuple[str, torch.Tensor]] = {}
        """Leaves that count only with some options of another, a discrete one: its name, and 1 for each such option."""
        self.is_one_choice = (self.noise.num_uniform, self.noise.num_normal) == (1, 0)
        """Whether the action is one discrete value: the component's log-probability is the action's."""

    def _assign_columns(self) -> list[tuple[slice, slice, slice]]:
        """Assigns each leaf its columns of the output, of the noise and of the mask."""
        columns, output, mask = [], 0, 0
        uniform, normal = 0, self.noise.num_uniform
        for head in self.parts:
            start = uniform if head.noise.num_uniform else normal
            columns.append(
                (
                    slice(output, output + head.output_size),
                    slice(start, start + head.noise.size),
                    slice(mask, mask + head.num_options),
                )
            )
            output, mask = output + head.output_size, mask + head.num_options
            uniform, normal = uniform + head.noise.num_uniform, normal + head.noise.num_normal
        return columns

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, step: dict[str, torch.Tensor], mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Writes all leaves into `step`, by field name, and returns the joint log-probability [B]."""
        if len(self.parts) == 1:
            return self.parts[0].sample(output, noise, step[self.names[0]], mask)
        log_probs = [
            head.sample(self.seen_by(head, output, out), noise[:, columns], step[name], _choices(mask, head, choices))
            for name, head, (out, columns, choices) in zip(self.names, self.parts, self.columns, strict=True)
        ]
        return self._joint(log_probs, step)

    def explore(self, noise: torch.Tensor, step: dict[str, torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        """Writes leaves sampled uniformly from the action space and returns the joint log-probability [B]."""
        total = torch.zeros_like(noise[:, 0])
        for name, head, (_, columns, choices) in zip(self.names, self.parts, self.columns, strict=True):
            total = total + head.explore(noise[:, columns], step[name], _choices(mask, head, choices))
        return total

    def mode(self, output: torch.Tensor, step: dict[str, torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        log_probs = [
            head.mode(self.seen_by(head, output, out), step[name], _choices(mask, head, choices))
            for name, head, (out, _, choices) in zip(self.names, self.parts, self.columns, strict=True)
        ]
        return self._joint(log_probs, step)

    def only_with(self, name: str, other: str, options: Sequence[int]) -> None:
        """Makes a leaf count only with these options of another, as what is drawn for it has no effect with the rest.

        Its log-probability is left out there; its entropy and divergences are weighted by the probability of `options`.
        """
        counts = torch.zeros(self.parts[self.names.index(other)].output_size)
        counts[list(options)] = 1.0
        self.conditions[name] = other, counts

    def weight_of(self, name: str, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Returns the probability [B] that a leaf counts; 1 without a condition."""
        if name not in self.conditions:
            return 1.0
        other, counts = self.conditions[name]
        place = self.names.index(other)
        head, (out, _, choices) = self.parts[place], self.columns[place]
        assert isinstance(head, CategoricalHead | MultiCategoricalHead)
        return head.log_probs(output[:, out], _choices(mask, head, choices)).exp() @ counts.to(output)

    def _joint(self, log_probs: Sequence[torch.Tensor], step: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the joint log-probability [B] of the leaves of `step`."""
        total = torch.zeros_like(log_probs[0])
        for name, log_prob in zip(self.names, log_probs, strict=True):
            if name in self.conditions:
                other, counts = self.conditions[name]
                log_prob = log_prob * counts.to(log_prob)[step[other].view_as(log_prob)]
            total = total + log_prob
        return total

    def seen_by(self, head: Head, output: torch.Tensor, columns: slice) -> torch.Tensor:
        """Returns the columns of a head, with the features that follow all of them if its noise depends on these."""
        own = output[:, columns]
        return torch.cat((own, output[:, self.output_size :]), dim=1) if head.has_state_noise else own

    def evaluate(
        self, output: torch.Tensor, step: dict[str, torch.Tensor], mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.parts) == 1:
            return self.parts[0].evaluate(output, step[self.names[0]], mask)
        judged = [
            head.evaluate(self.seen_by(head, output, out), step[name], _choices(mask, head, choices))
            for name, head, (out, _, choices) in zip(self.names, self.parts, self.columns, strict=True)
        ]
        log_probs, entropies = zip(*judged, strict=True)
        if self.conditions:
            weights = [self.weight_of(name, output, mask) for name in self.names]
            entropies = tuple(weight * entropy for weight, entropy in zip(weights, entropies, strict=True))
            return self._joint(log_probs, step), torch.stack(entropies).sum(dim=0)
        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)

    @property
    def num_components(self) -> int:
        """Number of discrete and continuous components of an action."""
        return sum(head.spec.size if isinstance(head, GaussianHead) else head.noise.size for head in self.parts)

    def evaluate_components(
        self, output: torch.Tensor, step: dict[str, torch.Tensor], mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probabilities [B, K] of all discrete and then all continuous components, and one entropy [B].

        The entropy is the sum over discrete components plus the mean over continuous ones, as in ML-Agents.
        """
        if len(self.parts) == 1:
            log_probs, entropies = self.parts[0].evaluate_components(output, step[self.names[0]], mask)
            is_number = isinstance(self.parts[0], GaussianHead)
            return log_probs, entropies.mean(dim=1) if is_number else entropies.sum(dim=1)
        choices: list[tuple[torch.Tensor, torch.Tensor]] = []
        numbers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, head, (out, _, places) in zip(self.names, self.parts, self.columns, strict=True):
            seen = self.seen_by(head, output, out)
            judged = head.evaluate_components(seen, step[name], _choices(mask, head, places))
            (numbers if isinstance(head, GaussianHead) else choices).append(judged)
        entropy = torch.zeros_like(output[:, 0])
        for _, entropies in choices:
            entropy = entropy + entropies.sum(dim=1)
        if numbers:
            entropy = entropy + torch.cat([entropies for _, entropies in numbers], dim=1).mean(dim=1)
        return torch.cat([log_probs for log_probs, _ in (*choices, *numbers)], dim=1), entropy

    def env_actions(self, step: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: head.env_action(step[name]) for name, head in zip(self.names, self.parts, strict=True)}


def _make_head(leaf: LeafSpec, settings: HeadSettings, num_features: int, hold: int) -> Head:
    if isinstance(leaf, DiscreteSpec):
        return CategoricalHead(leaf)
    if isinstance(leaf, MultiDiscreteSpec):
        return MultiCategoricalHead(leaf)
    if num_features:
        return StateDependentNoiseHead(leaf, settings, num_features, hold)
    return GaussianHead(leaf, settings, hold)


def _choices(mask: torch.Tensor | None, head: Head, columns: slice) -> torch.Tensor | None:
    return None if mask is None or head.num_options == 0 else mask[:, columns]
