"""The parts of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.envs.hosts.hosting import Hosting
from quintain.rollouts.source import RolloutSource
from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.learner import Learner
from quintain.trainers.session import Session


@dataclass
class Parts:
    """All parts of a trainer, ready to use."""

    learners: Mapping[str, Learner]
    """By behaviour; lanes have one."""
    source: RolloutSource
    stats: StatsReporter
    session: Session
    hosting: Hosting
    writer: Any
    """The destination of metrics: the writers of the run, or the user's own."""
    world: ProcessGroup = field(default_factory=SingleProcess)
    curriculum: Curriculum = field(default_factory=lambda: Curriculum({}))
