"""The optimizers of one algorithm, by name: made after it, joined, checked and saved together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.parameter_groups import groups_by_parameter
from quintain.algorithms.settings import ParameterGroup
from quintain.algorithms.torch_optimizer import TorchOptimizer
from quintain.core.process_group import ProcessGroup
from quintain.errors import SettingsError
from quintain.policies.flat_parameters import flat_memory

if TYPE_CHECKING:
    from quintain.policies.normalizer import Fold
    from quintain.typing import State


MadeOptimizers: TypeAlias = "Mapping[str, Optimizer | torch.optim.Optimizer] | Optimizer | torch.optim.Optimizer"
"""One optimizer or several by name, the main one first."""


class OptimizerSet(dict[str, Optimizer]):
    """Optimizers by name, the main one first; together they train all parameters of an algorithm."""

    def __init__(
        self,
        made: MadeOptimizers,
        trained: Iterable[tuple[str, nn.Parameter]],
        groups: Mapping[str, ParameterGroup],
        max_grad_norm: float | None = None,
    ) -> None:
        """Takes one optimizer or several by name; those of torch's are wrapped and clip to `max_grad_norm`."""
        super().__init__()
        named = list(trained)
        for key, each in (made if isinstance(made, Mapping) else {"main": made}).items():
            if isinstance(each, torch.optim.Optimizer):
                each = TorchOptimizer(each, named, max_grad_norm=max_grad_norm)
            if not isinstance(each, Optimizer):
                raise SettingsError(
                    f"make_optimizers returned {type(each).__name__} as {key!r}, expected an Optimizer or one of "
                    "torch.optim; make it by make_optimizer()",
                    code="E0229",
                )
            self[key] = each
        parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._require_all(parameters)
        self._require_groups(groups, parameters)
        own = {name for each in self.values() if not isinstance(each, TorchOptimizer) for name in each.parameters}
        if len(self) > 1 and own:
            # Each has laid its parameters one after the other, and may have taken them from another's memory.
            flat_memory([parameter for name, parameter in parameters.items() if name in own])
        for optimizer in self.values():
            optimizer.is_alone = len(self) == 1
            optimizer.find_memory()

    def _require_all(self, parameters: Mapping[str, nn.Parameter]) -> None:
        if not self:
            raise SettingsError("make_optimizers returned none; return at least one, by name", code="E0229")
        for key, optimizer in self.items():
            for name, parameter in optimizer.parameters.items():
                if parameters.get(name) is not parameter:
                    raise SettingsError(
                        f"optimizer {key!r} trains {name}, which trained_parameters() does not yield by this name; "
                        "yield it there",
                        code="E0229",
                    )
        trained = {name for optimizer in self.values() for name in optimizer.parameters}
        if left := [name for name in parameters if name not in trained]:
            raise SettingsError(
                f"no optimizer trains {left[0]}; give it to one in make_optimizers(), or do not yield it in "
                "trained_parameters()",
                code="E0229",
            )

    def _require_groups(self, groups: Mapping[str, ParameterGroup], parameters: Mapping[str, nn.Parameter]) -> None:
        for name, group in groups_by_parameter(groups, parameters).items():
            for key, optimizer in self.items():
                if name in optimizer.parameters and name not in optimizer.groups:
                    raise SettingsError(
                        f"parameter_groups.{group} has {name}, and optimizer {key!r} knows no groups; make it by "
                        "make_optimizer(), or give a torch optimizer groups of its own",
                        code="E0229",
                    )

    def join(self, world: ProcessGroup) -> None:
        """Averages the gradients of each over the ranks of a process group."""
        for optimizer in self.values():
            optimizer.world = world

    def adopt(self, trained: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Takes in parameters that were replaced or moved."""
        named = list(trained)
        for optimizer in self.values():
            optimizer.adopt(named)

    def carry_over(self, folds: Iterable[Fold]) -> None:
        """Keeps moments true of layers that a move of the scale was folded into."""
        for fold in folds:
            for optimizer in self.values():
                weight, bias = (optimizer.moments_of(part) for part in (fold.layer.weight, fold.layer.bias))
                # Targets are folded too and have no moments.
                if weight is not None and bias is not None:
                    fold.carry_over(zip(weight.first, bias.first, strict=True), weight.second)

    def norms(self) -> dict[str, torch.Tensor]:
        """Returns the mean norm of each optimizer's gradients since the last call, where there are several."""
        found = {}
        for name, optimizer in self.items():
            if optimizer.norms:
                found[f"train/grad_norm_{name}"] = torch.stack([torch.as_tensor(n) for n in optimizer.norms]).mean()
                optimizer.norms.clear()
        return found

    def state_dict(self) -> State:
        return {name: optimizer.state_dict() for name, optimizer in self.items()}

    def load_state_dict(self, state: State) -> None:
        if set(state) != set(self):
            raise KeyError(f"saved optimizers are {sorted(state)}, this algorithm has {sorted(self)}")
        for name, optimizer in self.items():
            optimizer.load_state_dict(state[name])
