"""What of a run must not depend on how often it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quintain.services.checkpoints import catalog as checkpoint_catalog
from quintain.services.checkpoints.catalog import CheckpointCatalog


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Returns the metric rows without the columns that depend on the clock."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def digest_of(run: Path) -> str:
    """Computes the digest of the newest checkpoint from its files."""

    def refuse(warning: str) -> None:
        raise AssertionError(warning)

    latest = CheckpointCatalog(run / "checkpoints").latest(refuse)
    return checkpoint_catalog.digest(latest.path)


def assert_every_checkpoint_is_sound(run: Path) -> None:
    for entry in CheckpointCatalog(run / "checkpoints").entries():
        assert entry.valid, entry
        checkpoint_catalog.verify(entry.path)
        checkpoint_catalog.load(entry.path)
