"""The loop: stages in turn until the budget is spent, and the narrow face that a run sees of it.

cycle          all stages of the loop, once each
  stage        a method `_stage_<name>` that returns True (done) or False (must wait, or was asked to stop)
between        events fire, rows are written and checkpoints are taken only between stages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.core.budget import Budget
from quintain.core.process_group import World
from quintain.core.progress import Progress
from quintain.core.state import require_count
from quintain.envs.hosts.faults import FaultKeeper
from quintain.services.events import CYCLE_END, EventManager
from quintain.services.processes.supervisor import Supervisor
from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.records import Records

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.trainers.session import Session
    from quintain.typing import Metrics, State


class Loop:
    """Repeats its stages, between which events fire and the run reports and saves.

    A loop knows no policy, no environment and no batch; `Trainer` adds those. A subclass names its stages and the parts
    that hold its state. A run asks of it only the members that stand under "the face to the run".
    """

    stages: ClassVar[tuple[str, ...]] = ()
    training_parts: ClassVar[tuple[str, ...]] = ("progress", "events", "global_streams")
    """Parts whose state decides the numbers; the digest covers exactly these. Global generators are restored last."""
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "firings")
    """Parts that only record the course of the run."""
    rank_parts: ClassVar[tuple[str, ...]] = ("events", "global_streams")
    """Parts that differ between ranks."""
    counts_cycles: ClassVar[bool] = True
    """Whether every cycle counts as one update; a trainer counts its steps and updates itself, where it publishes."""
    commits_after_stages: ClassVar[bool] = False
    """Whether every finished stage is committed, as for stages that cost hours or money."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for stage in cls.stages:
            if not callable(getattr(cls, f"_stage_{stage}", None)):
                raise TypeError(f"{cls.__name__}.stages names {stage!r}, but there is no method _stage_{stage}")

    def install_loop(
        self,
        *,
        progress: Progress,
        events: EventManager,
        stats: StatsReporter,
        session: Session,
        writer: Any,
        world: World,
        faults: FaultKeeper,
    ) -> None:
        """Takes the parts that every loop has."""
        self.progress = progress
        self.events = events
        self.firings = events.firings
        self.stats = stats
        self.session = session
        self.writer = writer
        self.world = world
        self.faults = faults
        self.records = Records()
        self.global_streams = GlobalStreams()
        self.stop_reason = ""

    def train(self, total_timesteps: int | None = None) -> RunSummary:
        """Trains until the budget is spent (`total_timesteps`, or the settings' budget), or until asked to stop."""
        if total_timesteps is not None:
            self.set_budget(Budget(total_timesteps, self.progress.budget_updates))
        with self.session.running(self):
            self._start_events()
            while not self.is_finished and not self._must_stop():
                if not self.advance():
                    self.wait()
        return self.session.summary(self)

    learn = train

    def _start_events(self) -> None:
        self.events.start(self)

    def _fire(self, point: str) -> bool:
        """Fires the events that are due at a point of the cycle; returns False if one was interrupted."""
        return self.events.fire(point, self)

    def wait(self) -> None:
        """Waits until a stage that could not finish may be tried again; returns at once by default."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do; only between cycles, so that the last cycle is always completed."""
        return self.progress.is_between_cycles and (self.progress.is_budget_spent or self.records.goal_reached)

    def stop(self, reason: str) -> None:
        """Asks the loop to stop after the step or stage it is in; the run can be resumed from there."""
        self.stop_reason = reason

    def should_stop(self) -> bool:
        return self.stop_reason != ""

    def advance(self) -> bool:
        """Runs stages until one must wait or the cycle closes; says whether any stage finished."""
        if self.progress.is_closing:
            return self._end_cycle()
        moved = False
        while not self.is_finished and not self._must_stop():
            stage = self.stages[self.progress.stage]
            with self.stats.timer(stage):
                is_done = getattr(self, f"_stage_{stage}")()
            if not self.world.all(is_done):
                return moved
            moved = True
            cycle_closed = self.progress.next_stage(len(self.stages))
            self._fire(f"after_{stage}")
            if cycle_closed:
                if self.counts_cycles:
                    self.progress.close_cycle(env_steps=0, episodes=0)
                self.progress.is_closing = True
                self._end_cycle()
                break
            if self.commits_after_stages:
                self.session.after_stage(self)
        return moved

    def _end_cycle(self) -> bool:
        """Fires the events of a closed cycle; says whether they all finished. A resumed run may continue here."""
        if not self.world.all(self._fire(CYCLE_END)):
            return False
        self.progress.is_closing = False
        self._cycle_ended()
        self.session.after_cycle(self)
        return True

    def _cycle_ended(self) -> None:
        """Is called once per cycle, after its events and before its row and checkpoint."""

    def _must_stop(self) -> bool:
        """Says whether any rank was asked to stop; ranks ask at the same points, so that they stop together."""
        if not self.world.any(self.stop_reason != ""):
            return False
        self.stop_reason = self.stop_reason or "another rank stopped"
        return True

    def save_checkpoint(self) -> Path:
        """Commits a checkpoint now and returns its directory."""
        return self.session.save(self)

    def load_checkpoint(self, path: str | Path) -> None:
        """Continues the run of a checkpoint exactly where it stands; its directory is the path's.

        Make the trainer as the one that was saved. The path is a checkpoint's, or that of a run for its newest.
        """
        self.session.take_up(self, Path(path))

    # -- the face to the run ---------------------------------------------------------------------------------------

    def set_budget(self, budget: Budget) -> None:
        """Changes how long to train; steps and updates that are done already count."""
        self.progress.budget = budget

    @property
    def exactness(self) -> str:
        """How exactly a resumed run continues: "exact", or "statistical: <why>"."""
        return "exact"

    def facts(self) -> dict[str, Any]:
        """Returns facts about the loop for the manifest of a checkpoint."""
        return {}

    def require_fit(self, about: Mapping[str, Any]) -> None:
        """Refuses a checkpoint with this manifest if it was made for something else."""

    def begin_from_policy(self) -> None:
        """Takes note that the loop was given other weights before the run began."""

    def share(self) -> None:
        """Gives all ranks the weights of rank 0."""

    def report(self) -> Metrics:
        """Returns metrics of this row that are read only when it is written; all ranks call it."""
        return {}

    def idle_events(self) -> list[str]:
        """Names the events that were never called."""
        return self.events.never_fired()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The supervisors of child processes, whose output belongs into the run directory."""
        return ()

    def begin_anew(self, ranks: Sequence[State]) -> None:
        """Continues after another number of ranks had the parts that differ between ranks."""

    def settle(self) -> None:
        """Waits until nothing changes the state in the background."""

    def close(self) -> None:
        self.events.close()
        self.world.close()

    def state_dict(self) -> State:
        self.settle()
        return {
            "training": {name: getattr(self, name).state_dict() for name in self.training_parts},
            "records": {name: getattr(self, name).state_dict() for name in self.record_parts},
        }

    def load_state_dict(self, state: State) -> None:
        for kind in ("records", "training"):
            for name, saved in state[kind].items():
                self.load_part(name, saved)
        require_count("progress.stage", self.progress.stage, len(self.stages) - 1)

    def load_part(self, name: str, saved: State) -> None:
        """Restores one part of the state."""
        getattr(self, name).load_state_dict(saved)

    def load_shared(self, name: str, saved: State) -> None:
        """Restores of one part what all ranks have alike."""
        if name not in self.rank_parts:
            self.load_part(name, saved)

    def rank_state(self, kind: str, state: State) -> State:
        """Returns of the state of one kind, `training` or `records`, what this rank has for itself."""
        return {name: saved for name, saved in state.items() if name in self.rank_parts}
