"""What a trainer is put together from, and what surrounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.core.process_group import Alone, World
from quintain.envs.hosts.hosting import Hosting
from quintain.rollouts.source import RolloutSource
from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.learner import Learner
from quintain.trainers.session import Session


@dataclass
class Parts:
    """Everything a trainer is put together from, ready to use."""

    learners: Mapping[str, Learner]
    """By behaviour; lanes have one."""
    source: RolloutSource
    stats: StatsReporter
    session: Session
    hosting: Hosting
    writer: Any
    """Where the metrics go: the writers of the run, or the one that a user brought."""
    world: World = field(default_factory=Alone)
    curriculum: Curriculum = field(default_factory=lambda: Curriculum({}))
