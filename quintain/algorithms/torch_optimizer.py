"""Lets an optimizer of `torch.optim` take an algorithm's steps; its state is saved by the names of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from quintain.algorithms.optimizer import Moments, Optimizer
from quintain.errors import SettingsError
from quintain.policies.flat_parameters import require_like
from quintain.policies.optimizer_state import restore_optimizer, save_optimizer

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.typing import State

_FIRST = ("exp_avg", "grad_avg")
_SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
FACTOR = "learning_rate_factor"
"""Key of torch's parameter groups that is a factor on the algorithm's learning rate."""


class TorchOptimizer(Optimizer):
    """An optimizer of torch's, or of another package that follows its interface.

    `TorchOptimizer(torch.optim.RMSprop(critics.parameters()), self.trained_parameters())` names the parameters by the
    second argument. Its learning rate follows the algorithm's, times `learning_rate_factor` of each of torch's groups,
    unless `manages_learning_rate` leaves `lr` to you.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        max_grad_norm: float | None = None,
        manages_learning_rate: bool = False,
        world: ProcessGroup | None = None,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise SettingsError("LBFGS evaluates a loss several times in a step; use another optimizer", code="E0229")
        self.optimizer = optimizer
        self.manages_learning_rate = manages_learning_rate
        names = {id(parameter): name for name, parameter in named_parameters}
        self.names: list[list[str]] = []
        """Names of the parameters in each of torch's groups."""
        for group in optimizer.param_groups:
            if unknown := [parameter for parameter in group["params"] if id(parameter) not in names]:
                raise SettingsError(
                    f"{type(optimizer).__name__} trains a parameter of shape {list(unknown[0].shape)} that has no name "
                    "among the named parameters; give the pairs of all of its parameters",
                    code="E0229",
                )
            self.names.append([names[id(parameter)] for parameter in group["params"]])
        super().__init__(self._named(), max_grad_norm=max_grad_norm, world=world)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        groups = zip(self.names, self.optimizer.param_groups, strict=True)
        return [pair for names, group in groups for pair in zip(names, group["params"], strict=True)]

    def make_memory(self) -> None:
        self.moments = {}
        self.find_memory()

    def find_memory(self) -> None:
        """Takes parameters where they are."""
        self.inputs = list(self.parameters.values())

    def adopt(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        now = dict(named_parameters)
        held = self._found_in(now.items())
        for names, group in zip(self.names, self.optimizer.param_groups, strict=True):
            for place, (name, before) in enumerate(zip(names, group["params"], strict=True)):
                if (parameter := now.get(name, before)) is before:
                    continue
                require_like(name, parameter, before.shape, before)
                group["params"][place] = parameter
                if before in self.optimizer.state:
                    self.optimizer.state[parameter] = self.optimizer.state.pop(before)
        if any(parameter is not self.parameters[name] for name, parameter in held.items()):
            self.parameters = held
            self.find_memory()
            self.bind_gradients()

    @torch.no_grad()
    def move(self, learning_rate: float, norm: torch.Tensor) -> None:
        if not bool(torch.isfinite(norm)):
            return
        self.bind_gradients()
        groups = self.optimizer.param_groups
        own = [group["lr"] for group in groups]
        for group, rate in zip(groups, own, strict=True):
            wanted = (
                rate * self.rollback_factor if self.manages_learning_rate else learning_rate * group.get(FACTOR, 1.0)
            )
            # A tensor stays one: torch was told by it how to compute.
            group["lr"] = torch.as_tensor(wanted).to(rate) if isinstance(rate, torch.Tensor) else wanted
        self.optimizer.step()
        if self.manages_learning_rate:
            for group, rate in zip(groups, own, strict=True):
                group["lr"] = rate

    def moments_of(self, parameter: torch.Tensor) -> Moments | None:
        if not any(own is parameter for own in self.parameters.values()):
            return None
        state = self.optimizer.state.get(parameter, {})
        # RMSprop and others keep a momentum of steps under this name, which do not scale as gradients do.
        first = (*_FIRST, "momentum_buffer") if isinstance(self.optimizer, torch.optim.SGD) else _FIRST
        kept = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        return Moments([kept[key] for key in first if key in kept], [kept[key] for key in _SECOND if key in kept])

    def state_dict(self) -> State:
        return save_optimizer(self.optimizer, self.names)

    def load_state_dict(self, state: State) -> None:
        restore_optimizer(self.optimizer, self.names, state)
