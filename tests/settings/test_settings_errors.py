"""Checks that a mistake in a run file is named by place, setting, finding and remedy, all mistakes at once."""

import pytest

from quintain.errors import SettingsError
from quintain.settings import RunFile

HEAD = "experiment:\n  env: {type: gym, id: A-v1}\n"
DEFAULT = "experiment.behaviors.default"


def refusal(tmp_path, text):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        RunFile.load(file)
    error = caught.value
    assert error.exit_code == 2
    return error, [line.replace(f"{file}", "a.yaml") for line in (error.message, *error.notes)]


def behaviors(block):
    return f"{HEAD}  behaviors:\n    default:\n      {block}\n"


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        (
            behaviors("algorithm: {type: ppo, clip_coeff: 0.1}"),
            f'a.yaml:5:30: {DEFAULT}.algorithm.clip_coeff: unknown setting; did you mean "clip_coef"?',
            "E0203",
        ),
        (
            behaviors("algorithm: {type: pp}"),
            f'a.yaml:5:19: {DEFAULT}.algorithm.type: unknown algorithm "pp"; did you mean "ppo"?',
            "E0204",
        ),
        (
            behaviors("algorithm: quantum"),
            f'a.yaml:5:7: {DEFAULT}.algorithm.type: unknown algorithm "quantum"; expected one of: ',
            "E0204",
        ),
        (
            behaviors("algorithm: {type: ppo, num_epochs: '8'}"),
            f'a.yaml:5:30: {DEFAULT}.algorithm.num_epochs: found "8", expected an integer',
            "E0205",
        ),
        (
            behaviors("algorithm: {type: ppo, gae_lambda: 1.5}"),
            f"a.yaml:5:30: {DEFAULT}.algorithm.gae_lambda: found 1.5, expected at most 1.0",
            "E0205",
        ),
        (
            behaviors("algorithm: {type: ppo, learning_rate: 0}"),
            f"a.yaml:5:30: {DEFAULT}.algorithm.learning_rate: expected a start above 0 and an end not below 0",
            "E0205",
        ),
        (
            behaviors("algorithm: {type: ppo, normalize_advantage: 1}"),
            f"a.yaml:5:30: {DEFAULT}.algorithm.normalize_advantage: found 1, expected true or false",
            "E0205",
        ),
        (
            behaviors("rollout: {num_steps: 8}"),
            f"a.yaml:4:5: {DEFAULT}.algorithm: not set, and it has no default",
            "E0205",
        ),
        (
            behaviors("algorithm: {}"),
            f"a.yaml:5:7: {DEFAULT}.algorithm: type is missing; expected one of: ",
            "E0205",
        ),
        (
            behaviors("{algorithm: ppo, policy: {activation: tan}}"),
            f"a.yaml:5:33: {DEFAULT}.policy.activation: found \"tan\", expected one of 'tanh', 'relu', 'elu' or 'silu'",
            "E0205",
        ),
        (
            behaviors("{algorithm: ppo, events: evaluate}"),
            f'a.yaml:5:24: {DEFAULT}.events: found "evaluate", expected a list',
            "E0205",
        ),
        (
            HEAD + "  behaviors: {a: {algorithm: ppo}, b: {algorithm: ppo}}\n",
            "a.yaml:3:3: experiment.behaviors: found a, b, expected exactly one: only an environment of agents "
            "(experiment.env.type agents) has several",
            "E0205",
        ),
        (
            HEAD + "  behaviors: {}\n",
            "a.yaml:3:3: experiment.behaviors: found none, expected at least one",
            "E0205",
        ),
        (
            HEAD + "  behaviors: {a/b: {algorithm: ppo}}\n",
            'a.yaml:3:3: experiment.behaviors: name "a/b" may only have up to 100 letters, digits, "_", "." and '
            '"-", and no "." at its beginning',
            "E0205",
        ),
        (
            HEAD + "  behaviors: {..: {algorithm: ppo}}\n",
            'a.yaml:3:3: experiment.behaviors: name ".." may only have up to 100 letters, digits, "_", "." and '
            '"-", and no "." at its beginning',
            "E0205",
        ),
        ("run: {threads: 1}\n", "a.yaml: experiment: not set, and it has no default", "E0205"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, line, code):
    error, lines = refusal(tmp_path, text)
    assert len(lines) == 1
    assert lines[0].startswith(line)
    assert error.code == code


def test_all_mistakes_are_named_at_once(tmp_path):
    text = behaviors("algorithm: {type: ppo, clip_coeff: 0.1, num_epochs: 0}") + "run: {checkpoint: {keep: 1}}\n"
    _, lines = refusal(tmp_path, text)
    assert lines == [
        f"a.yaml:5:47: {DEFAULT}.algorithm.num_epochs: found 0, expected more than 0 (first of 3 problems)",
        f'a.yaml:5:30: {DEFAULT}.algorithm.clip_coeff: unknown setting; did you mean "clip_coef"?',
        "a.yaml:6:20: run.checkpoint.keep: found 1, expected at least 2",
    ]


def test_twenty_mistakes_are_shown_of_many(tmp_path):
    unknown = ", ".join(f"x{number}: 1" for number in range(30))
    _, lines = refusal(tmp_path, behaviors("algorithm: {type: ppo, " + unknown + "}"))
    assert len(lines) == 20
    assert lines[0].endswith("(first of 30 problems, 20 shown)")


@pytest.mark.parametrize("run_id", ["a", "cartpole-7", "0.1_x-" + "y" * 58])
def test_run_ids_that_are_safe(run_id):
    assert RunFile.from_names("ppo", "A-v1", f"run.id='{run_id}'").run.id == run_id


@pytest.mark.parametrize("run_id", ["", ".", "..", "-a", "_a", "a/b", "a b", "y" * 65, "con", "NUL", "com1.txt", "é"])
def test_run_ids_that_are_not_safe(run_id):
    with pytest.raises(SettingsError, match=r"run\.id"):
        RunFile.from_names("ppo", "A-v1", f"run.id='{run_id}'")


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda", "cuda:3"])
def test_devices(device):
    assert RunFile.from_names("ppo", "A-v1", f"device={device}").run.device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", "cpu:0"])
def test_devices_that_are_not(device):
    with pytest.raises(SettingsError, match="expected cpu, cuda, cuda:N or auto"):
        RunFile.from_names("ppo", "A-v1", f"device='{device}'")


def test_a_minibatch_larger_than_a_batch_names_both_sides():
    with pytest.raises(SettingsError) as caught:
        RunFile.from_names("ppo", "A-v1", "num_lanes=8", "num_steps=256", "batch_size=4096")
    assert caught.value.code == "E0215"
    # 8 lanes of 256 steps
    assert caught.value.message == (
        f"override batch_size=4096: {DEFAULT}.algorithm.batch_size: 4096 is more than one batch has: "
        f"experiment.env.num_lanes * {DEFAULT}.rollout.num_steps = 8 * 256 = 2048; "
        "lower batch_size, or raise num_lanes or num_steps"
    )


def test_a_minibatch_as_large_as_a_batch_is_fine():
    RunFile.from_names("ppo", "A-v1", "num_lanes=8", "num_steps=256", "batch_size=2048")


def test_a_budget_smaller_than_a_rollout_is_fine():
    RunFile.from_names("ppo", "A-v1", "total_timesteps=1")


def test_stopping_needs_an_evaluation():
    with pytest.raises(SettingsError, match="without an evaluate event") as caught:
        RunFile.from_names("ppo", "A-v1", "events=[none, {type: stop_at_return, mean_return: 475}]")
    assert caught.value.code == "E0214"
    RunFile.from_names("ppo", "A-v1", "events=[evaluate, {type: stop_at_return, mean_return: 475}]")
