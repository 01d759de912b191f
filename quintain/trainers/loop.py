"""The loop: stages in turn until the budget is spent, and the narrow interface for the run.

cycle          all stages of the loop, once each
  stage        a method `_stage_<name>` that returns True (done) or False (must wait, or was asked to stop)
between        events fire, rows are written and checkpoints are taken only between stages
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from quintain.core.budget import Budget
from quintain.core.process_group import ProcessGroup
from quintain.core.progress import Progress
from quintain.core.state import require_count
from quintain.envs.hosts.faults import FaultKeeper
from quintain.errors import SettingsError
from quintain.services.events import CYCLE_END, EventManager
from quintain.services.processes.supervisor import Supervisor
from quintain.services.reporting.stats import StatsReporter, joined_metrics
from quintain.settings.base import read_count
from quintain.settings.spellings import COUNTERPARTS
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.records import Records
from quintain.trainers.settings import LoopSettings

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.services.reporting.writers import RunSummary
    from quintain.settings.base import PartSettings
    from quintain.trainers.session import Session
    from quintain.typing import Metrics, State


class Loop:
    """Repeats its stages, between which events fire and the run reports and saves.

    A loop has no policy, no environment and no batch; `Trainer` adds those. A subclass names its stages and the parts
    that hold its state. A run uses only the members under "the face to the run".
    """

    settings_class: ClassVar[type[PartSettings]] = LoopSettings
    """The settings that a run file has for it."""
    stages: ClassVar[tuple[str, ...]] = ()
    training_parts: ClassVar[tuple[str, ...]] = ("progress", "events", "global_streams")
    """Parts whose state determines results; the digest covers exactly these. Global generators are restored last."""
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "firings")
    """Parts that only record the course of the run."""
    rank_parts: ClassVar[tuple[str, ...]] = ("events", "global_streams")
    """Parts that differ between ranks."""
    counts_cycles: ClassVar[bool] = True
    """Whether every cycle counts as one update; a trainer counts steps and updates itself, where it publishes."""
    stops_after: ClassVar[str] = "this stage"
    """What a stop waits for, as the user is told who asked for it; empty if stages themselves stop soon."""
    commits_after_stages: ClassVar[bool] = False
    """Whether every completed stage is committed, for stages that cost hours or money."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for stage in cls.stages:
            if not callable(getattr(cls, f"_stage_{stage}", None)):
                raise TypeError(f"{cls.__name__}.stages names {stage!r}, but there is no method _stage_{stage}")

    @classmethod
    def from_settings(cls, settings: PartSettings, rng: Rng) -> Self:
        """Makes the loop of a run file; called with its settings and a stream of its own."""
        return cls(settings, rng)  # type: ignore[call-arg]  # of subclasses

    def install_loop(
        self,
        *,
        progress: Progress,
        events: EventManager,
        stats: StatsReporter,
        session: Session,
        writer: Any,
        world: ProcessGroup,
        faults: FaultKeeper,
    ) -> None:
        """Sets the parts that every loop has."""
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

    def train(self, total_timesteps: int | float | str | None = None) -> RunSummary:
        """Trains until the budget is spent (`total_timesteps`, or the settings' budget), or until asked to stop.

        The budget is written as on the command line: 10_000, 1e4 or "10k". Completed steps count.
        """
        if total_timesteps is not None:
            steps = read_count(total_timesteps, f"train({total_timesteps!r})")
            self.set_budget(Budget(steps, self.progress.budget_updates))
        with self.session.running(self):
            self._start_events()
            while not self.is_finished and not self._must_stop():
                if not self.advance():
                    self.wait()
        return self.session.summary(self)

    def learn(self, total_timesteps: int | float | str | None = None, **other: object) -> RunSummary:
        """Trains, by the name that Stable-Baselines3 has for it; its other arguments have counterparts elsewhere."""
        for name in other:
            raise SettingsError(f"learn({name}=...): {COUNTERPARTS.get(name, 'it takes the number of steps alone')}")
        return self.train(total_timesteps)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Opens the run for cycles one by one (`run_cycle`), as `train` does for all of them, and closes it."""
        with self.session.running(self):
            self._start_events()
            yield

    def run_cycle(self) -> bool:
        """Completes the cycle that is on, or the next one; returns False once training is finished or must stop."""
        cycles = self.progress.iteration
        while not self.is_finished and not self._must_stop():
            if not self.advance():
                self.wait()
            elif self.progress.iteration > cycles and self.progress.is_between_cycles:
                return True
        return False

    def _start_events(self) -> None:
        self.events.start(self)

    def _fire(self, point: str) -> bool:
        """Fires the events that are due at a point of the cycle; returns False if one was interrupted."""
        return self.events.fire(point, self)

    def wait(self) -> None:
        """Waits until a stage that could not finish may be tried again; returns at once by default."""

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent; only between cycles, so that the last cycle is always completed."""
        return self.progress.is_between_cycles and (self.progress.is_budget_spent or self.records.goal_reached)

    def stop(self, reason: str) -> None:
        """Requests a stop after the current step or stage; the run can be resumed from there."""
        self.stop_reason = reason

    def should_stop(self) -> bool:
        return self.stop_reason != ""

    def advance(self) -> bool:
        """Runs stages until one must wait or the cycle closes; returns whether any stage finished."""
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
        """Fires the events of a closed cycle; returns whether they all finished. A resumed run may continue here."""
        if not self.world.all(self._fire(CYCLE_END)):
            return False
        self.progress.is_closing = False
        self._cycle_ended()
        self.session.after_cycle(self)
        return True

    def _cycle_ended(self) -> None:
        """Called once per cycle, after its events and before its row and checkpoint."""

    def _must_stop(self) -> bool:
        """Whether any rank was asked to stop; collective, so that ranks stop together."""
        if not self.world.any(self.stop_reason != ""):
            return False
        self.stop_reason = self.stop_reason or "another rank stopped"
        return True

    def save_checkpoint(self) -> Path:
        """Commits a checkpoint now and returns its directory."""
        return self.session.save(self)

    def load_checkpoint(self, path: str | Path) -> None:
        """Continues the run of a checkpoint exactly from there, in the run's directory.

        Make the trainer like the one that was saved. The path is a checkpoint's, or that of a run for its newest.
        """
        self.session.resume_from(self, Path(path))

    # -- the face to the run ---------------------------------------------------------------------------------------

    def set_budget(self, budget: Budget) -> None:
        """Sets the budget; completed steps and updates count."""
        self.progress.budget = budget

    @property
    def budget(self) -> Budget:
        """The budget in the settings; of several behaviours that of each."""
        return self.progress.budget

    @property
    def exactness(self) -> str:
        """ "exact", or "statistical: <why>": how a resumed run continues."""
        return "exact"

    def facts(self) -> dict[str, Any]:
        """Returns facts about the loop for the manifest of a checkpoint."""
        return {}

    def require_fit(self, about: Mapping[str, Any]) -> None:
        """Refuses a checkpoint whose manifest does not fit this loop."""

    def begin_from_policy(self) -> None:
        """Called when the loop got other weights before the run began."""

    def share(self) -> None:
        """Gives all ranks the weights of rank 0."""

    def joined(self, metrics: Mapping[str, float]) -> Metrics:
        """Returns metrics of all ranks together on rank 0, which alone writes a row, and its own on another."""
        if self.world.size == 1:
            return dict(metrics)
        own = {name: float(value) for name, value in metrics.items()}
        said = self.world.collect(json.dumps(own).encode())
        return joined_metrics([json.loads(each) for each in said] or [own])

    def report(self) -> Metrics:
        """Returns metrics that are computed only when a row is written; collective."""
        return {}

    def idle_events(self) -> list[str]:
        """Returns the names of events that were never called."""
        return self.events.never_fired()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The supervisors of child processes, whose output is written to the run directory."""
        return ()

    def begin_anew(self, ranks: Sequence[State]) -> None:
        """Continues after other ranks, or ranks with other lanes, had the parts that differ between ranks."""

    def settle(self) -> None:
        """Waits until no background work changes the state."""

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
        """Restores the state of one part that all ranks share."""
        if name not in self.rank_parts:
            self.load_part(name, saved)

    def rank_state(self, kind: str, state: State) -> State:
        """Returns this rank's own state of one kind, `training` or `records`."""
        return {name: saved for name, saved in state.items() if name in self.rank_parts}
