"""A policy for critics that value actions: numbers are drawn by a squashed Gaussian, choices by their probabilities.

The critics are the algorithm's. What they ask of the policy is `propose`: actions with gradients, and all the
probabilities of choices, so that an expectation over choices is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, build
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder
from quintain.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from quintain.policies.joint_head import JointHead
from quintain.policies.memory import Memory
from quintain.policies.networks import first_layers, mlp
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import SoftActorSettings
from quintain.policies.spec_rules import observed, refuse_unscalable, require_bounds

if TYPE_CHECKING:
    from quintain.typing import Array


class Proposal(NamedTuple):
    """What the policy would do in each of B observations; a part that the action does not have is None."""

    numbers: torch.Tensor | None
    """[B, C] all continuous actions, squashed into (-1, 1)."""
    log_prob: torch.Tensor | None
    """[B] log-probability density of these numbers."""
    choice_log_probs: torch.Tensor | None
    """[B, K] log-probabilities of all choices, those of several heads side by side."""


class SoftActor(Policy):
    """One network and its heads; every value is zero."""

    acts_at_random: torch.Tensor
    has_values = False

    def __init__(self, settings: SoftActorSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__()
        require_bounds(spec, "a soft_actor squashes actions, so it needs")
        refuse_unscalable(spec, settings)
        if settings.memory is not None and settings.critic_obs is not None:
            raise SettingsError(
                "policy.critic_obs has no effect with policy.memory: critics see what is remembered. Leave one out",
                code="E0224",
            )
        self.settings = settings
        self.spec = spec
        self.head = JointHead(spec.action, settings)
        self.noise = self.head.noise
        rng = rng or Rng(0)
        self.predict_rng = rng.child("predict")
        generator = rng.torch_generator("init")
        self.encoder = Encoder(observed(spec, "actor", settings.actor_obs), settings, generator)
        seen, memory = self.encoder.output_size, settings.memory
        self.memory = None if memory is None else Memory(memory.cell, seen, memory.size, generator)
        self.state_size = 0 if self.memory is None else self.memory.state_size
        self.actor = mlp(
            seen if self.memory is None else self.memory.size,
            settings.hidden_sizes,
            self.head.output_size,
            activation=settings.activation,
            output_gain=None,
            generator=generator,
        )
        # A buffer, because it decides what is collected: an algorithm that has learned nothing yet sets it.
        self.register_buffer("acts_at_random", torch.zeros((), dtype=torch.bool))

    @property
    def device(self) -> torch.device:
        # Asked for in every step: going through the modules for a parameter takes longer than drawing a minibatch.
        return self.acts_at_random.device

    @property
    def fits_kernels(self) -> bool:
        """Whether its network and heads are those that are compiled or written out elsewhere."""
        # What a subclass changes nobody else can know.
        return type(self) is SoftActor

    @property
    def encoders(self) -> tuple[Encoder, Encoder]:
        """What actor and critic see through; there is no critic, so that it is the same."""
        return self.encoder, self.encoder

    @property
    def memories(self) -> list[Memory]:
        """What it remembers with, if anything."""
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
        """Returns the features of one step; a memory moves on in place."""
        features: torch.Tensor = self.encoder(step)
        if self.memory is None:
            return features
        assert state is not None, "a policy with memory needs its state"
        state.copy_(self.memory.step(features, state, step[f.FIRST]))
        return self.memory.output(state)

    def propose(
        self, obs: Mapping[str, torch.Tensor], noise: torch.Tensor, mask: torch.Tensor | None = None
    ) -> Proposal:
        """Draws numbers with standard normal noise [B, C] and lists the probabilities of choices, with gradients."""
        return self.propose_for(self.encoder(obs), noise, mask)

    def propose_for(self, features: torch.Tensor, noise: torch.Tensor, mask: torch.Tensor | None = None) -> Proposal:
        """Does the same for features of what is seen, or remembered."""
        output = self.actor(features)
        numbers, densities, choices, start = [], [], [], 0
        for head, (out, _, allowed) in zip(self.head.parts, self.head.columns, strict=True):
            if isinstance(head, GaussianHead):
                drawn, density = head.draw(output[:, out], noise[:, start : start + head.noise.size])
                numbers.append(torch.tanh(drawn))
                densities.append(density)
                start += head.noise.size
            elif isinstance(head, CategoricalHead | MultiCategoricalHead):
                choices.append(head.log_probs(output[:, out], None if mask is None else mask[:, allowed]))
        return Proposal(
            _joined(numbers),
            torch.stack(densities).sum(dim=0) if densities else None,
            _joined(choices),
        )

    def numbers_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns the continuous actions of a batch as `propose` gives them, [B, C] in [-1, 1]."""
        raw = [
            batch[name].flatten(1)
            for name, head in zip(self.head.names, self.head.parts, strict=True)
            if isinstance(head, GaussianHead)
        ]
        joined = _joined(raw)
        return None if joined is None else torch.tanh(joined)

    def chosen_in(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Returns where the choices of a batch stand among all, [B, number of choices made at once]."""
        places = []
        for name, head, (_, _, choices) in zip(self.head.names, self.head.parts, self.head.columns, strict=True):
            if isinstance(head, CategoricalHead):
                places.append(batch[name].unsqueeze(1) + choices.start)
            elif isinstance(head, MultiCategoricalHead):
                starts = [choices.start + sum(head.nvec[:i]) for i in range(len(head.nvec))]
                places.append(batch[name] + torch.tensor(starts, device=batch[name].device))
        return _joined(places)

    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros(len(self.obs_rows(obs)), device=self.device)

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features = self.encoder(batch)
        if self.memory is not None:
            features = self.memory.replay(features, batch[f.POLICY_STATE], batch[f.FIRST])
        log_prob, entropy = self.head.evaluate(self.actor(features), dict(batch), batch.get(f.ACTION_MASK))
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy, f.VALUE: torch.zeros_like(log_prob)}

    @property
    def actor_state_size(self) -> int:
        return self.state_size

    def head_output(self, seen: Mapping[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features: torch.Tensor = self.encoder(seen)
        if self.memory is None:
            return self.actor(features), state
        after = self.memory.step(features, state, None)
        return self.actor(self.memory.output(after)), after

    def env_action(self, slot: Slot) -> Any:
        if slot.arrays and self.accelerator is not None:
            return build(self.spec.action, self.accelerator.squashed_actions(slot), f.ACTION)
        return build(self.spec.action, self.head.env_actions(slot.leaves), f.ACTION)

    def observe(self, obs: Mapping[str, Array], others: Sequence[FirstLayer] = ()) -> list[Fold]:
        """Learns the observations' scale; its move is folded into layers of others, too, that see through it."""
        own = first_layers(self.actor) if self.memory is None else [self.memory.first_layer]
        return self.encoder.observe(obs, [*own, *others])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor | None:
    if len(parts) <= 1:
        return parts[0] if parts else None
    return torch.cat(parts, dim=1)
