"""An exported policy takes what the environment gives, answers what the policy answers, and carries its memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, DictSpec, MultiDiscreteSpec, TupleSpec, box, discrete, multi_discrete
from quintain.errors import QuintainError, SettingsError
from quintain.policies import export, heads
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.encoders import ImageEncoder
from quintain.policies.memory import GatedMemory
from quintain.policies.normalizer import ObsNormalizer
from quintain.policies.q_network import QNetwork
from quintain.policies.settings import (
    ActorCriticSettings,
    ActorOnlySettings,
    DeterministicActorSettings,
    MemorySettings,
    QNetworkSettings,
    SoftActorSettings,
)
from quintain.policies.soft_actor import SoftActor

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [export], which `make install` installs")
pytestmark = pytest.mark.slow

CAMERA = box(40, 40, 3, low=0, high=255, dtype="uint8")
CASES: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "choices from one": (BehaviorSpec(box(4), discrete(3, start=1)), {"normalize_obs": True}),
    "clipped numbers": (BehaviorSpec(box(3), box(2, low=-0.1, high=0.1)), {}),
    "squashed numbers": (
        BehaviorSpec(box(3), box(2, low=-2.0, high=1.0)),
        {"squash_actions": True, "state_dependent_std": True},
    ),
    "lstm": (BehaviorSpec(box(3), multi_discrete(2, 3)), {"memory": MemorySettings(cell="lstm", size=8)}),
    "gru, groups, hybrid": (
        BehaviorSpec(DictSpec((("a", box(3)), ("b", box(2)), ("c", discrete(3, start=5)))),
                     TupleSpec((discrete(2), box(1)))),
        {"memory": MemorySettings(cell="gru", size=8), "actor_obs": ("a", "c"), "critic_obs": ("a", "b")},
    ),
    "stack of frames": (BehaviorSpec(box(4, 24, 20, 3, low=0, high=255, dtype="uint8"), discrete(2)), {}),
    "small image": (BehaviorSpec(box(24, 20, 3, low=0, high=255, dtype="uint8"), discrete(2)), {}),
    "transformer": (
        BehaviorSpec(box(3), discrete(3)),
        {"memory": MemorySettings(cell="transformer", size=8, window=4, num_layers=2, num_heads=2)},
    ),
    "image": (BehaviorSpec(DictSpec((("camera", CAMERA), ("bits", multi_discrete(2, 2)))), discrete(3)), {}),
    "masked": (BehaviorSpec(box(3), TupleSpec((discrete(4), multi_discrete(2, 3))), mask_size=9), {}),
    "arranged choices": (
        BehaviorSpec(MultiDiscreteSpec((3, 3, 2, 2), (1, 1, 0, 0), (2, 2)), MultiDiscreteSpec((2, 4), (5, 0), (2, 1))),
        {},
    ),
}  # fmt: skip


def policy_of(name: str) -> ActorCritic:
    spec, settings = CASES[name]
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(16,), **settings), spec, Rng(3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    if settings.get("normalize_obs"):
        policy.observe({"obs": np.random.default_rng(0).normal(2.0, 5.0, (100, 4)).astype(np.float32)})
    return policy


class Exports(dict[str, export.Exported]):
    """Exports a case when it is first asked for, which takes a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, name: str) -> export.Exported:
        self[name] = export.export_onnx(policy_of(name), self.folder / name.replace(" ", "_"), {"step": 7})
        return self[name]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    return Exports(tmp_path_factory.mktemp("export"))


def session_of(found: export.Exported) -> Any:
    return onnxruntime.InferenceSession(str(found.model), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", CASES)
def test_it_answers_what_predict_answers_and_its_contract_says_what_it_takes(name: str, exported: Exports) -> None:
    for num_rows in (1, 5):
        check_answers(policy_of(name), session_of(exported[name]), num_rows)
    check_contract(policy_of(name), exported[name])


def check_answers(policy: ActorCritic, session: Any, num_rows: int) -> None:
    """`predict` is another way through the code than the graph was traced from: numpy in and out, in spec's shape."""
    from quintain.data.spec import build, flatten

    inputs = {k: v.numpy() for k, v in export.random_inputs(policy, num_rows, Rng(9)).items()}
    wanted = [each.name for each in session.get_inputs()]
    outputs = dict(zip([each.name for each in session.get_outputs()],
                       session.run(None, {k: inputs[k] for k in wanted}), strict=True))  # fmt: skip
    obs = build(policy.spec.obs, inputs, "obs")
    # `predict` takes no `first`: at the start of an episode the memory is zero.
    state = inputs["state"] * ~inputs["first"][:, None] if policy.state_size else None
    action, next_state = policy.predict(obs, state, action_mask=inputs.get("action_mask"))
    for leaf, value in flatten(policy.spec.action, action, "action").items():
        np.testing.assert_allclose(outputs[leaf], value, atol=1e-4)
        assert outputs[leaf].shape == np.shape(value)
    if policy.state_size:
        np.testing.assert_allclose(outputs["next_state"], next_state, atol=1e-4)


def check_contract(policy: ActorCritic, found: export.Exported) -> None:
    contract = json.loads(found.contract.read_text())
    session = session_of(found)
    for key, listed in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert [each["name"] for each in contract[key]] == [each.name for each in listed]
        for described, each in zip(contract[key], listed, strict=True):
            assert described["shape"][1:] == list(each.shape[1:]), each.name
            assert isinstance(each.shape[0], str), "the batch size became a constant"
            assert described["dtype"] in {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool",
                                          "tensor(uint8)": "uint8"}[each.type]  # fmt: skip
    assert contract["sha256"] == hashlib.sha256(found.model.read_bytes()).hexdigest()
    assert contract["spec"] == policy.spec.to_dict()
    assert contract["step"] == 7
    assert contract["compared"]["num_inputs"] == 128
    assert found.largest_difference <= 1e-4


def test_ranges_are_those_of_the_spaces(exported: dict[str, export.Exported]) -> None:
    inputs = {e["name"]: e for e in json.loads(exported["gru, groups, hybrid"].contract.read_text())["inputs"]}
    assert (inputs["obs.c"]["low"], inputs["obs.c"]["high"]) == (5, 7)
    assert inputs["obs.a"]["low"] == [None, None, None]
    assert inputs["state"]["shape"] == ["batch", 16]  # the actor's memory and the critic's


def test_the_log_probability_is_that_of_the_choice(exported: dict[str, export.Exported]) -> None:
    policy = policy_of("choices from one")
    obs = np.random.default_rng(3).normal(2.0, 5.0, (6, 4)).astype(np.float32)
    chosen, log_prob = session_of(exported["choices from one"]).run(["action", "log_prob"], {"obs": obs})
    batch = {
        "obs": torch.from_numpy(obs),
        "action": torch.from_numpy(chosen - 1),
        "first": torch.zeros(6, dtype=torch.bool),
    }
    with torch.no_grad():
        expected = policy.evaluate_actions(batch)["sample_log_prob"]
    np.testing.assert_allclose(log_prob, expected.numpy(), atol=1e-5)
    assert (log_prob < 0).all()


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_memory_carried_over_steps_is_the_policys(kind: str, exported: dict[str, export.Exported]) -> None:
    policy, session = policy_of(kind), session_of(exported[kind])
    states: dict[str, Any] = {"mine": np.zeros((1, policy.state_size), np.float32), "theirs": None}
    draw = np.random.default_rng(4)
    for step in range(10):
        obs = draw.normal(size=(1, 3)).astype(np.float32)
        given = {"obs": obs, "first": np.array([step == 0]), "state": states["mine"]}
        action, states["mine"] = session.run(["action", "next_state"], given)
        expected, states["theirs"] = policy.predict(obs, states["theirs"])
        assert action.tolist() == expected.tolist()
    assert np.abs(states["mine"]).max() > 0.1


def test_actions_stay_in_their_bounds(exported: dict[str, export.Exported]) -> None:
    inputs = {"obs": np.full((3, 3), 100.0, np.float32) * np.array([[1], [-1], [0]], np.float32)}
    [clipped] = session_of(exported["clipped numbers"]).run(["action"], inputs)
    assert np.abs(clipped).max() == pytest.approx(0.1)
    [squashed] = session_of(exported["squashed numbers"]).run(["action"], inputs)
    assert (squashed >= -2.0).all()
    assert (squashed <= 1.0).all()


def test_masked_choices_are_never_chosen(exported: dict[str, export.Exported]) -> None:
    session, draw = session_of(exported["masked"]), np.random.default_rng(0)
    for only in range(4):
        mask = np.ones((6, 9), np.bool_)
        mask[:, :4] = False
        mask[:, only] = True
        obs = draw.normal(size=(6, 3)).astype(np.float32)
        chosen, _ = session.run(["action.0", "action.1"], {"obs": obs, "action_mask": mask})
        assert set(chosen.tolist()) == {only}


def test_a_policy_without_a_critic_is_exported_too(tmp_path: Path) -> None:
    policy = ActorOnly(ActorOnlySettings(hidden_sizes=(4,)), BehaviorSpec(box(2), discrete(2)), Rng(0))
    assert export.export_onnx(policy, tmp_path, {}).model.is_file()


def test_a_policy_with_several_values_is_exported_too(tmp_path: Path) -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), BehaviorSpec(box(2), discrete(2)), Rng(0))
    policy.split_values(2)
    assert export.export_onnx(policy, tmp_path, {}).model.is_file()


def test_a_file_that_does_not_agree_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = export.ActingModule.forward
    calls = 0

    def drifting(self: Any, inputs: Any) -> Any:
        nonlocal calls
        calls += 1
        outputs = original(self, inputs)
        # What is traced is right; what it is compared with is not.
        return outputs if torch.compiler.is_compiling() else {k: v + 1 for k, v in outputs.items()}

    monkeypatch.setattr(export.ActingModule, "forward", drifting)
    with pytest.raises(QuintainError, match="differs from the original in action by 1") as failed:
        export.export_onnx(policy_of("clipped numbers"), tmp_path, {})
    assert failed.value.code == "E0901"
    assert calls > 1
    assert list(tmp_path.iterdir()) == []


def without_first(self: Any, inputs: Any, state: Any, first: Any) -> Any:
    return MEMORY_NEXT(self, inputs, state, torch.zeros_like(first))


MEMORY_NEXT = GatedMemory._next
MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "no normaliser": ("choices from one", ObsNormalizer, "forward", lambda self, obs: obs.clamp(-10.0, 10.0)),
    "no clipping": ("clipped numbers", ActorCritic, "env_action", lambda self, slot: slot.action),
    "no mask": ("masked", heads, "_log_softmax", lambda output, mask: torch.log_softmax(output, -1)),
    "lstm goes on at a start": ("lstm", GatedMemory, "_next", without_first),
    "gru goes on at a start": ("gru, groups, hybrid", GatedMemory, "_next", without_first),
    "choices from zero": ("choices from one", export, "_to_env", lambda value, leaf: value),
    "pixels from 0 to 255": (
        "image",
        ImageEncoder,
        "forward",
        lambda self, i: self.layers(i.permute(0, 3, 1, 2).float()),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_graph_that_lacks_a_part_is_not_kept(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, method, broken = MUTANTS[mutant]
    original = getattr(owner, method)

    def sometimes(*args: Any) -> Any:
        # Only the graph is broken, as a fault of the exporter would be; what it is compared with is right.
        return (broken if torch.compiler.is_compiling() else original)(*args)

    monkeypatch.setattr(owner, method, sometimes)
    with pytest.raises(QuintainError, match="differs from the original in") as failed:
        export.export_onnx(policy_of(name), tmp_path, {})
    assert failed.value.code == "E0901"
    assert list(tmp_path.iterdir()) == []


def test_inputs_are_drawn_where_the_policy_has_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from what it knows, a normaliser maps everything to its clip, and a comparison there would say nothing."""
    policy = ActorCritic(
        ActorCriticSettings(hidden_sizes=(4,), normalize_obs=True), BehaviorSpec(box(2), box(1)), Rng(0)
    )
    policy.observe({"obs": np.random.default_rng(0).normal([1e4, -50.0], [3.0, 0.1], (500, 2)).astype(np.float32)})
    rows = export.random_inputs(policy, 200, Rng(1))["obs"].numpy()
    familiar, allowed = rows[::2], rows[1::2]
    np.testing.assert_allclose(familiar.mean(axis=0), [1e4, -50.0], atol=1.0)
    np.testing.assert_allclose(familiar.std(axis=0), [3.0, 0.1], rtol=0.3)
    assert np.abs(allowed).max() <= 3.0


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(QuintainError, match="Choose another place with --out") as failed:
        export.export_onnx(policy_of("clipped numbers"), tmp_path / "file", {})
    assert failed.value.code == "E0305"
    assert (tmp_path / "file").read_text() == "mine"


def test_an_earlier_export_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for step in (1, 2):
        found = export.export_onnx(policy_of("clipped numbers"), tmp_path, {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.json", "policy.onnx"]
    contract = json.loads(found.contract.read_text())
    assert contract["step"] == 2
    assert contract["sha256"] == hashlib.sha256(found.model.read_bytes()).hexdigest()


def test_without_the_libraries_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(SettingsError, match=r"pip install .*\[export\]'") as failed:
        export.export_onnx(policy_of("clipped numbers"), tmp_path, {})
    assert failed.value.code == "E0242"


@pytest.mark.parametrize("memory", [None, MemorySettings(cell="lstm", size=8)], ids=["none", "lstm"])
def test_a_soft_actor_answers_what_predict_answers(memory: MemorySettings | None, tmp_path: Path) -> None:
    settings = SoftActorSettings(hidden_sizes=(16,), memory=memory, compiled=False)
    policy = SoftActor(settings, BehaviorSpec(box(3), box(2, low=-1.0, high=1.0)), Rng(3))
    # As an algorithm leaves it that has learned nothing yet.
    policy.acts_at_random.fill_(True)
    session = session_of(export.export_onnx(policy, tmp_path, {}))
    inputs = {k: v.numpy() for k, v in export.random_inputs(policy, 2, Rng(9)).items()}
    answered = dict(zip([each.name for each in session.get_outputs()], session.run(None, inputs), strict=True))
    before = None
    if memory is not None:
        before = np.where(inputs["first"][:, None], np.float32(0.0), inputs["state"])
    action, after = policy.predict(inputs["obs"], before)
    np.testing.assert_allclose(answered["action"], action, atol=1e-5)
    if memory is not None:
        np.testing.assert_allclose(answered["next_state"], after.numpy(), atol=1e-5)


@pytest.mark.parametrize("is_dueling", [False, True])
def test_a_q_network_answers_with_the_best_action(is_dueling: bool, tmp_path: Path) -> None:
    spec = BehaviorSpec(box(3), discrete(4, start=2), mask_size=4)
    policy = QNetwork(QNetworkSettings(hidden_sizes=(16,), dueling=is_dueling), spec, Rng(3))
    obs, mask = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32), np.ones((20, 4), np.bool_)
    mask[::2, 0] = False
    session = session_of(export.export_onnx(policy, tmp_path, {}))
    [found] = session.run(["action"], {"obs": obs, "action_mask": mask})
    np.testing.assert_array_equal(found, policy.predict(obs, action_mask=mask)[0])
    assert len(set(found.tolist())) > 1


def test_a_deterministic_actor_answers_within_its_bounds(tmp_path: Path) -> None:
    spec = BehaviorSpec(box(3), box(2, low=-1.0, high=3.0))
    policy = DeterministicActor(DeterministicActorSettings(hidden_sizes=(16,)), spec, Rng(3))
    obs = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    [found] = session_of(export.export_onnx(policy, tmp_path, {})).run(["action"], {"obs": obs})
    np.testing.assert_allclose(found, policy.predict(obs)[0], atol=1e-5)
    assert -1.0 <= found.min() < found.max() <= 3.0
