"""`quintain train config.py`: what a configuration module says of its run is done, and its mistakes are explained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.runs.launch import checkpoint_of
from quintain.services.checkpoints.catalog import load
from tests import warm
from tests.cli.conftest import Command
from tests.resume.outcome import rows_of

MODULE = """
from tests.online.environments import env_generator
from tests.online.parts import policy_generator

online_dict = {{
    "rollout_config": {{
        "fragment_length": 4,
        "worker_config": {{"num_envs": 1}},
        "replay_buffer_config": {{"max_staleness": 0, "max_reuse": 1}},
    }},
    "train_config": {{"batches_per_iteration": 2, "gradient_accumulation": 1, {train}}},
}}
"""


def module(folder: Path, name: str, train: str) -> str:
    """Writes a configuration module; each has a name of its own, as modules are imported once."""
    (folder / f"{name}.py").write_text(MODULE.format(train=train))
    return f"{name}.py"


@pytest.mark.slow
def test_a_module_says_where_runs_are_and_which_one_goes_on(tmp_path: Path) -> None:
    def train(name: str, keys: str, *words: str) -> None:
        command = [sys.executable, "-m", "quintain", "train", module(tmp_path, name, keys), *words, "--quiet"]
        done = warm.run(command, cwd=tmp_path, env=warm.ENVIRONMENT, capture_output=True)
        assert done.returncode == 0, done.stderr

    kept = tmp_path / "kept"
    train("walk", '"num_iterations": 2, "save_path": "kept"', "--run-id", "a")
    train("walk", '"num_iterations": 3, "save_path": "kept", "resume": "a"')
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name[0] not in "._"] == ["kept"]
    # An iteration has 2 fragments of 4 steps.
    assert [path.name for path in kept.iterdir()] == ["a"]
    assert [row["step"] for row in rows_of(kept / "a")] == [8, 16, 24]
    # The command line's own folder goes before that of the module.
    train("fork", '"num_iterations": 1, "save_path": "x", "resume": "kept/a", "resume_optimizer": False',
          "--runs-dir", "forks", "--run-id", "b")  # fmt: skip
    assert [row["step"] for row in rows_of(tmp_path / "forks" / "b")] == [8]
    began = load(checkpoint_of(tmp_path / "forks", "b@0")).manifest.about["forked_from"]
    newest = checkpoint_of(kept, "a").name
    assert f"kept/a@{newest}#" in str(began)


def test_two_answers_to_which_run_goes_on_are_refused(quintain: Command, tmp_path: Path) -> None:
    file = module(tmp_path, "goes_on", '"resume": "a"')
    for option in (("--resume", "--run-id", "a"), ("--run-id", "b"), ("--force",), ("--initialize-from", "c")):
        answer = quintain("train", file, *option)
        assert answer.exit_code == 2
        assert f"train_config.resume in goes_on.py continues a run, which {option[0]} contradicts" in answer.error
    assert "no run 'a' in runs" in quintain("train", file).error


def test_a_module_is_shown_and_validated_like_a_run_file(quintain: Command, tmp_path: Path) -> None:
    file = module(tmp_path, "shown", '"num_iterations": 7')
    shown = quintain("config", "show", file, "seed=3", "--json")
    assert shown.json["settings"]["experiment"]["budget"]["updates"] == 7
    assert shown.json["settings"]["experiment"]["seed"] == 3
    assert quintain("validate", file).out == "1 checked, 0 bad\n"
    bad = quintain("validate", module(tmp_path, "not_shown", '"num_iteratons": 7'))
    assert 'online_dict: train_config.num_iteratons: unknown setting; did you mean "num_iterations"?' in bad.out


@pytest.mark.slow
def test_a_run_of_a_module_is_known_by_its_generator(quintain: Command, tmp_path: Path) -> None:
    answer = quintain("train", module(tmp_path, "known", '"num_iterations": 1'))
    assert " · online_ppo · tests.online.environments:env_generator · 1 lane" in answer.out.splitlines()[0]
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith("env-generator-online-ppo-")
    said = [line for line in answer.out.splitlines() if "imports code" in line]
    assert said == [
        "note: experiment.env.kwargs.generator imports code: tests.online.environments:env_generator",
        "note: experiment.behaviors.default.policy.network.type imports code: tests.online.parts:policy_generator",
    ]


def test_a_key_of_a_module_among_overrides_is_explained(quintain: Command, tmp_path: Path) -> None:
    answer = quintain("config", "show", module(tmp_path, "explained", '"num_iterations": 7'), "num_iterations=8")
    assert 'no setting is called "num_iterations"' in answer.error
    assert "help: keys of online_dict are changed in explained.py; quintain config show explained.py" in answer.err


def test_a_module_with_placement_ray_means_what_its_keys_mean_there(quintain: Command, tmp_path: Path) -> None:
    file = module(tmp_path, "on_ray", '"num_readers": 3, "num_cpus_per_reader": 0.5')
    here, there = (quintain("config", "show", file, *words, "--json").json for words in ((), ("placement=ray",)))
    assert "on processes these change nothing: train_config.num_readers" in here["notes"][0]
    placement = there["settings"]["run"]["placement"]
    assert (placement["num_readers"], placement["num_cpus_per_reader"]) == (3, 0.5)
    assert not any("change nothing" in note for note in there["notes"])
