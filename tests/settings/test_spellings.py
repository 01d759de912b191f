"""Settings by the names that Stable-Baselines3 and rl-zoo have for them."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.errors import SettingsError
from quintain.settings.base import Schedule
from quintain.settings.tree import RunFile


def default(run_file: RunFile) -> Any:
    return run_file.experiment.behaviors["default"]


def test_an_algorithm_is_found_in_capitals() -> None:
    assert RunFile.from_names("PPO", "CartPole-v1") == RunFile.from_names("ppo", "CartPole-v1")
    written = {"experiment": {"env": "CartPole-v1", "behaviors": {"default": {"algorithm": "SAC"}}}}
    written["experiment"]["env"] = {"type": "gym", "id": "Pendulum-v1"}  # type: ignore[assignment]
    assert default(RunFile.from_mapping(written)).algorithm.type == "sac"


def test_the_names_of_rl_zoo_are_understood() -> None:
    words = ["n_envs=4", "n_timesteps=10k", "normalize=true", "net_arch=[32, 16]", "n_steps=64", "clip_range_vf=0.3"]
    words += ["use_sde=true", "sde_sample_freq=4", "log_std_init=-2", "n_epochs=5", "activation_fn=relu"]
    run_file = RunFile.from_names("ppo", "Pendulum-v1", *words)
    behavior = default(run_file)
    assert (run_file.experiment.env.num_lanes, run_file.experiment.budget.env_steps) == (4, 10_000)  # type: ignore[attr-defined]
    policy, algorithm = behavior.policy, behavior.algorithm
    assert (policy.normalize_obs, policy.hidden_sizes, policy.use_sde) == (True, (32, 16), True)
    assert (policy.noise_hold, policy.initial_log_std, policy.activation) == (4, -2, "relu")
    assert (behavior.rollout.num_steps, algorithm.num_epochs, algorithm.clip_value) == (64, 5, Schedule(start=0.3))
    assert "note: n_envs is experiment.env.num_lanes here" in run_file.notes


EPSILON = [
    (["exploration_fraction=0.3"], {"start": 1.0, "end": 0.05, "until": 0.3}),
    (["exploration_final_eps=0.2", "exploration_fraction=0.5"], {"start": 1.0, "end": 0.2, "until": 0.5}),
    (["exploration_initial_eps=0.5"], {"start": 0.5, "end": 0.05, "until": 0.1}),
]


@pytest.mark.parametrize(("words", "expected"), EPSILON)
def test_exploration_of_dqn_is_a_schedule(words: list[str], expected: dict[str, float]) -> None:
    wanted = Schedule.model_validate(expected)
    assert default(RunFile.from_names("dqn", "CartPole-v1", *words)).policy.epsilon == wanted
    policy = dict(word.split("=") for word in words)
    mapping = {
        "experiment": {
            "env": {"type": "gym", "id": "CartPole-v1"},
            "behaviors": {
                "default": {
                    "algorithm": "dqn",
                    "policy": {"type": "q_network", **{name: float(value) for name, value in policy.items()}},
                }
            },
        }
    }
    assert default(RunFile.from_mapping(mapping)).policy.epsilon == wanted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Per rollout of train_freq * num_lanes steps: 8 / (8 * 1), 2 / (4 * 2), and as many as steps.
        (["gradient_steps=8", "train_freq=8", "num_lanes=1"], 1.0),
        (["gradient_steps=2", "n_envs=2", "train_freq=4"], 0.25),
        (["train_freq=64", "gradient_steps=-1"], 1.0),
    ],
)
def test_gradient_steps_are_counted_per_environment_step(words: list[str], expected: float) -> None:
    assert default(RunFile.from_names("sac", "Pendulum-v1", *words)).algorithm.updates_per_step == expected


def test_an_automatic_entropy_coefficient_is_null() -> None:
    assert default(RunFile.from_names("sac", "Pendulum-v1", "ent_coef=auto")).algorithm.entropy_coef is None
    with pytest.raises(SettingsError, match="entropy_coef"):
        RunFile.from_names("ppo", "Pendulum-v1", "ent_coef=auto")


def test_the_same_setting_twice_is_refused() -> None:
    behavior = {"algorithm": "dqn", "policy": {"type": "q_network", "epsilon": {"start": 1, "end": 0, "until": 0.2}}}
    behavior["policy"]["exploration_fraction"] = 0.3  # type: ignore[index]
    mapping = {"experiment": {"env": {"type": "gym", "id": "CartPole-v1"}, "behaviors": {"default": behavior}}}
    with pytest.raises(SettingsError, match=r"are the same setting; keep epsilon\.until"):
        RunFile.from_mapping(mapping)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("target_update_interval=100", "target_update_every"),
        ("policy_kwargs={}", "hidden_sizes"),
        ("verbose=1", "quiet"),
    ],
)
def test_a_hint_names_the_counterpart_in_meaning(word: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        RunFile.from_names("dqn", "CartPole-v1", word)


def test_values_of_rl_zoo_are_understood() -> None:
    words = [
        "ent_coef=auto_0.1",
        "target_entropy=auto",
        "learning_rate=lin_7.3e-4",
        "net_arch={pi: [9, 8], qf: [9, 8]}",
    ]
    run_file = RunFile.from_names("sac", "Pendulum-v1", *words)
    algorithm, policy = default(run_file).algorithm, default(run_file).policy
    assert (algorithm.entropy_coef, algorithm.initial_entropy_coef, algorithm.target_entropy) == (None, 0.1, None)
    assert algorithm.learning_rate == Schedule(start=7.3e-4, end=0.0, shape="linear")
    assert policy.hidden_sizes == (9, 8)
    assert run_file.origins["experiment.behaviors.default.algorithm.learning_rate.start"] == "override"
    with pytest.raises(SettingsError, match=r"net_arch has 2 different lists.*write hidden_sizes=\[9\]"):
        RunFile.from_names("ppo", "CartPole-v1", "net_arch={pi: [9], vf: [8]}")


@pytest.mark.parametrize(("name", "cell"), [("MlpPolicy", None), ("CnnPolicy", None), ("MlpLstmPolicy", "lstm")])
def test_policies_of_stable_baselines_follow_from_the_spaces(name: str, cell: str | None) -> None:
    behavior = {"algorithm": "ppo", "policy": name}
    mapping = {"experiment": {"env": {"type": "gym", "id": "CartPole-v1"}, "behaviors": {"default": behavior}}}
    for run_file in (
        RunFile.from_names("ppo", "CartPole-v1", f"policy={name}", "net_arch=[8]"),
        RunFile.from_mapping(mapping),
    ):
        policy = default(run_file).policy
        assert policy.type == "actor_critic"
        assert (policy.memory and policy.memory.cell) == cell
        assert any(note.startswith(f"note: policy {name} is ") for note in run_file.notes)
