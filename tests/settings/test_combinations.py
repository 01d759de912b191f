"""Combinations of settings that cannot work are refused with both keys, before anything is built."""

import pytest

from quintain.errors import SettingsError
from quintain.settings import RunFile

DEFAULT = "experiment.behaviors.default"


def refused(*words: str) -> SettingsError:
    algorithm, *overrides = words
    with pytest.raises(SettingsError) as caught:
        RunFile.from_names(algorithm, "A-v1", *overrides)
    return caught.value


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("grpo",),
            "E0219",
            f"experiment.env.group_size: 1 leaves nothing to compare: {DEFAULT}.algorithm.type grpo compares lanes "
            "that start alike; set group_size to 2 or more, so that it divides experiment.env.num_lanes 8",
        ),
        (
            ("grpo", "group_size=3"),
            "E0219",
            "experiment.env.group_size: 3 does not divide experiment.env.num_lanes 8; every group must be whole",
        ),
        (
            ("ppo", "group_size=3"),
            "E0219",
            "experiment.env.group_size: 3 does not divide experiment.env.num_lanes 8; every group must be whole",
        ),
        (
            ("grpo", "group_size=4", "vectorization=native"),
            "E0219",
            f"experiment.env.vectorization: native cannot start lanes alike, which {DEFAULT}.algorithm.type grpo "
            "needs; set vectorization to lanes",
        ),
        (
            ("ppo", "group_size=4", "vectorization=native"),
            "E0219",
            "experiment.env.vectorization: native cannot start lanes alike, which experiment.env.group_size 4 asks "
            "for; set vectorization to lanes",
        ),
        (
            ("ppo", "memory={cell: lstm}", "num_steps=64", "batch_size=96"),
            "E0221",
            f"{DEFAULT}.algorithm.batch_size: 96 is 1.5 lanes of {DEFAULT}.rollout.num_steps 64; with "
            f"{DEFAULT}.policy.memory a minibatch is whole lanes: set batch_size to 128, or to another multiple of "
            "num_steps",
        ),
        (
            ("ppo", "memory={cell: gru}", "num_steps=512", "batch_size=256"),
            "E0221",
            f"{DEFAULT}.algorithm.batch_size: 256 is 0.5 lanes of {DEFAULT}.rollout.num_steps 512; with "
            f"{DEFAULT}.policy.memory a minibatch is whole lanes: set batch_size to 512, or to another multiple of "
            "num_steps",
        ),
        (
            ("ppo", "memory={cell: gru}", "num_steps=128", "micro_batch_size=100"),
            "E0221",
            f"{DEFAULT}.algorithm.micro_batch_size: 100 is 0.781 lanes of {DEFAULT}.rollout.num_steps 128; with "
            f"{DEFAULT}.policy.memory a minibatch is whole lanes: set micro_batch_size to 128, or to another multiple "
            "of num_steps",
        ),
        (
            ("ppo", "batch_size=128", "micro_batch_size=256"),
            "E0215",
            f"{DEFAULT}.algorithm.micro_batch_size: 256 is more than {DEFAULT}.algorithm.batch_size 128, of which it "
            "is a part; lower it, or leave it out",
        ),
        (
            ("ppo", "adaptive_kl=0.01", "learning_rate={start: 1e-3, end: 0}"),
            "E0222",
            f"{DEFAULT}.algorithm.learning_rate: a schedule has no effect with {DEFAULT}.algorithm.adaptive_kl, which "
            "moves the learning rate by itself; give one number",
        ),
        (
            ("online_ppo", "update_reference=true", "kl_coef=0"),
            "E0222",
            f"{DEFAULT}.algorithm.update_reference: has no effect while {DEFAULT}.algorithm.kl_coef is 0, which keeps "
            "no reference; set it",
        ),
    ],
)
def test_a_combination_that_cannot_work_is_one_sentence(words: tuple[str, ...], code: str, message: str) -> None:
    error = refused(*words)
    assert error.code == code
    # Before it stands who set it; behind it, how many more problems there are.
    assert message in error.message


@pytest.mark.parametrize(
    "words",
    [
        ("grpo", "group_size=4"),
        ("grpo", "group_size=8", "memory={cell: gru}"),
        ("ppo", "group_size=2"),
        ("ppo", "memory={cell: lstm}"),
        ("ppo", "memory={cell: lstm}", "num_steps=64", "batch_size=64", "micro_batch_size=64"),
        ("a2c", "memory={cell: lstm}"),
        ("ppo", "adaptive_kl=0.01", "learning_rate=1e-4"),
        ("ppo", "micro_batch_size=50"),
        ("ppo", "vectorization=native"),
    ],
    ids=" ".join,
)
def test_combinations_that_work_are_accepted(words: tuple[str, ...]) -> None:
    algorithm, *overrides = words
    assert RunFile.from_names(algorithm, "A-v1", *overrides)


@pytest.mark.parametrize("setting", ["use_symmetry=true", "micro_batch_size=8", "adaptive_kl=0.1"])
@pytest.mark.parametrize("algorithm", ["a2c", "grpo group_size=2"])
def test_what_only_ppo_can_do_is_no_setting_of_the_others(algorithm: str, setting: str) -> None:
    assert refused(*algorithm.split(), setting).code == "E0203"


def test_grpo_acts_without_a_critic_unless_told_otherwise() -> None:
    def policy(*words: str) -> str:
        return RunFile.from_names("grpo", "A-v1", "group_size=2", *words).experiment.behaviors["default"].policy.type

    assert policy() == "actor_only"
    assert policy("policy.type=actor_critic") == "actor_critic"
