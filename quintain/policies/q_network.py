"""A policy that values every discrete action and takes the best one, or a random one now and then (epsilon-greedy)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, DiscreteSpec, leaves
from quintain.errors import SpecMismatch
from quintain.policies.encoded_network import EncodedNetwork, NetworkPolicy
from quintain.policies.heads import NoiseSpec
from quintain.policies.joint_head import JointHead
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import QNetworkSettings
from quintain.policies.spec_rules import observed, refuse_unscalable

if TYPE_CHECKING:
    from quintain.typing import Array


class QNetwork(NetworkPolicy):
    """One network with an output for each action; `exploration` is epsilon.

    It has no probabilities: every log-probability is zero. A mask holds for the best action and for random ones.
    """

    noise = NoiseSpec(num_uniform=2)
    """The first decides whether an action is random, the second which."""

    def __init__(self, settings: QNetworkSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__(settings.epsilon)
        actions = leaves(spec.action, f.ACTION)
        [(self.action_name, action), *others] = actions.items()
        # Agents that come and go have a MultiDiscrete even for one choice.
        options: tuple[int, ...] = (action.n,) if isinstance(action, DiscreteSpec) else getattr(action, "nvec", ())
        if others or len(options) != 1:
            raise SpecMismatch(
                f"a q_network values each action of one Discrete space, and the action is {spec.action}; use another "
                f"policy and algorithm, such as td3, sac or ppo"
            )
        refuse_unscalable(spec, settings)
        self.settings = settings
        self.spec = spec
        rng = rng or Rng(0)
        self.predict_rng = rng.child("predict")
        self.head = JointHead(spec.action, settings)
        self.network = EncodedNetwork(
            observed(spec, "actor", settings.actor_obs),
            options[0],
            settings,
            rng.torch_generator("init"),
            is_dueling=settings.dueling,
        )

    @property
    def fits_kernels(self) -> bool:
        """Whether its network is one that kernels know."""
        return type(self) is QNetwork and not self.settings.dueling

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        action, mask = slot.leaves[self.action_name], slot.leaves.get(f.ACTION_MASK)
        # In this order: an exported graph acts deterministically, and cannot ask a tensor.
        is_random = not deterministic and bool(self.acts_at_random)
        if not is_random and slot.arrays and self.accelerator is not None:
            self.accelerator.act(slot, state, deterministic=True)
        elif not is_random:
            action.copy_(best_action(self.network(slot.leaves), mask).view_as(action))
        if not deterministic:
            explores = slot.noise[:, 0] < (1.0 if is_random else self.exploration)
            if explores.any():
                random = torch.empty_like(action)
                self.head.explore(slot.noise[:, 1:], {self.action_name: random}, mask)
                action.copy_(torch.where(explores.view_as(action), random, action))
        slot.log_prob.zero_()
        slot.value.zero_()

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        nothing = torch.zeros(len(batch[self.action_name]), device=self.device)
        return {f.LOG_PROB: nothing, f.ENTROPY: nothing, f.VALUE: nothing}

    def observe(self, obs: Mapping[str, Array], others: Sequence[FirstLayer] = ()) -> list[Fold]:
        """Updates the observation normaliser; the change is also folded into layers of other modules that use it."""
        return self.network.encoder.observe(obs, [*self.network.first_layers, *others])


def best_action(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Returns the allowed action [B] with the largest of the values [B, actions]."""
    allowed = values if mask is None else values.masked_fill(~mask, -torch.inf)
    return allowed.argmax(dim=1)
