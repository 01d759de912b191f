"""Trainer configurations of ML-Agents are read strictly and mean what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintain.behaviors.run_options import RunOptions
from quintain.behaviors.trainer_settings import POCASettings, PPOSettings, SACSettings
from quintain.behaviors.translate import CommandLine, Request, translate
from quintain.behaviors.yaml_import import check_configuration, is_mlagents_file, read_configuration
from quintain.errors import SettingsError
from quintain.settings.yaml_text import parse

ENV = CommandLine(env="quintain.envs.agents.tasks:balance_ball")
# Written as ML-Agents' own example for balancing balls is.
BALL = """\
behaviors:
  Ball:
    trainer_type: ppo
    hyperparameters:
      batch_size: 64
      buffer_size: 12000
      learning_rate: 0.0003
      beta: 0.001
      epsilon: 0.2
      lambd: 0.99
      num_epoch: 3
      learning_rate_schedule: linear
    network_settings:
      normalize: true
      hidden_units: 96
      num_layers: 3
      vis_encode_type: simple
    reward_signals:
      extrinsic:
        gamma: 0.98
        strength: 0.5
    keep_checkpoints: 5
    max_steps: 5e5
    time_horizon: 1000
    summary_freq: 12000
"""


def options(text: str) -> RunOptions:
    return check_configuration(parse(text, "a.yaml")).options


def asked(text: str, typed: CommandLine = ENV) -> Request:
    return translate(check_configuration(parse(text, "a.yaml")), typed)


def refusal(text: str, typed: CommandLine = ENV) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        asked(text, typed)
    return caught.value


def test_a_file_is_told_from_one_of_ours(tmp_path: Path) -> None:
    assert is_mlagents_file(parse(BALL, "a.yaml"))
    assert is_mlagents_file(parse("default_settings: {trainer_type: ppo}", "a.yaml"))
    assert not is_mlagents_file(parse("experiment: {env: {type: gym}}", "a.yaml"))
    (tmp_path / "ball.yaml").write_text(BALL)
    assert list(read_configuration(tmp_path / "ball.yaml").options.behaviors) == ["Ball"]


def test_every_key_of_a_behaviour_finds_its_place() -> None:
    run_file = asked(BALL).run_file
    behavior: Any = run_file.experiment.behaviors["Ball"]
    algorithm, policy, rollout = behavior.algorithm, behavior.policy, behavior.rollout
    assert (algorithm.batch_size, algorithm.num_epochs, algorithm.gae_lambda) == (64, 3, 0.99)
    # v(t) = (v0 - smallest) * (1 - t) + smallest
    assert algorithm.learning_rate.at(0.25) == pytest.approx((3e-4 - 1e-10) * 0.75 + 1e-10)
    assert algorithm.clip_coef.at(0.5) == pytest.approx((0.2 - 0.1) * 0.5 + 0.1)
    assert algorithm.entropy_coef.at(1.0) == pytest.approx(1e-5)
    assert (algorithm.value_coef, algorithm.max_grad_norm, algorithm.clip_per_component) == (0.5, None, True)
    assert algorithm.clip_value is None
    assert policy.hidden_sizes == (96, 96, 96)
    assert (policy.image_encoder, policy.image_features) == ("simple", 96)
    assert (policy.normalize_obs, policy.activation) == (True, "silu")
    assert policy.initial_log_std == pytest.approx(-1.098612)
    assert (rollout.time_horizon, rollout.buffer_size, rollout.budget_env_steps) == (1000, 12_000, None)
    assert behavior.reward_signals["extrinsic"].gamma == 0.98
    assert behavior.reward_signals["extrinsic"].strength == 0.5
    assert run_file.experiment.budget.env_steps == 500_000
    assert run_file.run.checkpoint.every_env_steps == 500_000
    assert run_file.run.checkpoint.keep == 5
    assert run_file.run.report.every_env_steps == 12_000


def test_defaults_are_those_of_the_other_program() -> None:
    assert PPOSettings().model_dump() == {
        "batch_size": 1024, "buffer_size": 10_240, "learning_rate": 3e-4, "learning_rate_schedule": "linear",
        "beta": 5e-3, "beta_schedule": "linear", "epsilon": 0.2, "epsilon_schedule": "linear", "lambd": 0.95,
        "num_epoch": 3, "shared_critic": False,
    }  # fmt: skip
    assert POCASettings().model_dump() == {k: v for k, v in PPOSettings().model_dump().items() if k != "shared_critic"}
    assert SACSettings().model_dump() == {
        "batch_size": 128, "buffer_size": 50_000, "learning_rate": 3e-4, "learning_rate_schedule": "constant",
        "buffer_init_steps": 0, "tau": 0.005, "steps_per_update": 1.0, "save_replay_buffer": False,
        "init_entcoef": 1.0, "reward_signal_steps_per_update": None,
    }  # fmt: skip
    trainer = options("behaviors: {Ball: {}}").behaviors["Ball"]
    assert (trainer.max_steps, trainer.time_horizon, trainer.summary_freq) == (500_000, 64, 50_000)
    assert (trainer.checkpoint_interval, trainer.keep_checkpoints) == (500_000, 5)
    assert (trainer.network_settings.hidden_units, trainer.network_settings.num_layers) == (128, 2)


def test_schedules_follow_that_of_the_learning_rate_unless_they_are_given() -> None:
    text = "behaviors: {Ball: {hyperparameters: {learning_rate_schedule: constant, epsilon_schedule: linear}}}"
    numbers: Any = options(text).behaviors["Ball"].hyperparameters
    assert (numbers.beta_schedule, numbers.epsilon_schedule) == ("constant", "linear")


def test_default_settings_lie_below_every_behaviour_and_stand_for_those_not_named() -> None:
    text = """\
default_settings: {max_steps: 1000, network_settings: {hidden_units: 16, num_layers: 1}}
behaviors:
  Ball: {network_settings: {num_layers: 3}}
  Gate: {max_steps: 2000}
"""
    run_file = asked(text).run_file
    behaviors: Any = run_file.experiment.behaviors
    assert {name: each.policy.hidden_sizes for name, each in behaviors.items()} == {
        "default": (16,),
        "Ball": (16, 16, 16),
        "Gate": (16,),
    }
    assert run_file.experiment.budget.env_steps == 2000
    budgets = {name: each.rollout.budget_env_steps for name, each in behaviors.items()}
    assert budgets == {"default": 1000, "Ball": 1000, "Gate": None}


def test_a_file_without_behaviours_is_for_all_of_them() -> None:
    assert list(asked("default_settings: {max_steps: 7}").run_file.experiment.behaviors) == ["default"]
    assert list(asked("env_settings: {seed: 3}").run_file.experiment.behaviors) == ["default"]


def test_checkpoints_can_be_even_or_never_thrown_away() -> None:
    even = asked("behaviors: {Ball: {even_checkpoints: true, max_steps: 1000, keep_checkpoints: 4}}").run_file.run
    assert (even.checkpoint.every_env_steps, even.checkpoint.keep) == (250, 4)
    assert asked("behaviors: {Ball: {keep_checkpoints: 0}}").run_file.run.checkpoint.keep >= 100_000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("behaviour: {}\nbehaviors: {}", 'a.yaml:1:1: behaviour: unknown setting; did you mean "behaviors"?'),
        ("behaviors:\n  Ball:\n    max_step: 3", 'behaviors.Ball.max_step: unknown setting; did you mean "max_steps"?'),
        (
            "behaviors:\n  Ball:\n    network_settings: {hidden_unit: 3}",
            'a.yaml:3:24: behaviors.Ball.network_settings.hidden_unit: unknown setting; did you mean "hidden_units"?',
        ),
        (
            "behaviors: {Ball: {network_settings: {memory: {sequence_lenght: 3}}}}",
            'network_settings.memory.sequence_lenght: unknown setting; did you mean "sequence_length"?',
        ),
        ("behaviors: {Ball: {self_play: {windw: 3}}}", 'self_play.windw: unknown setting; did you mean "window"?'),
        (
            "behaviors: {Ball: {behavioral_cloning: {demo_path: a, step: 3}}}",
            'behavioral_cloning.step: unknown setting; did you mean "steps"?',
        ),
        ("torch_settings: {devise: cpu}", 'torch_settings.devise: unknown setting; did you mean "device"?'),
        ("engine_settings: {widht: 3}", 'engine_settings.widht: unknown setting; did you mean "width"?'),
        (
            "environment_parameters: {g: {curriculum: [{name: a, value: 1, completion_criteria: {behavior: b, "
            "treshold: 3}}]}}",
            'curriculum.0.completion_criteria.treshold: unknown setting; did you mean "threshold"?',
        ),
        (
            "default_settings:\n  network_settings: {conditioning_type: none}",
            'a.yaml:2:22: default_settings.network_settings.conditioning_type: unknown setting; did you mean "goal_',
        ),
        (
            "behaviors: {Ball: {hyperparameters: {tau: 0.1}}}",
            "behaviors.Ball.hyperparameters.tau: unknown setting; expected one of: batch_size",
        ),
        ("behaviors: {Ball: {trainer_type: pppo}}", 'unknown trainer "pppo"; did you mean "ppo"?'),
        (
            "behaviors: {Ball: {hyperparameters: {batch_size: 2048, buffer_size: 1024}}}",
            "batch_size 2048 is more than buffer_size 1024, so that nothing would ever be learned",
        ),
        ("behaviors: {Ball: {hyperparameters: {learning_rate: -1.0}}}", "found -1.0, expected more than 0"),
        ("behaviors: {Ball: {reward_signals: {extrinsic: {gamma: 1.5}}}}", "found 1.5, expected at most 1"),
        ("behaviors: {Ball: {network_settings: {memory: {memory_size: 7}}}}", "memory_size 7 must be even"),
        (
            "behaviors: {Ball: {hyperparameters: {batch_size: 32}, network_settings: {memory: {sequence_length: 64}}}}",
            "sequence_length 64 is more than hyperparameters.batch_size 32",
        ),
        (
            "environment_parameters: {g: {sampler_type: uniform, sampler_parameters: {min_value: 3, max_value: 1}}}",
            "environment_parameters.g: found [3, 1], expected [low, high]",
        ),
        (
            "environment_parameters: {g: {curriculum: [{name: a, value: 1}, {name: b, value: 2}]}}",
            "lesson a needs completion_criteria",
        ),
    ],
)
def test_mistakes_at_any_depth_are_named_with_their_place(text: str, line: str) -> None:
    error = refusal(text)
    assert line in error.message
    assert error.message.startswith("a.yaml")
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "behaviors: {Ball: {trainer_type: poca, network_settings: {hidden_units: 30}}}",
            "behaviors.Ball.network_settings.hidden_units: poca shares them between 4 heads; use a multiple",
        ),
        ("behaviors: {Ball: {reward_signals: {extrinsic: {}, rnd: {}}}}", "behaviors.Ball.reward_signals.rnd: "),
        ("behaviors: {Ball: {reward_signals: {extrinsic: {}, curiosity: {}}}}", "reward_signals.curiosity: "),
        ("behaviors: {Ball: {reward_signals: {extrinsic: {}, gail: {demo_path: a}}}}", "reward_signals.gail: "),
        ("behaviors: {Ball: {self_play: {}}}", "behaviors.Ball.self_play: this is not built yet"),
        ("behaviors: {Ball: {behavioral_cloning: {demo_path: a}}}", "behaviors.Ball.behavioral_cloning: "),
        ("behaviors: {Ball: {init_path: a.pt}}", "behaviors.Ball.init_path: "),
        ("behaviors: {Ball: {network_settings: {vis_encode_type: resnet}}}", "network_settings.vis_encode_type: "),
        ("behaviors: {Ball: {hyperparameters: {shared_critic: true}}}", "hyperparameters.shared_critic: "),
        ("env_settings: {env_args: [a]}", "env_settings.env_args: Unity builds"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(text: str, path: str) -> None:
    error = refusal(text)
    assert path in error.message
    assert error.code == "E0228"


@pytest.mark.parametrize(
    ("text", "typed", "said"),
    [
        (BALL, CommandLine(), "no environment: the Unity editor cannot be connected to yet"),
        (BALL, CommandLine(env="builds/Ball.x86_64"), "Unity builds cannot be run yet"),
        ("env_settings: {env_path: Ball.app}", CommandLine(), "Unity builds cannot be run yet"),
    ],
)
def test_unity_is_refused_by_name(text: str, typed: CommandLine, said: str) -> None:
    assert said in refusal(text, typed).message


def test_threaded_lets_agents_act_on_while_their_policy_learns() -> None:
    text = "behaviors:\n  Ball: {threaded: true}\n  Gate: {}\n  Soft: {trainer_type: sac, threaded: true}\n"
    found = asked(text, CommandLine(env="a:B"))
    rollouts = {name: each.rollout for name, each in found.run_file.experiment.behaviors.items()}
    assert found.run_file.run.placement.type == "threads"
    assert [getattr(rollouts[name], "max_staleness", None) for name in ("Ball", "Gate", "Soft")] == [1, 0, 1]
    assert asked("behaviors: {Gate: {}}", CommandLine(env="a:B")).run_file.run.placement.type == "local"


def test_what_was_typed_wins_over_the_file() -> None:
    text = (
        BALL + "env_settings: {env_path: 'a:B', num_envs: 2, seed: 5}\ncheckpoint_settings: {run_id: y, force: true}\n"
    )
    from_file = asked(text, CommandLine())
    assert (from_file.run_id, from_file.is_forced, from_file.is_resume) == ("y", True, False)
    env: Any = from_file.run_file.experiment.env
    assert (env.id, env.num_lanes, from_file.run_file.experiment.seed) == ("a:B", 2, 5)
    typed = asked(text, CommandLine(env="c:D", num_envs=3, seed=8, run_id="z", is_resume=True, results_dir="here"))
    env = typed.run_file.experiment.env
    assert (env.id, env.num_lanes, typed.run_file.experiment.seed) == ("c:D", 3, 8)
    assert (typed.run_id, typed.is_resume, typed.is_forced, typed.results_dir) == ("z", True, False, "here")


def test_a_resume_wins_over_other_weights_unless_those_were_typed() -> None:
    both = BALL + "checkpoint_settings: {resume: true, initialize_from: other}\n"
    assert (asked(both).is_resume, asked(both).initialize_from) == (True, None)
    assert any("initialize_from has no effect" in note for note in asked(both).notes)
    typed = asked(both, CommandLine(env="a:B", initialize_from="mine"))
    assert (typed.is_resume, typed.initialize_from) == (False, "mine")


def test_a_seed_of_minus_one_is_drawn_and_written_down() -> None:
    seeds = {asked(BALL).run_file.experiment.seed for _ in range(8)}
    assert len(seeds) > 1
    assert all(0 <= seed < 10_000 for seed in seeds)


def test_what_has_no_effect_without_unity_is_named_once() -> None:
    text = BALL + "env_settings: {base_port: 6000}\nengine_settings: {width: 8, time_scale: 1}\ndebug: true\n"
    [note] = asked(text).notes
    for name in ("env_settings.base_port", "engine_settings.width", "engine_settings.time_scale", "debug"):
        assert name in note
    assert asked(BALL).notes == ()


def test_numbers_and_samplers_of_the_environment_are_passed_on() -> None:
    text = """\
environment_parameters:
  push: 2
  grip: {sampler_type: uniform, sampler_parameters: {min_value: 0.5, max_value: 3.0}}
  mass: {sampler_type: gaussian, sampler_parameters: {mean: 2.0}}
  size: {sampler_type: multirangeuniform, sampler_parameters: {intervals: [[1, 2], [5, 9]]}}
"""
    env: Any = asked(text).run_file.experiment.env
    assert env.parameters == {"push": 2.0}
    found = {name: (each.distribution, each.numbers) for name, each in env.samplers.items()}
    assert found == {
        "grip": ("uniform", (0.5, 3.0)),
        "mass": ("gaussian", (2.0, 1.0)),
        "size": ("ranges", (1.0, 2.0, 5.0, 9.0)),
    }


def test_sac_finds_its_places_too() -> None:
    text = """\
behaviors:
  Ball:
    trainer_type: sac
    hyperparameters: {batch_size: 64, buffer_size: 2000, buffer_init_steps: 100, tau: 0.01, steps_per_update: 4,
                      init_entcoef: 0.5, learning_rate: 0.001, save_replay_buffer: true}
    max_steps: 1000
    time_horizon: 32
"""
    behavior: Any = asked(text).run_file.experiment.behaviors["Ball"]
    algorithm, rollout = behavior.algorithm, behavior.rollout
    assert (algorithm.type, algorithm.batch_size, algorithm.learning_starts) == ("sac", 64, 100)
    assert (algorithm.tau, algorithm.updates_per_step, algorithm.initial_entropy_coef) == (0.01, 0.25, 0.5)
    assert algorithm.learning_rate.at(0.7) == 0.001
    assert (rollout.type, rollout.buffer_size, rollout.time_horizon) == ("trajectory_replay", 2000, 32)
    assert behavior.policy.type == "soft_actor"


def test_memory_is_learned_over_whole_trajectories_and_says_so() -> None:
    request = asked("behaviors: {Ball: {network_settings: {memory: {sequence_length: 32, memory_size: 48}}}}")
    policy: Any = request.run_file.experiment.behaviors["Ball"].policy
    assert (policy.memory.cell, policy.memory.size) == ("lstm", 24)
    assert "time_horizon 64, and not over sequence_length 32" in request.notes[0]


def test_lessons_are_passed_on_and_the_last_has_no_end() -> None:
    text = """\
environment_parameters:
  push:
    curriculum:
      - name: easy
        value: 0.5
        completion_criteria: {behavior: Ball, measure: reward, threshold: 5, min_lesson_length: 10}
      - name: hard
        value: {sampler_type: uniform, sampler_parameters: {min_value: 1, max_value: 2}}
        completion_criteria: {behavior: Ball, measure: progress, threshold: 0.5}
"""
    env: Any = asked(text).run_file.experiment.env
    easy, hard = env.curricula["push"]
    assert (easy.value, easy.until.behavior, easy.until.threshold, easy.until.min_episodes) == (0.5, "Ball", 5.0, 10)
    assert (hard.sampler.numbers, hard.until) == ((1.0, 2.0), None)
