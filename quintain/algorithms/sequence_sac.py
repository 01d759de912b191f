"""Recurrent soft actor-critic: the same losses, over the steps of replayed sequences.

Each sequence is replayed from its stored hidden state. Actor and critics share one recurrent encoder, trained by the
critic loss only (detached for the actor, as Yarats et al. 2021 do with images). Target critics use a Polyak-averaged
copy of it. Padding is excluded from all means.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch, moved
from quintain.algorithms.off_policy import NEXT_NOISE
from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import SACSettings
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import box, discrete_sizes, leaves
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder
from quintain.policies.memory import Memory
from quintain.policies.soft_actor import SoftActor
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class SlowMemory(torch.nn.Module):
    """A Polyak-averaged copy of a policy's recurrent encoder, without gradients."""

    def __init__(self, encoder: Encoder, memory: Memory) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.encoder.share_scale(encoder)
        self.memory = copy.deepcopy(memory)
        self.requires_grad_(False)

    @torch.no_grad()
    def soft_update_(self, encoder: Encoder, memory: Memory, tau: float) -> None:
        """Polyak averaging (soft update): moves each weight towards the other's by the fraction tau."""
        for own, other in ((self.encoder, encoder), (self.memory, memory)):
            for slow, fast in zip(own.parameters(), other.parameters(), strict=True):
                slow.lerp_(fast, tau)


class SequenceSAC(SAC):
    """Recurrent SAC on replayed sequences; only the critic loss trains the recurrent encoder."""

    def __init__(
        self,
        settings: SACSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        assert isinstance(policy, SoftActor)
        assert policy.memory is not None, "a policy without memory learns from single transitions"
        super().__init__(settings, policy, signals, rng)
        self.slow = SlowMemory(policy.encoder, policy.memory)

    def _make_critics(self, policy: SoftActor, rng: Rng) -> TwinCritics:
        assert policy.memory is not None
        settings = policy.settings.model_copy(update={"normalize_obs": False})
        return TwinCritics(
            {f.OBS: box(policy.memory.size)},
            policy.num_continuous,
            sum(discrete_sizes(policy.spec.action)),
            settings,
            rng.torch_generator("critics"),
        ).to(policy.device)

    def observe(self, obs: Mapping[str, Array]) -> None:
        """Updates the policy's observation normaliser; critics see the recurrent features."""
        self.carry_over(self.policy.observe(obs, [self.slow.memory.first_layer]))

    def update_targets(self) -> None:
        super().update_targets()
        assert self.policy.memory is not None
        self.slow.soft_update_(self.policy.encoder, self.policy.memory, self.settings.tau)

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields one minibatch of whole sequences, sampled uniformly until they have `batch_size` steps."""
        memory, layout = batch.memory, batch.memory.layout
        update, step = counters
        batch_size //= self.world.size
        # The last sequence may go beyond by all its steps but one.
        size = batch_size + layout.horizon - 1
        places, drawn = self._draws_of(size).draw(update, step, len(memory))
        num_steps = layout.lengths(memory.rows, places[:batch_size]).cumsum()
        # By steps that are there and not by room for them: episodes may be much shorter than the horizon.
        fields = self.rescaled(memory.draw(places[: 1 + int(num_steps.searchsorted(batch_size))]))
        there = fields[f.VALID]
        noise = torch.zeros(2, *there.shape, self.num_continuous)
        for place, numbers in zip(noise, drawn, strict=True):
            place[there] = torch.from_numpy(numbers)[: int(there.sum())]
        named = {**fields, f.NOISE: noise[0], NEXT_NOISE: noise[1]}
        yield moved(named, self.policy.device)

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
        """Returns the fields of valid steps, one row each, in time order."""
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
        """Replays sequences and returns the recurrent features after each step, [steps, sequences, size]."""
        names = leaves(self.policy.spec.obs, f.OBS)
        seen = {name: minibatch[name].transpose(0, 1)[:num_steps].flatten(0, 1) for name in names}
        state = minibatch[f.POLICY_STATE]
        features = encoder(seen)
        # A sequence never goes on into another episode.
        begins = torch.zeros(len(features), dtype=torch.bool, device=features.device)
        return memory.replay(features, state, begins).view(num_steps, len(state), memory.size)


def sac_for(
    settings: SACSettings,
    policy: Policy,
    signals: Mapping[str, RewardSignal] | None = None,
    rng: Rng | None = None,
) -> SAC:
    """Makes the SAC of a policy: on transitions, or on sequences for a recurrent policy."""
    return (SequenceSAC if policy.state_size else SAC)(settings, policy, signals, rng)
