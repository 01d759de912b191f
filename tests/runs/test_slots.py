"""Whatever a Python user puts into a Trainer's slots, training works and nobody else's environment is disturbed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms import PPO, PPOSettings
from quintain.core.rng import Rng
from quintain.envs import GymSettings
from quintain.envs.gym.make import gym_env
from quintain.errors import SettingsError
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.runs.parts import make_policy
from quintain.services.checkpoints.catalog import verify
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.tree import RunFile

SMALL: dict[str, Any] = {"num_steps": 16, "batch_size": 16, "num_epochs": 1, "writers": []}
CART_POLE = partial(gymnasium.make, "CartPole-v1")


class Counting(gymnasium.Env[Any, Any]):
    """Counts the steps of all its objects together, and has no spec to make another one from."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).num_steps += 1
        self.age += 1
        return np.full(2, self.age / 10, np.float32), 1.0, self.age == 10, False, {}


def make_algorithm(run_file: RunFile) -> PPO:
    env = gym_env(GymSettings(type="gym", id="CartPole-v1"), 1, Rng(0))
    policy = make_policy(run_file, env.spec)
    signals = {"extrinsic": Extrinsic(ExtrinsicSettings(type="extrinsic"))}
    return PPO(PPOSettings(type="ppo", batch_size=16, num_epochs=1), policy, signals, Rng(0))


def test_two_names() -> None:
    trainer = Trainer("ppo", "CartPole-v1", num_lanes=2, **SMALL)
    summary = trainer.train(64)
    # Two lanes of 16 steps are 32 steps a cycle, so 64 steps are two.
    assert (summary.env_steps, summary.state, trainer.progress.updates) == (64, "finished", 2)
    trainer.close()


@pytest.mark.parametrize("order", [1, -1])
def test_keywords_may_come_in_any_order(order: int) -> None:
    settings = {"num_lanes": 1, "num_steps": 8, "batch_size": 8, "writers": []}
    trainer = Trainer("ppo", "CartPole-v1", **dict(list(settings.items())[::order]))
    assert trainer.algorithm.settings.batch_size == 8  # type: ignore[attr-defined]
    trainer.close()


def test_settings_objects() -> None:
    algorithm = PPOSettings(type="ppo", batch_size=16, num_epochs=3)
    env = GymSettings(type="gym", id="CartPole-v1", num_lanes=2)
    trainer = Trainer(algorithm, env, num_steps=16, writers=[])
    trainer.train(32)
    assert trainer.algorithm.settings.num_epochs == 3  # type: ignore[attr-defined]
    assert trainer.progress.env_steps == 32
    trainer.close()


@pytest.mark.parametrize("factory", [CART_POLE, lambda: gymnasium.make("CartPole-v1")], ids=["partial", "lambda"])
def test_a_factory_makes_every_lane(factory: Any) -> None:
    trainer = Trainer("ppo", factory, num_lanes=3, **SMALL)
    assert trainer.train(48).best_eval is not None
    assert trainer.progress.updates == 1
    trainer.close()


def test_a_class_makes_every_lane() -> None:
    trainer = Trainer("ppo", Counting, num_lanes=2, **SMALL)
    assert trainer.train(32).best_eval == 10.0  # an episode has 10 steps of reward 1
    trainer.close()


def test_a_factory_of_vector_environments_is_refused() -> None:
    with pytest.raises(SettingsError, match="made a vector environment"):
        Trainer("ppo", lambda: gymnasium.make_vec("CartPole-v1", 2), num_lanes=2, **SMALL)


def test_an_environment_of_gymnasium_is_evaluated_in_others_like_it() -> None:
    env = gymnasium.make("CartPole-v1", max_episode_steps=7)
    trainer = Trainer("ppo", env, **SMALL)
    summary = trainer.train(32)
    assert trainer.progress.updates == 2  # one lane of 16 steps
    assert summary.best_eval == 7.0  # the time limit came along: 7 steps of reward 1
    trainer.close()


def test_evaluation_does_not_disturb_an_environment_that_was_given() -> None:
    digests = set()
    for events in (["evaluate"], []):
        # A budget of 64 steps is evaluated every 6, so after each rollout of 16.
        env = gymnasium.make("CartPole-v1")
        trainer = Trainer("ppo", env, events=events, total_timesteps=64, learning_rate=1e-2, **SMALL)
        trainer.train()
        digests.add(json.dumps([p.tolist() for p in trainer.policy.parameters()]))
        trainer.close()
    assert len(digests) == 1


def test_an_environment_nobody_can_make_again_is_trained_but_not_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    Counting.num_steps = 0
    trainer = Trainer("ppo", Counting(), num_steps=16, batch_size=16, num_epochs=1)
    summary = trainer.train(32)
    assert summary.best_eval is None
    assert Counting.num_steps == 32
    printed = capsys.readouterr()
    assert "no evaluation" in printed.out + printed.err
    trainer.close()


def test_a_single_environment_needs_no_other_setting() -> None:
    trainer = Trainer("ppo", gymnasium.make("CartPole-v1"), writers=[])
    assert trainer.store.block.num_steps == 2048  # type: ignore[attr-defined]  # 8 lanes of 256 by default
    trainer.close()


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_a_vector_environment_keeps_its_lanes(mode: gymnasium.vector.AutoresetMode) -> None:
    env = gymnasium.vector.SyncVectorEnv([CART_POLE] * 3, autoreset_mode=mode)
    trainer = Trainer("ppo", env, **SMALL)
    trainer.train(1)
    assert trainer.source.collector.env.num_lanes == 3  # type: ignore[attr-defined]
    assert trainer.progress.updates == 1
    trainer.close()


def test_an_environment_of_ours_is_trained_but_not_evaluated() -> None:
    env = gym_env(GymSettings(type="gym", id="CartPole-v1"), 2, Rng(5))
    trainer = Trainer("ppo", env, **SMALL)
    assert trainer.train(64).best_eval is None
    assert trainer.source.collector.env is env  # type: ignore[attr-defined]
    trainer.close()


def test_a_ready_policy_is_the_one_that_is_trained() -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1")
    policy = make_policy(run_file, gym_env(GymSettings(type="gym", id="CartPole-v1"), 1, Rng(0)).spec)
    before = [p.detach().clone() for p in policy.parameters()]
    trainer = Trainer(policy, "CartPole-v1", "ppo", num_lanes=2, **SMALL)
    trainer.train(32)
    assert trainer.policy is policy
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    trainer.close()


def test_a_ready_algorithm_brings_its_policy() -> None:
    algorithm = make_algorithm(RunFile.from_names("ppo", "CartPole-v1"))
    trainer = Trainer(algorithm, "CartPole-v1", num_lanes=2, num_steps=16, writers=[])
    trainer.train(32)
    assert trainer.algorithm is algorithm
    assert trainer.policy is algorithm.policy
    assert float(algorithm.optimizer.state_dict()["step"]) == 2.0  # 32 steps in minibatches of 16
    trainer.close()


def test_a_ready_algorithm_and_policy_that_do_not_belong_together_are_refused() -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1")
    policy = make_policy(run_file, gym_env(GymSettings(type="gym", id="CartPole-v1"), 1, Rng(0)).spec)
    with pytest.raises(SettingsError, match="another policy"):
        Trainer(policy, "CartPole-v1", make_algorithm(run_file), num_lanes=2, **SMALL)


def test_a_policy_for_other_spaces_is_refused() -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1")
    policy = make_policy(run_file, gym_env(GymSettings(type="gym", id="CartPole-v1"), 1, Rng(0)).spec)
    with pytest.raises(SettingsError, match="policy takes"):
        Trainer(policy, "Acrobot-v1", "ppo", num_lanes=2, **SMALL)


@pytest.mark.parametrize("slots", [(3, "CartPole-v1"), ("ppo", 3), (object(), "CartPole-v1", "ppo")])
def test_what_fits_no_slot_is_refused(slots: tuple[Any, ...]) -> None:
    with pytest.raises(SettingsError, match="slot got a"):
        Trainer(*slots, **SMALL)


def test_training_twice_continues() -> None:
    once = Trainer("ppo", "CartPole-v1", num_lanes=2, learning_rate=1e-3, **SMALL)
    once.train(128)
    twice = Trainer("ppo", "CartPole-v1", num_lanes=2, learning_rate=1e-3, **SMALL)
    twice.train(64)
    twice.train(128)
    assert twice.progress.updates == 4
    assert all(torch.equal(a, b) for a, b in zip(once.policy.parameters(), twice.policy.parameters(), strict=True))
    once.close()
    twice.close()


def test_saving_a_checkpoint_creates_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer("ppo", "CartPole-v1", num_lanes=2, **SMALL)
    trainer.train(32)
    path = trainer.save_checkpoint()
    assert verify(path).step == 32
    trainer.train(64)
    trainer.close()
    (run,) = (tmp_path / "runs").iterdir()
    assert {"config.yaml", "status.json", "checkpoints"} <= {child.name for child in run.iterdir()}
    assert RunFile.load(run / "config.yaml").experiment.env.num_lanes == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_sampled_predictions_change_no_number_of_a_run(algorithm: str) -> None:
    def trained(is_asked: bool) -> str:
        small = SMALL if algorithm == "ppo" else {"batch_size": 16, "learning_starts": 32, "writers": []}
        trainer = Trainer(algorithm, "Pendulum-v1", num_lanes=2, seed=3, **small)
        drawn = []
        for budget in (64, 128, 192):
            trainer.train(budget)
            if is_asked:
                drawn += [float(trainer.predict(np.zeros(3), deterministic=False)[0][0]) for _ in range(4)]
                trainer.predict(np.zeros(3), deterministic=False, seed=1)
        assert len(set(drawn)) == len(drawn)
        state = digest_of(trainer.state_dict())
        trainer.close()
        return state

    assert trained(is_asked=True) == trained(is_asked=False)


def test_predict_gives_actions_that_the_environment_takes() -> None:
    trainer = Trainer("ppo", "CartPole-v1", num_lanes=2, **SMALL)
    env = CART_POLE()
    obs, _ = env.reset(seed=1)
    action, state = trainer.predict(obs)
    assert action in env.action_space
    assert state is None
    actions, _ = trainer.predict(np.stack([obs, obs, obs]))
    assert actions.shape == (3,)
    assert set(actions.tolist()) == {int(action)}
    env.close()
    trainer.close()


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Doubles rewards."""

    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


def test_wrappers_may_be_classes() -> None:
    clipped = {"type": gymnasium.wrappers.TimeLimit, "kwargs": {"max_episode_steps": 7}}
    trainer = Trainer("ppo", "Pendulum-v1", wrappers=[gymnasium.wrappers.ClipAction, clipped, Doubled], **SMALL)
    env: Any = trainer.session.run_file.experiment.env  # type: ignore[attr-defined]
    assert [each.type for each in env.wrappers] == ["ClipAction", "TimeLimit", f"{Doubled.__module__}:Doubled"]
    trainer.close()


def test_wrappers_of_a_script_are_known_to_it(tmp_path: Path) -> None:
    """A class without a name that other processes could import, and a function."""

    class Threefold(gymnasium.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return 3.0 * float(reward)

    def doubled(env: Any, times: int = 1) -> Any:
        return Doubled(env) if times == 1 else Doubled(Doubled(env))

    wrappers = [Threefold, {doubled: {"times": 2}}]
    trainer = Trainer("ppo", "CartPole-v1", env_wrapper=wrappers, run_id="w", runs_dir=tmp_path, **SMALL)
    trainer.advance()
    assert trainer.taken.rollout["reward"][:, :-1].unique().tolist() == [12.0]
    trainer.train(256)
    assert "quintain resume" not in str(trainer.session.commands.after("stopped", None))  # type: ignore[attr-defined]
    trainer.close()
    again = Trainer.load("w", runs_dir=tmp_path, wrappers=wrappers)
    again.advance()
    assert again.taken.rollout["reward"][:, :-1].unique().tolist() == [12.0]
    again.close()

    class TimeLimit(Doubled):
        pass

    with pytest.raises(SettingsError, match="TimeLimit is called as one of Gymnasium's; give it another name"):
        Trainer("ppo", "CartPole-v1", wrappers=[TimeLimit], **SMALL)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ({"callback": print}, "trainer.events.add(Every(env_steps=1000), function)"),
        ({"log_interval": 4}, "report.every_updates says how often there is a row"),
        ({"whatever": 1}, "it takes the number of steps alone"),
    ],
)
def test_other_arguments_of_learn_have_their_place_named(words: dict[str, Any], hint: str) -> None:
    trainer = Trainer("ppo", "CartPole-v1", **SMALL)
    with pytest.raises(SettingsError) as refused:
        trainer.learn(128, **words)
    assert refused.value.message.endswith(hint)
    assert refused.value.message.startswith(f"learn({next(iter(words))}=...): ")
    assert trainer.learn(128).env_steps == 128
    trainer.close()


def test_save_names_the_method_and_what_a_property_lacks_is_named_itself() -> None:
    class Careless(Trainer):
        @property
        def speed(self) -> float:
            return float(self.engine.speed)  # type: ignore[attr-defined]

    trainer = Careless("ppo", "CartPole-v1", **SMALL)
    with pytest.raises(AttributeError, match=r"save_checkpoint\(\) saves the run"):
        trainer.save("ppo_cartpole")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'Careless' object has no attribute 'engine'"):
        print(trainer.speed)
    assert not hasattr(trainer, "gearbox")
    trainer.close()


def test_a_policy_of_stable_baselines_in_the_place_of_the_algorithm() -> None:
    with pytest.raises(SettingsError, match=r'the first argument is the algorithm, as in Trainer\("ppo", env\)'):
        Trainer("MlpPolicy", "CartPole-v1")
