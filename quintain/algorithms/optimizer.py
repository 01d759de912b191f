"""The only place that calls `backward()`: gradients, their average over ranks, clipping and Adam in one step.

All parameters are made views of one flat tensor, and their gradients of another. Clipping, averaging and Adam are then
one operation each instead of one per parameter, which is most of an update's cost for small networks.

Several optimizers may train the same parameters: each has moments and a gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch.optim.adam import adam

from quintain.algorithms.parameter_groups import groups_by_parameter
from quintain.algorithms.settings import ParameterGroup
from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.core.state import as_tensor
from quintain.errors import SettingsError
from quintain.policies.flat_parameters import flat_memory, require_like

if TYPE_CHECKING:
    from quintain.typing import State

BETAS = (0.9, 0.999)
"""Adam's decay rates of the first and second moments."""

Kernel = Callable[[float], float]
"""Clips the gradient and takes a step of the given size; returns the norm before clipping."""


class Moments(NamedTuple):
    """Views of the averages that an optimizer keeps of one parameter's gradient, and of its square."""

    first: list[torch.Tensor]
    second: list[torch.Tensor]


class Pieces(NamedTuple):
    """Pieces of memory that take steps alike."""

    learning_rate_factor: float
    weight_decay: float
    weights: list[torch.Tensor]
    grads: list[torch.Tensor]
    exp_avgs: list[torch.Tensor]
    exp_avg_sqs: list[torch.Tensor]
    num_steps: list[torch.Tensor]


class Optimizer:
    """Adam over the named parameters of a module; rebinds them to flat memory when it is made.

    Parameters in groups have a factor on the learning rate, decoupled weight decay (AdamW), or are frozen.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        world: ProcessGroup | None = None,
        groups: Mapping[str, ParameterGroup] | None = None,
    ) -> None:
        self.parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        self.eps = eps
        self.max_grad_norm = max_grad_norm
        self.world = world or SingleProcess()
        groups = groups or {}
        self.groups = {name: groups[key] for name, key in groups_by_parameter(groups, self.parameters).items()}
        """The group of each parameter that is in one."""
        self.is_alone = True
        """Whether it is the only optimizer of its algorithm."""
        self.kernel: Kernel | None = None
        """Clips and steps in place of torch's operations if acceleration sets it; the formulas are the same."""
        self.norms: list[torch.Tensor | float] = []
        """Norms of the gradients since the last report, where there are several optimizers."""
        self.rollback_factor = 1.0
        """Factor on learning rates that are not given by the algorithm; smaller after a rollback."""
        values = list(self.parameters.values())
        if len({(value.dtype, value.device) for value in values}) != 1:
            raise SettingsError("an optimizer needs trainable parameters, of one type on one device", code="E0229")
        # One place more than there are parameters: how much this rank's gradient counts travels with it.
        num_weights = sum(value.numel() for value in values)
        self.message = torch.zeros(num_weights + 1, dtype=values[0].dtype, device=values[0].device)
        self.grad = self.message[:-1]
        self.gradients = [part.view_as(own) for own, part in zip(values, self._split(self.grad), strict=True)]
        self.bind_gradients()
        self.make_memory()

    def make_memory(self) -> None:
        """Makes room for moments, and lays weights one after the other."""
        flat_memory(list(self.parameters.values()))
        # Adam's moments exist from the start, so that a checkpoint at step 0 has the same tree as a later one.
        self.moments = {moment: torch.zeros_like(self.grad) for moment in ("exp_avg", "exp_avg_sq")}
        # One for each piece of memory: torch's function counts each for itself.
        self._counts = torch.zeros(len(self.parameters), dtype=torch.float32, device=self.grad.device)
        self.num_steps = self._counts[0]
        self.find_memory()

    def find_memory(self) -> None:
        """Looks where the parameters are: in one piece, unless other optimizers have some of them too."""
        self.places = [parameter.data for parameter in self.parameters.values()]
        self.addresses = [place.data_ptr() for place in self.places]
        # The group, the memory from its first weight on, and where it begins and ends in this optimizer's order.
        runs: list[tuple[ParameterGroup | None, torch.Tensor, int, int]] = []
        end, following, is_whole = 0, (0, 0), True
        for name, place in zip(self.parameters, self.places, strict=True):
            group, storage = self.groups.get(name), place.untyped_storage().data_ptr()
            is_next = (storage, place.data_ptr()) == following
            is_whole = is_whole and (is_next or not runs)
            if is_next and runs[-1][0] is group:
                runs[-1] = (*runs[-1][:3], end + place.numel())
            else:
                runs.append((group, place, end, end + place.numel()))
            end += place.numel()
            following = (storage, place.data_ptr() + place.numel() * place.element_size())
        if is_whole:
            self.flat = nn.Parameter(self.places[0].as_strided((end,), (1,)))
            self.flat.grad = self.grad
        elif hasattr(self, "flat"):
            del self.flat
        self.pieces: list[Pieces] = []
        self.inputs: list[torch.Tensor] = [
            parameter for name, parameter in self.parameters.items() if not self._is_frozen(name)
        ]
        live = [run for run in runs if run[0] is None or not run[0].frozen]
        for group in {id(run[0]): run[0] for run in live}.values():
            own = [(i, *run[1:]) for i, run in enumerate(live) if run[0] is group]
            weights = [memory.as_strided((stop - start,), (1,)) for _, memory, start, stop in own]
            grads, exp_avgs, exp_avg_sqs = (
                [flat[start:stop] for _, _, start, stop in own] for flat in (self.grad, *self.moments.values())
            )
            factor, decay = (1.0, 0.0) if group is None else (group.learning_rate_factor, group.weight_decay)
            counts = [self._counts[place] for place, *_ in own]
            self.pieces.append(Pieces(factor, decay, weights, grads, exp_avgs, exp_avg_sqs, counts))

    def _is_frozen(self, name: str) -> bool:
        return name in self.groups and self.groups[name].frozen

    def adopt(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Adopts parameters that replaced others, or were moved to other memory.

        Their values are copied to the original memory, so that every view of it sees them; then they are views of it
        themselves. Moments are kept.
        """
        held = self._found_in(named_parameters)
        is_same = all(parameter is self.parameters[name] for name, parameter in held.items())
        if is_same and [parameter.data_ptr() for parameter in held.values()] == self.addresses:
            return
        for name, parameter in held.items():
            require_like(name, parameter, self.parameters[name].shape, self.grad)
        with torch.inference_mode(False), torch.no_grad():
            # First all of them: one may be a view of another's place.
            values = [parameter.detach().clone() for parameter in held.values()]
            for parameter, place, value in zip(held.values(), self.places, values, strict=True):
                place.copy_(value)
                parameter.data = place
        self.parameters = held
        self.inputs = [parameter for name, parameter in held.items() if not self._is_frozen(name)]
        self.bind_gradients()

    def _found_in(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
        now = {name: parameter for name, parameter in named_parameters if name in self.parameters}
        if len(now) < len(self.parameters):
            missing = next(name for name in self.parameters if name not in now)
            raise SettingsError(f"{missing} is gone, and the optimizer was made for it; make a new trainer")
        return {name: now[name] for name in self.parameters}

    def bind_gradients(self) -> None:
        """Makes this optimizer's memory the place where `backward()` adds up gradients."""
        for parameter, grad in zip(self.parameters.values(), self.gradients, strict=True):
            if parameter.grad is not grad:
                parameter.grad = grad

    def step(
        self, loss: torch.Tensor, learning_rate: float, weight: float | torch.Tensor = 1.0
    ) -> torch.Tensor | float:
        """Takes one gradient step on `loss` and returns the gradient's norm before clipping."""
        self.clear()
        self.add(loss)
        return self.apply(learning_rate, weight)

    def clear(self) -> None:
        """Clears the gradient."""
        self.grad.zero_()

    def add(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a loss, or of a part of one, by the parameters of this optimizer that are not frozen."""
        self.bind_gradients()
        inputs = None if self.is_alone and not self.groups else self.inputs
        if inputs is None or inputs:
            add_gradients(loss, inputs)

    def collect_gradients(self) -> None:
        """Takes over gradients that code of a user's own put in the place of this optimizer's memory."""
        for parameter, grad in zip(self.parameters.values(), self.gradients, strict=True):
            if parameter.grad is not grad and parameter.grad is not None:
                grad.copy_(parameter.grad)
        self.bind_gradients()

    def apply(self, learning_rate: float, weight: float | torch.Tensor = 1.0) -> torch.Tensor | float:
        """Takes one step down the gradient that was added up and returns its norm before clipping.

        Ranks take the step together, down the mean of their gradients, each counting by its `weight`: the rows that
        its loss is a mean of.

        A gradient that is not finite moves nothing: the device itself leaves the step out, and nothing waits for it.
        """
        grad = self.grad
        if self.world.size > 1:
            self.message[-1] = 1.0
            self.message.mul_(weight)
            self.world.average(self.message)
            grad.div_(self.message[-1])
        if self.kernel is not None:
            return self.kernel(learning_rate)
        norm: torch.Tensor = torch.linalg.vector_norm(grad)
        if self.max_grad_norm is not None:
            grad.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.move(learning_rate, norm)
        if not self.is_alone:
            self.norms.append(norm)
        return norm

    @torch.no_grad()
    def move(self, learning_rate: float, norm: torch.Tensor) -> None:
        """Takes a step down the clipped gradient; none where its norm is not finite."""
        is_skipped = torch.isfinite(norm).logical_not_().float()
        for factor, weight_decay, weights, grads, exp_avgs, exp_avg_sqs, num_steps in self.pieces:
            # The function behind torch.optim.Adam: the bookkeeping of the class costs more than this kernel.
            adam(
                weights,
                grads,
                exp_avgs,
                exp_avg_sqs,
                [],
                num_steps,
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=learning_rate * factor,
                weight_decay=weight_decay,
                decoupled_weight_decay=weight_decay > 0.0,
                eps=self.eps,
                maximize=False,
                found_inf=is_skipped,
            )

    def moments_of(self, parameter: torch.Tensor) -> Moments | None:
        """Returns the moments of one parameter's gradient; None if it is not trained here."""
        start = 0
        for own in self.parameters.values():
            if own is parameter:
                first, second = (flat[start : start + own.numel()].view_as(own) for flat in self.moments.values())
                return Moments([first], [second])
            start += own.numel()
        return None

    def state_dict(self) -> State:
        return {
            "step": self.num_steps.clone(),
            **{
                moment: {
                    name: part.view_as(self.parameters[name]).clone()
                    for name, part in zip(self.parameters, self._split(flat), strict=True)
                }
                for moment, flat in self.moments.items()
            },
        }

    def load_state_dict(self, state: State) -> None:
        self._counts.copy_(as_tensor(state["step"]))
        for moment, flat in self.moments.items():
            if set(state[moment]) != set(self.parameters):
                raise KeyError(f"optimizer state is for {sorted(state[moment])}, not for {sorted(self.parameters)}")
            for name, part in zip(self.parameters, self._split(flat), strict=True):
                part.copy_(as_tensor(state[moment][name]).reshape(-1))

    def _split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(flat, [p.numel() for p in self.parameters.values()])


def add_gradients(loss: torch.Tensor, inputs: list[torch.Tensor] | None = None) -> None:
    """Adds the gradient of a loss to that of these parameters, or of all, whichever optimizers they belong to."""
    loss.backward(inputs=inputs)  # type: ignore[no-untyped-call]  # torch does not type it
