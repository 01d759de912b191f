"""Files for Unity: its names, shapes and constants, and what our own policies do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, BoxSpec, TupleSpec, box, discrete, multi_discrete
from quintain.errors import QuintainError, SpecMismatch
from quintain.policies import heads
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import Policy
from quintain.policies.export import ActingModule
from quintain.policies.memory import GatedMemory
from quintain.policies.normalizer import ObsNormalizer
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from quintain.policies.unity_export import UnityModule, export_unity

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def spec_of(num_continuous: int, branches: tuple[int, ...], *obs: BoxSpec) -> BehaviorSpec:
    parts: list[Any] = [box(num_continuous, low=-1.0, high=1.0)] if num_continuous else []
    parts += [multi_discrete(*branches)] if branches else []
    return BehaviorSpec(
        obs=TupleSpec(obs) if len(obs) > 1 else obs[0],
        action=TupleSpec(tuple(parts)) if len(parts) > 1 else parts[0],
        mask_size=sum(branches),
    )


def actor_critic(spec: BehaviorSpec, **settings: Any) -> ActorCritic:
    return ActorCritic(ActorCriticSettings(hidden_sizes=(8,), activation="silu", **settings), spec, Rng(0))


def lively(policy: Policy) -> Policy:
    """Returns the policy with weights that make a difference, and with a scale of its own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 9
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * fan_in**-0.5)
    draw = np.random.default_rng(0)
    names = {f"obs.{i}": leaf for i, leaf in enumerate(policy.spec.obs.entries)} if isinstance(
        policy.spec.obs, TupleSpec
    ) else {"obs": policy.spec.obs}  # fmt: skip
    policy.observe({name: draw.normal(2.0, 3.0, (50, *leaf.shape)).astype(np.float32) for name, leaf in names.items()})  # type: ignore[union-attr]
    return policy


MEMORY = {"cell": "lstm", "size": 6}
POLICIES: dict[str, Policy] = {
    # Three numbers, so that their count equals the version: equal constants must not become one.
    "numbers": lively(actor_critic(spec_of(3, (), box(4)), normalize_obs=True)),
    "choices": lively(actor_critic(spec_of(0, (3, 2), box(4)))),
    "hybrid": lively(actor_critic(spec_of(2, (3,), box(4), box(2, 2), box(9, 8, 3)), normalize_obs=True)),
    "lstm": lively(actor_critic(spec_of(1, (2, 2), box(3)), memory=MEMORY)),
    "gru": lively(actor_critic(spec_of(0, (4,), box(3)), memory={"cell": "gru", "size": 5})),
    "soft": lively(SoftActor(SoftActorSettings(hidden_sizes=(8,)), spec_of(2, (3, 2), box(4)), Rng(0))),
    "transformer": lively(
        actor_critic(spec_of(1, (2, 2), box(3)), memory={"cell": "transformer", "size": 8, "window": 4})
    ),
    "soft memory": lively(
        SoftActor(SoftActorSettings(hidden_sizes=(8,), memory={"size": 4}), spec_of(1, (2,), box(3)), Rng(0))  # type: ignore[arg-type]  # read as in a file
    ),
    "soft numbers": lively(SoftActor(SoftActorSettings(hidden_sizes=(8,)), spec_of(1, (), box(4)), Rng(0))),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("unity")
    paths = {name: folder / f"{name}.onnx" for name in POLICIES}
    for name, path in paths.items():
        assert export_unity(POLICIES[name], path) < 1e-5
    return paths


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def described(values: Any) -> dict[str, tuple[str, list[Any]]]:
    return {each.name: (each.type, each.shape) for each in values}


FLOAT, WHOLE = "tensor(float)", "tensor(int64)"
NUMBERS = ["continuous_actions", "continuous_action_output_shape", "deterministic_continuous_actions"]
CHOICES = ["discrete_actions", "discrete_action_output_shape", "deterministic_discrete_actions"]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("numbers", ["obs_0"], NUMBERS),
        ("choices", ["obs_0", "action_masks"], CHOICES),
        ("hybrid", ["obs_0", "obs_1", "obs_2", "action_masks"], [*NUMBERS, *CHOICES]),
        ("lstm", ["obs_0", "action_masks", "recurrent_in"], [*NUMBERS, *CHOICES, "recurrent_out"]),
        ("soft numbers", ["obs_0"], NUMBERS),
    ],
)
def test_names_and_their_order_are_those_that_unity_reads(
    files: dict[str, Path], name: str, inputs: list[str], outputs: list[str]
) -> None:
    session = session_of(files[name])
    assert [each.name for each in session.get_inputs()] == inputs
    assert [each.name for each in session.get_outputs()] == ["version_number", "memory_size", *outputs]


def test_shapes_and_types_are_those_that_unity_reads(files: dict[str, Path]) -> None:
    hybrid, lstm = session_of(files["hybrid"]), session_of(files["lstm"])
    assert described(hybrid.get_inputs()) == {
        "obs_0": (FLOAT, ["batch", 4]),
        "obs_1": (FLOAT, ["batch", 2, 2]),
        "obs_2": (FLOAT, ["batch", 9, 8, 3]),
        "action_masks": (FLOAT, ["batch", 3]),
    }
    assert described(lstm.get_inputs())["recurrent_in"] == (FLOAT, ["batch", 1, 12])
    assert described(lstm.get_outputs()) == {
        "version_number": (FLOAT, [1]),
        "memory_size": (FLOAT, [1]),
        "continuous_actions": (FLOAT, ["batch", 1]),
        "continuous_action_output_shape": (FLOAT, [1]),
        "deterministic_continuous_actions": (FLOAT, ["batch", 1]),
        "discrete_actions": (WHOLE, ["batch", 2]),
        "discrete_action_output_shape": (FLOAT, [1, 2]),
        "deterministic_discrete_actions": (WHOLE, ["batch", 2]),
        "recurrent_out": (FLOAT, ["batch", 1, 12]),
    }


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("numbers", {"version_number": [3.0], "memory_size": [0.0], "continuous_action_output_shape": [3.0]}),
        ("choices", {"version_number": [3.0], "memory_size": [0.0], "discrete_action_output_shape": [[3.0, 2.0]]}),
        ("lstm", {"version_number": [3.0], "memory_size": [12.0], "continuous_action_output_shape": [1.0],
                  "discrete_action_output_shape": [[2.0, 2.0]]}),
        ("gru", {"version_number": [3.0], "memory_size": [5.0], "discrete_action_output_shape": [[4.0]]}),
    ],
)  # fmt: skip
def test_what_never_changes_is_a_constant_of_its_name(files: dict[str, Path], name: str, constants: Any) -> None:
    model = onnx.load(str(files[name]))
    onnx.checker.check_model(model)
    assert [each.version for each in model.opset_import] == [9]
    found = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t).tolist()
        for node in model.graph.node
        if node.op_type == "Constant" and node.output[0] in constants
    }
    assert found == constants


def test_the_likeliest_action_is_the_policys_own(files: dict[str, Path]) -> None:
    """`predict` acts by the compiled kernels wherever there are some, so that this is another way to the numbers."""
    for name in ("numbers", "soft numbers"):
        seen = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
        [found] = session_of(files[name]).run(["deterministic_continuous_actions"], {"obs_0": seen})
        expected, _ = POLICIES[name].predict(seen)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert np.abs(found).max() <= 1.0


def test_memory_goes_from_step_to_step(files: dict[str, Path]) -> None:
    session, policy = session_of(files["lstm"]), POLICIES["lstm"]
    memory: Any = np.zeros((1, 1, 12), np.float32)
    state = None
    draw = np.random.default_rng(2)
    for _ in range(6):
        seen = draw.normal(size=(1, 3)).astype(np.float32)
        given = {"obs_0": seen, "action_masks": np.ones((1, 4), np.float32), "recurrent_in": memory}
        wanted = ["deterministic_continuous_actions", "deterministic_discrete_actions", "recurrent_out"]
        numbers, choices, memory = session.run(wanted, given)
        expected, state = policy.predict(seen, state, action_mask=np.ones((1, 4), np.bool_))
        np.testing.assert_allclose(numbers, expected[0], atol=1e-5)
        assert choices.tolist() == expected[1].tolist()
    assert np.abs(memory).max() > 0.1


@pytest.mark.parametrize("name", ["choices", "soft"])
def test_choices_are_drawn_with_the_policys_probabilities_and_never_against_a_mask(
    files: dict[str, Path], name: str
) -> None:
    onnxruntime.set_seed(3)
    rows, policy = 20_000, POLICIES[name]
    seen = np.repeat(np.random.default_rng(3).normal(size=(1, 4)).astype(np.float32), rows, axis=0)
    mask = np.ones((rows, 5), np.float32)
    mask[:, 1] = 0.0
    [drawn] = session_of(files[name]).run(["discrete_actions"], {"obs_0": seen, "action_masks": mask})
    assert not (drawn[:, 0] == 1).any()
    batch = {"obs": torch.from_numpy(seen[:3]), "action_mask": torch.from_numpy(mask[:3] > 0)}
    named = "action" if name == "choices" else "action.1"
    batch[named] = torch.tensor([[0, 0], [2, 0], [0, 1]])
    if name == "soft":
        batch["action.0"] = torch.zeros(3, 2)
    with torch.no_grad():
        log_prob = policy.evaluate_actions(batch)["sample_log_prob"]
    # The numbers have the same density in all three rows, so that ratios are those of the choices alone.
    first, second, both = log_prob.tolist()
    counts = [np.mean((drawn == pair).all(axis=1)) for pair in ([0, 0], [2, 0], [0, 1])]
    assert counts[1] / counts[0] == pytest.approx(np.exp(second - first), rel=0.15)
    assert counts[2] / counts[0] == pytest.approx(np.exp(both - first), rel=0.15)


def test_numbers_are_drawn_around_the_likeliest_and_cut(files: dict[str, Path]) -> None:
    onnxruntime.set_seed(4)
    policy = POLICIES["numbers"]
    seen = np.zeros((20_000, 4), np.float32)
    drawn, likeliest = session_of(files["numbers"]).run(
        ["continuous_actions", "deterministic_continuous_actions"], {"obs_0": seen}
    )
    deviation = np.exp(policy.head.parts[0].log_std.detach().numpy())  # type: ignore[union-attr, operator]
    with torch.no_grad():
        mean = policy.head_output({"obs": torch.zeros(1, 4)}, torch.zeros(1, 0))[0].numpy()  # type: ignore[operator]
    # The part of a normal distribution that lies below -1, and so is cut to it.
    below = 0.5 * (1.0 + torch.erf(torch.from_numpy((-1.0 - mean[0]) / (deviation * 2**0.5))))
    np.testing.assert_allclose((drawn == -1.0).mean(axis=0), below.numpy(), atol=0.02)
    np.testing.assert_allclose(likeliest[0], np.clip(mean[0], -1.0, 1.0), atol=1e-5)


def test_drawing_while_it_is_written_moves_no_generator(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    export_unity(POLICIES["numbers"], tmp_path / "a.onnx")
    assert torch.equal(before, torch.get_rng_state())


def without_mask(output: Any, mask: Any) -> Any:
    return torch.log_softmax(output, -1)


MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "no normaliser": ("numbers", ObsNormalizer, "forward", lambda self, obs: obs.clamp(-10.0, 10.0)),
    "no mask": ("choices", heads, "_log_softmax", without_mask),
    "memory stands still": ("lstm", GatedMemory, "_next", lambda self, inputs, state, first: state),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_file_that_does_not_agree_is_not_kept(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, method, broken = MUTANTS[mutant]
    original, acting, is_original = getattr(owner, method), ActingModule.forward, False

    def right(self: Any, inputs: Any) -> Any:
        nonlocal is_original
        is_original = True
        try:
            return acting(self, inputs)
        finally:
            is_original = False

    monkeypatch.setattr(ActingModule, "forward", right)
    monkeypatch.setattr(owner, method, lambda *args: (original if is_original else broken)(*args))
    with pytest.raises(QuintainError, match="written for Unity differs from the original in") as failed:
        export_unity(POLICIES[name], tmp_path / "a.onnx")
    assert failed.value.code == "E0901"
    assert list(tmp_path.iterdir()) == []


def test_spaces_that_unity_does_not_have_are_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"Unity's agents have continuous observations, and obs is Discrete\(3\)"):
        UnityModule(actor_critic(BehaviorSpec(discrete(3), discrete(2))))
    with pytest.raises(SpecMismatch, match="in a row from zero"):
        UnityModule(actor_critic(BehaviorSpec(box(3), discrete(2, start=1))))


def test_a_policy_of_another_kind_is_refused_with_what_it_lacks() -> None:
    class Other(Policy):
        spec = spec_of(1, (), box(2))

        def act(self, *args: Any, **kwargs: Any) -> None: ...
        def value_of(self, *args: Any) -> Any: ...
        def evaluate_actions(self, batch: Any) -> Any: ...

    with pytest.raises(SpecMismatch, match="a Other has no head_output"):
        UnityModule(Other())
