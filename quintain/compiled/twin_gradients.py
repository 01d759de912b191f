"""The gradients of TD3's losses, written out as SAC's is; `algorithms/td3.py` says what the losses are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.algorithms.off_policy import NEXT_NOISE
from quintain.compiled.dense_layers import DenseLayers, layers_of, layers_of_twin
from quintain.compiled.kernels import q_learning
from quintain.data import fields as f

if TYPE_CHECKING:
    from quintain.algorithms.minibatches import Minibatch
    from quintain.algorithms.td3 import TD3
    from quintain.typing import Array


class TwinGradients:
    """Writes the gradients of one minibatch of TD3 to the parameters' `grad`: the critics', and then the actor's."""

    def __init__(self, algorithm: TD3, num_rows: int) -> None:
        self.algorithm, self.num_rows = algorithm, num_rows
        policy, critics = algorithm.policy, algorithm.critics
        num_features, num_continuous = critics.encoder.output_size, policy.noise.num_normal
        activation = policy.settings.activation
        self.first = num_features
        """The first column of actions among the inputs of a critic."""
        self.seen, self.seen_next = (torch.zeros(num_rows, policy.network.encoder.output_size) for _ in range(2))
        self.taken, self.proposed, self.next_proposed = (
            torch.zeros(num_rows, num_features + num_continuous) for _ in range(3)
        )
        self.actor = DenseLayers(layers_of(policy.network.layers, learns=True), self.seen, activation)
        self.target_actor = DenseLayers(
            layers_of(algorithm.target_actor.layers, learns=False), self.seen_next, activation
        )
        self.values, self.foreseen = (
            [DenseLayers(layers_of_twin(owner, i, learns=learns), rows, activation) for i in range(2)]
            for owner, rows, learns in (
                (critics, self.taken, True),
                (algorithm.target_critics, self.next_proposed, False),
            )
        )
        self.policy_critic = DenseLayers(layers_of_twin(critics, 0, learns=False), self.proposed, activation)
        self.policy_critic.by_output.fill_(-1.0 / num_rows)
        self.by_actions = torch.zeros(num_rows, num_continuous)
        self.pull = partial(
            torch.mm,
            self.policy_critic.by_first_sums,
            self.policy_critic.first_weight[num_features:].T,
            out=self.by_actions,
        )
        self.report = np.zeros(2)
        # Bound once: laying out a kernel's arguments costs more than its rows.
        self.noise, self.worth = torch.zeros(num_rows, num_continuous), torch.zeros(num_rows, 2)
        settings, proposed = algorithm.settings, self.proposed.numpy()
        self.smooth_actions = q_learning.smooth_actions.bind(
            self.target_actor.outputs.numpy(),
            self.noise.numpy(),
            settings.target_noise,
            settings.target_noise_clip,
            self.next_proposed.numpy(),
        )
        self.fit_twins = q_learning.fit_twins.bind(
            _pair(each.outputs for each in self.values),
            _pair(each.outputs for each in self.foreseen),
            (self.worth[:, 0].numpy(), self.worth[:, 1].numpy()),
            _pair(each.by_output for each in self.values),
            self.report,
        )
        self.squash = q_learning.squash.bind(self.actor.outputs.numpy(), proposed)
        self.pull_actions = q_learning.pull_actions.bind(
            proposed, self.by_actions.numpy(), self.actor.by_output.numpy()
        )

    @torch.no_grad()
    def write(self, minibatch: Minibatch) -> dict[str, float]:
        """Writes the critics' gradients, and returns metrics."""
        algorithm, first = self.algorithm, self.first
        encode, see = algorithm.critics.encode, algorithm.policy.network.encoder
        after = {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
        self.seen_next.copy_(see(after))
        self.taken[:, :first].copy_(encode(minibatch))
        self.taken[:, first:].copy_(algorithm.policy.continuous_of(minibatch))
        self.next_proposed[:, :first].copy_(encode(after))
        self.noise.copy_(minibatch[NEXT_NOISE])
        self.worth[:, 0].copy_(minibatch[f.REWARD])
        self.worth[:, 1].copy_(minibatch[f.DISCOUNT])
        self.target_actor.evaluate()
        self.smooth_actions()
        for critic in (*self.foreseen, *self.values):
            critic.evaluate()
        self.fit_twins()
        for critic in self.values:
            critic.differentiate()
        return {
            "train/critic_loss": float(self.report[q_learning.LOSS]),
            "train/q_value": float(self.report[q_learning.Q_VALUE]),
        }

    @torch.no_grad()
    def write_policy(self, minibatch: Minibatch) -> dict[str, float]:
        """Writes the actor's gradient through the first critic's present weights, and returns metrics."""
        self.seen.copy_(self.algorithm.policy.network.encoder(minibatch))
        self.proposed[:, : self.first].copy_(self.taken[:, : self.first])
        self.actor.evaluate()
        self.squash()
        self.policy_critic.evaluate()
        self.policy_critic.differentiate()
        self.pull()
        self.pull_actions()
        self.actor.differentiate()
        return {"train/policy_loss": -float(self.policy_critic.outputs.mean())}


def _pair(tensors: Iterable[torch.Tensor]) -> tuple[Array, Array]:
    first, second = (tensor.numpy() for tensor in tensors)
    return first, second
