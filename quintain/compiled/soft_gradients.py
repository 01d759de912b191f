"""The gradient of SAC's loss for continuous actions, hand-written; `algorithms/sac.py` defines the loss.

Autograd would allocate memory for every product and every intermediate step. Here sixteen products of a hidden layer's
size remain; the critics' half depends on the other half for the next actions only, so with two threads each takes one
half. Results are the same.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.algorithms.off_policy import NEXT_NOISE
from quintain.compiled.dense_layers import DenseLayers, grad_of, layers_of, layers_of_twin
from quintain.compiled.kernels import soft
from quintain.compiled.second_thread import SecondThread
from quintain.data import fields as f
from quintain.policies.heads import GaussianHead

if TYPE_CHECKING:
    from quintain.algorithms.minibatches import Minibatch
    from quintain.algorithms.temperature import Temperature
    from quintain.algorithms.twin_critics import TwinCritics
    from quintain.policies.soft_actor import SoftActor
    from quintain.typing import Array

_REPORTED = {
    "train/critic_loss": soft.CRITIC_LOSS,
    "train/policy_loss": soft.POLICY_LOSS,
    "train/q_value": soft.Q_VALUE,
    "train/entropy": soft.ENTROPY,
}


class SoftGradients:
    """Writes the gradient of one minibatch to the parameters' `grad`, and returns metrics."""

    def __init__(
        self,
        policy: SoftActor,
        critics: TwinCritics,
        targets: TwinCritics,
        temperature: Temperature,
        num_rows: int,
        helper: SecondThread | None = None,
    ) -> None:
        [head] = policy.head.parts
        assert isinstance(head, GaussianHead)
        self.policy, self.critics, self.targets = policy, critics, targets
        self.initial_log_std = head.initial_log_std
        self.num_rows = num_rows
        self.price = _Price(temperature)
        self.helper = helper or SecondThread()

        num_continuous, num_features = head.spec.size, critics.encoder.output_size
        seen = torch.zeros(2 * num_rows, policy.encoder.output_size)
        taken, proposed, next_proposed = (torch.zeros(num_rows, num_features + num_continuous) for _ in range(3))
        self.rows = soft.Rows(
            seen.numpy(),
            taken.numpy(),
            proposed.numpy(),
            next_proposed.numpy(),
            drawn=np.zeros((2 * num_rows, num_continuous), np.float32),
            log_prob=np.zeros(2 * num_rows, np.float32),
        )
        activation = policy.settings.activation
        self.actor = DenseLayers(layers_of(policy.actor, learns=True), seen, activation, num_rows)
        self.valuing, self.judging, self.foreseeing = (
            [DenseLayers(layers_of_twin(owner, i, learns=learns), rows, activation) for i in range(2)]
            for owner, rows, learns in (
                (critics, taken, True),
                (critics, proposed, False),
                (targets, next_proposed, False),
            )
        )
        self.by_numbers = torch.zeros(num_rows, num_continuous)
        self.add_to_numbers = [
            partial(self.by_numbers.addmm_, critic.by_first_sums, critic.first_weight[num_features:].T)
            for critic in self.judging
        ]
        self.report = np.zeros(len(_REPORTED))

    @torch.no_grad()
    def write(self, minibatch: Minibatch) -> dict[str, float]:
        """Writes every trained parameter's gradient, and returns metrics."""
        coef = self.price.coef()
        self._read(minibatch)
        self.helper.hand(self._value_taken)
        self._propose(minibatch)
        self.helper.hand(lambda: self._fit_critics(minibatch, coef))
        self._improve_policy(coef)
        self.helper.wait()
        self.price.write_gradient(float(self.report[soft.ENTROPY]))
        report = {name: float(self.report[place]) for name, place in _REPORTED.items()}
        return {**report, "train/entropy_coef": coef}

    def _read(self, minibatch: Minibatch) -> None:
        after = {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
        soft.lay_out(
            (self.policy.encoder(minibatch).numpy(), self.policy.encoder(after).numpy()),
            (self.critics.encode(minibatch).numpy(), self.targets.encode(after).numpy()),
            minibatch[f.ACTION].flatten(1).numpy(),
            self.rows,
        )

    def _propose(self, minibatch: Minibatch) -> None:
        self.actor.evaluate()
        noise = minibatch[f.NOISE].numpy(), minibatch[NEXT_NOISE].numpy()
        soft.propose(self.actor.outputs.numpy(), noise, self.initial_log_std, self.rows)

    @torch.no_grad()
    def _value_taken(self) -> None:
        for critic in self.valuing:
            critic.evaluate()

    @torch.no_grad()
    def _fit_critics(self, minibatch: Minibatch, coef: float) -> None:
        """Writes the gradient of the critics' squared errors."""
        for target in self.foreseeing:
            target.evaluate()
        worth = minibatch[f.REWARD].numpy(), minibatch[f.DISCOUNT].numpy()
        values, foreseen = _outputs(self.valuing), _outputs(self.foreseeing)
        soft.judge_values(values, foreseen, worth, coef, self.rows, _by_outputs(self.valuing), self.report)
        for critic in self.valuing:
            critic.differentiate()

    def _improve_policy(self, coef: float) -> None:
        """Writes the gradient of the policy loss: through the critics to the sampled actions, and to the actor."""
        for critic in self.judging:
            critic.evaluate()
        soft.choose_critic(_outputs(self.judging), _by_outputs(self.judging), self.report)
        self.by_numbers.zero_()
        for critic, add_to_numbers in zip(self.judging, self.add_to_numbers, strict=True):
            critic.differentiate()
            add_to_numbers()
        soft.judge_actions(
            self.actor.outputs.numpy(),
            self.by_numbers.numpy(),
            self.initial_log_std,
            coef,
            self.rows,
            self.actor.by_output.numpy(),
            self.report,
        )
        self.actor.differentiate()


class _Price:
    """The entropy coefficient as a scalar, and the buffer of its gradient."""

    def __init__(self, temperature: Temperature) -> None:
        self.temperature = temperature
        self.log_coef = self.grad = np.zeros(1, np.float32)
        if temperature.fixed_coef is None:
            log_coef = temperature.log_coefs["numbers"]
            self.log_coef, self.grad = log_coef.detach().view(1).numpy(), grad_of(log_coef).view(1).numpy()

    def coef(self) -> float:
        fixed = self.temperature.fixed_coef
        return math.exp(self.log_coef[0]) if fixed is None else fixed

    def write_gradient(self, entropy: float) -> None:
        self.grad[0] = entropy - self.temperature.target_continuous


def _outputs(twins: list[DenseLayers]) -> tuple[Array, Array]:
    return twins[0].outputs.numpy(), twins[1].outputs.numpy()


def _by_outputs(twins: list[DenseLayers]) -> tuple[Array, Array]:
    return twins[0].by_output.numpy(), twins[1].by_output.numpy()
