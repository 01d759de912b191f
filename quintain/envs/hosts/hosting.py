"""Where lanes run, and how faults are handled."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from quintain.envs.hosts.faults import FaultKeeper, LaneFault
from quintain.errors import SettingsError
from quintain.services.processes.child_environment import withheld_note
from quintain.services.processes.restart_budget import RestartBudget
from quintain.services.processes.supervisor import Supervisor
from quintain.settings.run import EnvWorkerSettings

PRELOAD = ("quintain.envs.hosts.worker_process",)
"""Modules that every worker needs, imported once before it is forked."""


@dataclass(frozen=True)
class WorkerTeam:
    """Settings and processes that all workers of a run share."""

    settings: EnvWorkerSettings
    supervisor: Supervisor
    first_number: int = 0
    """The number of an environment's first worker."""


@dataclass(frozen=True)
class Hosting:
    """Where lanes run and which keeper counts faults; by default in this process, and the first fault is an error."""

    faults: FaultKeeper = field(default_factory=FaultKeeper)
    team: WorkerTeam | None = None

    @classmethod
    def from_settings(cls, settings: EnvWorkerSettings) -> Hosting:
        """Makes the hosting of `run.env_workers`; starts no process yet."""
        budget: RestartBudget[LaneFault] = RestartBudget(
            max_restarts=settings.max_restarts,
            window_steps=settings.restart_window_steps,
            window_seconds=settings.restart_window_seconds,
            max_in_a_row=settings.max_failures_in_a_row,
            max_down_seconds=settings.max_down_seconds,
        )
        team = None
        if settings.num_workers is not None:
            team = WorkerTeam(settings, Supervisor(PRELOAD, settings.pass_environment))
        hints = () if team is None else withheld_note(settings.pass_environment)
        return cls(FaultKeeper(budget, hints), team)

    def share(self, place: int, num_shares: int) -> Hosting:
        """Returns hosting for one of several groups of lanes: its share of the workers, and the same fault keeper."""
        team = self.team
        if team is None or num_shares == 1:
            return self
        share = np.array_split(np.arange(team.settings.num_workers or 0), num_shares)[place]
        settings = team.settings.model_copy(update={"num_workers": len(share)})
        return replace(self, team=replace(team, settings=settings, first_number=int(share[0])))

    def refuse_workers(self, why: str) -> None:
        """Refuses a setting that would have no effect."""
        if self.team is not None:
            raise SettingsError(f"run.env_workers.num_workers has no effect: {why}. Leave it out", code="E0232")
