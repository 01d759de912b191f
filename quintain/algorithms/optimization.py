"""The half of an algorithm that takes gradient steps: parameters, optimizers and auxiliary losses."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import nn

from quintain.algorithms.auxiliary import AuxiliaryLoss
from quintain.algorithms.losses import Loss, named_metrics
from quintain.algorithms.minibatches import Minibatch, num_valid, split
from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.optimizer_set import MadeOptimizers, OptimizerSet
from quintain.algorithms.parameter_groups import groups_within, matching
from quintain.algorithms.settings import AlgorithmSettings
from quintain.core.process_group import ProcessGroup
from quintain.core.state import KeepsState
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.flat_parameters import WeightWatch
from quintain.policies.normalizer import Fold

if TYPE_CHECKING:
    from quintain.typing import Keyword

_Made = TypeVar("_Made", bound="Optimization")
AUXILIARY = "auxiliary."
"""How the names of parameters of auxiliary losses begin."""
LossOf = Callable[[Minibatch, float], Loss]
"""A loss of a minibatch after a fraction of the budget."""


class _BuildsOptimizers(ABCMeta):
    """Makes the optimizers of an algorithm when its `__init__`, and that of every subclass, is through."""

    def __call__(cls: type[_Made], *arguments: Keyword, **named: Keyword) -> _Made:  # type: ignore[misc]  # of Algorithms
        algorithm: _Made = super().__call__(*arguments, **named)  # type: ignore[misc]  # as above
        algorithm.build_optimizers()
        return algorithm


class Optimization(KeepsState, metaclass=_BuildsOptimizers):
    """Takes gradient steps down a loss, by one optimizer or several, together with other ranks."""

    not_state: ClassVar[frozenset[str]] = frozenset({"watch", "minibatch_fields"})
    settings: AlgorithmSettings
    policy: Policy
    world: ProcessGroup
    minibatch_fields: ClassVar[tuple[str, ...]]
    optimizers: OptimizerSet
    """All optimizers by name; they are there when the algorithm is, not yet in `__init__`."""
    optimizer: Optimizer
    """The first of them, and mostly the only one."""
    auxiliary_losses: Mapping[str, AuxiliaryLoss] = MappingProxyType({})
    """Losses beside its own, by name; an algorithm without any has no state of them."""
    learning_rate_scale: float
    """Factor on the learning rate; below 1 after rollbacks because of updates that were not finite."""
    watch: WeightWatch | None = None
    """Notices weights that were replaced."""

    @abstractmethod
    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the loss of one minibatch after `fraction` of the budget."""

    def total_loss(self, minibatch: Minibatch, fraction: float, own: LossOf | None = None) -> Loss:
        """Returns a loss of one minibatch, `self.loss` by default, plus each auxiliary loss times its weight."""
        loss = (own or self.loss)(minibatch, fraction)
        for name, each in self.auxiliary_losses.items():
            more = each.loss(minibatch, fraction)
            if not more.total.requires_grad:
                raise SettingsError(
                    f"auxiliary_losses.{name} has no gradient, so it would train nothing. A policy whose actions have "
                    f"no probabilities gives log-probabilities without one: use the outputs of the network of this "
                    f"{type(self.policy).__name__}",
                    code="E0224",
                )
            reported = named_metrics(name, {"loss": more.total.detach(), **more.parts}, loss.parts)
            loss = Loss(loss.total + each.settings.coef.at(fraction) * more.total, {**loss.parts, **reported})
        return loss

    def gradient_step(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, Any]:
        """Takes one gradient step on a minibatch, in parts whose gradients are accumulated, and returns metrics."""
        learning_rate *= self.learning_rate_scale
        weight = num_valid(minibatch) if self.world.size > 1 else 1.0
        if micro_batch_size is None:
            loss = self.total_loss(minibatch, fraction)
            return {**loss.parts, "train/grad_norm": self.optimizer.step(loss.total, learning_rate, weight)}
        whole = num_valid(minibatch)
        sums: dict[str, torch.Tensor] = {}
        self.optimizer.clear()
        for part in split(minibatch, micro_batch_size):
            share = num_valid(part) / whole
            loss = self.total_loss(part, fraction)
            self.optimizer.add(loss.total * share)
            sums = {k: v * share + (sums[k] if sums else 0.0) for k, v in loss.parts.items()}
        return {**sums, "train/grad_norm": self.optimizer.apply(learning_rate, weight)}

    @property
    def policy_optimizer(self) -> str:
        """The name of the first optimizer that trains the policy; of several, its steps have the auxiliary losses."""
        own = {id(parameter) for parameter in self.policy.parameters()}
        found = (name for name, each in self.optimizers.items() if own & set(map(id, each.parameters.values())))
        return next(found, "")

    def step_optimizer(
        self, name: str, loss: torch.Tensor, learning_rate: float, minibatch: Minibatch | None = None
    ) -> torch.Tensor | float:
        """Takes a step of one of several optimizers down the loss of a minibatch; returns the gradient's norm.

        Ranks count by the steps that their minibatches have; alike without one.
        """
        weight = 1.0 if minibatch is None or self.world.size == 1 else num_valid(minibatch)
        return self.optimizers[name].step(loss, learning_rate * self.learning_rate_scale, weight)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the trained parameters by name; called when the algorithm is made and again in every cycle."""
        yield from self.policy.named_parameters()

    def all_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the algorithm's trained parameters and, below `auxiliary.<name>`, those of its auxiliary losses."""
        yield from self.trained_parameters()
        for name, each in self.auxiliary_losses.items():
            yield from ((f"{AUXILIARY}{name}.{path}", parameter) for path, parameter in each.trained_parameters())

    def make_optimizers(self) -> MadeOptimizers:
        """Makes the optimizer, or several by name, the main one first; called when `__init__` is through.

        Override it for several: `{"actor": self.make_optimizer("actor.*"), "rest": self.make_optimizer("critics.*")}`,
        or for one of torch's: `torch.optim.AdamW(self.policy.parameters())`, whose `lr` follows the algorithm's.
        """
        return {"main": self.make_optimizer()}

    def make_optimizer(self, *patterns: str) -> Optimizer:
        """Makes Adam, as the settings say, over the trained parameters that match a pattern; over all without one.

        `auxiliary.*` are the parameters of auxiliary losses, and matches none where there are none.
        """
        settings = self.settings
        trained = {name: each for name, each in self.all_parameters() if each.requires_grad}
        if not any(name.startswith(AUXILIARY) for name in trained):
            patterns = tuple(pattern for pattern in patterns if not pattern.startswith(AUXILIARY))
        names = matching(patterns or ("*",), trained, "make_optimizer")
        return Optimizer(
            ((name, trained[name]) for name in names),
            eps=settings.adam_eps,
            max_grad_norm=settings.max_grad_norm,
            groups=groups_within(settings.parameter_groups, trained, names),
        )

    def build_optimizers(self) -> None:
        """Makes the optimizers; called when the algorithm's `__init__` has returned."""
        for name, value in vars(self).items():
            if isinstance(value, Optimizer) and name != "optimizer":
                raise SettingsError(
                    f"{type(self).__name__}.{name} is an optimizer that ranks would not share; return it by "
                    "make_optimizers()",
                    code="E0229",
                )
        groups = self.settings.parameter_groups
        self.optimizers = OptimizerSet(
            self.make_optimizers(), self.all_parameters(), groups, self.settings.max_grad_norm
        )
        self.optimizer = next(iter(self.optimizers.values()))
        # The only one is saved as such, several by their names.
        left_out = "optimizers" if len(self.optimizers) == 1 else "optimizer"
        self.not_state = type(self).not_state | {left_out}  # type: ignore[misc]  # it depends on what was made

    def adopt_weights(self) -> None:
        """Adopts weights that were replaced, or moved to other memory; called once per cycle."""
        for optimizer in self.optimizers.values():
            optimizer.rollback_factor = self.learning_rate_scale
        if self.watch is None or not self.watch.is_unchanged():
            self.take_in_weights()
            watch = WeightWatch(vars(self))
            # A parameter that is kept elsewhere is looked for in every cycle.
            self.watch = watch if watch.sees(parameter for _, parameter in self.all_parameters()) else None

    def take_in_weights(self) -> None:
        """Takes weights that were replaced, or moved, into the memory where they have been; moments stay."""
        self.optimizers.adopt(self.all_parameters())

    def add_auxiliary_losses(self, losses: Mapping[str, AuxiliaryLoss]) -> None:
        """Adds losses beside its own, by name, before it learns: the optimizer trains their parameters too."""
        if self.optimizer.kernel is not None:
            raise SettingsError(
                "auxiliary losses must be added before a trainer is made; pass them to Trainer(auxiliary_losses=...)",
                code="E0224",
            )
        for each in losses.values():
            each.to(self.policy.device)
        self.auxiliary_losses = {**self.auxiliary_losses, **losses}
        wanted = (name for each in losses.values() for name in each.minibatch_fields)
        self.minibatch_fields = tuple(dict.fromkeys((*self.minibatch_fields, *wanted)))  # type: ignore[misc]  # its own
        self.build_optimizers()

    def carry_over(self, folds: Iterable[Fold]) -> None:
        """Keeps optimizers' moments true of layers that a move of the scale was folded into."""
        self.optimizers.carry_over(folds)
