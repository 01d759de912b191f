"""Learning on another device than acting: the numbers of the CPU, from memory of the CPU.

The device is `tests/pretended.py`: there was no GPU on which this could have run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.envs.hosts.hosting import Hosting
from quintain.errors import SettingsError
from quintain.online import start_rolloutmanager, start_trainer
from quintain.placements.ray import weights
from quintain.placements.ray.learners import reserved_for
from quintain.placements.ray.weights import PublishedToActors
from quintain.placements.settings import RaySettings
from quintain.placements.snapshots import Label, make_snapshot
from quintain.runs import assemble
from quintain.runs.acting import ActingPlan
from quintain.runs.parts import resolve_device
from quintain.settings.tree import RunFile
from tests.algorithms.samples import CHOICES, make_policy
from tests.contracts.cases import TEAMS, make_trainer, run_file
from tests.envs.fragile import Walk
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator
from tests.placements.runs import LANES, STEPS
from tests.placements.test_agents import settings as settings_of_agents
from tests.placements.test_stops import through_files
from tests.pretended import DEVICE, pretended_device

PPO: dict[str, Any] = {
    "num_steps": STEPS, "batch_size": 16, "num_epochs": 2, "normalize_obs": True, "policy.compiled": False,
}  # fmt: skip
REPLAY: dict[str, Any] = {
    "num_steps": 4, "learning_starts": 32, "batch_size": 16, "hidden_sizes": [16], "buffer_size": 1000,
    "policy.compiled": False,
}  # fmt: skip
REFERENCE: dict[str, Any] = {"num_steps": STEPS, "batch_size": 16, "kl_coef": 0.1, "value_warmup": 1}
STALE: dict[str, Any] = {"max_staleness": 1, "stale_correction": "decoupled"}
RUNS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("ppo", Walk, PPO),
    "ppo, decoupled": ("ppo", Walk, {**PPO, **STALE}),
    "ppo, decoupled, of sequences": ("ppo", Walk, {**PPO, **STALE, "memory": {}, "micro_batch_size": 16}),
    "ppo, of transformer memory": ("ppo", Walk, {**PPO, "memory": {"cell": "transformer"}}),
    "ppo, target_kl": ("ppo", Walk, {**PPO, "target_kl": 0.01, "clip_per_component": True}),
    "a2c": ("a2c", Walk, {"num_steps": STEPS}),
    "reinforce": ("reinforce", Walk, {"num_steps": STEPS}),
    "grpo": ("grpo", Walk, {"num_steps": STEPS, "batch_size": 16, "group_size": 2, "kl_coef": 0.1}),
    "online_ppo": ("online_ppo", Walk, REFERENCE),
    "sac": ("sac", "Pendulum-v1", REPLAY),
    "sac, entropy_coef": ("sac", "CartPole-v1", {**REPLAY, "entropy_coef": 0.1}),
    "sac, of sequences": ("sac", "Pendulum-v1", {**REPLAY, "memory": {}}),
    "td3": ("td3", "Pendulum-v1", REPLAY),
    "dqn": ("dqn", "CartPole-v1", REPLAY),
}


def make(algorithm: str, env: Any, settings: dict[str, Any], placement: str = "processes") -> Trainer:
    chosen = {"num_lanes": LANES, "seed": 4, "writers": [], "events": [], "placement": placement, **settings}
    return Trainer(algorithm, env, **chosen)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in trainer.policy.state_dict().items()}


def trained(algorithm: str, env: Any, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[float]]:
    trainer = make(algorithm, env, settings)
    trainer.train(5 * LANES * STEPS)
    assert trainer.progress.updates >= 5
    assert trainer.store.block.device.type == "cpu"
    found = weights_of(trainer), list(trainer.ret_window)
    trainer.close()
    return found


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Returns a context in which policies of runs are on the device."""

    def entered() -> Any:
        monkeypatch.setattr(assemble, "resolve_device", lambda *_: DEVICE)
        return pretended_device()

    return entered


def test_tensors_of_the_pretended_device_mix_with_nothing_on_the_cpu() -> None:
    with pretended_device() as device:
        there = torch.arange(3.0, device=device)
        assert there.device == device
        assert (there[1:] * 2.0).tolist() == [2.0, 4.0]
        with pytest.raises(RuntimeError, match="on the CPU and on the device"):
            there + torch.zeros(3)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_what_is_learned_on_another_device_is_what_is_learned_on_the_cpu(
    name: str, on_device: Callable[[], Any]
) -> None:
    algorithm, env, settings = RUNS[name]
    weights, returns = trained(algorithm, env, settings)
    with on_device():
        found, found_returns = trained(algorithm, env, settings)
    assert found_returns == returns
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=0.0, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", TEAMS)
def test_teams_learn_on_another_device(algorithm: str, on_device: Callable[[], Any]) -> None:
    def learned() -> dict[str, torch.Tensor]:
        trainer = make_trainer(run_file(algorithm=algorithm, policy=plain).replace("run.placement.type", "processes"))
        trainer.train()
        found = weights_of(trainer)
        trainer.close()
        return found

    plain = {"type": "team", "agents": ["prover", "verifier"], "hidden_sizes": [8, 8], "compiled": False}
    weights = learned()
    with on_device():
        found = learned()
    assert all(torch.allclose(found[name], value, rtol=0.0, atol=1e-6) for name, value in weights.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter:UserWarning")
def test_a_run_of_the_cpu_goes_on_on_another_device(on_device: Callable[[], Any]) -> None:
    algorithm, env, settings = RUNS["ppo, decoupled"]
    first = make(algorithm, env, settings)
    first.train(3 * LANES * STEPS)
    state = through_files(first.state_dict())
    first.train(6 * LANES * STEPS)
    with on_device():
        second = make(algorithm, env, settings)
        second.load_state_dict(state)
        second.train(3 * LANES * STEPS)
        assert second.policy.device == DEVICE
        for name, value in weights_of(second).items():
            torch.testing.assert_close(value, first.policy.state_dict()[name], rtol=0.0, atol=1e-6)
        second.close()
    first.close()


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 2], ids=["local", "processes"])
@pytest.mark.parametrize("trainer_class", [None, OwnTrainer], ids=["PPOTrainer", "own"])
def test_trainers_of_minestudio_learn_there(
    trainer_class: Any, max_staleness: int, on_device: Callable[[], Any], tmp_path: Path
) -> None:
    """In turns acting is there, too. The module makes its first hidden state on the CPU, as a user's may."""
    given = online_dict(max_staleness, save_path=str(tmp_path), kl_divergence_coef_rho=0.1, use_normalized_vf=True)
    with on_device():
        start_rolloutmanager(policy_generator, env_generator, given)
        summary = start_trainer(policy_generator, env_generator, given, trainer_class=trainer_class)
    assert summary.updates == 4


def test_what_actors_read_is_in_memory_of_the_cpu() -> None:
    """Blocks, snapshots and the serialized plan of processes and of Ray; beside the policy where it acts itself."""
    with pretended_device() as device:
        policy = make_policy(CHOICES).to(device)
        assert {value.device for value in make_snapshot(policy).values()} == {device}
        assert {value.device.type for value in make_snapshot(policy, "cpu").values()} == {"cpu"}
        there = device.type
        for placement, where in (("processes", "cpu"), ("ray", "cpu"), ("local", there), ("threads", there)):
            more = ["num_gpus_per_rank=1"] if placement == "ray" else []
            plan = ActingPlan(settings(f"placement={placement}", "device=cuda", *more), Hosting())
            plan.fields["default"] = policy.declare_fields()
            for block in plan.make_blocks(4, {"default": policy})["default"]:
                assert {each.device.type for each in (*block.storage.values(), block.policy_state)} == {where}
                assert bool(block.arrays) == (where == "cpu")
            if where == "cpu":
                assert ActingPlan.from_json(plan.to_json()).run_file.run.device == "cpu"


def test_weights_for_rollout_actors_are_arrays_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[dict[str, np.ndarray]] = []
    monkeypatch.setattr(weights.api, "put", put.append)
    with pretended_device() as device:
        policy = make_policy(CHOICES)
        wanted = {name: value.clone() for name, value in policy.state_dict().items()}
        PublishedToActors("default", []).publish(Label(1, 1), policy.to(device))
    assert all(np.array_equal(put[0][name], value.numpy()) for name, value in wanted.items())


def settings(*overrides: str) -> RunFile:
    return RunFile.from_names("ppo", "CartPole-v1", "num_lanes=4", "max_staleness=1", *overrides)


REFUSED = {
    ("num_gpus_per_rank=1",): ("E0253", r"num_gpus_per_rank.*1 GPU of each rank would be idle.*run\.device"),
    ("device=cuda", "num_ranks=2"): ("E0253", r"run\.device.*cuda needs a GPU for each of 2.*num_gpus_per_rank"),
    ("device=auto", "num_ranks=2"): ("E0253", r"run\.device.*auto needs a GPU for each of 2.*num_gpus_per_rank"),
    ("device=cuda:1", "num_ranks=2", "num_gpus_per_rank=1"): (
        "E0253",
        r"cuda:1 names one GPU for 2 ranks.*set it to c",
    ),
    ("device=cuda", "num_gpus_per_rank=2"): ("E0205", r"num_gpus_per_rank.*1"),
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_gpus_that_nothing_would_use_and_ranks_without_one_are_refused(overrides: tuple[str, ...]) -> None:
    code, said = REFUSED[overrides]
    with pytest.raises(SettingsError, match=said) as refused:
        settings("placement=ray", *overrides)
    assert refused.value.code == code


@pytest.mark.parametrize("placement", ["processes", "ray"])
def test_what_agents_did_elsewhere_is_learned_from_on_the_cpu(placement: str) -> None:
    with pytest.raises(
        SettingsError, match=r"run\.device.*auto is for lanes: what agents did .* set it to cpu"
    ) as refused:
        RunFile.from_mapping(settings_of_agents("poca", placement, 1, device="auto"))
    assert refused.value.code == "E0218"


@pytest.mark.parametrize(
    "overrides",
    [
        ("placement=ray", "device=cuda"),
        ("placement=ray", "device=cuda", "num_ranks=2", "num_gpus_per_rank=0.5"),
        ("placement=processes", "device=cuda", "num_ranks=2"),
        ("placement=processes", "device=auto"),
    ],
    ids=" ".join,
)
def test_learners_of_processes_and_of_ray_may_be_on_gpus(overrides: tuple[str, ...]) -> None:
    assert settings(*overrides).run.device == overrides[1].removeprefix("device=")


def test_ranks_of_a_machine_take_its_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = [str(resolve_device("cuda", rank)) for rank in range(4)]
    # Rank 0, which may be alone, has the one that torch calls the current.
    assert found == ["cuda", "cuda:1", "cuda:0", "cuda:1"]
    assert str(resolve_device("cuda:1", 2)) == "cuda:1"
    assert str(resolve_device("auto", 3)) == "cuda:1"
    assert str(resolve_device("cpu", 3)) == "cpu"
    monkeypatch.setattr("quintain.placements.ray.cluster.is_in_ray", lambda: True)
    monkeypatch.setattr("ray.train.torch.get_device", lambda: torch.device("cuda:1"))
    assert str(resolve_device("cuda", 0)) == "cuda:1"


def test_ray_train_reserves_what_a_rank_has() -> None:
    assert reserved_for(RaySettings()) == {"resources_per_worker": {"CPU": 1.0}}
    reserved = reserved_for(RaySettings(num_gpus_per_rank=0.5, num_cpus_per_rank=2.0))
    assert reserved == {"use_gpu": True, "resources_per_worker": {"CPU": 2.0, "GPU": 0.5}}
