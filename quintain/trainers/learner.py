"""A learner: the policy, algorithm and store of one behaviour, and how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import Accelerated
from quintain.core.state import KeepsState, as_tensors
from quintain.data.rollout import Batch, Rollout
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore
from quintain.services.reporting.stats import EpisodeWindow
from quintain.trainers.records import Records

if TYPE_CHECKING:
    from quintain.core.progress import Progress
    from quintain.services.events import EventManager
    from quintain.services.reporting.stats import StatsReporter
    from quintain.trainers.guard import UpdateGuard
    from quintain.trainers.loop import Loop
    from quintain.typing import Array, Metrics, State


class Learner:
    """Turns batches of one behaviour into new versions of its policy.

    Of several behaviours, events get the learner of theirs in place of the trainer. It answers for the trainer: any
    other attribute, such as `source` or `session`, is the trainer's.
    """

    training_parts: ClassVar[tuple[str, ...]] = ("policy", "algorithm", "store", "events")
    record_parts: ClassVar[tuple[str, ...]] = ("episodes", "firings", "guard")
    rank_parts: ClassVar[tuple[str, ...]] = ("store", "events", "episodes")
    """Parts that differ between ranks."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        algorithm: Algorithm,
        store: RolloutStore,
        progress: Progress,
        *,
        events: EventManager,
        guard: UpdateGuard,
        episodes: EpisodeWindow,
        accelerated: Accelerated | None = None,
        own_budget: int | None = None,
    ) -> None:
        """Makes a learner; `own_budget` are environment steps of its own in place of the run's budget."""
        self.name = name
        self.label = f"{name}: "
        self.policy = policy
        self.algorithm = algorithm
        self.store = store
        self.progress = progress
        self.events = events
        self.firings = events.firings
        self.guard = guard
        self.episodes = episodes
        self.accelerated = accelerated or Accelerated()
        self.own_budget = own_budget
        self.records = Records()
        self.batch: Batch | None = None
        self.is_alone = True
        """Whether it is the only one, so that progress and records of the run are its own."""
        self.trainer: Loop
        self.stats: StatsReporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("trainer", "stats"):
            raise AttributeError(name)
        return getattr(self.trainer, name)

    @property
    def is_finished(self) -> bool:
        """Whether its budget is spent, or its goal reached: it acts on, and stays as it is."""
        return self.progress.is_budget_spent or self.records.goal_reached

    @property
    def taken(self) -> Batch:
        """The batch that this cycle learns from, until the next one is collected."""
        assert self.batch is not None, "a stage ran before collect"
        return self.batch

    @property
    def global_step(self) -> int:
        return self.progress.env_steps

    def begin_cycle(self) -> None:
        """Frees what the last update consumed; events and checkpoints at the end of its cycle saw a quiet store."""
        self.store.release()
        self.algorithm.adopt_weights()

    def take(self) -> bool:
        """Takes the full block; returns False if there is not yet enough to learn from."""
        self.batch = self.store.take()
        return True

    def estimate(self) -> None:
        if self.taken.num_valid:
            # An overflow shows in the numbers it leaves behind, which the update finds.
            with np.errstate(over="ignore", invalid="ignore"):
                self.algorithm.estimate(self.taken)

    def update(self) -> Metrics:
        """Changes the policy by what the batch shows; raises NonFiniteError where it shows no finite number."""
        self.algorithm.adopt_weights()
        return self.algorithm.update(self.taken, self.progress)

    def observe(self) -> None:
        """Lets the normalizer learn from the batch, after the update: acting and learning saw the same one."""
        self.algorithm.observe(self.taken.valid_obs())

    @property
    def consumed(self) -> tuple[int, int]:
        """Environment steps and episodes of this cycle's batch."""
        return self.taken.num_valid, self.taken.num_episodes

    def spend(self) -> None:
        """Marks the batch as consumed: it can still be read, and need not be saved."""
        self.store.spend()

    def published(self) -> None:
        """Is called when the version of this cycle was published."""

    def hear_episodes(self, returns: Array, lengths: Array) -> None:
        """Takes note of episodes that ended."""
        self.episodes.extend(returns, lengths)

    def begin_from_policy(self) -> None:
        """Takes note that the policy was given other weights before the run began."""
        self.algorithm.begin_from_policy()

    def restore_batch(self) -> None:
        """Takes the batch again that a cycle which was stopped learns from."""
        if not self.store.ready():
            raise ValueError(f"the cycle of {self.name} was stopped, and there is nothing to learn from")
        self.batch = self.store.take()

    @property
    def paths(self) -> dict[str, str]:
        """Whether acting and learning are compiled, and why not where they are plain."""
        return self.accelerated.paths

    def parts_state(self, kind: str) -> State:
        """Returns the state of its parts that train (`training`) or record (`records`)."""
        return {name: getattr(self, name).state_dict() for name in self._parts(kind)}

    def load_parts_state(self, kind: str, state: State, leaving_out: Collection[str] = ()) -> None:
        """Restores what `parts_state` returned, strictly, but for parts that are left out."""
        expected = [name for name in self._parts(kind) if name not in leaving_out]
        if set(expected) != set(state) - set(leaving_out):
            raise KeyError(f"{self.name}: saved parts are {sorted(state)}, this run has {sorted(expected)}")
        for name in expected:
            saved = state[name]
            getattr(self, name).load_state_dict(as_tensors(saved) if name == "policy" else saved)

    def _parts(self, kind: str) -> tuple[str, ...]:
        own = self.training_parts if kind == "training" else self.record_parts
        if self.is_alone:
            return own
        # What a single behaviour shares with the run is of its own here.
        return (*own, "progress" if kind == "training" else "records")


class ReadyLearner(Learner):
    """A learner that exists before the run that trains it, such as one by hooks: it brings its policy.

    The composition root gives it the rest by `connect`.
    """

    @property
    def given_algorithm(self) -> Algorithm | None:
        """The algorithm that changes its policy; None if it has another way."""
        return self.algorithm

    @property
    def has_own_blocks(self) -> bool:
        """Whether it makes blocks and their store itself; else they are those of its settings."""
        return False

    follows_groups: ClassVar[bool] = False
    """Whether its trajectories have the observations, actions and rewards of the agent's teammates."""

    def make_block(self) -> Rollout:
        raise NotImplementedError

    def make_store(self, blocks: Sequence[Rollout]) -> RolloutStore:
        raise NotImplementedError

    def connect(self, store: RolloutStore, events: EventManager, guard: UpdateGuard, accelerated: Accelerated) -> None:
        """Takes the parts that the run made for it."""
        self.store = store
        self.events = events
        self.firings = events.firings
        self.guard = guard
        self.accelerated = accelerated


class Turn(KeepsState):
    """Whose cycle it is."""

    def __init__(self, behavior: str) -> None:
        self.behavior = behavior


class Learners(dict[str, Learner]):
    """All learners by behaviour, saved as one part of a trainer."""

    kind = "training"

    @property
    def records(self) -> LearnerRecords:
        """The parts that only record, saved as another part."""
        return LearnerRecords(self)

    def state_dict(self) -> State:
        return {name: learner.parts_state(self.kind) for name, learner in self.items()}

    def load_state_dict(self, state: State, leaving_out: Collection[str] = ()) -> None:
        require_same_behaviors(state, self)
        for name, learner in self.items():
            learner.load_parts_state(self.kind, state[name], leaving_out)


class LearnerRecords(Learners):
    """The records of all learners."""

    kind = "records"


def require_same_behaviors(state: Mapping[str, object], learners: Mapping[str, object]) -> None:
    if set(state) != set(learners):
        raise KeyError(f"saved behaviours are {sorted(state)}, this run has {sorted(learners)}")


def scoped(learners: Mapping[str, Learner], name: str) -> str:
    """Returns what the names of a behaviour's metrics begin with: nothing where it is the only one."""
    return f"{name}/" if len(learners) > 1 else ""


def train_metrics(losses: Mapping[str, float]) -> Metrics:
    """Returns what an update reports under its names in the row: a bare name is one of `train/`."""
    return {name if "/" in name else f"train/{name}": value for name, value in losses.items()}


def metrics_of(learners: Mapping[str, Learner], values: Mapping[str, Metrics]) -> Iterator[tuple[str, float]]:
    """Yields metrics of all behaviours under their names in the row."""
    for name, metrics in values.items():
        for key, value in metrics.items():
            yield f"{scoped(learners, name)}{key}", value
