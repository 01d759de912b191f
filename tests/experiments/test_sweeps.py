"""nip's sweeps are sweeps: combinations in order, in processes, not repeated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from quintain.errors import SettingsError
from quintain.experiments.sweeps import (
    ExperimentFunctionArguments,
    MultiprocessHyperparameterExperiment,
    SequentialHyperparameterExperiment,
)
from tests import warm


def note(arguments: ExperimentFunctionArguments) -> dict[str, float]:
    """Writes a line for each call, and fails for one combination."""
    combo = arguments.combo
    with Path(str(combo["file"])).open("a") as file:
        file.write(f"{arguments.run_id} {arguments.combo_index} {combo['lr']}\n")
    if combo["lr"] == 0.5:
        raise ValueError("too fast")
    return {"score": 1.0 - float(str(combo["lr"]))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SequentialHyperparameterExperiment, MultiprocessHyperparameterExperiment])
def test_every_combination_runs_once_and_a_failure_stops_no_other(
    tmp_path: Path, kind: type[SequentialHyperparameterExperiment], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "calls"
    grid = {"lr": [0.5, 0.1, 0.2], "file": [str(file)]}
    for _ in range(2):
        made = kind(
            grid, note, lambda index, cmd_args: f"run_{cmd_args.run_infix}_{index}", experiment_name="all",
            sweeps_dir=tmp_path / "sweeps", metric="train/score",
        )  # fmt: skip
        table = made.run(["--run-infix", "b"])
    calls = sorted(file.read_text().splitlines())
    # What is finished is not repeated; what failed is tried again.
    assert calls == ["run_b_0 0 0.5", "run_b_0 0 0.5", "run_b_1 1 0.1", "run_b_2 2 0.2"]
    assert len(table.failed) == 1
    assert "ValueError: too fast, raised in test_sweeps.py:" in table.failed[0].failure
    ended = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if " combination " in line]
    assert ended == [["FAILED", "run_b_0"], ["SUCCEEDED", "run_b_1"], ["SUCCEEDED", "run_b_2"]] * 2
    assert table.best is not None
    assert table.best.mean == pytest.approx(0.9)


def test_a_function_that_no_process_can_import_is_refused() -> None:
    with pytest.raises(SettingsError, match="put it into a module or a script") as found:
        SequentialHyperparameterExperiment({"lr": [1]}, lambda arguments: None)
    assert found.value.code == "E0283"
    with pytest.raises(SettingsError, match="no combination"):
        SequentialHyperparameterExperiment({"lr": []}, note)


SCRIPT = """
from quintain.compat.nip import HyperParameters, prepare_experiment, run_experiment
from quintain.compat.nip.trainers.registry import register_trainer
from quintain.compat.nip.trainers.trainer_base import Trainer
from quintain.compat.nip.utils.experiments import SequentialHyperparameterExperiment

@register_trainer("scripted")
class Scripted(Trainer):
    def train(self):
        for iteration in range(self.state.iteration, 2):
            self.settings.stat_logger.log({"lr": self.hyper_params.rl.lr}, step=iteration)

def made(combo, cmd_args):
    return HyperParameters("find_the_plus", "scripted", "generated", rl={"lr": combo["lr"]}, seed=cmd_args.own)

def experiment_fn(arguments):
    arguments.child_logger_adapter.info(f"starts {arguments.common_run_name}")
    run_experiment(
        made(arguments.combo, arguments.cmd_args), run_id=arguments.run_id, tqdm_func=arguments.tqdm_func,
        logger=arguments.child_logger_adapter, global_tqdm_step_fn=arguments.global_tqdm_step_fn,
        use_wandb=arguments.cmd_args.use_wandb, wandb_project=arguments.cmd_args.wandb_project,
    )

def prepare(combo, cmd_args):
    print("prepares", combo["lr"])
    return prepare_experiment(made(combo, cmd_args))

if __name__ == "__main__":
    experiment = SequentialHyperparameterExperiment(
        {"lr": [0.1, 0.2, 0.3]}, experiment_fn, lambda index, args: f"{args.run_infix}_{index}", prepare, "SCRIPT"
    )
    experiment.parser.add_argument("--own", type=int, default=1)
    experiment.run()
"""


@pytest.mark.slow
def test_a_script_of_nips_form_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_grid.py").write_text(SCRIPT)

    def run(*words: str) -> list[str]:
        command = [sys.executable, "my_grid.py", *words]
        done = warm.run(command, cwd=tmp_path, env=warm.ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if " combination " in line or line.startswith("prepares")]

    # Of two groups the second has the one combination with an odd number.
    assert run("--combo-groups", "2", "--combo-num", "1", "--own", "7", "-v") == [
        "prepares 0.2",
        "SKIPPED    a_0  combination 0: {'lr': 0.1}",
        "SUCCEEDED  a_1  combination 1: {'lr': 0.2}",
        "SKIPPED    a_2  combination 2: {'lr': 0.3}",
    ]
    assert sorted(each.name for each in (tmp_path / "runs").iterdir()) == ["a_1"]
    config = yaml.safe_load((tmp_path / "runs/a_1/config.yaml").read_text())
    assert config["experiment"]["seed"] == 7
    # The script is imported by its name, and so is its trainer when the run is read.
    assert config["experiment"]["loop"]["kwargs"]["hyper_params"]["_code"] == ["my_grid:Scripted"]
    [log] = (tmp_path / "sweeps/SCRIPT/logs").glob("*a_1*")
    assert "starts SCRIPT" in log.read_text()
    # Flags that decide no results may differ when it goes on.
    ended = [line.split()[0] for line in run("--num-skip", "1", "--own", "7")]
    assert ended == ["prepares", "prepares", "SKIPPED", "SUCCEEDED", "SUCCEEDED"]
    assert sorted(each.name for each in (tmp_path / "runs").iterdir()) == ["a_1", "a_2"]
