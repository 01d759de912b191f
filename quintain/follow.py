"""What ranks 1 and up do: build their share of the run that rank 0 leads, and take part until it ends.

A follower writes nothing: no directory, no console, no metrics.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.cli.errors import as_quintain_error
from quintain.placements.torchrun import place_in_torchrun
from quintain.ranks import Orders
from quintain.run_faults import agree_on_end
from quintain.services.redaction import redact
from quintain.services.writers import RunSummary, WriterGroup
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.trainers.base import Trainer
    from quintain.world import World


class Follower:
    """Surrounds training on a rank that follows: it does its part of what the run on rank 0 decides."""

    runs_dir = Path("runs")
    keeps_checkpoints = False

    def __init__(self, run_file: RunFile) -> None:
        self.run_file = run_file

    @contextmanager
    def running(self, trainer: Trainer) -> Iterator[None]:
        with _stopping_on_signals(trainer):
            self.commit_if_decided(trainer)
            trainer.faults.listen(_leave_untold, trainer.stop)
            yield
            self.commit_if_decided(trainer)
            agree_on_end(trainer)
        trainer.stop_reason = ""

    def after_cycle(self, trainer: Trainer) -> None:
        if is_report_due(self.run_file, trainer):
            trainer.episode_stats()
            trainer.fault_stats()
        self.commit_if_decided(trainer)

    def save(self, trainer: Trainer) -> Path:
        _give_state(trainer)
        return Path(trainer.world.broadcast(b"").decode())

    def take_up(self, trainer: Trainer, path: Path) -> None:
        """Goes on from a checkpoint with rank 0, which reads it."""
        from quintain.rank_state import broadcast_state, joint_exactness, share_policy
        from quintain.restore import restore_rank

        budget = trainer.progress.budget_env_steps
        restore_rank(trainer, broadcast_state(trainer.world, None))
        self.commit_if_decided(trainer)
        share_policy(trainer.policy, trainer.world)
        joint_exactness(trainer)
        trainer.progress.budget_env_steps = budget

    def folder(self, name: str) -> Path:
        raise AssertionError("only rank 0 writes")

    def keep_evidence(self, trainer: Trainer, tensors: Mapping[str, Any]) -> Path | None:
        """Keeps nothing: rank 0 does."""
        return None

    def rollback(self, trainer: Trainer) -> bool:
        """Goes back with rank 0 if it does."""
        if not decide(trainer.world, False):
            return False
        from quintain.rank_state import broadcast_state
        from quintain.restore import restore_rank

        restore_rank(trainer, broadcast_state(trainer.world, None))
        return True

    def warn(self, trainer: Trainer, code: str, text: str) -> None:
        """Says nothing: rank 0 does."""

    def summary(self, trainer: Trainer) -> RunSummary:
        return RunSummary("finished", trainer.stats.total_seconds, trainer.progress.env_steps)

    def commit_if_decided(self, trainer: Trainer) -> None:
        """Gives this rank's state to a checkpoint if rank 0 commits one now."""
        if decide(trainer.world, False):
            _give_state(trainer)


def is_report_due(run_file: RunFile, trainer: Trainer) -> bool:
    """Says whether a row is written after this cycle."""
    progress, every_updates = trainer.progress, run_file.run.report.every_updates
    if every_updates is not None:
        return progress.updates % every_updates == 0 or trainer.is_finished
    rollout = next(iter(run_file.experiment.behaviors.values())).rollout
    every_env_steps = getattr(type(rollout), "report_every_env_steps", 1)
    return every_env_steps == 1 or progress.crossed(every_env_steps) or trainer.is_finished


def decide(world: World, wanted: bool) -> bool:
    """Returns what rank 0 wants."""
    return world.broadcast(b"yes" if wanted else b"no") == b"yes"


def run_rank(rank: int, size: int, place: str, report: Connection) -> None:
    """Is the whole life of a process that rank 0 started."""
    from quintain.placements.rank_processes import meet_on_this_machine, send_report, settle_in

    settle_in(rank)
    exit_code = 0
    try:
        world = meet_on_this_machine(rank, size, place)
        follow(world)
        world.close()
    except Exception as error:
        shown = as_quintain_error(error)
        send_report(report, shown, redact("".join(traceback.format_exception(error))))
        exit_code = shown.exit_code
    # Not by returning: threads of a stuck library must not keep a process that has nothing left to do.
    os._exit(exit_code)


def is_follower() -> bool:
    """Says whether torchrun started this process as another rank than the first."""
    place = place_in_torchrun()
    return place is not None and place[0] > 0


def follow_in_torchrun() -> None:
    """Takes part in the run that rank 0 of this torchrun leads."""
    from quintain.world import Gloo

    place = place_in_torchrun()
    assert place is not None
    world = Gloo(*place)
    follow(world)
    world.close()


def follow(world: World) -> None:
    """Builds what rank 0 orders and trains with it."""
    from quintain.assemble import assemble
    from quintain.rank_state import broadcast_state, joint_exactness, share_policy
    from quintain.restore import restore_rank

    settings, orders = Orders.receive(world)
    run_file = RunFile.from_mapping(settings)
    session = Follower(run_file)
    trainer = assemble(run_file, session, WriterGroup([]), world=world)
    try:
        world.barrier()
        if orders.first == "restore":
            restore_rank(trainer, broadcast_state(world, None))
            trainer.progress.budget_env_steps = run_file.experiment.budget.env_steps
            session.commit_if_decided(trainer)
        share_policy(trainer.policy, world)
        joint_exactness(trainer)
        if orders.goes_on:
            trainer.records.goal_reached = False
        if orders.first == "save":
            trainer.algorithm.begin_from_policy()
            session.save(trainer)
        trainer.train()
    finally:
        trainer.close()


def _leave_untold(fault: object, line: str) -> None:
    """Tells nobody of a fault: a follower writes nothing, and its counts reach rank 0 with the statistics."""


def _give_state(trainer: Trainer) -> None:
    from quintain.rank_state import gather_state, joint_exactness

    gather_state(trainer)
    joint_exactness(trainer)
    # Rank 0 may take its time with the disk; waited for here, it is not taken for lost in the next step.
    trainer.world.broadcast(b"")


@contextmanager
def _stopping_on_signals(trainer: Trainer) -> Iterator[None]:
    """Lets a signal stop this rank's collecting, and with it the run; what becomes of the run is rank 0's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: trainer.stop("a signal")) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
