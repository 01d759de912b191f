"""The gradient of DQN's loss, written out as SAC's is; `algorithms/dqn.py` says what the loss is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.compiled.dense_layers import DenseLayers, layers_of
from quintain.compiled.kernels import q_learning
from quintain.data import fields as f

if TYPE_CHECKING:
    from quintain.algorithms.dqn import DQN
    from quintain.algorithms.minibatches import Minibatch


class QGradients:
    """Writes the gradient of one minibatch of DQN to the parameters' `grad`, and returns metrics."""

    def __init__(self, algorithm: DQN, num_rows: int) -> None:
        network, target = algorithm.policy.network, algorithm.target
        self.network, self.action_name, self.num_rows = network, algorithm.policy.action_name, num_rows
        self.is_double = algorithm.settings.double
        num_features, activation = network.encoder.output_size, algorithm.policy.settings.activation
        # Double Q-learning asks the network itself about the next observations, which stand behind the others.
        self.seen = torch.zeros((2 if self.is_double else 1) * num_rows, num_features)
        self.seen_next = torch.zeros(num_rows, num_features)
        self.values = DenseLayers(layers_of(network.layers, learns=True), self.seen, activation, num_rows)
        self.following = DenseLayers(layers_of(target.layers, learns=False), self.seen_next, activation)
        self.unmasked = np.zeros((num_rows, 0), np.bool_)
        self.report = np.zeros(2)

    @torch.no_grad()
    def write(self, minibatch: Minibatch) -> dict[str, float]:
        """Writes every trained parameter's gradient, and returns metrics."""
        num_rows, encode = self.num_rows, self.network.encoder
        after = {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
        self.seen[:num_rows].copy_(encode(minibatch))
        self.seen_next.copy_(encode(after))
        if self.is_double:
            self.seen[num_rows:].copy_(self.seen_next)
        self.values.evaluate()
        self.following.evaluate()
        values, counting = self.values.outputs.numpy(), self.following.outputs.numpy()
        mask = after.get(f.ACTION_MASK)
        q_learning.fit_values(
            values[:num_rows],
            (values[num_rows:] if self.is_double else counting, counting),
            self.unmasked if mask is None else mask.numpy(),
            minibatch[self.action_name].view(-1).numpy(),
            (minibatch[f.REWARD].numpy(), minibatch[f.DISCOUNT].numpy()),
            self.values.by_output.numpy(),
            self.report,
        )
        self.values.differentiate()
        return {
            "train/loss": float(self.report[q_learning.LOSS]),
            "train/q_value": float(self.report[q_learning.Q_VALUE]),
        }
