"""Checks key=value: what a short key means, what it cannot mean, and what the message says."""

import pytest

from quintain.algorithms.settings import AlgorithmSettings
from quintain.core import registry
from quintain.errors import SettingsError
from quintain.placements.settings import PlacementSettings
from quintain.settings import RunFile

DEFAULT = "experiment.behaviors.default"


def with_overrides(*overrides):
    return RunFile.from_names("ppo", "CartPole-v1", *overrides)


def refusal(*overrides):
    with pytest.raises(SettingsError) as caught:
        with_overrides(*overrides)
    assert caught.value.exit_code == 2
    return caught.value


def value_at(run_file, path):
    node = run_file.to_dict()
    for step in path.split("."):
        node = node[int(step)] if step.isdecimal() else node[step]
    return node


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=3", "experiment.seed", 3),
        ("device=cuda:1", "run.device", "cuda:1"),
        ("gamma=0.9", f"{DEFAULT}.reward_signals.extrinsic.gamma", 0.9),
        ("strength=2", f"{DEFAULT}.reward_signals.extrinsic.strength", 2.0),
        ("clip_coef=0.1", f"{DEFAULT}.algorithm.clip_coef", 0.1),
        ("learning_rate=3e-4", f"{DEFAULT}.algorithm.learning_rate", 0.0003),
        ("hidden_sizes=[32, 16]", f"{DEFAULT}.policy.hidden_sizes", [32, 16]),
        ("num_steps=2k", f"{DEFAULT}.rollout.num_steps", 2000),
        ("keep=3", "run.checkpoint.keep", 3),
        ("env_steps=1M", "experiment.budget.env_steps", 1_000_000),
        ("every_seconds=null", "run.checkpoint.every_seconds", None),
        ("kwargs.gravity=9.8", "experiment.env.kwargs.gravity", 9.8),
        ("env.kwargs={a: [1]}", "experiment.env.kwargs", {"a": [1]}),
        ("algorithm.clip_coef=0.1", f"{DEFAULT}.algorithm.clip_coef", 0.1),
        ("algorithm={type: ppo, n_epochs: 2}", f"{DEFAULT}.algorithm.num_epochs", 2),
        ("events=[{type: evaluate, num_episodes: 3}]", f"{DEFAULT}.events.0.num_episodes", 3),
        ("experiment.env.num_lanes=4", "experiment.env.num_lanes", 4),
        ("run.report.every_updates=5", "run.report.every_updates", 5),
        ("kwargs.equation=a=b", "experiment.env.kwargs.equation", "a=b"),
    ],
)
def test_a_key_sets_the_one_setting_it_means(override, path, value):
    assert value_at(with_overrides(override), path) == value


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("num_envs=4", "experiment.env.num_lanes", 4),
        ("total_timesteps=5k", "experiment.budget.env_steps", 5000),
        ("clip_range=0.3", f"{DEFAULT}.algorithm.clip_coef", 0.3),
        ("ent_coef=0.3", f"{DEFAULT}.algorithm.entropy_coef", 0.3),
        ("vf_coef=0.3", f"{DEFAULT}.algorithm.value_coef", 0.3),
        ("n_steps=64", f"{DEFAULT}.rollout.num_steps", 64),
        ("buffer_size=64", f"{DEFAULT}.rollout.num_steps", 64),
        ("rollout_steps=64", f"{DEFAULT}.rollout.num_steps", 64),
        ("time_horizon=64", f"{DEFAULT}.rollout.num_steps", 64),
        ("n_epochs=4", f"{DEFAULT}.algorithm.num_epochs", 4),
        ("lambd=0.9", f"{DEFAULT}.algorithm.gae_lambda", 0.9),
        ("discount=0.9", f"{DEFAULT}.reward_signals.extrinsic.gamma", 0.9),
        ("lr=0.1", f"{DEFAULT}.algorithm.learning_rate", 0.1),
        ("minibatch_size=64", f"{DEFAULT}.algorithm.batch_size", 64),
        ("experiment.env.num_envs=4", "experiment.env.num_lanes", 4),
    ],
)
def test_an_alias_is_understood_and_noted(override, path, value):
    run_file = with_overrides(override)
    assert value_at(run_file, path) == value
    alias = override.partition("=")[0].rpartition(".")[2]
    assert run_file.notes == [f"note: {alias} is {path} here"]


def test_an_alias_overrides_the_canonical_name_of_a_file(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("experiment:\n  env: {type: gym, id: A, num_lanes: 2}\n  behaviors: {b: {algorithm: ppo}}\n")
    assert RunFile.load(file, "num_envs=16").experiment.env.num_lanes == 16


def test_a_short_key_finds_the_sole_behaviour_whatever_its_name(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("experiment:\n  env: {type: gym, id: A}\n  behaviors: {team.red: {algorithm: ppo}}\n")
    run_file = RunFile.load(file, "num_epochs=2", "experiment.behaviors.team.red.algorithm.gae_lambda=0.5")
    algorithm = run_file.experiment.behaviors["team.red"].algorithm
    assert (algorithm.num_epochs, algorithm.gae_lambda) == (2, 0.5)


def test_the_last_of_two_equal_keys_wins():
    assert with_overrides("seed=1", "seed=2").experiment.seed == 2


def test_a_part_may_be_chosen_after_its_settings(monkeypatch):
    class PoolSettings(PlacementSettings):
        num_workers: int = 1

    monkeypatch.setattr(registry, "_registered", {})
    registry.register("placement", "pool", PoolSettings)(type("Pool", (), {}))
    assert with_overrides("num_workers=4", "placement=pool").run.placement.num_workers == 4


def test_a_key_with_several_meanings_lists_them():
    error = refusal("id=x")
    assert error.message == 'override id=x: "id" may mean run.id, experiment.env.id; write the one you mean'
    assert error.code == "E0206"


def test_an_alias_that_is_also_a_setting_is_not_guessed(monkeypatch):
    class NStepSettings(AlgorithmSettings):
        n_steps: int = 5

    monkeypatch.setattr(registry, "_registered", {})
    registry.register("algorithm", "n_step", NStepSettings)(type("NStep", (), {}))
    with pytest.raises(SettingsError, match=r"rollout\.n_steps, .*algorithm\.n_steps; write the one you mean"):
        RunFile.from_names("n_step", "A-v1", "n_steps=3")


@pytest.mark.parametrize(
    ("override", "message", "code"),
    [
        (
            "clip_coeff=1",
            'override clip_coeff=1: no setting is called "clip_coeff"; did you mean "clip_coef"?',
            "E0203",
        ),
        ("zzz=1", 'override zzz=1: no setting is called "zzz"; see: quintain config show', "E0203"),
        ("seed", "override seed: expected key=value, such as seed=1", "E0206"),
        ("se ed=1", "override se ed=1: expected key=value, such as seed=1", "E0206"),
        ("seed=", "override seed=: no value; write seed=null for none", "E0206"),
        ("seed=-1", "override seed=-1: experiment.seed: found -1, expected at least 0", "E0205"),
        ("strength=.inf", "override strength=.inf: .inf is not a finite number", "E0202"),
        (
            "experiment.sead=1",
            'override experiment.sead=1: experiment.sead: unknown setting; did you mean "seed"?',
            "E0203",
        ),
        (
            "algorithm=ppoo",
            f'override algorithm=ppoo: {DEFAULT}.algorithm.type: unknown algorithm "ppoo"; did you mean "ppo"?',
            "E0204",
        ),
    ],
)
def test_a_refusal_names_the_override_and_what_was_meant(override, message, code):
    error = refusal(override)
    assert (error.message, error.code) == (message, code)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("rollout.learning_starts=300", "it belongs to algorithm: algorithm.learning_starts"),
        # The store is that of the algorithm, replay, though nothing says so; and its name is also another's alias.
        ("rollout.bufer_size=300", 'did you mean "buffer_size"?'),
    ],
)
def test_a_setting_in_the_wrong_block_is_refused_with_its_place(override, hint):
    with pytest.raises(SettingsError) as refused:
        RunFile.from_names("td3", "Pendulum-v1", override)
    path = override.partition("=")[0]
    assert refused.value.message == f"override {override}: {DEFAULT}.{path}: unknown setting; {hint}"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("num_actors=2", 'no setting is called "num_actors" here; it belongs to placement ray, and this is local'),
        (
            "placement.num_actors=2",
            "run.placement.num_actors: unknown setting; it belongs to placement ray, and this is local",
        ),
        (
            "learning_starts=300",
            'no setting is called "learning_starts" here; it belongs to algorithm dqn, sac, td3, and this is ppo',
        ),
    ],
)
def test_a_setting_of_another_type_is_refused_with_the_types_that_have_it(override, said):
    error = refusal(override)
    assert (error.message, error.code) == (f"override {override}: {said}", "E0203")


def test_nothing_can_be_set_below_a_single_value():
    error = refusal("gae_lambda=0.9", "gae_lambda.end=0")
    assert error.message == f"override gae_lambda.end=0: {DEFAULT}.algorithm.gae_lambda is one value; set it as a whole"


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        # PPO's own number is 0.0003.
        (("learning_rate.end=0",), {"start": 0.0003, "end": 0.0, "shape": "linear"}),
        (("lr=5e-4", "lr.end=1e-4"), {"start": 0.0005, "end": 0.0001, "shape": "linear"}),
        (("learning_rate.shape=cosine", "learning_rate.end=0"), {"start": 0.0003, "end": 0.0, "shape": "cosine"}),
        (("learning_rate={start: 3e-4, end: 0}", "learning_rate.end=1e-5"),
         {"start": 0.0003, "end": 0.00001, "shape": "linear"}),
        (("learning_rate.start=2e-4",), 0.0002),
        (("learning_rate.start=2e-4", "learning_rate.end=0"), {"start": 0.0002, "end": 0.0, "shape": "linear"}),
    ],
)  # fmt: skip
def test_a_part_of_a_schedule_makes_one_of_the_number_that_is_there(overrides, value):
    assert value_at(with_overrides(*overrides), f"{DEFAULT}.algorithm.learning_rate") == value


def test_who_set_which_part_of_a_schedule_is_remembered(tmp_path):
    (tmp_path / "file.yaml").write_text(
        "experiment:\n"
        "  env: {type: gym, id: CartPole-v1}\n"
        "  behaviors: {default: {algorithm: {type: ppo, learning_rate: 2e-3}}}\n"
    )
    run_file = RunFile.load(tmp_path / "file.yaml", "learning_rate.end=0")
    rate = f"{DEFAULT}.algorithm.learning_rate"
    assert value_at(run_file, rate) == {"start": 0.002, "end": 0.0, "shape": "linear"}
    assert run_file.origins[f"{rate}.start"] == f"{tmp_path / 'file.yaml'}:3"
    assert run_file.origins[f"{rate}.end"] == "override"
    assert with_overrides("learning_rate.start=2e-4").origins[rate] == "override"


def test_python_may_set_a_part_of_a_schedule_too():
    changed = with_overrides("clip_coef=0.3").replace("clip_coef.end", 0.1)
    assert value_at(changed, f"{DEFAULT}.algorithm.clip_coef") == {"start": 0.3, "end": 0.1, "shape": "linear"}


def test_a_part_that_a_schedule_does_not_have_is_still_unknown():
    error = refusal("learning_rate.ending=0")
    assert error.code == "E0203"
    assert 'did you mean "end"?' in error.message


def test_a_setting_that_only_its_block_has_is_named_with_it() -> None:
    assert (
        'no setting is called "num_workers"; did you mean "env_workers.num_workers"?'
        in refusal("num_workers=2").message
    )


@pytest.mark.parametrize(
    ("alias", "canonical", "hint"),
    [
        ("exploration_fraction", "epsilon.until", "see: quintain config show"),
        ("n_step", "num_return_steps", 'did you mean "n_steps"?'),
    ],
)
def test_an_alias_of_another_algorithm_is_not_suggested_for_itself(alias: str, canonical: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        RunFile.from_names("ppo", "CartPole-v1", f"{alias}=3")
    assert caught.value.message == (
        f'override {alias}=3: "{alias}" is {canonical} here, and no part of this run has it; {hint}'
    )
    assert caught.value.code == "E0203"
