"""Exports a policy to ONNX: normaliser, network and action transform in one graph, with the hidden state in and out.

The model takes the environment's observations and returns actions for `env.step`. It is compared with the policy on
random inputs before it is written, so every exported file agrees with it. It is one file without external data.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from quintain.core.extras import install_command
from quintain.core.rng import Rng
from quintain.core.versions import quintain_version
from quintain.data import fields as f
from quintain.data.rollout import TORCH_DTYPES, Slot, values_shape
from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, build, flatten, leaves
from quintain.errors import QuintainError, RunDirectoryError, SettingsError
from quintain.policies.base import Policy
from quintain.policies.export_inputs import FIRST, MASK, STATE, graph_shape, random_inputs
from quintain.services.files import atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quintain.typing import Array


MODEL_FILE, CONTRACT_FILE = "policy.onnx", "policy.json"
NEXT_STATE, LOG_PROB = "next_state", "log_prob"
TOLERANCE = 1e-4
BATCH_SIZES = (1, 127)
"""Batch sizes of the comparison: two, so that a batch size that became a constant is found."""
NUM_COMPARED = sum(BATCH_SIZES)


@dataclass(frozen=True)
class Exported:
    """The written files, and the largest difference from the policy."""

    model: Path
    contract: Path
    largest_difference: float


class ActingModule(nn.Module):
    """Takes and returns tensors, as a graph requires; acts deterministically."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        policy, spec = self.policy, self.policy.spec
        seen = {name: _from_env(inputs[name], leaf) for name, leaf in leaves(spec.obs, f.OBS).items()}
        rows = next(iter(seen.values()))
        size = rows.shape[0]
        chosen = {
            name: torch.zeros((size, *leaf.shape), dtype=TORCH_DTYPES[leaf.dtype])
            for name, leaf in leaves(spec.action, f.ACTION).items()
        }
        named = {**seen, **chosen, f.FIRST: inputs.get(FIRST, torch.zeros(size, dtype=torch.bool))}
        if spec.mask_size:
            named[f.ACTION_MASK] = inputs[MASK]
        slot = Slot(
            obs=build(spec.obs, named, f.OBS),
            action=build(spec.action, named, f.ACTION),
            log_prob=torch.zeros(size),
            value=torch.zeros((size, *values_shape(policy.num_values))),
            noise=torch.zeros((size, policy.noise.size)),
            leaves=named,
        )
        state = inputs[STATE].clone() if policy.state_size else torch.zeros((size, 0))
        policy.act(slot, state, deterministic=True)
        acted = flatten(spec.action, policy.env_action(slot), f.ACTION)
        outputs = {name: _to_env(acted[name], leaf) for name, leaf in leaves(spec.action, f.ACTION).items()}
        # Choices alone would hide a wrong graph: most networks choose the same, but not with the same probability.
        outputs[LOG_PROB] = slot.log_prob
        return {**outputs, NEXT_STATE: state} if policy.state_size else outputs


def export_onnx(policy: Policy, directory: Path, about: Mapping[str, Any]) -> Exported:
    """Writes `policy.onnx` and its contract to a directory, after comparing both on random inputs."""
    runtime = require_libraries()
    module = ActingModule(require_cpu(policy)).eval()
    inputs = random_inputs(policy, 4, Rng(0))
    batch = torch.export.Dim("batch", min=1)
    with quiet_exporter(), torch.no_grad(), _exporter_explained(policy):
        program: Any = torch.onnx.export(
            module,
            # By name: a mapping that comes last among the arguments would be taken for keywords.
            kwargs={"inputs": inputs},
            input_names=list(inputs),
            output_names=_output_names(policy),
            dynamic_shapes={"inputs": {name: {0: batch} for name in inputs}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        model: bytes = program.model_proto.SerializeToString()
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    difference = _compare(module, session, policy)
    # The exporter may leave out what nothing depends on, such as an entry that only the critic sees.
    names = {"input": [each.name for each in session.get_inputs()], "output": _output_names(policy)}
    described = describe(policy, names, model, difference, about)
    write_files(directory, {MODEL_FILE: model, CONTRACT_FILE: f"{json.dumps(described, indent=1)}\n".encode()})
    return Exported(directory / MODEL_FILE, directory / CONTRACT_FILE, difference)


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replaces each file atomically; the contract comes last and contains the model's hash."""
    try:
        atomic.make_directory(directory)
        for name, data in files.items():
            atomic.replace_file(directory / name, data)
    except OSError as error:
        needed = sum(map(len, files.values()))
        if atomic.is_disk_full(error):
            raise atomic.write_error(error, doing="write the export", directory=directory, needed=needed) from error
        raise RunDirectoryError(
            f"cannot write the export to {directory}: {error.strerror}. Choose another place with --out", code="E0305"
        ) from error


def describe(
    policy: Policy, names: Mapping[str, Sequence[str]], model: bytes, difference: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Describes the model's inputs and outputs as JSON, for programs that run it without quintain."""
    obs, action = leaves(policy.spec.obs, f.OBS), leaves(policy.spec.action, f.ACTION)
    extra: dict[str, dict[str, Any]] = {
        MASK: {"dtype": "bool", "shape": ["batch", policy.spec.mask_size], "meaning": "allowed options"},
        FIRST: {"dtype": "bool", "shape": ["batch"], "meaning": "true in the first step of an episode"},
        STATE: {"dtype": "float32", "shape": ["batch", policy.state_size], "meaning": "next_state of the step before"},
        NEXT_STATE: {
            "dtype": "float32",
            "shape": ["batch", policy.state_size],
            "meaning": "hidden state after the step",
        },
        LOG_PROB: {"dtype": "float32", "shape": ["batch"], "meaning": "log-probability of the action, or its density"},
    }
    described = {name: _describe_leaf(leaf) for name, leaf in {**obs, **action}.items()} | extra
    return {
        "format": "quintain-policy-1",
        "quintain": quintain_version(),
        **about,
        "file": MODEL_FILE,
        "sha256": hashlib.sha256(model).hexdigest(),
        "inputs": [{"name": name, **described[name]} for name in names["input"]],
        "outputs": [{"name": name, **described[name]} for name in names["output"]],
        "initial_state": "zeros" if policy.state_size else None,
        "deterministic": True,
        "spec": policy.spec.to_dict(),
        "compared": {"num_inputs": NUM_COMPARED, "largest_difference": difference, "tolerance": TOLERANCE},
    }


def _compare(module: ActingModule, session: Any, policy: Policy) -> float:
    """Returns the largest difference between file and policy; refuses a file that does not agree."""
    wanted = [each.name for each in session.get_inputs()]
    largest = 0.0
    for num_rows in BATCH_SIZES:
        inputs = random_inputs(policy, num_rows, Rng(1))
        with torch.no_grad():
            expected = module({name: value.clone() for name, value in inputs.items()})
        with _exporter_explained(policy):
            found = session.run(list(expected), {name: inputs[name].numpy() for name in wanted})
        for (name, value), other in zip(expected.items(), found, strict=True):
            difference = float(np.max(np.abs(value.numpy().astype(np.float64) - np.asarray(other, dtype=np.float64))))
            limit = TOLERANCE if value.is_floating_point() else 0.0
            if not difference <= limit:
                raise QuintainError(
                    f"the exported policy differs from the original in {name} by {difference:g} (at most {limit:g} is "
                    f"allowed), so it was not kept. Please report it with the policy's settings",
                    code="E0901",
                )
            largest = max(largest, difference)
    return largest


def require_libraries() -> Any:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # the exporter needs it, and would say so at length
    except ImportError as error:
        raise SettingsError(
            f"export needs onnx, onnxscript and onnxruntime ({error}). Install them: {install_command('export')}",
            code="E0242",
        ) from error
    return onnxruntime


def with_constants(model: bytes, constants: Mapping[str, Array]) -> bytes:
    """Replaces constant outputs by initializers of their names, as some readers expect."""
    import onnx

    proto = onnx.load_from_string(model)
    graph = proto.graph
    for node in [each for each in graph.node if each.output[0] in constants]:
        graph.node.remove(node)
    for name, value in constants.items():
        tensor = onnx.numpy_helper.from_array(value)
        graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], name=name, value=tensor))
    _drop_unneeded(graph)
    found: bytes = proto.SerializeToString()
    return found


def _drop_unneeded(graph: Any) -> None:
    """Removes unused nodes and initializers; equal constants share one initializer, so that some are still needed."""
    kept = {each.name for each in graph.output}
    while True:
        needed = kept | {name for node in graph.node for name in node.input}
        idle = [node for node in graph.node if not needed & set(node.output)]
        if not idle:
            break
        for node in idle:
            graph.node.remove(node)
    for value in [each for each in graph.initializer if each.name not in needed]:
        graph.initializer.remove(value)


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hides the exporter's warnings: the result is compared afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _exporter_explained(policy: Policy) -> Iterator[None]:
    """Refuses a policy that the exporter cannot translate, or only for one size of the batch."""
    try:
        yield
    except Exception as error:  # of torch's exporter and of ONNX Runtime, which share no class
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        module = type(getattr(policy, "network", policy)).__name__
        first = f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0][:200]}"
        raise SettingsError(
            f"{module} cannot be exported to ONNX ({first}). A module may use only operations that ONNX has, and the "
            f"shape of a tensor in place of len() or a number in Python",
            code="E0902",
        ) from error


def require_cpu(policy: Policy) -> Policy:
    if policy.device.type != "cpu":
        raise SettingsError("export a policy that is on the CPU: policy.to('cpu')")
    return policy


def _output_names(policy: Policy) -> list[str]:
    return [*leaves(policy.spec.action, f.ACTION), LOG_PROB, *([NEXT_STATE] if policy.state_size else [])]


def _from_env(value: torch.Tensor, leaf: LeafSpec) -> torch.Tensor:
    if isinstance(leaf, DiscreteSpec):
        return value - leaf.start
    if isinstance(leaf, BoxSpec):
        return value
    row = value.reshape(value.shape[0], len(leaf.nvec))
    return row - torch.tensor(leaf.starts) if leaf.starts else row


def _to_env(value: torch.Tensor, leaf: LeafSpec) -> torch.Tensor:
    if isinstance(leaf, DiscreteSpec):
        return value + leaf.start
    if isinstance(leaf, BoxSpec):
        return value
    numbered = value + torch.tensor(leaf.starts) if leaf.starts else value
    return numbered.reshape(value.shape[0], *graph_shape(leaf))


def _describe_leaf(leaf: LeafSpec) -> dict[str, Any]:
    about: dict[str, Any] = {"dtype": leaf.dtype, "shape": ["batch", *graph_shape(leaf)]}
    if isinstance(leaf, DiscreteSpec):
        return {**about, "low": leaf.start, "high": leaf.start + leaf.n - 1}
    if isinstance(leaf, BoxSpec):
        low, high = ([float(x) if np.isfinite(x) else None for x in bound] for bound in (leaf.low, leaf.high))
        return {**about, "low": low, "high": high}
    starts = leaf.starts or (0,) * len(leaf.nvec)
    ranges = {"low": list(starts), "high": [start + n - 1 for start, n in zip(starts, leaf.nvec, strict=True)]}
    return {**about, **ranges, **({"characters": leaf.characters} if leaf.characters else {})}
