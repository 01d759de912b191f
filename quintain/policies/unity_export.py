"""Exports a policy to ONNX with the names that Unity's ML-Agents package reads; written only if it agrees with ours.

In: `obs_0`, `obs_1`, ..., `action_masks` (1 where an option is allowed), `recurrent_in`. Out: `version_number`,
`memory_size`, and for continuous and discrete actions each the sample drawn inside the graph, its size, and the
deterministic action.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec, LeafSpec, discrete_sizes, leaves
from quintain.errors import QuintainError, SpecMismatch
from quintain.policies.base import Policy
from quintain.policies.export import (
    BATCH_SIZES,
    NEXT_STATE,
    TOLERANCE,
    ActingModule,
    quiet_exporter,
    require_cpu,
    require_libraries,
    with_constants,
    write_files,
)
from quintain.policies.export_inputs import FIRST, MASK, STATE, random_inputs
from quintain.policies.heads import CategoricalHead, GaussianHead, Head, MultiCategoricalHead
from quintain.policies.joint_head import JointHead

API_VERSION = 3.0
"""The newest version of the contract; Unity reads 2 and 3."""
OPSET = 9
VERSION, MEMORY_SIZE, MASKS, MEMORY_IN, MEMORY_OUT = (
    "version_number", "memory_size", "action_masks", "recurrent_in", "recurrent_out",
)  # fmt: skip
NUMBERS, NUMBER_SHAPE, LIKELIEST_NUMBERS = (
    "continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions",
)  # fmt: skip
CHOICES, CHOICE_SHAPE, LIKELIEST_CHOICES = (
    "discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions",
)  # fmt: skip
_CONSTANT = frozenset({VERSION, MEMORY_SIZE, NUMBER_SHAPE, CHOICE_SHAPE})
_SMALLEST = 1e-30
"""The smallest probability for sampling: its logarithm is finite, and it never occurs."""


@runtime_checkable
class DecidesByHead(Protocol):
    """A policy whose network feeds one of our heads."""

    head: JointHead

    @property
    def actor_state_size(self) -> int: ...

    def head_output(self, seen: Mapping[str, torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the input of the head, and the actor's hidden state after the step, in which no episode begins.

        `seen` has the leaves of an observation by field name.
        """
        ...


class UnityModule(nn.Module):
    """Takes tensors in the order of Unity's inputs, and returns them in the order of its outputs."""

    version_number: torch.Tensor
    memory_size: torch.Tensor
    number_shape: torch.Tensor
    choice_shape: torch.Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        if not isinstance(policy, DecidesByHead):
            raise SpecMismatch(
                f"a {type(policy).__name__} has no head_output, so it cannot be written for Unity; see "
                f"quintain.policies.unity_export.DecidesByHead"
            )
        _refuse_other_spaces(policy.spec)
        self.policy: Any = policy
        self.obs_names = list(leaves(policy.spec.obs, f.OBS))
        self.branches = discrete_sizes(policy.spec.action)
        self.num_continuous = sum(head.spec.size for head in policy.head.parts if isinstance(head, GaussianHead))
        self.state_size = policy.actor_state_size
        for name, value in {
            VERSION: [API_VERSION],
            MEMORY_SIZE: [float(self.state_size)],
            "number_shape": [float(self.num_continuous)],
            "choice_shape": [[float(n) for n in self.branches]],
        }.items():
            self.register_buffer(name, torch.tensor(value))

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """Constant outputs, by name."""
        return {
            VERSION: self.version_number,
            MEMORY_SIZE: self.memory_size,
            NUMBER_SHAPE: self.number_shape,
            CHOICE_SHAPE: self.choice_shape,
        }

    @property
    def input_names(self) -> list[str]:
        obs = [f"obs_{i}" for i in range(len(self.obs_names))]
        return [*obs, *([MASKS] if self.branches else []), *([MEMORY_IN] if self.state_size else [])]

    @property
    def output_names(self) -> list[str]:
        return [
            VERSION,
            MEMORY_SIZE,
            *([NUMBERS, NUMBER_SHAPE, LIKELIEST_NUMBERS] if self.num_continuous else []),
            *([CHOICES, CHOICE_SHAPE, LIKELIEST_CHOICES] if self.branches else []),
            *([MEMORY_OUT] if self.state_size else []),
        ]

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = dict(zip(self.input_names, given, strict=True))
        seen = {name: inputs[f"obs_{i}"] for i, name in enumerate(self.obs_names)}
        rows = given[0]
        state = inputs[MEMORY_IN].squeeze(1) if self.state_size else rows.new_zeros((1, 0))
        output, after = self.policy.head_output(seen, state)
        numbers, choices = self._act(output, inputs[MASKS] > 0.5 if self.branches else None)
        results = [self.version_number, self.memory_size]
        if self.num_continuous:
            results += [numbers[0], self.number_shape, numbers[1]]
        if self.branches:
            results += [choices[0], self.choice_shape, choices[1]]
        return tuple([*results, after.unsqueeze(1)] if self.state_size else results)

    def _act(self, output: torch.Tensor, allowed: torch.Tensor | None) -> tuple[Any, Any]:
        """Returns continuous and discrete actions, each sampled and deterministic."""
        numbers, choices = [], []
        for head, (columns, _, places) in zip(self.policy.head.parts, self.policy.head.columns, strict=True):
            part = self.policy.head.seen_by(head, output, columns)
            if isinstance(head, GaussianHead):
                numbers.append(_numbers(head, part))
            else:
                assert allowed is not None
                choices += [_choice(each, some, ok) for each, some, ok in _branches(head, part, allowed[:, places])]
        return _joined(numbers), _joined(choices)


def export_unity(policy: Policy, path: Path) -> float:
    """Writes a policy to one file that Unity reads; returns the largest difference from the policy."""
    runtime = require_libraries()
    module = UnityModule(require_cpu(policy))
    model = _traced(module, policy)
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    difference = _compare(module, session, policy)
    write_files(path.parent, {path.name: model})
    return difference


def unity_inputs(policy: Policy, num_rows: int, rng: Rng) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Samples inputs by Unity's names, and the same by our own."""
    module = UnityModule(policy)
    own = random_inputs(policy, num_rows, rng)
    own[STATE] = own.get(STATE, torch.zeros((num_rows, 0)))
    # Unity forgets by handing in zeros, so that no step is told to be the first.
    own[FIRST] = torch.zeros(num_rows, dtype=torch.bool)
    given = {f"obs_{i}": own[name].float() for i, name in enumerate(module.obs_names)}
    masks = own.get(MASK, torch.ones((num_rows, sum(module.branches)), dtype=torch.bool))
    extra = {MASKS: masks.float(), MEMORY_IN: own[STATE][:, : module.state_size].unsqueeze(1)}
    return {name: {**given, **extra}[name] for name in module.input_names}, own


def _traced(module: UnityModule, policy: Policy) -> bytes:
    given, _ = unity_inputs(policy, 2, Rng(0))
    changing = [name for name in module.output_names if name not in _CONSTANT]
    buffer: Any = io.BytesIO()  # the exporter's types know only paths
    # Drawing while it is traced must not move the generator that a user's code may draw from.
    with quiet_exporter(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.onnx.export(
            module,
            tuple(given.values()),
            buffer,
            # The other exporter writes a newer opset than Unity reads, and inputs that nothing depends on.
            dynamo=False,
            opset_version=OPSET,
            input_names=module.input_names,
            output_names=module.output_names,
            dynamic_axes={name: {0: "batch"} for name in [*given, *changing]},
        )
    constants = {name: value.numpy() for name, value in module.constants.items() if name in module.output_names}
    return with_constants(buffer.getvalue(), constants)


def _compare(module: UnityModule, session: Any, policy: Policy) -> float:
    """Returns the largest difference between the file and the policy; refuses one that is too large.

    Samples cannot be compared; they must be allowed.
    """
    acting = ActingModule(policy)
    wanted = [each.name for each in session.get_inputs()]
    largest = 0.0
    for num_rows in BATCH_SIZES:
        given, own = unity_inputs(policy, num_rows, Rng(1))
        with torch.no_grad():
            acted = acting({name: value.clone() for name, value in own.items()})
        expected = _expected(module, policy.spec, acted)
        found = dict(
            zip(
                module.output_names,
                session.run(module.output_names, {name: given[name].numpy() for name in wanted}),
                strict=True,
            )
        )
        for name, value in expected.items():
            difference = _distance(found[name], value)
            limit = 0.0 if name == LIKELIEST_CHOICES or name in _CONSTANT else TOLERANCE
            _require(difference <= limit, f"{name} by {difference:g} (at most {limit:g} is allowed)")
            largest = max(largest, difference)
        if MASKS in given:
            _require(_are_allowed(found[CHOICES], given[MASKS].numpy(), module.branches), f"{CHOICES}: not allowed")
    return largest


def _expected(module: UnityModule, spec: BehaviorSpec, acted: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    named = leaves(spec.action, f.ACTION)
    numbers = [acted[name].flatten(1).numpy() for name, leaf in named.items() if isinstance(leaf, BoxSpec)]
    chosen = [acted[name].numpy() for name, leaf in named.items() if not isinstance(leaf, BoxSpec)]
    by_name: dict[str, Any] = {
        VERSION: [API_VERSION],
        MEMORY_SIZE: [module.state_size],
        NUMBER_SHAPE: [module.num_continuous],
        CHOICE_SHAPE: [list(module.branches)],
    }
    if numbers:
        by_name[LIKELIEST_NUMBERS] = np.concatenate(numbers, axis=1)
    if chosen:
        by_name[LIKELIEST_CHOICES] = np.concatenate([each.reshape(len(each), -1) for each in chosen], axis=1)
    if module.state_size:
        by_name[MEMORY_OUT] = acted[NEXT_STATE][:, None, : module.state_size].numpy()
    return {name: value for name, value in by_name.items() if name in module.output_names}


def _distance(found: Any, expected: Any) -> float:
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float("inf") if one.shape != other.shape else float(np.max(np.abs(one - other), initial=0.0))


def _are_allowed(chosen: Any, masks: Any, branches: Sequence[int]) -> bool:
    starts = np.cumsum([0, *branches[:-1]])
    return chosen.shape == (len(masks), len(branches)) and bool(
        np.take_along_axis(masks, chosen + starts, axis=1).all()
    )


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise QuintainError(
            f"the policy written for Unity differs from the original in {what}, so it was not kept. Please report it "
            f"with the policy's settings",
            code="E0901",
        )


def _refuse_other_spaces(spec: BehaviorSpec) -> None:
    for name, leaf in leaves(spec.obs, f.OBS).items():
        if not isinstance(leaf, BoxSpec):
            raise SpecMismatch(f"Unity's agents have continuous observations, and {name} is {leaf}")
    for name, leaf in leaves(spec.action, f.ACTION).items():
        if _is_renumbered(leaf):
            raise SpecMismatch(
                f"Unity counts discrete options in a row from zero, and {name} is {leaf} with another count"
            )


def _is_renumbered(leaf: LeafSpec) -> bool:
    if isinstance(leaf, BoxSpec):
        return False
    return leaf.start != 0 if isinstance(leaf, DiscreteSpec) else any(leaf.starts) or len(leaf.env_shape) > 1


def _numbers(head: GaussianHead, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = output[:, : head.spec.size]
    drawn, _ = head.draw(output, torch.randn_like(mean))
    return _in_bounds(head, drawn), _in_bounds(head, mean)


def _in_bounds(head: GaussianHead, numbers: torch.Tensor) -> torch.Tensor:
    low, high = head.low.flatten(), head.high.flatten()
    if head.is_squashed:
        return low + 0.5 * (torch.tanh(numbers) + 1.0) * (high - low)
    # Not clamp: with a bound for each number it has no form in this opset.
    return torch.maximum(torch.minimum(numbers, high), low) if head.is_clipped else numbers


def _branches(
    head: Head, output: torch.Tensor, allowed: torch.Tensor
) -> list[tuple[CategoricalHead, torch.Tensor, torch.Tensor]]:
    if isinstance(head, MultiCategoricalHead):
        parts = zip(torch.split(output, head.nvec, dim=1), torch.split(allowed, head.nvec, dim=1), strict=True)
        return [(each, *both) for each, both in zip(head.choices, parts, strict=True)]  # type: ignore[misc]  # the modules are heads
    assert isinstance(head, CategoricalHead)
    return [(head, output, allowed)]


def _choice(head: CategoricalHead, output: torch.Tensor, allowed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = head.log_probs(output, allowed)
    drawn = torch.multinomial(log_probs.exp().clamp_min(_SMALLEST), 1)
    return drawn, log_probs.argmax(dim=1, keepdim=True)


def _joined(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    return tuple(torch.cat(some, dim=1) for some in zip(*pairs, strict=True)) if pairs else None
