"""A KL divergence to a pretrained reference holds the policy: it moves less far than without, for every seed.

`make learning-minecraft` runs this and writes docs/results/minecraft_reference.json.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from quintain import RunFile
from quintain.runs import launch
from tests.learning.trials import RESULTS, ROOT

pytestmark = [pytest.mark.learning, pytest.mark.timeout(1800)]

PRETRAINED = ("experiment.budget.env_steps=30k",)
# In the warm-up of one iteration the reference is made, whatever rho is, so that the divergence is measured for 0 too.
CONTINUED = ("experiment.budget.env_steps=20k", "value_warmup=1", "zero_initial_values=false", "kl_decay=1.0")
RHOS = (0.0, 0.2)
LAST_ROWS = 4
"""Updates at the end over which the divergence is averaged."""


def trained(runs_dir: Path, run_id: str, seed: int, *overrides: str, begins_from: Path | None = None) -> list[Any]:
    """Trains, and returns the rows of metrics."""
    settings = RunFile.load(ROOT / "examples/minecraft_online.yaml", *overrides, f"experiment.seed={seed}")
    launched = launch.start(settings, runs_dir=runs_dir, run_id=run_id, quiet=True, initialize_from=begins_from)
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    return [json.loads(line) for line in launched.directory.metrics.read_text().splitlines()]


@pytest.mark.parametrize("seed", range(3))
def test_a_reference_holds_the_policy_in_minecraft(seed: int, tmp_path: Path) -> None:
    started = time.process_time()
    before = trained(tmp_path, "pretrained", seed, *PRETRAINED)
    [checkpoint] = sorted((tmp_path / "pretrained" / "checkpoints").glob("*"))[-1:]
    outcome = {"seed": seed, "pretrained_return": round(before[-1]["rollout/ep_rew_mean"], 3)}
    kl = {}
    for rho in RHOS:
        rows = trained(tmp_path, f"rho-{rho}", seed + 100, *CONTINUED, f"kl_coef={rho}", begins_from=checkpoint)
        last = [row["train/reference_kl"] for row in rows if "train/reference_kl" in row][-LAST_ROWS:]
        kl[rho] = sum(last) / len(last)
        outcome |= {f"kl_{rho}": float(f"{kl[rho]:.4g}"), f"return_{rho}": round(rows[-1]["rollout/ep_rew_mean"], 3)}
    outcome["cpu_seconds"] = round(time.process_time() - started, 1)
    path = RESULTS / "minecraft_reference.json"
    known = json.loads(path.read_text()) if path.exists() else []
    kept = [row for row in known if row["seed"] != seed]
    path.write_text(json.dumps(sorted([*kept, outcome], key=lambda row: row["seed"]), indent=1) + "\n")
    assert kl[0.2] < kl[0.0]
