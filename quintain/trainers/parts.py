"""What a trainer is put together from, and what surrounds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import Accelerated
from quintain.core.process_group import Alone, World
from quintain.core.progress import Progress
from quintain.envs.hosts.hosting import Hosting
from quintain.policies.base import Policy
from quintain.rollouts.source import RolloutSource
from quintain.rollouts.store import RolloutStore
from quintain.services.events import EventManager
from quintain.services.reporting.stats import EpisodeWindow, StatsReporter
from quintain.trainers.guard import UpdateGuard
from quintain.trainers.session import Session


@dataclass
class Parts:
    """Everything a trainer is put together from, ready to use."""

    policy: Policy
    algorithm: Algorithm
    source: RolloutSource
    store: RolloutStore
    progress: Progress
    events: EventManager
    stats: StatsReporter
    episodes: EpisodeWindow
    guard: UpdateGuard
    session: Session
    hosting: Hosting
    writer: Any
    """Where the metrics go: the writers of the run, or the one that a user brought."""
    world: World = field(default_factory=Alone)
    accelerated: Accelerated = field(default_factory=Accelerated)
    """Which halves of the training kernels do."""
