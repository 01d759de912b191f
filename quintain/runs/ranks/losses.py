"""Trains through the loss of ranks: all others end, and the run continues from its last checkpoint, a few times.

Only for ranks that this process started. torchrun restarts its own (`--max-restarts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain.errors import RankError
from quintain.runs import launch

if TYPE_CHECKING:
    from quintain.runs.launch import Launched
    from quintain.services.reporting.writers import RunSummary


def train_through_losses(launched: Launched, *, stream: Any = None, quiet: bool = False) -> tuple[Launched, RunSummary]:
    """Trains to the end and closes the run; returns the run and its summary."""
    num_lost = 0
    while True:
        begun_with = launched.run.last
        try:
            return launched, train_and_close(launched)
        except RankError as error:
            # A checkpoint since then means that the run gets somewhere.
            num_lost = num_lost + 1 if launched.run.last == begun_with else 1
            if not _may_go_on(launched, num_lost):
                raise
            reason = error.message
        run_file, path = launched.run.run_file, launched.directory.path.resolve()
        launched = launch.resume(path.parent, str(path), run_file=run_file, stream=stream, quiet=quiet)
        launched.run.warn(
            launched.trainer,
            "W0530",
            f"{reason}; all ranks were started again from step {launched.trainer.progress.env_steps} "
            f"({num_lost} of {_max_failures(launched)} in a row)",
        )


def train_and_close(launched: Launched) -> RunSummary:
    """Trains to the end, and closes the run; a stop by a signal is an end, too."""
    try:
        return launched.trainer.train()
    except (KeyboardInterrupt, SystemExit):
        if not launched.run.exit_code:
            raise
        # Saved; the command reports how it ended, and has an exit code for it.
        return launched.run.summary(launched.trainer)
    finally:
        launched.trainer.close()
        launched.run.close()


def _may_go_on(launched: Launched, num_lost: int) -> bool:
    run = launched.run
    was_asked_to_stop = run.signals.received is not None
    return run.ranks.processes is not None and not was_asked_to_stop and num_lost <= _max_failures(launched)


def _max_failures(launched: Launched) -> int:
    return int(getattr(launched.run.run_file.run.placement, "max_failures", 0))
