"""A policy that computes continuous actions instead of drawing them, and adds Gaussian noise to explore."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, BoxSpec, build, leaves
from quintain.errors import SpecMismatch
from quintain.policies.encoded_network import EncodedNetwork, NetworkPolicy
from quintain.policies.heads import NoiseSpec
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import DeterministicActorSettings
from quintain.policies.spec_rules import observed, refuse_unscalable, require_bounds

if TYPE_CHECKING:
    from quintain.typing import Array, Tree


class DeterministicActor(NetworkPolicy):
    """One network whose outputs tanh squashes into [-1, 1]; `exploration` is the noise's standard deviation there.

    The action that is stored is the one in [-1, 1], with its noise; the environment gets it within its own bounds. It
    has no probability density: every log-probability is zero.
    """

    head: ClassVar[None] = None
    """Outputs are actions, without a distribution around them."""

    def __init__(self, settings: DeterministicActorSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__(settings.action_noise)
        self.boxes = {k: leaf for k, leaf in leaves(spec.action, f.ACTION).items() if isinstance(leaf, BoxSpec)}
        if len(self.boxes) < len(leaves(spec.action, f.ACTION)):
            raise SpecMismatch(
                f"a deterministic_actor has continuous actions only, and the action is {spec.action}; use another "
                f"policy and algorithm, such as dqn, sac or ppo"
            )
        require_bounds(spec, "a deterministic_actor squashes actions, so it needs")
        refuse_unscalable(spec, settings)
        self.settings = settings
        self.spec = spec
        self.sizes = [leaf.size for leaf in self.boxes.values()]
        self.noise = NoiseSpec(num_normal=sum(self.sizes))
        rng = rng or Rng(0)
        self.predict_rng = rng.child("predict")
        self.network = EncodedNetwork(
            observed(spec, "actor", settings.actor_obs), sum(self.sizes), settings, rng.torch_generator("init")
        )
        for name, leaf in self.boxes.items():
            for side, bound in zip(("low", "high"), leaf.bounds(), strict=True):
                self.register_buffer(_buffer_name(side, name), torch.from_numpy(bound), persistent=False)

    def actions(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the actions [B, C] in [-1, 1], with gradients."""
        return torch.tanh(self.network(obs))

    def continuous_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the actions of a batch as `actions` gives them, [B, C]."""
        parts = [batch[name].flatten(1) for name in self.boxes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def fits_kernels(self) -> bool:
        """Whether its network is one that kernels know."""
        return type(self) is DeterministicActor

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        # In this order: an exported graph acts deterministically, and cannot ask a tensor.
        if not deterministic and bool(self.acts_at_random):
            # erf maps a standard normal over sqrt(2) evenly onto (-1, 1).
            chosen = torch.erf(slot.noise * math.sqrt(0.5))
        elif slot.arrays and self.accelerator is not None:
            self.accelerator.act(slot, state, deterministic=True)
            chosen = torch.tanh(self.continuous_of(slot.leaves))
        else:
            chosen = self.actions(slot.leaves)
        if not deterministic:
            if not self.acts_at_random:
                chosen = torch.addcmul(chosen, slot.noise, self.exploration)
            chosen = chosen.clamp(-1.0, 1.0)
        for name, part in zip(self.boxes, torch.split(chosen, self.sizes, dim=1), strict=True):
            slot.leaves[name].copy_(part.view_as(slot.leaves[name]))
        slot.log_prob.zero_()
        slot.value.zero_()

    def env_action(self, slot: Slot) -> Tree:
        bounded = {}
        for name in self.boxes:
            low, high = self.get_buffer(_buffer_name("low", name)), self.get_buffer(_buffer_name("high", name))
            bounded[name] = torch.clamp(low + 0.5 * (slot.leaves[name] + 1.0) * (high - low), low, high)
        return build(self.spec.action, bounded, f.ACTION)

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        nothing = torch.zeros(len(self.continuous_of(batch)), device=self.device)
        return {f.LOG_PROB: nothing, f.ENTROPY: nothing, f.VALUE: nothing}

    def observe(self, obs: Mapping[str, Array], others: Sequence[FirstLayer] = ()) -> list[Fold]:
        """Updates the observation normaliser; the change is also folded into layers of other modules that use it."""
        return self.network.encoder.observe(obs, [*self.network.first_layers, *others])


def _buffer_name(side: str, leaf: str) -> str:
    # A buffer's name has no dots.
    return f"{side}_{leaf.replace('.', '_')}"
