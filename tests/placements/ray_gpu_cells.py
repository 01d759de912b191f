"""Ranks under Ray Train with GPUs that are declared and not there: `make test-ray` writes docs/results/ray_gpus.md.

A cluster may count GPUs that no node has. Ray schedules by the count, so what each rank gets and what is refused is
Ray's own answer. Nothing is computed on them: torch says on each rank that there are none, and the run ends with that.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.core.process_group import GlooGroup
from quintain.errors import QuintainError
from quintain.placements.ray.cluster import Cluster
from quintain.placements.ray.learners import RankTask, TrainedRanks
from quintain.placements.ray.mailbox import Desk
from quintain.placements.settings import RaySettings
from quintain.placements.torchrun import place_in_torchrun
from quintain.runs.ranks.on_ray import new_run, train_on_ray
from quintain.settings.tree import RunFile
from tests import warm

RESULTS = warm.ROOT / "docs" / "results" / "ray_gpus.md"
SETTINGS = (
    "num_lanes=4", "num_steps=32", "batch_size=64", "num_collectors=1", "max_staleness=1", "total_timesteps=1280",
    "placement=ray", "placement.address=auto", "placement.num_ranks=2", "placement.num_cpus_per_actor=0.5",
    "device=cuda",
)  # fmt: skip


def report(words: Any, objects: Any, desk: Desk) -> None:
    """What each rank does: says what it was given, and averages with the others."""
    import ray
    import torch.distributed as dist

    place = place_in_torchrun()
    assert place is not None
    own = torch.tensor([float(place[0])])
    GlooGroup(*place).average(own)
    given = ",".join(map(str, ray.get_gpu_ids()))
    text = f"{place[0]} {given} {os.environ.get('CUDA_VISIBLE_DEVICES')} {dist.get_backend()} {float(own)}"
    desk.post({"text": text}, waits=True)


def scheduled(folder: Path) -> str:
    """Two ranks share one GPU."""
    settings = RaySettings(address="auto", num_gpus_per_rank=0.5)
    cluster = Cluster.join(settings)
    cluster.require_room(2, 0, settings)
    task = RankTask(f"{__spec__.name if __name__ == '__main__' else __name__}:report", {})
    ranks = TrainedRanks(cluster, settings, 2, task, folder / "ranks")
    said: list[str] = []
    while not ranks.is_over:
        said += [each["text"] for each in ranks.take(0.2) if "text" in each]
    said += [each["text"] for each in ranks.take(0.2) if "text" in each]
    ranks.close()
    cluster.leave()
    if ranks.error is not None:
        raise ranks.error
    assert sorted(said) == ["0 0 0 gloo 0.5", "1 0 0 gloo 0.5"], said
    return "both ranks have GPU 0 and see it alone; they average through gloo"


def refused(folder: Path, share: float, code: str) -> str:
    """A run that cannot be: there are too few GPUs, or none that torch knows."""
    run_file = RunFile.from_names("ppo", "CartPole-v1", *SETTINGS, f"placement.num_gpus_per_rank={share:g}")
    with pytest.raises(QuintainError) as failed:
        train_on_ray(new_run(run_file, runs_dir=folder, run_id=f"run-{share:g}"), quiet=True)
    assert failed.value.code == code, failed.value
    return f"`{failed.value.code}`: {failed.value.message}"


def main() -> int:
    import ray

    ray.init(num_cpus=4, num_gpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for name, cell in (
            ("2 ranks, 0.5 GPU each", lambda: scheduled(folder)),
            ("2 ranks, 1 GPU each", lambda: refused(folder, 1.0, "E0545")),
            ("a run on 2 ranks, 0.5 GPU each", lambda: refused(folder, 0.5, "E0218")),
        ):
            began = time.monotonic()
            found = cell()
            rows.append(f"| {name} | {time.monotonic() - began:.1f} | {found} |")
            print(rows[-1], flush=True)
    ray.shutdown()
    lines = [
        "# Learner ranks with GPUs",
        "",
        "One cluster on this machine that counts one GPU, and has none. Written by `make test-ray`.",
        "",
        "| asked for | seconds | found |",
        "|---|---|---|",
        *rows,
        "",
        "Source: `tests/placements/ray_gpu_cells.py`.",
        "",
    ]
    RESULTS.write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
