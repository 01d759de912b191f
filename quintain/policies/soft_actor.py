"""SAC's actor: a tanh-squashed Gaussian for continuous actions, a categorical for discrete ones.

The critics belong to the algorithm. They call `propose`, which samples continuous actions with gradients and returns
all probabilities of discrete ones, so that an expectation over discrete actions is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, build
from quintain.errors import SettingsError
from quintain.policies.encoders import Encoder, make_encoder
from quintain.policies.exploring import ExploringPolicy
from quintain.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, StateDependentNoiseHead
from quintain.policies.joint_head import HELD_STEPS, JointHead
from quintain.policies.memory import Memory, make_memory
from quintain.policies.networks import first_layers, mlp
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import SoftActorSettings
from quintain.policies.spec_rules import observed, refuse_unscalable, require_bounds, require_boxes

if TYPE_CHECKING:
    from quintain.typing import Array


class ActionSample(NamedTuple):
    """Actions sampled for each of B observations; a kind that the action space does not have is None."""

    continuous: torch.Tensor | None
    """[B, C] all continuous actions, squashed into (-1, 1)."""
    log_prob: torch.Tensor | None
    """[B] log-probability density of the continuous actions."""
    discrete_log_probs: torch.Tensor | None
    """[B, K] log-probabilities of all discrete options, concatenated over heads."""


class SoftActor(ExploringPolicy):
    """One network and its heads; `value` is always 0."""

    def __init__(self, settings: SoftActorSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__()
        require_bounds(spec, "a soft_actor squashes actions, so it needs")
        refuse_unscalable(spec, settings)
        require_boxes(spec, settings, "use_sde")
        if settings.memory is not None and settings.critic_obs is not None:
            raise SettingsError(
                "policy.critic_obs has no effect with policy.memory: critics see the recurrent features. Leave one out",
                code="E0224",
            )
        if settings.noise_hold == "auto":
            settings = settings.model_copy(update={"noise_hold": HELD_STEPS if settings.use_sde else 1})
        self.settings = settings
        self.spec = spec
        rng = rng or Rng(0)
        self.predict_rng = rng.child("predict")
        generator = rng.torch_generator("init")
        self.encoder = make_encoder(observed(spec, "actor", settings.actor_obs), settings, generator)
        seen = self.encoder.output_size
        memory = settings.memory
        self.memory = None if memory is None else make_memory(memory, seen, generator)
        self.state_size = 0 if self.memory is None else self.memory.state_size
        features = seen if self.memory is None else self.memory.size
        self.head = JointHead(spec.action, settings, (features, *settings.hidden_sizes)[-1])
        self.noise = self.head.noise
        self.actor = mlp(
            features,
            settings.hidden_sizes,
            self.head.output_size,
            activation=settings.activation,
            output_gain=None,
            generator=generator,
            with_features=settings.use_sde,
        )
        for head in self.head.parts:
            if isinstance(head, StateDependentNoiseHead):
                # Noise adds up over hundreds of features: as much as initial_log_std says for features of size 1.
                nn.init.constant_(head.log_std, settings.initial_log_std - 0.5 * math.log(head.num_features))

    @property
    def fits_kernels(self) -> bool:
        """Whether its network and heads are supported by kernels and hand-written gradients."""
        # What a subclass changes nobody else can know.
        return type(self) is SoftActor

    @property
    def num_continuous(self) -> int:
        """Number of continuous components of an action."""
        return sum(head.spec.size for head in self.head.parts if isinstance(head, GaussianHead))

    @property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """The encoders of actor and critic: the same, without a critic."""
        return self.encoder, self.encoder

    @property
    def memories(self) -> list[Memory]:
        """The recurrent layer, if any."""
        return [] if self.memory is None else [self.memory]

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        mask = slot.leaves.get(f.ACTION_MASK)
        # In this order: an exported graph acts deterministically, and cannot ask a tensor.
        explores = not deterministic and bool(self.acts_at_random)
        if slot.arrays and self.accelerator is not None and not explores:
            self.accelerator.act(slot, state, deterministic=deterministic)
            return
        slot.value.zero_()
        # What is seen while exploring is remembered too.
        features = None if explores and self.memory is None else self._step(slot.leaves, state)
        if explores:
            slot.log_prob.copy_(self.head.explore(slot.noise, slot.leaves, mask))
        elif deterministic:
            slot.log_prob.copy_(self.head.mode(self.actor(features), slot.leaves, mask))
        else:
            slot.log_prob.copy_(self.head.sample(self.actor(features), slot.noise, slot.leaves, mask))

    def _step(self, step: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the features of one step; the hidden state is updated in place."""
        features: torch.Tensor = self.encoder(step)
        if self.memory is None:
            return features
        assert state is not None, "a recurrent policy needs its hidden state"
        output, after = self.memory.step(features, state, step[f.FIRST])
        state.copy_(after)
        return output

    def propose(
        self, obs: Mapping[str, torch.Tensor], noise: torch.Tensor, mask: torch.Tensor | None = None
    ) -> ActionSample:
        """Samples continuous actions with normal noise [B, C] and returns discrete probabilities, with gradients.

        With state-dependent exploration they come from the distribution over all matrices of noise.
        """
        return self.sample_with_grad(self.encoder(obs), noise, mask)

    def sample_with_grad(
        self, features: torch.Tensor, noise: torch.Tensor, mask: torch.Tensor | None = None
    ) -> ActionSample:
        """Does the same for the features of observations, or of a recurrent layer."""
        output = self.actor(features)
        numbers, densities, choices, start = [], [], [], 0
        for head, (out, _, allowed) in zip(self.head.parts, self.head.columns, strict=True):
            if isinstance(head, GaussianHead):
                size = head.spec.size
                drawn, density = head.draw(self.head.seen_by(head, output, out), noise[:, start : start + size])
                numbers.append(torch.tanh(drawn))
                densities.append(density)
                start += size
            elif isinstance(head, CategoricalHead | MultiCategoricalHead):
                choices.append(head.log_probs(output[:, out], None if mask is None else mask[:, allowed]))
        return ActionSample(
            _joined(numbers),
            torch.stack(densities).sum(dim=0) if densities else None,
            _joined(choices),
        )

    def continuous_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns the continuous actions of a batch in the format of `propose`, [B, C] in [-1, 1]."""
        raw = [
            batch[name].flatten(1)
            for name, head in zip(self.head.names, self.head.parts, strict=True)
            if isinstance(head, GaussianHead)
        ]
        joined = _joined(raw)
        return None if joined is None else torch.tanh(joined)

    def discrete_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns the indices of a batch's discrete actions among all options, [B, number of discrete actions]."""
        places = []
        for name, head, (_, _, choices) in zip(self.head.names, self.head.parts, self.head.columns, strict=True):
            if isinstance(head, CategoricalHead):
                places.append(batch[name].unsqueeze(1) + choices.start)
            elif isinstance(head, MultiCategoricalHead):
                starts = [choices.start + sum(head.nvec[:i]) for i in range(len(head.nvec))]
                places.append(batch[name] + torch.tensor(starts, device=batch[name].device))
        return _joined(places)

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features = self.encoder(batch)
        if self.memory is not None:
            features = self.memory.replay(features, batch.get(f.POLICY_STATE), batch.get(f.FIRST))
        log_prob, entropy = self.head.evaluate(self.actor(features), dict(batch), batch.get(f.ACTION_MASK))
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy, f.VALUE: torch.zeros_like(log_prob)}

    @property
    def actor_state_size(self) -> int:
        return self.state_size

    def head_output(self, seen: Mapping[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features: torch.Tensor = self.encoder(seen)
        if self.memory is None:
            return self.actor(features), state
        remembered, after = self.memory.step(features, state, None)
        return self.actor(remembered), after

    def env_action(self, slot: Slot) -> Any:
        if slot.arrays and self.accelerator is not None:
            return build(self.spec.action, self.accelerator.squashed_actions(slot), f.ACTION)
        return build(self.spec.action, self.head.env_actions(slot.leaves), f.ACTION)

    def observe(self, obs: Mapping[str, Array], others: Sequence[FirstLayer] = ()) -> list[Fold]:
        """Updates the observation normaliser; the change is also folded into layers of other modules that use it."""
        own = first_layers(self.actor) if self.memory is None else [self.memory.first_layer]
        return self.encoder.observe(obs, [*own, *others])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor | None:
    if len(parts) <= 1:
        return parts[0] if parts else None
    return torch.cat(parts, dim=1)
