"""Ranks 1 and up: build their share of the run that rank 0 leads, and take part until it ends.

A follower writes nothing: no directory, no console, no metrics.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.core.process_group import GlooGroup
from quintain.envs.hosts.recipes import Recipe
from quintain.placements.rank_processes import meet_on_this_machine, send_report, settle_in
from quintain.placements.torchrun import place_in_torchrun
from quintain.runs.assemble import Slots, assemble_loop
from quintain.runs.ranks.decisions import agree_on_end, decide, is_report_due
from quintain.runs.ranks.orders import Orders
from quintain.runs.ranks.state import broadcast_state, gather_state, joint_exactness
from quintain.runs.restore import restore_rank
from quintain.runs.sent_parts import adopt_parts, pack_parts
from quintain.services.processes.sent_code import pack_code, unpack_code
from quintain.services.processes.signals import handling
from quintain.services.reporting.crash_reports import as_quintain_error
from quintain.services.reporting.redaction import redact
from quintain.services.reporting.writers import RunSummary, WriterGroup
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.trainers.loop import Loop


class Follower:
    """The session of a following rank: executes its part of the decisions of rank 0."""

    runs_dir = Path("runs")
    keeps_checkpoints = False

    def __init__(self, run_file: RunFile) -> None:
        self.run_file = run_file

    @contextmanager
    def running(self, loop: Loop) -> Iterator[None]:
        # On a signal this rank stops collecting, and with it the run; rank 0 decides how the run ends.
        with handling(lambda number, frame: loop.stop("a signal")):
            self.commit_if_decided(loop)
            loop.faults.listen(_leave_untold, loop.stop)
            yield
            self.commit_if_decided(loop)
            agree_on_end(loop)
        loop.stop_reason = ""

    def after_stage(self, loop: Loop) -> None:
        self.commit_if_decided(loop)

    def after_cycle(self, loop: Loop) -> None:
        if is_report_due(self.run_file, loop):
            loop.report()
        self.commit_if_decided(loop)

    def report(self, loop: Loop) -> None:
        loop.report()

    def save(self, loop: Loop) -> Path:
        _give_state(loop)
        return Path(loop.world.broadcast(b"").decode())

    def resume_from(self, loop: Loop, path: Path) -> None:
        """Continues from a checkpoint with rank 0, which reads it."""
        budget = loop.progress.budget
        restore_rank(loop, broadcast_state(loop.world, None))
        self.commit_if_decided(loop)
        loop.share()
        joint_exactness(loop)
        loop.progress.budget = budget

    def folder(self, name: str) -> Path:
        raise AssertionError("only rank 0 writes")

    def keep_evidence(self, loop: Loop, tensors: Mapping[str, Any]) -> Path | None:
        """Does nothing: rank 0 writes evidence."""
        return None

    def rollback(self, loop: Loop) -> bool:
        """Rolls back together with rank 0."""
        if not decide(loop.world, False):
            return False
        restore_rank(loop, broadcast_state(loop.world, None))
        return True

    def warn(self, loop: Loop, code: str, text: str) -> None:
        """Does nothing: rank 0 prints warnings."""

    def tell(self, text: str) -> None:
        """Does nothing: rank 0 prints lines."""

    def summary(self, loop: Loop) -> RunSummary:
        return RunSummary("finished", loop.stats.total_seconds, loop.progress.env_steps)

    def commit_if_decided(self, loop: Loop) -> None:
        """Sends this rank's state for a checkpoint if rank 0 commits one now."""
        if decide(loop.world, False):
            _give_state(loop)


def pack_script(run_file: RunFile, slots: Slots | None) -> str:
    """Returns what only the user's script has, for processes that this one starts: its parts, environment, function."""
    slots = slots or Slots()
    env = None if slots.env is None else Recipe.from_object(slots.env).to_json()
    function = None if slots.function is None else pack_code(slots.function, slots.function.__name__)
    return json.dumps({"parts": pack_parts(run_file), "env": env, "function": function})


def run_rank(rank: int, size: int, place: str, code: str, report: Connection) -> None:
    """The main function of a process that rank 0 started; `code` is that of `pack_script`."""
    settle_in(rank)
    exit_code = 0
    try:
        words = json.loads(code)
        adopt_parts(words["parts"])
        env = Recipe.from_json(words["env"]).made_by() if words["env"] else None
        function = unpack_code(words["function"]) if words["function"] else None
        slots = Slots(env=env, function=function)  # type: ignore[arg-type]  # a function, as it was packed
        world = meet_on_this_machine(rank, size, place)
        follow(world, slots)
        world.close()
    except Exception as error:
        shown = as_quintain_error(error)
        send_report(report, shown, redact("".join(traceback.format_exception(error))))
        exit_code = shown.exit_code
    # Not by returning: threads of a stuck library must not keep a process that has nothing left to do.
    os._exit(exit_code)


def follow_in_torchrun() -> None:
    """Takes part in the run that rank 0 of this torchrun leads."""
    place = place_in_torchrun()
    assert place is not None
    world = GlooGroup(*place)
    follow(world)
    world.close()


def follow(world: ProcessGroup, slots: Slots | None = None) -> None:
    """Builds the parts that rank 0 orders, with the same objects in `slots`, and trains with it."""
    settings, orders = Orders.receive(world)
    run_file = RunFile.from_mapping(settings)
    session = Follower(run_file)
    trainer = assemble_loop(run_file, session, WriterGroup([]), slots, world=world)
    try:
        world.barrier()
        if orders.first == "restore":
            restore_rank(trainer, broadcast_state(world, None), anew=orders.anew)
            trainer.set_budget(run_file.budget)
            session.commit_if_decided(trainer)
        trainer.share()
        joint_exactness(trainer)
        if orders.goes_on:
            trainer.records.goal_reached = False
        if orders.first == "save":
            trainer.begin_from_policy()
            session.save(trainer)
        trainer.train()
    finally:
        trainer.close()


def _leave_untold(fault: object, line: str) -> None:
    """Ignores a fault: a follower writes nothing, and its counts reach rank 0 with the statistics."""


def _give_state(loop: Loop) -> None:
    gather_state(loop)
    joint_exactness(loop)
    # Rank 0 may take its time with the disk; waited for here, it is not taken for lost in the next step.
    loop.world.broadcast(b"")
