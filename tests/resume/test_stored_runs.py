"""Runs that an earlier version wrote: they resume, and end as the run that was never stopped ended there.

To the last bit where the instruction set and the versions are those of the machine that wrote them; elsewhere kernels
round differently, and to a tolerance that no mistake in a schedule, a moment or an order would keep.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from quintain.core.versions import facts
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from tests import warm
from tests.resume.stored.make import HERE, RUNS, cpu_model, learned, rows_of


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_ends_as_it_ended_when_it_was_written(name: str, tmp_path: Path) -> None:
    stored = HERE / name
    end = json.loads((stored / "end.json").read_text())
    shutil.copytree(stored / "run", tmp_path / name)
    command = [sys.executable, "-m", "quintain", "resume", name, "--runs-dir", str(tmp_path)]
    warm.run(command, capture_output=True, env=warm.ENVIRONMENT).check_returncode()
    run = tmp_path / name
    last = max(CheckpointCatalog(run / "checkpoints").entries(), key=lambda entry: entry.commit)
    found, expected = learned(load(last.path).state), load_file(stored / "end.safetensors")
    assert found.keys() == expected.keys()
    rows = rows_of(run)
    # Rows may have columns now that were not there when the run was written, and none less.
    rows = [{key: row[key] for key in old} for row, old in zip(rows, end["rows"], strict=True)]
    if _is_same_machine(end["facts"]):
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)
        assert [_compared(name, row) for row in rows] == [_compared(name, row) for row in end["rows"]]
    else:
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


def _compared(name: str, row: dict[str, object]) -> dict[str, object]:
    """Returns a row without columns that mean something else now.

    With staleness, rows of agents had the episodes until the *next* batch was full; now they have those of their own,
    as rows of lanes always had.
    """
    return {key: value for key, value in row.items() if name != "agents_threads" or not key.startswith("rollout/ep_")}


def _is_same_machine(written: dict[str, object]) -> bool:
    here = json.loads(json.dumps({**facts(1), "cpu": cpu_model()}))
    # Of two processors with the same instruction set, libraries choose different kernels.
    compared = ("cpu_capability", "machine", "cpu")
    versions = [{key: each["versions"][key] for key in ("numpy", "torch")} for each in (here, written)]  # type: ignore[index]
    return all(here[key] == written.get(key) for key in compared) and versions[0] == versions[1]
