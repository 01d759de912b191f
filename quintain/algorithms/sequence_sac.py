"""Soft actor-critic for a policy with memory: the same losses, over the steps of whole sequences that are replayed.

Each sequence is gone through again from what was remembered before its first step when it was collected. There is one
memory, and the critics' loss alone teaches it: the actor takes what is remembered as it is (as Yarats et al. 2021 do
with images). Targets see through a copy that follows slowly. Steps that are not there are in no mean.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.replay_draws import ReplayDraws
from quintain.algorithms.sac import NEXT_NOISE, SAC
from quintain.algorithms.settings import SACSettings
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import box, choice_sizes, leaves
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder
from quintain.policies.memory import Memory
from quintain.policies.soft_actor import SoftActor
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class SlowMemory(torch.nn.Module):
    """A copy of a policy's encoder and memory that takes no gradients and follows them."""

    def __init__(self, encoder: Encoder, memory: Memory) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.encoder.share_scale(encoder)
        self.memory = copy.deepcopy(memory)
        self.requires_grad_(False)

    @torch.no_grad()
    def follow(self, encoder: Encoder, memory: Memory, tau: float) -> None:
        """Moves each weight a part of the way to another's."""
        for own, other in ((self.encoder, encoder), (self.memory, memory)):
            for slow, fast in zip(own.parameters(), other.parameters(), strict=True):
                slow.lerp_(fast, tau)


class SequenceSAC(SAC):
    """Learns by SAC from sequences, and to remember what the critics need."""

    def __init__(
        self,
        settings: SACSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        assert isinstance(policy, SoftActor)
        assert policy.memory is not None, "a policy without memory learns from single transitions"
        # Before the optimizer gives the policy flat memory, which a copy must not share.
        self.slow = SlowMemory(policy.encoder, policy.memory)
        super().__init__(settings, policy, signals, rng)

    def _make_critics(self, policy: SoftActor, rng: Rng) -> TwinCritics:
        assert policy.memory is not None
        settings = policy.settings.model_copy(update={"normalize_obs": False})
        return TwinCritics(
            {f.OBS: box(policy.memory.size)},
            policy.noise.num_normal,
            sum(choice_sizes(policy.spec.action)),
            settings,
            rng.torch_generator("critics"),
        ).to(policy.device)

    def observe(self, obs: Mapping[str, Array]) -> None:
        """Lets the policy learn the observations' scale; critics see what it remembers."""
        self.carry_over(self.policy.observe(obs, [self.slow.memory.first_layer]))

    def _follow(self) -> None:
        super()._follow()
        assert self.policy.memory is not None
        self.slow.follow(self.policy.encoder, self.policy.memory, self.settings.tau)

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields one minibatch of whole sequences, drawn evenly until they have `batch_size` steps."""
        memory, layout = batch.memory, batch.memory.layout
        update, step = counters
        batch_size //= self.world.size
        # The last sequence may go beyond by all its steps but one.
        size = batch_size + layout.horizon - 1
        if self.draws.size != size or self.draws.rng != self.rng:
            self.draws = ReplayDraws(self.rng, size, self.num_numbers)
        places, drawn = self.draws.draw(update, step, len(memory))
        num_steps = layout.lengths(memory.rows, places[:batch_size]).cumsum()
        # By steps that are there and not by room for them: episodes may be much shorter than the horizon.
        fields = memory.draw(places[: 1 + int(num_steps.searchsorted(batch_size))])
        there = fields[f.VALID]
        noise = torch.zeros(2, *there.shape, self.num_numbers)
        noise[:, there] = torch.from_numpy(drawn)[:, : int(there.sum())]
        named = {**fields, f.NOISE: noise[0], NEXT_NOISE: noise[1]}
        device = self.policy.device
        yield named if device.type == "cpu" else {name: field.to(device) for name, field in named.items()}

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        policy = self.policy
        assert policy.memory is not None
        there = minibatch[f.VALID].T
        # No sequence of a minibatch may be as long as there is room for.
        there = there[: int(there.any(dim=1).sum())]
        rows = self._rows(minibatch, there)
        remembered = self._remember(policy.encoder, policy.memory, minibatch, len(there) + 1)
        now, after = remembered[:-1][there], remembered[1:][there].detach()
        with torch.no_grad():
            slow = self._remember(self.slow.encoder, self.slow.memory, minibatch, len(there) + 1)[1:][there]
            target = self._target_of(rows, slow, after)
        return self._loss_of(rows, now, now.detach(), target)

    def _rows(self, minibatch: Minibatch, there: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the fields of the steps that are there, one row for each, in the order of time."""
        num_steps = len(there)

        def chosen(field: torch.Tensor, start: int = 0) -> torch.Tensor:
            return field.transpose(0, 1)[start : start + num_steps][there]

        names = [*leaves(self.policy.spec.action, f.ACTION), f.REWARD, f.DISCOUNT, f.NOISE, NEXT_NOISE]
        rows = {name: chosen(minibatch[name]) for name in names}
        if f.ACTION_MASK in minibatch:
            mask = minibatch[f.ACTION_MASK]
            rows |= {f.ACTION_MASK: chosen(mask), f"{f.NEXT}{f.ACTION_MASK}": chosen(mask, 1)}
        return rows

    def _remember(self, encoder: Encoder, memory: Memory, minibatch: Minibatch, num_steps: int) -> torch.Tensor:
        """Goes through sequences again and returns what is remembered after each step, [steps, sequences, size]."""
        names = leaves(self.policy.spec.obs, f.OBS)
        seen = {name: minibatch[name].transpose(0, 1)[:num_steps].flatten(0, 1) for name in names}
        state = minibatch[f.POLICY_STATE]
        features = encoder(seen)
        # A sequence never goes on into another episode.
        begins = torch.zeros(len(features), dtype=torch.bool)
        return memory.replay(features, state, begins).view(num_steps, len(state), memory.size)


def sac_for(
    settings: SACSettings,
    policy: Policy,
    signals: Mapping[str, RewardSignal] | None = None,
    rng: Rng | None = None,
) -> SAC:
    """Makes the SAC that fits a policy: from transitions, or from sequences if it has a memory."""
    return (SequenceSAC if policy.state_size else SAC)(settings, policy, signals, rng)
