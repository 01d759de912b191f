"""A user's own parts train through the registry: from a run file, by module:Name, and from Python."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from quintain import Trainer
from quintain.data import fields as f
from quintain.errors import CheckpointError
from quintain.runs import launch
from quintain.settings.tree import RunFile
from quintain.testing import assert_all_state_saved, assert_resumes_exactly
from tests.contracts.cases import make_trainer

YAML = """
experiment:
  seed: 2
  budget: {env_steps: 256}
  env: {type: corridor, num_lanes: 4, length: 3}
  behaviors:
    default:
      trainer: dagger
      policy: {type: wide_actor_critic, hidden_sizes: [16]}
      algorithm: {type: my_reinforce, entropy_coef: 0.02}
      rollout: {num_steps: 16}
      reward_signals: {extrinsic: {}, calm: {type: stillness, strength: 0.1}}
      events: [{type: anneal_friction, every_env_steps: 64, low: 0.9}]
run:
  writers: [list]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(YAML)
    return path


def test_all_of_them_train_from_a_run_file(file: Path, user_parts: ModuleType) -> None:
    trainer = make_trainer(RunFile.load(file))
    assert isinstance(trainer, user_parts.DaggerTrainer)
    assert isinstance(trainer.policy, user_parts.WideActorCritic)
    assert isinstance(trainer.algorithm, user_parts.MyReinforce)
    assert isinstance(trainer.algorithm.signals["calm"], user_parts.Stillness)
    summary = trainer.train()
    assert summary.env_steps == 256
    # 256 steps in cycles of 4 * 16 = 64; the extra stage saw every one of them.
    assert trainer.progress.updates == 4
    assert trainer.label_count.labels == 256
    assert trainer.batch is not None
    assert trainer.batch.rollout[f.ACTION].eq(1).all()


def test_a_placement_of_ones_own_acts_with_its_settings(file: Path, user_parts: ModuleType) -> None:
    trainer = make_trainer(RunFile.load(file, "run.placement={type: counting, first: 10}"))
    assert isinstance(trainer.source, user_parts.CountingSource)
    trainer.train()
    # One call in each of the 4 cycles.
    assert trainer.source.calls == 14


def test_all_of_them_resume_exactly_and_save_all_their_state(file: Path, user_parts: ModuleType) -> None:
    settings = RunFile.load(file)
    assert_resumes_exactly(settings, stop_after_steps=[3, 16, 20])
    assert_all_state_saved(make_trainer(settings))


def test_an_environment_and_an_algorithm_by_name_from_python(user_parts: ModuleType) -> None:
    trainer = Trainer("my_reinforce", "corridor", num_lanes=2, num_steps=16, total_timesteps=96, writers=[])
    trainer.train()
    assert trainer.progress.updates == 3
    # 0 and 1 are the two choices of a corridor.
    assert trainer.predict([0.0])[0] in (0, 1)


def test_settings_objects_from_python(user_parts: ModuleType) -> None:
    env = user_parts.CorridorSettings(num_lanes=2, length=5)
    trainer = Trainer(user_parts.ReinforceSettings(entropy_coef=0.5), env, num_steps=16, total_timesteps=64, writers=[])
    trainer.train()
    assert trainer.algorithm.settings.entropy_coef == 0.5  # type: ignore[attr-defined]  # the user's settings
    assert trainer.source.collector.env.settings.length == 5  # type: ignore[attr-defined]  # the local source


def test_a_trainer_of_ones_own_from_python(user_parts: ModuleType) -> None:
    trainer = user_parts.DaggerTrainer("ppo", "corridor", num_lanes=2, num_steps=16, batch_size=16, writers=[])
    trainer.train(64)
    assert trainer.label_count.labels == 64


def test_learning_from_an_expert_who_goes_right_teaches_to_go_right(user_parts: ModuleType) -> None:
    trainer = user_parts.DaggerTrainer(
        "my_reinforce", "corridor", num_lanes=4, num_steps=32, learning_rate=1e-2, writers=[], seed=1, events=[]
    )
    trainer.train(8 * 128)
    with torch.no_grad():
        log_probs = torch.log_softmax(trainer.policy.actor(torch.tensor([[0.0], [1.0], [2.0]])), dim=-1)
    # An untrained actor (last gain 0.01) gives both choices about 1/2. Rewards are never negative, so every labelled
    # step pushes towards the label.
    assert (log_probs[:, 1].exp() > 0.6).all()


def test_parts_by_module_and_name_are_loaded_and_need_trust_when_resumed(
    tmp_path: Path, user_parts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"env": "tests.contracts.user_parts:Corridor", "algorithm": "tests.contracts.user_parts:MyReinforce"}
    settings = RunFile.from_mapping(
        {
            "experiment": {
                "budget": {"env_steps": 64},
                "env": {"type": names["env"], "num_lanes": 2},
                "behaviors": {
                    "default": {"algorithm": {"type": names["algorithm"]}, "rollout": {"num_steps": 16}, "events": []}
                },
            }
        }
    )
    launched = launch.start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    launched.trainer.train()
    launched.run.close()
    # To another user it is a stranger's run.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(CheckpointError, match=r"user_parts:Corridor.* would import code"):
        launch.resume(tmp_path, "a", ["total_timesteps=96"], quiet=True)
    again = launch.resume(tmp_path, "a", ["total_timesteps=96"], allow=list(names.values()), quiet=True)
    again.trainer.train()
    again.run.close()
    assert again.trainer.progress.env_steps == 96


def test_a_stage_without_its_method_fails_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="there is no method _stage_labl"):
        type("Typo", (Trainer,), {"stages": ("collect", "labl")})
