"""Checks run files end to end: files, names, Python, origins, round trips, trust and schema."""

import json
import subprocess
import sys

import pytest

from quintain.algorithms.settings import AlgorithmSettings, PPOSettings
from quintain.core import registry
from quintain.errors import CheckpointError, SettingsError
from quintain.settings import RunFile, Schedule
from quintain.settings.base import PartSettings
from quintain.settings.outline import RunTree

TEXT = """\
experiment:
  seed: 7
  env: {type: gym, id: CartPole-v1, num_envs: 64}
  behaviors:
    default:
      algorithm:
        type: ppo
        clip_coef: {start: 0.2, end: 0.1}
      reward_signals: {extrinsic: {gamma: 0.98}}
run:
  placement: local
"""
DEFAULT = "experiment.behaviors.default"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "cartpole.yaml"
    file.write_text(TEXT)
    return file


@pytest.fixture
def clean_registry(monkeypatch):
    registry.names("algorithm")
    copies = {kind: dict(names) for kind, names in registry._registered.items()}
    monkeypatch.setattr(registry, "_registered", copies)


def test_a_file_becomes_a_tree(path):
    run_file = RunFile.load(path)
    behavior = run_file.experiment.behaviors["default"]
    assert run_file.experiment.seed == 7
    assert run_file.experiment.env.num_lanes == 64
    assert behavior.algorithm.clip_coef == Schedule(start=0.2, end=0.1, shape="linear")
    assert behavior.algorithm.type == "ppo"
    assert behavior.reward_signals["extrinsic"].gamma == 0.98
    assert behavior.reward_signals["extrinsic"].type == "extrinsic"
    assert [event.type for event in behavior.events] == ["evaluate"]
    assert (behavior.rollout.type, behavior.rollout.num_steps) == ("block", 128)
    assert run_file.run.placement.type == "local"


def test_every_value_knows_who_set_it(path):
    origins = RunFile.load(path, "num_epochs=3").replace("run.threads", 2).origins
    assert origins["experiment.seed"] == f"{path}:2"
    assert origins["experiment.env.num_lanes"] == f"{path}:3"
    assert origins[f"{DEFAULT}.algorithm.clip_coef.end"] == f"{path}:8"
    assert origins[f"{DEFAULT}.algorithm.num_epochs"] == "override"
    assert origins["run.placement.type"] == f"{path}:11"
    assert origins["run.threads"] == "python"
    assert origins[f"{DEFAULT}.policy.hidden_sizes"] == "default"
    assert origins[f"{DEFAULT}.events.0.type"] == "default"


def test_an_alias_in_a_file_is_noted_with_its_line(path):
    assert RunFile.load(path).notes == [f"note: {path}:3: num_envs is experiment.env.num_lanes here"]


def test_an_alias_beside_its_canonical_name_is_refused(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("experiment:\n  env: {type: gym, id: A, num_lanes: 2,\n        num_envs: 3}\n")
    with pytest.raises(SettingsError, match=r"a\.yaml:3:9: experiment\.env\.num_envs and num_lanes are the same"):
        RunFile.load(file)


def test_a_real_setting_wins_over_an_alias_of_that_spelling(clean_registry):
    class NStepSettings(AlgorithmSettings):
        lr: float = 1.0

    registry.register("algorithm", "n_step", NStepSettings)(type("NStep", (), {}))
    run_file = RunFile.from_mapping(
        {
            "experiment": {
                "env": {"type": "gym", "id": "A"},
                "behaviors": {"b": {"algorithm": {"type": "n_step", "lr": 2}}},
            }
        }
    )
    assert run_file.experiment.behaviors["b"].algorithm.lr == 2.0
    assert run_file.notes == []


def test_saving_and_loading_gives_an_equal_tree(path, tmp_path):
    run_file = RunFile.load(path, "run.id='1e5'")
    again = tmp_path / "again.yaml"
    run_file.save(again)
    assert RunFile.load(again) == run_file
    assert RunFile.load(again).run.id == "1e5"
    # The comments begin in column 45.
    assert f"  seed: 7{' ' * 36}# {path}:2\n" in again.read_text()


def test_a_file_name_cannot_break_out_of_its_comment(tmp_path):
    file = tmp_path / "a\nrun: {threads: 9} #.yaml"
    file.write_text(TEXT)
    again = tmp_path / "again.yaml"
    RunFile.load(file).save(again)
    assert RunFile.load(again).run.threads == 1


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in registry.KINDS for name in registry.names(kind)])
def test_every_registered_settings_class_survives_a_round_trip(kind, name):
    settings_class = registry.get(kind, name).settings_class
    required = {"id": "CartPole-v1", "mean_return": 475.0, "after": "update", "ranges": {"gravity": (8.0, 12.0)},
                "function": "fitting:train", "path": "demonstrations"}  # fmt: skip
    settings = settings_class(**{key: required[key] for key in required if key in settings_class.model_fields})
    assert settings_class.model_validate(json.loads(settings.model_dump_json())) == settings


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in registry.KINDS for name in registry.names(kind)])
def test_every_setting_is_documented(kind, name):
    settings_class = registry.get(kind, name).settings_class
    undocumented = [key for key, field in settings_class.model_fields.items() if not field.description]
    assert undocumented == []
    assert settings_class.__doc__


def test_equality_ignores_who_set_a_value(path):
    assert RunFile.load(path, "seed=7") == RunFile.load(path)
    assert RunFile.load(path, "seed=8") != RunFile.load(path)


def test_two_names_are_enough():
    run_file = RunFile.from_names("ppo", "CartPole-v1", "num_lanes=16", "total_timesteps=200k")
    assert (run_file.experiment.env.type, run_file.experiment.env.id) == ("gym", "CartPole-v1")
    assert run_file.experiment.env.num_lanes == 16
    assert run_file.experiment.budget.env_steps == 200_000
    assert run_file.origins["experiment.env.id"] == "argument"
    assert run_file.notes == ["note: total_timesteps is experiment.budget.env_steps here"]


def test_a_registered_environment_goes_by_its_name(clean_registry):
    registry.register("env", "corridor")(type("Corridor", (), {}))
    assert RunFile.from_names("ppo", "corridor").experiment.env.type == "corridor"


def test_an_environment_class_is_given_to_gymnasium():
    run_file = RunFile.from_names("ppo", "my_package:MyEnv")
    assert (run_file.experiment.env.type, run_file.experiment.env.id) == ("gym", "my_package:MyEnv")
    assert run_file.notes == ["note: experiment.env.id imports code: my_package:MyEnv"]


def test_settings_objects_are_accepted_in_python():
    run_file = RunFile.from_names("ppo", "A-v1").replace("algorithm", PPOSettings(num_epochs=3, clip_coef=0.1))
    algorithm = run_file.experiment.behaviors["default"].algorithm
    assert (algorithm.type, algorithm.num_epochs, algorithm.clip_coef.start) == ("ppo", 3, 0.1)
    assert run_file.origins[f"{DEFAULT}.algorithm.num_epochs"] == "python"
    assert run_file.origins[f"{DEFAULT}.algorithm.batch_size"] == "default"


def test_replace_leaves_the_original_alone():
    before = RunFile.from_names("ppo", "A-v1")
    after = before.replace(f"{DEFAULT}.algorithm.learning_rate", {"start": 4e-4, "end": 0})
    assert after.experiment.behaviors["default"].algorithm.learning_rate.at(0.5) == 2e-4
    assert before.experiment.behaviors["default"].algorithm.learning_rate.at(0.5) == 3e-4


def test_an_algorithm_brings_defaults_below_file_and_override(clean_registry):
    defaults = {"rollout": {"num_steps": 2048}, "policy": {"activation": "relu"}}
    registry.register("algorithm", "eager", PPOSettings, defaults=defaults)(type("Eager", (), {}))
    run_file = RunFile.from_names("eager", "A-v1", "activation=elu")
    behavior = run_file.experiment.behaviors["default"]
    assert (behavior.rollout.num_steps, behavior.policy.activation) == (2048, "elu")
    assert run_file.origins[f"{DEFAULT}.rollout.num_steps"] == "algorithm default"
    assert run_file.origins[f"{DEFAULT}.policy.activation"] == "override"
    assert run_file.origins[f"{DEFAULT}.rollout.max_staleness"] == "default"


def test_a_block_of_another_type_drops_the_algorithms_defaults(clean_registry):
    class LogSettings(PartSettings):
        num_files: int = 1

    registry.register("rollout", "log", LogSettings)(type("Log", (), {}))
    defaults = {"rollout": {"type": "block", "num_steps": 2048}}
    registry.register("algorithm", "eager", PPOSettings, defaults=defaults)(type("Eager", (), {}))
    run_file = RunFile.from_names("eager", "A-v1", "rollout=log", "num_files=2")
    assert run_file.experiment.behaviors["default"].rollout.model_dump() == {"type": "log", "num_files": 2}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("env: {type: gym, id: 'evil:Env'}", "evil:Env"),
        ("env: 'evil:Env'", "evil:Env"),
        ("behaviors: {default: {algorithm: {type: 'evil:A'}}}", "evil:A"),
        ("behaviors: {default: {algorithm: ppo, events: ['evil:E']}}", "evil:E"),
        ("behaviors: {default: {algorithm: ppo, reward_signals: {x: 'evil:R'}}}", "evil:R"),
    ],
)
def test_a_file_from_a_run_may_not_name_code(tmp_path, line, name):
    file = tmp_path / "config.yaml"
    file.write_text(f"experiment:\n  {line}\n")
    with pytest.raises(CheckpointError, match=rf'"{name}" would import code') as caught:
        RunFile.load(file, trusted=False)
    assert (caught.value.code, caught.value.exit_code) == ("E0407", 4)


def test_code_may_be_allowed_by_name_or_given_by_the_user(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("experiment:\n  env: {type: gym, id: 'mine:Env'}\n  behaviors: {default: {algorithm: ppo}}\n")
    assert RunFile.load(file, trusted=False, allow=["mine:Env"]).experiment.env.id == "mine:Env"
    file.write_text("experiment:\n  env: {type: gym, id: A-v1}\n  behaviors: {default: {algorithm: ppo}}\n")
    assert RunFile.load(file, "env.id=mine:Env", trusted=False).experiment.env.id == "mine:Env"


def test_users_own_code_is_named_by_module(tmp_path, monkeypatch):
    (tmp_path / "my_algorithms.py").write_text(
        "from quintain.algorithms.settings import AlgorithmSettings\n"
        "class MineSettings(AlgorithmSettings):\n    depth: int = 3\n"
        "class Mine:\n    settings_class = MineSettings\n"
        "class Bare:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run_file = RunFile.from_names("my_algorithms:Mine", "A-v1", "depth=4")
    algorithm = run_file.experiment.behaviors["default"].algorithm
    assert (algorithm.type, algorithm.depth) == ("my_algorithms:Mine", 4)
    assert registry.get("algorithm", "my_algorithms:Mine").load().__name__ == "Mine"
    with pytest.raises(SettingsError, match="has no settings; put @register"):
        RunFile.from_names("my_algorithms:Bare", "A-v1")
    # A signal needs no more than the settings that all signals have.
    assert registry.get("reward_signal", "my_algorithms:Bare").settings_class.__name__ == "RewardSignalSettings"


def test_the_schema_offers_every_registered_part():
    schema = RunTree.model_json_schema()
    options = schema["$defs"]["Behavior"]["properties"]["algorithm"]["oneOf"]
    assert {"const": "ppo"} in options
    ppo = next(option for option in options if option.get("title") == "PPOSettings")
    assert ppo["properties"]["type"] == {"const": "ppo"}
    assert ppo["required"] == ["type"]
    assert ppo["properties"]["num_epochs"]["description"] == "Epochs per batch."
    references = {part.split('"')[0] for part in json.dumps(schema).split("#/$defs/")[1:]}
    assert references <= schema["$defs"].keys()
    assert "Schedule" in references


def test_nothing_here_imports_torch_or_gymnasium():
    code = (
        "import sys; from quintain.settings import RunFile; "
        "RunFile.from_names('ppo', 'CartPole-v1').fingerprint(); "
        "sys.exit(bool({'torch', 'tensordict', 'gymnasium', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_block_that_is_replaced_takes_its_origins_with_it(path):
    origins = RunFile.load(path, "env={type: gym, id: B-v1}").origins
    assert origins["experiment.env.id"] == "override"
    assert origins["experiment.env.num_lanes"] == "default"
    with pytest.raises(SettingsError, match=r"^override env=\{type: gym\}: experiment\.env\.id: not set"):
        RunFile.load(path, "env={type: gym}")


@pytest.mark.parametrize(
    ("words", "num_steps", "batch_size"),
    [
        # 2048 steps of all lanes, at least 128 of each; 64 * 128 = 8192 steps are 32 minibatches of 256.
        ((), 256, 64),
        (("num_lanes=1",), 2048, 64),
        (("num_lanes=64",), 128, 256),
        (("num_lanes=1k", "num_steps=4"), 4, 64),
        (("num_steps=32",), 32, 64),
        (("batch_size=512",), 256, 512),
        (("num_lanes=2", "num_steps=16"), 16, 32),
        (("num_lanes=4", "num_steps=32", "memory={cell: lstm}"), 32, 128),
        # Whole lanes of a recurrent policy: two of 100 steps, or one of 2048.
        (("memory={}", "num_steps=100"), 100, 200),
        (("memory={}", "num_lanes=1"), 2048, 2048),
    ],
)
def test_the_batch_of_ppo_follows_from_the_lanes(words, num_steps, batch_size):
    behavior = RunFile.from_names("ppo", "A-v1", *words).experiment.behaviors["default"]
    assert (behavior.rollout.num_steps, behavior.algorithm.batch_size) == (num_steps, batch_size)


def test_only_ppo_leaves_the_noise_of_its_own_policy_to_the_spaces():
    holds = [
        RunFile.from_names(algorithm, "A-v1", *words).experiment.behaviors["default"].policy.noise_hold
        for algorithm, words in (("ppo", ()), ("ppo", ("policy=actor_only",)), ("a2c", ()), ("reinforce", ()))
    ]
    assert holds == ["auto", 1, 1, 1]


def test_only_ppo_and_lanes_have_such_batches():
    for algorithm, num_steps in (("a2c", 16), ("grpo", 128), ("sac", 1)):
        words = ("group_size=2",) if algorithm == "grpo" else ()
        assert (
            RunFile.from_names(algorithm, "A-v1", *words).experiment.behaviors["default"].rollout.num_steps == num_steps
        )
