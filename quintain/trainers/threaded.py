"""A trainer whose updates are computed by somebody else, while agents act on; it starts no threads itself.

With `max_staleness` 0 everybody waits for an update, and the numbers are those of learning in turns. With 1 agents act
on with a copy of the weights that the update began with, until the next batch is full; then the update is waited for
and published. What is published when depends on what agents did and never on who is quicker.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, Protocol

from quintain.core.state import as_tensor
from quintain.data import fields as f
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy
from quintain.trainers.base import Trainer
from quintain.trainers.parts import Parts

if TYPE_CHECKING:
    from quintain.typing import Metrics, State

LOOK_SECONDS = 0.1
"""How often whoever waits for an update lets signals in."""

Work = Callable[[], "Metrics"]


class Learner(Protocol):
    """Does one thing at a time beside whoever asked for it."""

    def begin(self, work: Work) -> None: ...
    def wait(self, seconds: float) -> bool:
        """Waits that long at most; says whether the work is done."""

    def result(self) -> Metrics:
        """Returns what the work returned, or raises what it raised."""

    @property
    def has_failed(self) -> bool:
        """Whether the work ended in a way that nothing can go on from."""

    def close(self) -> None: ...


class InlineLearner:
    """Works in the thread of the trainer, as soon as it is asked to."""

    has_failed = False

    def __init__(self) -> None:
        self._metrics: Metrics = {}
        self._fault: NonFiniteError | None = None

    def begin(self, work: Work) -> None:
        self._metrics, self._fault = {}, None
        try:
            self._metrics = work()
        except NonFiniteError as fault:
            self._fault = fault

    def wait(self, seconds: float) -> bool:
        return True

    def result(self) -> Metrics:
        if self._fault is not None:
            raise self._fault
        return self._metrics

    def close(self) -> None:
        """Holds nothing."""


class Flight:
    """An update that was begun and not published, and what agents act with meanwhile."""

    def __init__(self, policy: Policy, acting: Policy) -> None:
        self.policy = policy
        self.acting = acting
        self.is_begun = False
        self.has_landed = False
        """Whether the update is computed; it waits to be published."""
        self.losses: Metrics = {}
        self.fault = ""
        """What was not finite in it, if anything was."""
        self.seconds = 0.0

    def begin(self) -> None:
        self.is_begun, self.has_landed, self.losses, self.fault = True, False, {}, ""

    def end(self) -> None:
        self.is_begun = self.has_landed = False

    def state_dict(self) -> State:
        if not self.is_begun:
            return {"is_begun": False}
        assert self.has_landed, "an update is waited for before anything is saved"
        weights = {name: value.clone() for name, value in self.acting.state_dict().items()}
        return {"is_begun": True, "losses": dict(self.losses), "fault": self.fault, "acting": weights}

    def load_state_dict(self, state: State) -> None:
        self.is_begun = self.has_landed = state["is_begun"]
        self.losses, self.fault = dict(state.get("losses", {})), state.get("fault", "")
        weights = state["acting"] if self.is_begun else self.policy.state_dict()
        self.acting.load_state_dict({name: as_tensor(value) for name, value in weights.items()})


class ThreadedTrainer(Trainer):
    """Lets a learner estimate and update; what surrounds that happens where the trainer is."""

    learner: Learner
    max_staleness: int
    flight: Flight
    training_parts: tuple[str, ...] = Trainer.training_parts  # type: ignore[misc]  # as many as there is staleness
    acting_parts: ClassVar[tuple[str, ...]] = ("flight",)

    @classmethod
    def beside(cls, parts: Parts, learner: Learner, max_staleness: int, acting: Policy) -> ThreadedTrainer:
        """Makes a trainer whose updates a learner computes; agents act with `acting`, the policy's own or a copy."""
        trainer = cls.__new__(cls)
        trainer._install(parts)
        trainer.learner = learner
        trainer.learners_beside = (learner,)
        trainer.max_staleness = max_staleness
        trainer.flight = Flight(parts.policy, acting)
        if max_staleness:
            trainer.training_parts = (*Trainer.training_parts, *cls.acting_parts)
        return trainer

    @property
    def published_policy(self) -> Policy:
        return self.flight.acting

    @property
    def has_failed(self) -> bool:
        return self.learner.has_failed

    def begin_from_policy(self) -> None:
        super().begin_from_policy()
        self.source.publish(self.progress.version, self.policy)

    def _stage_collect(self) -> bool:
        if not super()._stage_collect():
            return False
        if self.taken.num_valid:
            newest = int(self.taken.rollout.array(f.POLICY_VERSION)[:-1].max())
            self.stats.add_stat("rollout/staleness", self.progress.version - newest)
        return True

    def _stage_estimate(self) -> bool:
        def estimate() -> Metrics:
            Trainer._stage_estimate(self)
            return {}

        self.learner.begin(estimate)
        self._wait()
        self.learner.result()
        return True

    def _stage_update(self) -> bool:
        if not self.flight.is_begun:
            self.flight.begin()
            self.learner.begin(self._learn)
        if self.has_failed:
            self.learner.result()
        if self.max_staleness and not self._act_ahead():
            return False
        self.settle()
        losses, fault = self.flight.losses, self.flight.fault
        self.flight.end()
        if fault:
            goes_on = self.guard.failed(self, NonFiniteError(fault, code="E0604"))
            # A run that went back may stand at a checkpoint that was taken after this very update: it is left out.
            self.flight.fault = ""
            return goes_on
        if self.taken.num_valid:
            self.guard.passed(self.progress.updates)
            self._log_train(losses)
        return True

    def _learn(self) -> Metrics:
        started = perf_counter()
        try:
            self.algorithm.adopt_weights()
            return self.algorithm.update(self.taken, self.progress) if self.taken.num_valid else {}
        finally:
            self.flight.seconds = perf_counter() - started

    def _act_ahead(self) -> bool:
        """Lets agents act until the next batch is full; False if somebody else has to learn first, or all stop."""
        started = perf_counter()
        is_full = self.source.fill(self.store, self.should_stop)
        seconds = perf_counter() - started
        # The clock of this stage ran while agents acted.
        self.stats.add_time("collect", seconds)
        self.stats.add_time("update", -seconds)
        return is_full

    def settle(self) -> None:
        """Waits for an update that was begun, and takes note of what came of it."""
        if not self.flight.is_begun or self.flight.has_landed:
            return
        self._wait()
        try:
            self.flight.losses = self.learner.result()
        except NonFiniteError as fault:
            self.flight.fault = fault.message
        self.flight.has_landed = True
        self.stats.add_time("learner", self.flight.seconds)

    def _wait(self) -> None:
        while not self.learner.wait(LOOK_SECONDS):
            pass

    def load_state_dict(self, state: State) -> None:
        # A run that goes back drops what was begun since.
        if self.flight.is_begun and not self.flight.has_landed:
            self._wait()
        self.flight.end()
        super().load_state_dict(state)
