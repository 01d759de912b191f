"""Trainers by MineStudio's names: fetched fragments, faults, resume, kills, and what is left behind."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from quintain import Trainer
from quintain.algorithms.online_ppo import OnlinePPO
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs.minecraft import restarts
from quintain.envs.minecraft.tasks import look
from quintain.errors import EnvError, HostedError, SettingsError
from quintain.online import (
    BaseTrainer,
    FragmentIndex,
    GAEInfo,
    GAEWorker,
    PPOBCTrainer,
    PPOTrainer,
    get_rollout_manager,
    start_rolloutmanager,
    start_trainer,
)
from quintain.policies.mine_adapter import MinePolicyAdapter
from quintain.policies.recurrent_image import RecurrentImagePolicy
from quintain.policies.settings import MinePolicySettings
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from tests import warm
from tests.docs.pages import blocks
from tests.online.environments import Aging, Counter, aging_simulator, env_generator
from tests.online.parts import Counts, OwnTrainer, Small, image_policy_generator, online_dict, policy_generator
from tests.resume.outcome import digest_of, rows_of


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def named(config: dict[str, Any], name: str) -> dict[str, Any]:
    return {**config, "logger_config": {"name": name}}


def only_fetch(
    config: dict[str, Any], generator: Any, num_fragments: int = 4, make_policy: Any = policy_generator
) -> tuple[Any, dict[str, Any]]:
    """Returns the trainer and the data of one fetch."""
    found: list[Any] = []

    class Fetching(BaseTrainer):
        def setup_model_and_optimizer(self) -> Any:
            model = self.policy_generator()
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

        def train(self) -> None:
            data = self.fetch_fragments_and_estimate_advantages(num_fragments=num_fragments)
            found.extend([self, data])
            self.broadcast_model_to_rollout_workers(new_version=True)

    start_rolloutmanager(make_policy, generator, config)
    start_trainer(make_policy, generator, config, trainer_class=Fetching)
    return found[0], found[1]


def test_advantages_over_a_border_a_hole_an_end_and_a_truncation_by_hand() -> None:
    # gamma 0.5, lambda 0.5, so advantages carry 0.25. Two fragments of two steps each.
    worker = GAEWorker(discount=0.5, gae_lambda=0.5)
    never, one = np.zeros(2, np.bool_), np.ones(2, np.bool_)

    def info(reward: list[float], value: list[float], **more: Any) -> GAEInfo:
        given = {"terminated": never, "truncated": never, "final_value": np.zeros(2, np.float32), "valid": one, **more}
        return GAEInfo(np.array(reward, np.float32), value=np.array(value, np.float32), **given)

    a, b, c = FragmentIndex("x", 1), FragmentIndex("x", 2), FragmentIndex("x", 3)
    worker.update_gae_infos(
        {
            b: info([0.0, 1.0], [2.0, 0.0, 4.0]),
            a: info([1.0, 0.0], [0.0, 1.0, 9.0]),
            c: info([1.0, 0.0], [0.0, 0.0, 2.0], follows=False, truncated=np.array([True, False]),
                    final_value=np.array([6.0, 0.0], np.float32)),
        }
    )  # fmt: skip
    worker.calculate_target()
    # b: delta_1 = 1 + 0.5 * 4 - 0 = 3 (c does not follow); delta_0 = 0 + 0.5 * 0 - 2 = -2, A_0 = -2 + 0.25 * 3 = -1.25
    # a goes on in b: delta_1 = 0 + 0.5 * 2 - 1 = 0, A_1 = 0.25 * -1.25 = -0.3125
    #                 delta_0 = 1 + 0.5 * 1 - 0 = 1.5, A_0 = 1.5 + 0.25 * -0.3125 = 1.421875
    # c: A_0 = 1 + 0.5 * 6 - 0 = 4 (truncated), A_1 = 0 + 0.5 * 2 - 0 = 1
    expected = {a: [1.421875, -0.3125], b: [-1.25, 3.0], c: [4.0, 1.0]}
    for index, (target, advantage) in zip(expected, worker.get_target(list(expected)), strict=True):
        assert advantage.tolist() == expected[index]
        assert target.tolist() == (advantage + worker.infos[index].value[:-1]).tolist()
    # Sequences are a with b, and c.
    assert worker.average_gae_length == 3.0
    worker.update_gae_infos({c: info([1.0, 2.0], [7.0, 7.0, 7.0], follows=False, terminated=np.array([False, True]))})
    worker.calculate_target()
    # A_1 = 2 - 7 = -5, A_0 = 1 + 3.5 - 7 + 0.25 * -5 = -3.75
    assert worker.get_target([c])[0][1].tolist() == [-3.75, -5.0]


@pytest.mark.parametrize(("rank", "used"), [(0, "of the script"), (1, "of the rank")])
def test_no_rank_on_ray_estimates_by_the_actor_of_another(
    monkeypatch: pytest.MonkeyPatch, rank: int, used: str
) -> None:
    """One that resets it takes the fragments of the other, whose targets are then missing."""
    seen: list[object] = []

    class Looks(OwnTrainer):
        def _train_func(self, config: dict[str, Any] | None = None) -> None:
            seen.append(self.gae_actor)

    manager = start_rolloutmanager(policy_generator, env_generator, online_dict(0))
    trainer = Looks(rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator)
    trainer.gae_actor = "of the script"
    monkeypatch.setattr("quintain.online.ray_actors.is_actor", lambda part: part == "of the script")
    monkeypatch.setattr("quintain.online.ray_actors.as_actor", lambda cls, *arguments: "of the rank")
    done = {"progress": SimpleNamespace(iteration=1), "has_collected": True}
    trainer._train_in(SimpleNamespace(world=SimpleNamespace(rank=rank, size=2), **done))
    assert seen == [used]


class Forgets(BaseTrainer):
    """Forgets its policy between two fetches, without a broadcast."""

    def setup_model_and_optimizer(self) -> Any:
        model = self.policy_generator()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self) -> None:
        data = self.fetch_fragments_and_estimate_advantages(num_fragments=4)
        [fragments] = self.data_iter(data["records"], 4)
        with torch.no_grad():
            assert self.model.training, "the fetch leaves the mode alone"
            noisy = self.evaluate_fragments(fragments)[1]
            self.model.eval()
            log_probs = self.evaluate_fragments(fragments)[1]
            for parameter in self.model.pi_head.parameters():
                parameter.zero_()
        again = self.fetch_fragments_and_estimate_advantages(num_fragments=4)
        [later] = self.data_iter(again["records"], 4)
        self.seen = data, fragments, noisy, log_probs, again, later
        self.broadcast_model_to_rollout_workers(new_version=True)


def test_a_fetch_has_the_documented_keys_and_what_current_and_acting_weights_say(
    capfd: pytest.CaptureFixture[str],
) -> None:
    manager = start_rolloutmanager(partial(Small, 0.5), env_generator, online_dict(0, num_readers=2))
    trainer = Forgets(rollout_manager=manager, policy_generator=partial(Small, 0.5), env_generator=env_generator,
                      num_iterations=2, batches_per_iteration=4, gradient_accumulation=2)  # fmt: skip
    trainer.fit()
    data, first, noisy, log_probs, again, later = trainer.seen
    assert {
        "records", "rewards", "td_targets", "advantages", "old_logps", "old_pi_logits", "old_vpreds",
    } <= data.keys()  # fmt: skip
    assert len(data["records"]) == 4
    assert data["advantages"].format_batch(first).shape == (4, 8)
    assert data["old_pi_logits"].format_batch(first).shape == (4, 8, 2)
    assert {each.index for each in first} == {index for index, _ in data["records"]}
    assert {each.index: data["rewards"][each.index] for each in first} == {each.index: 8.0 for each in first}
    # The weights that acted are those at the fetch, and dropout is in neither.
    old = data["old_logps"].format_batch(first)
    assert torch.allclose(old, data["behavior_logps"].format_batch(first), atol=1e-6)
    assert torch.allclose(old, log_probs, atol=1e-6)
    assert not torch.allclose(old, noisy, atol=1e-6)
    # Of a policy that has forgotten everything both actions have 0.5; those were drawn by the one before.
    torch.testing.assert_close(again["old_logps"].format_batch(later), torch.full((4, 8), -math.log(2.0)))
    recorded = again["behavior_logps"].format_batch(later)
    assert float((recorded + math.log(2.0)).abs().min()) > 1e-5
    assert isinstance(trainer.gae_actor, GAEWorker)
    assert trainer.rollout_manager.rollout_config.fragment_length == 8
    assert (trainer.rank, trainer.model is trainer.inner_model, trainer.scaler) == (0, True, None)
    assert set(trainer.loader_pool) == {key for _, key in again["records"]}
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("train_config.num_readers (fragments are read from memory)") == 1


def test_a_model_that_rollout_workers_do_not_have_is_refused_in_a_sentence() -> None:
    manager = start_rolloutmanager(policy_generator, env_generator, online_dict(0))
    trainer: Any = OwnTrainer(rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator)
    settings = MinePolicySettings.model_validate({"network": {"type": "tests.online.parts:policy_generator"}})
    policy = MinePolicyAdapter(settings, BehaviorSpec(obs=box(4), action=discrete(2)), Rng(0))
    trainer._hosts.append(SimpleNamespace(policy=policy))
    trainer.inner_model = torch.nn.Linear(2, 2)
    with pytest.raises(SettingsError, match=r"is not one that policy_generator makes .*return self.policy_generator"):
        trainer.broadcast_model_to_rollout_workers(new_version=True)
    trainer.setup_model_and_optimizer = policy_generator
    with pytest.raises(SettingsError, match=r"returned Small; expected \(model, optimizer\)") as refused:
        trainer._train_func()
    assert refused.value.code == "E0267"
    trainer.setup_model_and_optimizer = lambda: (torch.optim.Adam(policy.parameters()), policy)
    with pytest.raises(SettingsError, match=r"returned \['Adam', 'MinePolicyAdapter'\]; expected \(model, optimizer\)"):
        trainer._train_func()
    trainer.setup_model_and_optimizer = lambda policy_generator, env_generator: None
    with pytest.raises(
        SettingsError, match=r"takes \(policy_generator, env_generator\); expected one argument or none"
    ):
        trainer._train_func()


PAGE = Path(__file__).parents[2] / "docs" / "migrating" / "minestudio.md"


@pytest.mark.slow
def test_the_pages_configuration_and_the_pages_own_trainer_train_by_the_pages_calls() -> None:
    [configuration, script, on_ray, own] = [each.text for each in blocks(PAGE) if each.language == "python"]
    assert "RolloutManager" not in script + on_ray
    page: dict[str, Any] = {"__name__": "a_page"}
    exec(configuration, page)
    exec(script, page)
    exec(own, page)
    page["online_dict"]["train_config"]["num_iterations"] = 2
    config = named(page["online_dict"], "own")
    start_trainer(page["policy_generator"], page["env_generator"], config, trainer_class=page["MyTrainer"])
    [core] = [path for path in Path("runs").iterdir() if path.name != "own"]
    assert (len(rows_of(core)), len(rows_of(Path("runs/own")))) == (3, 2)


@pytest.mark.parametrize("fault", ["raise", "error", "exit"])
@pytest.mark.parametrize("max_staleness", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_and_an_error_are_truncations_at_the_last_good_observation(fault: str, max_staleness: int) -> None:
    # The weights are asked for three fragments, and then for one.
    config = online_dict(max_staleness, discount=0.5, gae_lambda=0.0, inference_batch_size_per_gpu=3)
    trainer, data = only_fetch(config, partial(Counter, fault), make_policy=Counts)
    [fragments] = trainer.data_iter(data["records"], 4)
    by_lane: dict[str, list[Any]] = {}
    for each in sorted(fragments, key=lambda each: each.index):
        assert not (each.obs == 777.0).any()
        assert not (each.reward == 777.0).any()
        by_lane.setdefault(each.worker_uuid, []).append(each)
    for parts in by_lane.values():
        steps = {
            name: np.concatenate([getattr(each, name) for each in parts])
            for name in ("valid", "reward", "terminated", "truncated")
        }
        # Where lanes step together, the step in which one is made again does not count, and what comes before it is
        # bootstrapped from the observation that it stands at: the last good one.
        is_cut = steps["truncated"] | ~np.append(steps["valid"][1:], True)
        reward, terminated, cut = (each[steps["valid"]] for each in (steps["reward"], steps["terminated"], is_cut))
        # An episode of 5 steps, two steps of the next, then the environment breaks: again and again.
        assert reward.tolist() == ([1, 2, 3, 4, 5, 1, 2] * 3)[: len(reward)]
        assert (terminated == (reward == 5)).all(), "the last reward of an episode is in its fragment"
        assert np.flatnonzero(cut).tolist() == [place for place in range(len(reward)) if place % 7 == 6]
    require_estimates(data, fragments)


def require_estimates(data: dict[str, Any], fragments: list[Any]) -> None:
    """Requires what a discount of 0.5 and a lambda of 0 make of rewards and values by `Counts`.

    The reward of an episode's step n is n, and the value of the observation after it, too: also of the last one before
    a crash, a restart or a time limit, and of the one after a fragment. So the target is n + 0.5 * n, and n where the
    episode terminated. The value of the observation before is n - 1, by the hidden state of its own episode.
    """
    for each in fragments:
        wanted = each.reward + 0.5 * each.reward * ~each.terminated
        assert data["td_targets"][each.index][each.valid].tolist() == wanted[each.valid].tolist()
        assert data["old_vpreds"][each.index][each.valid].tolist() == (each.reward - 1.0)[each.valid].tolist()
        advantage = data["td_targets"][each.index] - data["old_vpreds"][each.index]
        assert torch.equal(data["advantages"][each.index][each.valid], advantage[each.valid])
        torch.testing.assert_close(data["old_logps"][each.index], data["behavior_logps"][each.index])


@pytest.mark.slow
@pytest.mark.parametrize("length", [5, 100])
@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("is_simulator", [False, True], ids=["environment", "simulator"])
def test_a_scheduled_restart_keeps_the_last_reward_and_cuts_only_episodes_that_do_not_end(
    length: int, max_staleness: int, is_simulator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "time", restarts.time)  # and back again afterwards
    config = online_dict(max_staleness, discount=0.5, gae_lambda=0.0)
    config["rollout_config"]["worker_config"]["restart_interval"] = 3.0
    if is_simulator:
        # A JudgeResetCallback's time limit is a truncation.
        trainer, data = only_fetch(config, partial(aging_simulator, length), make_policy=image_policy_generator)
    else:
        trainer, data = only_fetch(config, partial(Aging, length), make_policy=Counts)
    [fragments] = trainer.data_iter(data["records"], 4)
    for lane in {each.worker_uuid for each in fragments}:
        parts = [each for each in sorted(fragments, key=lambda each: each.index) if each.worker_uuid == lane]
        reward, terminated, truncated, valid = (
            np.concatenate([getattr(each, name) for each in parts])
            for name in ("reward", "terminated", "truncated", "valid")
        )
        assert valid.all()
        # Three steps after it was made it is due, and is made again after an episode of 5 steps; one that goes on is
        # truncated in the step after twice 3.
        last = 5 if length == 5 else 7
        assert reward.tolist() == ([*map(float, range(1, last + 1))] * len(reward))[: len(reward)]
        is_cut = is_simulator or length == 100
        assert (truncated if is_cut else terminated).tolist() == (reward == last).tolist()
        assert not (terminated if is_cut else truncated).any()
        if not is_simulator:
            obs = np.concatenate([each.obs for each in parts])
            # The observation before step n of an episode is number n - 1, of another environment in each episode.
            assert obs[:, 2].tolist() == (reward - 1.0).tolist()
            assert (np.diff(obs[:, 0]) > 0).tolist() == (reward[:-1] == last).tolist()
            assert set(obs[:, 1].tolist()) == {1.0}, "each environment plays one episode"
    require_estimates(data, fragments)


@pytest.mark.parametrize("anneals", [False, True])
def test_a_run_that_broke_in_the_middle_is_bit_for_bit_the_run_that_did_not(anneals: bool) -> None:
    config = online_dict(0, anneal_lr_linearly=anneals)
    start_trainer(policy_generator, env_generator, named(config, "whole"), trainer_class=OwnTrainer)

    class Breaks(OwnTrainer):
        def before_broadcast(self, iteration: int) -> None:
            if iteration == 2:
                raise RuntimeError("it broke")

    with pytest.raises(HostedError, match="it broke"):
        start_trainer(policy_generator, env_generator, named(config, "broken"), trainer_class=Breaks)
    resumed = online_dict(0, anneal_lr_linearly=anneals, resume="broken")
    # Both have the same names in their run files.
    Breaks.before_broadcast = OwnTrainer.before_broadcast  # type: ignore[method-assign]
    start_trainer(policy_generator, env_generator, resumed, trainer_class=Breaks)
    assert digest_of(Path("runs/broken")) == digest_of(Path("runs/whole"))
    assert len(rows_of(Path("runs/broken"))) == 4


def weights_at(run: str, which: int) -> dict[str, torch.Tensor]:
    """Returns the module that acts, as the first or last checkpoint of a run has it."""
    state = load(CheckpointCatalog(Path("runs", run, "checkpoints")).paths()[which]).state
    found = state["training"]["learners"]["default"]["policy"]
    return {name: torch.as_tensor(found[f"network.{name}"]) for name in Small().state_dict()}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [None, OwnTrainer], ids=["PPOTrainer", "own"])
def test_weights_of_a_checkpoint_begin_a_new_run_without_its_optimizer(trainer: Any) -> None:
    seen, has_moments = [], []

    class Looks(OwnTrainer):
        def train(self) -> None:
            seen.append({name: each.clone() for name, each in self.inner_model.state_dict().items()})
            has_moments.append(bool(self.optimizer.state))
            super().train()

    chosen = None if trainer is None else Looks
    start_trainer(policy_generator, env_generator, named(online_dict(0, num_iterations=2), "first"),
                  trainer_class=chosen)  # fmt: skip
    # A PPOTrainer zeroes the value head at the start of a run, also of this one.
    zeroes = {"zero_initial_vf": False} if trainer is None else {}
    config = named(online_dict(0, resume="first", resume_optimizer=False, num_iterations=1, **zeroes), "second")
    summary = start_trainer(policy_generator, env_generator, config, trainer_class=chosen)
    assert summary.env_steps == 32
    learned, began = weights_at("first", -1), weights_at("second", 0)
    assert any(bool((learned[name] != each).any()) for name, each in Small().state_dict().items())
    for found in (began, *seen[1:]):
        assert all(torch.equal(found[name], each) for name, each in learned.items())
    if trainer is not None:
        # It goes on as any run does, with its own weights.
        resumed = online_dict(0, resume="second", num_iterations=2)
        assert start_trainer(policy_generator, env_generator, resumed, trainer_class=chosen).env_steps == 64
        assert has_moments == [False, False, True]


SCRIPT = """
import os, signal
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator
from quintain.online import start_rolloutmanager, start_trainer

class Dies(OwnTrainer):
    def before_broadcast(self, iteration):
        if iteration == 2 and os.environ.get("SIGNAL"):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

if __name__ == "__main__":
    config = {**online_dict(1, resume=os.environ.get("RESUME")), "logger_config": {"name": "killed"}}
    make_policy, make_env = lambda: policy_generator(), lambda: env_generator()
    start_rolloutmanager(make_policy, make_env, config)
    start_trainer(make_policy, make_env, config, trainer_class=Dies)
"""


def processes_of(session: int) -> list[int]:
    """Returns the processes of a session that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_signals_leave_nothing_behind_and_resume_goes_on(number: int, tmp_path: Path) -> None:
    Path("main.py").write_text(SCRIPT)

    def run(**variables: str) -> tuple[int, int]:
        environment = {**warm.ENVIRONMENT, **variables}
        command = [sys.executable, "main.py"]
        process = warm.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
        return process.wait(timeout=100), process.pid

    status, session = run(SIGNAL=str(int(number)))
    assert status == (-9 if number == signal.SIGKILL else 143)
    # Children notice at once that their parent is gone; a loaded machine takes its time.
    for _ in range(500):
        if not processes_of(session):
            break
        os.sched_yield()
        signal.sigtimedwait([], 0.02)
    assert processes_of(session) == []
    assert run(RESUME="killed")[0] == 0
    assert len(rows_of(Path("runs/killed"))) == 4


KILLED = """
import os, signal
from quintain.algorithms.online_ppo import OnlinePPO
from quintain.online import start_trainer
from tests.online.environments import env_generator
from tests.online.parts import OwnTrainer, online_dict, policy_generator

update = OnlinePPO.update

def dies(self, batch, progress):
    if progress.updates == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, batch, progress)

class Dies(OwnTrainer):
    def before_broadcast(self, iteration):
        if iteration == 2:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    OnlinePPO.update = dies
    config = {**online_dict(0, **TRAIN), "logger_config": {"name": "killed"}}
    start_trainer(policy_generator, env_generator, config, trainer_class=Dies if OWN else None)
"""
STATEFUL = {"kl_divergence_coef_rho": 0.5, "coef_rho_decay": 0.5, "enable_ref_update": True, "vf_warmup": 1,
            "use_normalized_vf": True}  # fmt: skip
"""What a resume has to bring back beside weights and optimizer: rho, reference, record, version and normaliser."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "train"),
    [
        (False, STATEFUL),
        (False, {"anneal_lr_linearly": True}),
        (False, {**STATEFUL, "batches_per_iteration": 8}),
        (True, {"anneal_lr_linearly": True}),
    ],
    ids=["PPOTrainer constant", "PPOTrainer annealed", "PPOTrainer in lockstep", "own annealed"],
)
def test_a_synchronous_run_that_was_killed_is_bit_for_bit_the_run_that_was_not(
    own: bool, train: dict[str, Any], tmp_path: Path
) -> None:
    # The trainer is of the main script; only its name is in the run file.
    text = KILLED.replace("OWN", str(own)).replace("Dies", "OwnTrainer2").replace("TRAIN", repr(train))
    Path("main.py").write_text(text)
    trainer = type("OwnTrainer2", (OwnTrainer,), {"__module__": "__main__"}) if own else None
    start_trainer(policy_generator, env_generator, named(online_dict(0, **train), "whole"), trainer_class=trainer)
    process = warm.Popen([sys.executable, "main.py"], cwd=tmp_path, env=warm.ENVIRONMENT)
    assert process.wait(timeout=100) == -9
    assert len(rows_of(Path("runs/killed"))) == 2
    resumed = online_dict(0, resume="killed", **train)
    start_trainer(policy_generator, env_generator, resumed, trainer_class=trainer)
    assert digest_of(Path("runs/killed")) == digest_of(Path("runs/whole"))
    if not own:
        rows = rows_of(Path("runs/whole"))
        # Falling to 0 over 4 iterations, of 1e-2; and rho, which is 1 in the warm-up.
        rates = [1e-2, 7.5e-3, 5e-3, 2.5e-3] if train.get("anneal_lr_linearly") else [1e-2] * 4
        assert [row["train/learning_rate"] for row in rows] == pytest.approx(rates)
        wanted = [1.0, 0.25, 0.125, 0.0625] if train.get("vf_warmup") else [0.0] * 4
        assert [row["train/kl_coef"] for row in rows] == wanted


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_a_synchronous_iteration_has_the_optimizer_steps_that_accumulation_leaves(
    accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    gradient_step = OnlinePPO.gradient_step

    def step(self: OnlinePPO, minibatch: Any, *given: Any) -> Any:
        rows.append(len(minibatch[f.LOG_PROB]))
        return gradient_step(self, minibatch, *given)

    monkeypatch.setattr(OnlinePPO, "gradient_step", step)
    # 8 fragments of 8 steps, of 2 environments, which make 4 each.
    train = {"batches_per_iteration": 8, "gradient_accumulation": accumulation, "num_iterations": 1}
    start_trainer(policy_generator, env_generator, named(online_dict(0, **train), "steps"))
    assert rows == [accumulation * 8] * (8 // accumulation)


RANKS = """
import sys
from tests.online.environments import env_generator
from tests.online.parts import online_dict, policy_generator
from quintain.online import start_rolloutmanager, start_trainer

if __name__ == "__main__":
    name, iterations, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3:] or [None]
    config = {**online_dict(0, num_workers=2, batches_per_iteration=2, gradient_accumulation=1,
                            num_iterations=iterations, resume=resume[0]), "logger_config": {"name": name}}
    config["rollout_config"]["num_rollout_workers"] = 2
    make_policy, make_env = policy_generator, env_generator
    if name != "named":
        make_policy, make_env = lambda: policy_generator(), lambda: env_generator()
    start_rolloutmanager(make_policy, make_env, config)
    start_trainer(make_policy, make_env, config)
"""


@pytest.mark.slow
def test_ranks_learn_from_generators_of_the_main_script_as_from_those_of_a_module(tmp_path: Path) -> None:
    Path("main.py").write_text(RANKS)
    for arguments in (["named", "4"], ["lambdas", "2"], ["lambdas", "4", "lambdas"]):
        command = [sys.executable, str(tmp_path / "main.py"), *arguments]
        done = warm.run(command, cwd=tmp_path, env=warm.ENVIRONMENT, capture_output=True)
        assert (done.returncode, "2 ranks" in done.stdout) == (0, True), done.stderr
    assert len(rows_of(Path("runs/named"))) == 4
    assert rows_of(Path("runs/lambdas")) == rows_of(Path("runs/named"))


@pytest.mark.slow
def test_a_configuration_in_another_folder_is_found_again_by_resume_and_eval(tmp_path: Path) -> None:
    Path("configs").mkdir()
    lines = ("from tests.online.environments import env_generator", "from tests.online.parts import policy_generator")
    Path("configs/parts_beside.py").write_text("\n".join(lines))
    text = "import parts_beside\nfrom tests.online.parts import online_dict\nonline_dict = online_dict(0)\n"
    for name in ("env_generator", "policy_generator"):
        text += f"def {name}(): return parts_beside.{name}()\n"
    Path("configs/small.py").write_text(text)
    for words in (
        ["train", "configs/small.py", "--run-id", "small", "budget.updates=2"],
        ["resume", "small", "budget.updates=4"],
        ["eval", "small", "--episodes", "2"],
    ):
        command = [sys.executable, "-m", "quintain", *words]
        done = warm.run(command, cwd=tmp_path, env=warm.ENVIRONMENT, capture_output=True)
        assert done.returncode == 0, done.stderr
    assert len(rows_of(Path("runs/small"))) == 4
    # Another working directory has no such folder.
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-m", "quintain", "resume", "../runs/small", "budget.updates=6"]
    done = warm.run(command, cwd=tmp_path / "elsewhere", env=warm.ENVIRONMENT, capture_output=True)
    assert (done.returncode, "E0208" in done.stderr) == (2, True), done.stderr


def test_demonstrations_are_cloned_beside_ppo() -> None:
    """Those of an expert that always pushes to the right make that likelier."""
    shown = [{"type": "collect_data", "every_updates": 1}]
    Trainer("ppo", "CartPole-v1", events=shown, run_id="shown", num_lanes=2, num_steps=16, batch_size=16).train(64)
    for path in Path("runs/shown/rollouts").iterdir():
        with safe_open(path, "pt") as opened:
            fields, about = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
        fields["action"].fill_(1)
        save_file(fields, path, metadata=about)
    config = online_dict(0, num_iterations=8, bc_coef=1.0, mine_data="runs/shown/rollouts", learning_rate=3e-2)
    start_trainer(policy_generator, env_generator, named({**config, "trainer_name": "PPOBCTrainer"}, "cloned"))
    losses = [row["train/behavior_cloning_loss"] for row in rows_of(Path("runs/cloned"))]
    # It begins with a guess, ln 2 = 0.69.
    assert losses[0] == pytest.approx(0.69, abs=0.05)
    assert losses[-1] < 0.3
    manager = start_rolloutmanager(policy_generator, env_generator, online_dict(0))
    made = PPOBCTrainer(rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator,
                        bc_coef=1.0)  # fmt: skip
    with pytest.raises(SettingsError, match="mine_data names no demonstrations"):
        made.fit()


def looking() -> Any:
    env = look()
    return RecurrentImagePolicy(env.observation_space, env.action_space, hidden_size=8, image_features=8)


@pytest.mark.slow
def test_videos_are_made_at_their_interval_while_a_configuration_trains() -> None:
    config = online_dict(0, num_iterations=4, record_video_interval=4)
    start_trainer(looking, look, named(config, "filmed"))
    assert [each.name for each in Path("runs/filmed/videos").iterdir()] == ["step-000000128.webp"]


def test_counting_otherwise_than_the_run_is_refused_and_agreeing_is_not() -> None:
    told = []

    class Counts(OwnTrainer):
        def train(self) -> None:
            for self.num_updates in range(2):
                self.fetch_fragments_and_estimate_advantages(num_fragments=2)
                self.broadcast_model_to_rollout_workers(new_version=True)
                told.append(self.model_version)
            self.num_updates = 0

    with pytest.raises(SettingsError, match="num_updates was set to 0, and 2 iterations are done"):
        start_trainer(policy_generator, env_generator, online_dict(0), trainer_class=Counts)
    assert told == [1, 2]


def test_a_trainer_that_counts_for_itself_fits_again_from_0(capfd: pytest.CaptureFixture[str]) -> None:
    class Counts(OwnTrainer):
        def train(self) -> None:
            while self.num_updates < 2:
                self.fetch_fragments_and_estimate_advantages(num_fragments=2)
                self.num_updates += 1
                self.broadcast_model_to_rollout_workers(new_version=True)

    config = online_dict(0)
    manager = start_rolloutmanager(policy_generator, env_generator, config)
    generators = {"policy_generator": policy_generator, "env_generator": env_generator}
    made = Counts(rollout_manager=manager, **generators, **config["train_config"])
    # Two blocks of 2 environments and 8 steps.
    assert [made.fit().env_steps for _ in range(2)] == [32, 32]
    # No command and no `Trainer.load` could make its objects again.
    said = re.findall(r'train_config.resume = "(.+)" goes on from there', capfd.readouterr().out)
    assert sorted(said) == sorted(path.name for path in Path("runs").iterdir())
    resumed = Counts(rollout_manager=manager, **generators, **{**config["train_config"], "resume": said[0]})
    assert resumed.fit().env_steps == 32
    longer = f'train for longer with: train_config.resume = "{said[0]}" and a larger budget\n'
    assert longer in capfd.readouterr().out


def test_a_setup_may_take_the_generator_and_return_a_scaler() -> None:
    seen = []

    class Takes(OwnTrainer):
        def setup_model_and_optimizer(self, policy_generator: Any = None) -> Any:  # type: ignore[override]
            model = policy_generator()
            return model, torch.optim.SGD(model.parameters(), lr=0.1), "scaler"

        def train(self) -> None:
            seen.append((self.scaler, isinstance(self.inner_model, Small)))
            self.fetch_fragments_and_estimate_advantages(num_fragments=2)
            self.broadcast_model_to_rollout_workers(new_version=True)

    start_trainer(policy_generator, env_generator, online_dict(0, num_iterations=1), trainer_class=Takes)
    assert seen == [("scaler", True)]


@pytest.mark.parametrize("parameters", ["**kwargs", "*, policy_generator=None"])
def test_a_setup_without_a_positional_parameter_gets_none(parameters: str) -> None:
    made: dict[str, Any] = {"torch": torch}
    exec(
        f"def setup(self, {parameters}): return (m := self.policy_generator()), torch.optim.Adam(m.parameters())", made
    )
    trainer: Any = type("Takes", (OwnTrainer,), {"setup_model_and_optimizer": made["setup"]})
    start_trainer(policy_generator, env_generator, named(online_dict(0, num_iterations=1), "a"), trainer_class=trainer)
    assert len(rows_of(Path("runs/a"))) == 1


class Loops(OwnTrainer):
    """Fetches 3 fragments of 3 environments, twice, and publishes nothing."""

    def train(self) -> None:
        for _ in range(self.num_updates, 2):
            self.fetch_fragments_and_estimate_advantages(num_fragments=3)


@pytest.mark.parametrize("max_staleness", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loop_of_ones_own_fetches_what_it_likes_and_its_last_iteration_counts_without_a_version(
    max_staleness: int,
) -> None:
    buffer = {"max_staleness": max_staleness, "max_reuse": 1, "max_chunks": 12}
    rollout = {"fragment_length": 8, "worker_config": {"num_envs": 3}, "replay_buffer_config": buffer}
    # The 200 fragments and minibatches of 10 that PPOTrainer would take by default are more than there are.
    with pytest.raises(SettingsError, match="an iteration takes 200 fragments"):
        start_trainer(policy_generator, env_generator, {"rollout_config": rollout})
    manager = start_rolloutmanager(policy_generator, env_generator, {"rollout_config": rollout})
    made = Loops(rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator)
    summary = made.fit()
    # 2 iterations of 3 fragments of 8 steps.
    assert (summary.updates, summary.env_steps) == (2, 48)


# By its names in the run file, and as an object.
@pytest.mark.parametrize("module", ["tests.online.parts", pytest.param("__main__", marks=pytest.mark.slow)])
def test_an_error_in_a_trainer_names_it_and_the_users_own_line(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(self: Any, iteration: int) -> None:
        # Torch raises it in a file of its own.
        torch.nn.functional.layer_norm(torch.zeros(2, 3), (4,))

    monkeypatch.setattr(OwnTrainer, "before_broadcast", breaks)
    monkeypatch.setattr(OwnTrainer, "__module__", module)
    with pytest.raises(HostedError, match=r"^OwnTrainer: RuntimeError: .*, raised in test_trainers.py:\d+\."):
        start_trainer(policy_generator, env_generator, online_dict(0), trainer_class=OwnTrainer)


def test_an_error_in_a_generator_of_the_script_names_it_and_its_line_in_the_traceback() -> None:
    def no_java() -> Any:
        raise ValueError("no java")

    with pytest.raises(EnvError, match="env 'no_java' cannot be created: ValueError: no java") as raised:
        start_trainer(policy_generator, no_java, online_dict(0))
    shown = "".join(traceback.format_exception_only(raised.value))
    assert re.search(r'note: File ".*test_trainers.py", line \d+, in no_java', shown)


def test_a_train_without_an_iteration_is_told_what_one_is() -> None:
    manager = start_rolloutmanager(policy_generator, env_generator, online_dict(0))
    trainer: Any = OwnTrainer(rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator)
    trainer._train_func = lambda: None
    host = SimpleNamespace(
        world=SimpleNamespace(rank=0, size=1), progress=SimpleNamespace(iteration=0), has_collected=False
    )
    with pytest.raises(
        HostedError, match=r"^OwnTrainer.train returned without an iteration: .*broadcast_model_to_roll"
    ):
        trainer._train_in(host)


@pytest.mark.slow
def test_a_loop_that_counts_for_itself_is_told_so_also_where_environments_do_not_wait(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Blind(OwnTrainer):
        def train(self) -> None:
            for _ in range(2):
                self.fetch_fragments_and_estimate_advantages(num_fragments=2)
                self.broadcast_model_to_rollout_workers(new_version=True)

    start_trainer(policy_generator, env_generator, online_dict(1), trainer_class=Blind)
    said = [line for line in capfd.readouterr().out.splitlines() if "W0402" in line]
    assert [("do not wait" in line, "Blind never reads where it stands" in line) for line in said] == [
        (True, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["setup_model_and_optimizer", "ppo_update", "_train_func"])
def test_what_the_loop_of_the_shipped_trainer_would_not_call_is_refused_unless_train_is_overridden_too(
    name: str,
) -> None:
    with pytest.raises(TypeError, match=f"Own overrides {name}, which the core's loop does not call; write train"):
        type("Own", (PPOTrainer,), {name: lambda self: None})
    own: Any = type("Own", (PPOTrainer,), {name: lambda self: None, "train": lambda self: None})
    assert own.has_own_loop


def test_the_manager_that_was_started_last_is_found() -> None:
    manager = start_rolloutmanager(policy_generator, env_generator, online_dict(1))
    assert get_rollout_manager() is manager
