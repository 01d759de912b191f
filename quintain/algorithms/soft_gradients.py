"""The gradient of SAC's loss for continuous actions, written out; `algorithms/sac.py` says what the loss is.

Autograd would make new memory for every product and every step between. Here sixteen products of the size of a hidden
layer remain, and the half of them that the critics learn by needs the other half for the next actions only: where there
are two threads, each takes one half. The numbers are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quintain.algorithms.dense_layers import DenseLayers, Layer
from quintain.algorithms.side_by_side import SecondThread
from quintain.data import fields as f
from quintain.policies.heads import LOG_STD_RANGE, GaussianHead

if TYPE_CHECKING:
    from quintain.algorithms.minibatches import Minibatch
    from quintain.algorithms.temperature import Temperature
    from quintain.algorithms.twin_critics import TwinCritics
    from quintain.policies.soft_actor import SoftActor

NEXT_NOISE = f"{f.NEXT}{f.NOISE}"

_REPORTED = ("train/critic_loss", "train/policy_loss", "train/q_value", "train/entropy", "train/entropy_coef")


class SoftGradients:
    """Writes the gradient of one minibatch to the parameters' `grad`, and says what to report."""

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
        self.policy, self.critics, self.targets, self.temperature = policy, critics, targets, temperature
        self.head = head
        self.num_rows = num_rows
        activation = policy.settings.activation
        self.actor = DenseLayers(_layers_of_actor(policy), 2 * num_rows, activation)
        learning, frozen = (
            [_layers_of_critic(critics, i, learns=learns) for i in range(2)] for learns in (True, False)
        )
        following = [_layers_of_critic(targets, i, learns=False) for i in range(2)]
        self.valuing, self.judging, self.foreseeing = (
            [DenseLayers(layers, num_rows, activation) for layers in twins] for twins in (learning, frozen, following)
        )
        self.num_features, num_numbers = critics.encoder.output_size, head.spec.size
        self.seen = torch.zeros(2 * num_rows, policy.encoder.output_size)
        """What the actor sees: the observations, and then those that they led to."""
        self.taken, self.proposed, self.next_proposed = (
            torch.zeros(num_rows, self.num_features + num_numbers) for _ in range(3)
        )
        """What the critics see: features beside actions."""
        self.to_numbers = [layers[0].weight[self.num_features :].T for layers in frozen]
        self.by_output = torch.zeros(num_rows, 2 * num_numbers)
        self.by_numbers = torch.zeros(num_rows, num_numbers)
        self.parts: dict[str, torch.Tensor] = {}
        self.helper = helper or SecondThread()

    @torch.no_grad()
    def write(self, minibatch: Minibatch) -> dict[str, torch.Tensor]:
        """Writes every trained parameter's gradient, and returns what to report."""
        now = slice(self.num_rows)
        self._read(minibatch)
        self.helper.hand(self._value_taken)
        output, drawn, log_prob = self._propose(minibatch)
        self.helper.hand(lambda: self._fit_critics(minibatch, log_prob[self.num_rows :]))
        self._improve_policy(output[now], drawn[now], log_prob[now])
        self.helper.wait()
        return {name: self.parts[name] for name in _REPORTED}

    def _read(self, minibatch: Minibatch) -> None:
        after = {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
        num_rows, features = self.num_rows, slice(self.num_features)
        self.seen[:num_rows] = self.policy.encoder(minibatch)
        self.seen[num_rows:] = self.policy.encoder(after)
        self.taken[:, features] = self.proposed[:, features] = self.critics.encode(minibatch)
        self.next_proposed[:, features] = self.targets.encode(after)
        numbers = self.policy.numbers_of(minibatch)
        assert numbers is not None
        self.taken[:, self.num_features :] = numbers

    def _propose(self, minibatch: Minibatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the actor's outputs, actions before squashing and log-probabilities: of now, then of what follows."""
        output = self.actor.forward(self.seen)
        drawn, log_prob = self.head.draw(output, torch.cat((minibatch[f.NOISE], minibatch[NEXT_NOISE])))
        for rows, place in ((slice(self.num_rows), self.proposed), (slice(self.num_rows, None), self.next_proposed)):
            torch.tanh(drawn[rows], out=place[:, self.num_features :])
        return output, drawn, log_prob

    @torch.no_grad()
    def _value_taken(self) -> None:
        for critic in self.valuing:
            critic.forward(self.taken)

    @torch.no_grad()
    def _fit_critics(self, minibatch: Minibatch, log_prob: torch.Tensor) -> None:
        """Writes the gradient of the critics' squared errors."""
        first, second = (target.forward(self.next_proposed)[:, 0] for target in self.foreseeing)
        careful = torch.minimum(first, second) - self.temperature.coef("numbers") * log_prob
        target = minibatch[f.REWARD] + minibatch[f.DISCOUNT] * careful
        values = torch.stack([critic.sums[-1][:, 0] for critic in self.valuing])
        errors = values - target
        for critic, error in zip(self.valuing, errors, strict=True):
            critic.backward((error / self.num_rows).unsqueeze(1))
        self.parts["train/critic_loss"] = 0.5 * errors.square().mean(dim=1).sum()
        self.parts["train/q_value"] = values.mean()

    def _improve_policy(self, output: torch.Tensor, drawn: torch.Tensor, log_prob: torch.Tensor) -> None:
        """Writes the gradients of the actor and of the temperature.

        With a = tanh(u), u = mean + std noise: d log pi / du = 2 a, and d log pi / d log std = 2 a (u - mean) - 1.
        """
        coef, share = self.temperature.coef("numbers"), 1.0 / self.num_rows
        numbers, num_numbers = self.proposed[:, self.num_features :], self.head.spec.size
        first, second = (critic.forward(self.proposed)[:, 0] for critic in self.judging)
        # Where both say the same, each counts half.
        is_first = 0.5 * (torch.sign(second - first) + 1.0)
        self.by_numbers.zero_()
        for critic, counts, to_numbers in zip(self.judging, (is_first, 1.0 - is_first), self.to_numbers, strict=True):
            by_first_sums = critic.backward((counts * -share).unsqueeze(1))
            self.by_numbers.addmm_(by_first_sums, to_numbers)
        by_drawn = self.by_numbers * (1.0 - numbers.square()) + (2.0 * share * coef) * numbers
        log_std = output[:, num_numbers:] + self.head.initial_log_std
        lowest, highest = LOG_STD_RANGE
        is_free = (log_std >= lowest) & (log_std <= highest)
        self.by_output[:, :num_numbers] = by_drawn
        self.by_output[:, num_numbers:] = (by_drawn * (drawn - output[:, :num_numbers]) - share * coef) * is_free
        self.actor.backward(self.by_output)
        entropy = -log_prob.mean()
        self.temperature.write_gradient(entropy)
        self.parts["train/policy_loss"] = -torch.minimum(first, second).mean() - coef * entropy
        self.parts["train/entropy"] = entropy
        self.parts["train/entropy_coef"] = torch.as_tensor(coef)


def _layers_of_actor(policy: SoftActor) -> list[Layer]:
    return [
        Layer(weight.detach().T, bias.detach(), _grad(weight).T, _grad(bias))
        for weight, bias in policy.actor.weights_and_biases
    ]


def _layers_of_critic(critics: TwinCritics, which: int, *, learns: bool) -> list[Layer]:
    layers = []
    for weight, bias in critics.layers:
        places = (_grad(weight)[which], _grad(bias)[which, 0]) if learns else (None, None)
        layers.append(Layer(weight.detach()[which], bias.detach()[which, 0], *places))
    return layers


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None, "the optimizer gives every parameter a place for its gradient"
    return parameter.grad
