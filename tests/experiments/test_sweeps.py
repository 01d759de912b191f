"""nip's sweeps are sweeps: combinations in order, in processes, not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import SettingsError
from quintain.experiments.sweeps import (
    ExperimentFunctionArguments,
    MultiprocessHyperparameterExperiment,
    SequentialHyperparameterExperiment,
)


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
    tmp_path: Path, kind: type[SequentialHyperparameterExperiment]
) -> None:
    file = tmp_path / "calls"
    grid = {"lr": [0.5, 0.1, 0.2], "file": [str(file)]}
    for _ in range(2):
        made = kind(grid, note, lambda index: f"run_{index}", "all", tmp_path / "sweeps", metric="train/score")
        table = made.run()
    calls = sorted(file.read_text().splitlines())
    # What is finished is not repeated; what failed is tried again.
    assert calls == ["run_0 0 0.5", "run_0 0 0.5", "run_1 1 0.1", "run_2 2 0.2"]
    assert len(table.failed) == 1
    assert table.best is not None
    assert table.best.mean == pytest.approx(0.9)


def test_a_function_that_no_process_can_import_is_refused() -> None:
    with pytest.raises(SettingsError, match="put it into a module") as found:
        SequentialHyperparameterExperiment({"lr": [1]}, lambda arguments: None)
    assert found.value.code == "E0283"
    with pytest.raises(SettingsError, match="no combination"):
        SequentialHyperparameterExperiment({"lr": []}, note)
