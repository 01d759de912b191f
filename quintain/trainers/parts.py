"""The parts of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.core.rng import Rng
from quintain.envs.hosts.hosting import Hosting
from quintain.rollouts.source import RolloutSource
from quintain.services.reporting.stats import StatsReporter
from quintain.settings.base import PartSettings
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.learner import Learner
from quintain.trainers.session import Session


@dataclass(frozen=True)
class Hosted:
    """What a hosted function needs: its settings, a random stream, and itself, where a user brought it."""

    settings: PartSettings | None = None
    rng: Rng | None = None
    function: Callable[..., object] | None = None


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
    hosted: Hosted = Hosted()
    begins_from_policy: bool = False
    """Whether policies began with the weights of another run."""
