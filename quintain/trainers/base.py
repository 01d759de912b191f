"""The loop. A trainer is progress and a tuple of stages; every other part does the work.

cycle          collect, estimate, update, publish: one turn from experience to a new version of the policy
  stage        a method `_stage_<name>` that returns True (done) or False (must wait, or was asked to stop)
between        events fire, the row is written and checkpoints are taken only between stages
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.data.rollout import Batch
from quintain.envs.base import Env
from quintain.envs.events import EnvEventManager
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.sync_collector import StepListener
from quintain.services.events import CYCLE_END, EventManager
from quintain.services.stats import stats_of_totals
from quintain.state import as_tensor
from quintain.trainers.events import Evaluate, RandomizeEnv
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.parts import Parts, Session
from quintain.trainers.records import Records

if TYPE_CHECKING:
    from quintain.services.writers import RunSummary
    from quintain.typing import Metrics, State

__all__ = ["Parts", "Session", "Trainer", "as_tensors"]


class Trainer:
    """Repeats a cycle over its parts until the budget is spent.

    `Trainer("ppo", "CartPole-v1").train(100_000)`: any slot takes a name, a settings object or a ready object;
    further keywords are settings, as on the command line. `Trainer(policy, env, algorithm, buffer_size, batch_size,
    writer, ...)` is the same with the names and the order of EmbodiChain; see `quintain.embodichain_names`.
    """

    stages: ClassVar[tuple[str, ...]] = ("collect", "estimate", "update", "publish")
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress", "policy", "algorithm", "source", "store", "events", "global_streams",
    )  # fmt: skip
    """Parts whose state decides the numbers; the digest covers exactly these. Global generators are restored last."""
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "episodes", "firings", "guard", "faults")
    """Parts that only remember what happened."""
    rank_parts: ClassVar[tuple[str, ...]] = ("source", "store", "events", "global_streams", "episodes", "faults")
    """Parts that are not the same on all ranks."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for stage in cls.stages:
            if not callable(getattr(cls, f"_stage_{stage}", None)):
                raise TypeError(f"{cls.__name__}.stages names {stage!r}, but there is no method _stage_{stage}")

    def __init__(
        self,
        policy: Any,
        env: Any,
        algorithm: Any = None,
        buffer_size: int | None = None,
        batch_size: int | None = None,
        writer: Any = None,
        *more: Any,
        **settings: Any,
    ) -> None:
        from quintain.slots import parts_from_slots

        self._install(parts_from_slots(policy, env, algorithm, (buffer_size, batch_size, writer, *more), settings))

    @classmethod
    def from_parts(cls, parts: Parts) -> Trainer:
        trainer = cls.__new__(cls)
        trainer._install(parts)
        return trainer

    def _install(self, parts: Parts) -> None:
        self.policy = parts.policy
        self.algorithm = parts.algorithm
        self.source = parts.source
        self.store = parts.store
        self.progress = parts.progress
        self.events = parts.events
        self.stats = parts.stats
        self.firings = parts.events.firings
        self.episodes = parts.episodes
        self.guard = parts.guard
        self.session = parts.session
        self.hosting = parts.hosting
        self.faults = parts.hosting.faults
        self.writer = parts.writer
        self.world = parts.world
        self.records = Records()
        self.global_streams = GlobalStreams()
        self.batch: Batch | None = None
        self.stop_reason = ""

    def train(self, total_timesteps: int | None = None) -> RunSummary:
        """Trains until the budget is spent (`total_timesteps`, or the settings' budget), or until asked to stop."""
        if total_timesteps is not None:
            self.set_budget(total_timesteps)
        with self.session.running(self):
            self._start_events()
            while not self.is_finished and not self._must_stop():
                if not self.advance():
                    self.source.wait()
        return self.session.summary(self)

    learn = train

    def _start_events(self) -> None:
        for entry in self.events.entries:
            if isinstance(entry.function, RandomizeEnv):
                entry.function.check(self)
        self.events.start(self)

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do; only between cycles, so that the last batch is always learned."""
        return self.progress.is_between_cycles and (self.progress.is_budget_spent or self.records.goal_reached)

    def set_budget(self, env_steps: int) -> None:
        """Changes how long to train; what was trained already counts."""
        self.progress.budget_env_steps = env_steps

    def begin_from_policy(self) -> None:
        """Takes note that the policy was given other weights before the run began."""
        self.algorithm.begin_from_policy()

    def stop(self, reason: str) -> None:
        """Asks the trainer to stop after the step or stage it is in; the run can be resumed from there."""
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
            self.events.fire(f"after_{stage}", self)
            if cycle_closed:
                self.progress.is_closing = True
                self._end_cycle()
                break
        return moved

    def _end_cycle(self) -> bool:
        """Fires the events of a closed cycle; says whether they all finished. A resumed run may continue here."""
        if not self.world.all(self.events.fire(CYCLE_END, self)):
            return False
        self.progress.is_closing = False
        # Before the checkpoint: observations that everybody has seen would be most of it.
        self.store.spend()
        self.session.after_cycle(self)
        return True

    def _must_stop(self) -> bool:
        """Says whether any rank was asked to stop; ranks ask at the same points, so that they stop together."""
        if not self.world.any(self.stop_reason != ""):
            return False
        self.stop_reason = self.stop_reason or "another rank stopped"
        return True

    def _stage_collect(self) -> bool:
        # Only now: events and checkpoints at the end of the last cycle saw a quiet store.
        self.store.release()
        # A rank that was asked to stop leaves its block half full; one that was not may have filled its own.
        if not self.world.all(self._collect_rollout()):
            return False
        self.batch = self.store.take()
        self.stats.add_all(self.source.drain_metrics())
        return True

    def _collect_rollout(self, on_step: StepListener | None = None) -> bool:
        """Fills the store through the collector; returns False if asked to stop first.

        `on_step(step, info)` sees every step as a TensorDict that shares the rollout's memory, for statistics of your
        own; override this method, or call `trainer.source.listen`, to have it in every cycle.
        """
        if on_step is None:
            return self.source.fill(self.store, self.should_stop)
        with self.source.heard_by(on_step):
            return self.source.fill(self.store, self.should_stop)

    def _stage_estimate(self) -> bool:
        if self.taken.num_valid:
            # An overflow shows in the numbers it leaves behind, which the update finds.
            with np.errstate(over="ignore", invalid="ignore"):
                self.algorithm.estimate(self.taken)
        return True

    def _stage_update(self) -> bool:
        if not self.taken.num_valid:
            return True
        try:
            losses = self.algorithm.update(self.taken, self.progress)
        except NonFiniteError as fault:
            return self.guard.failed(self, fault)
        self.guard.passed(self.progress.updates)
        self._log_train(losses)
        return True

    def _log_train(self, losses: Mapping[str, float]) -> None:
        """Puts what an update reports into this cycle's row; a bare name is one of `train/`."""
        self.stats.add_all({name if "/" in name else f"train/{name}": value for name, value in losses.items()})

    def _stage_publish(self) -> bool:
        batch = self.taken
        # After the update, so that acting and learning saw the same normaliser; before publishing, so that actors
        # get it.
        self.algorithm.observe(batch.valid_obs())
        env_steps, episodes = self.world.sum([batch.num_valid, batch.num_episodes])
        self.progress.close_cycle(env_steps=int(env_steps), episodes=int(episodes))
        self.source.publish(self.progress.version, self.policy)
        return True

    def _eval_once(self, num_episodes: int | None = None, *, evaluation: Evaluate | None = None) -> Metrics | None:
        """Evaluates now and returns the metrics, which also go into the next row; None if asked to stop first."""
        chosen = evaluation or self.evaluation
        if chosen is None:
            raise SettingsError("this trainer has no evaluate event, so it cannot evaluate. Give it one, or eval_env")
        return chosen.play(self, num_episodes)

    def trigger(self, name: str, lanes: Any = None) -> None:
        """Fires the events that wait for this name: the trainer's, and the environment's in these lanes or in all."""
        self.events.fire(name, self)
        self.source.trigger(name, lanes)

    @property
    def taken(self) -> Batch:
        """The batch that this cycle learns from, until the next one is collected."""
        assert self.batch is not None, "a stage ran before collect"
        return self.batch

    def episode_stats(self) -> Metrics:
        """Returns what the recent episodes of all ranks were like: sums and counts, so that each counts once."""
        if self.world.size == 1:
            return self.episodes.stats()
        return stats_of_totals(self.world.sum(self.episodes.totals()))

    def fault_stats(self) -> Metrics:
        """Returns how often environments of all ranks broke; nothing while none has."""
        restarts, aborted = self.world.sum([self.faults.restarts, self.faults.aborted])
        return {"env/restarts": restarts, "env/aborted": aborted} if restarts else {}

    @property
    def paths(self) -> dict[str, str]:
        """Whether acting and learning are compiled, and why not where they are plain."""
        reasons = {"acting": self.policy.why_plain, "learning": self.algorithm.why_plain}
        return {half: f"plain: {reason}" if reason else "compiled" for half, reason in reasons.items()}

    @property
    def global_step(self) -> int:
        return self.progress.env_steps

    @property
    def env(self) -> Env:
        return self.source.env

    @property
    def evaluation(self) -> Evaluate | None:
        """The first event that evaluates, if there is one."""
        found = (entry.function for entry in self.events.entries)
        return next((event for event in found if isinstance(event, Evaluate)), None)

    @property
    def eval_env(self) -> Env | None:
        return None if self.evaluation is None else self.evaluation.env

    @property
    def event_manager(self) -> EventManager:
        return self.events

    @property
    def eval_event_manager(self) -> EnvEventManager | None:
        return None if self.evaluation is None else self.evaluation.env_events

    @property
    def ret_window(self) -> deque[float]:
        """The returns of the newest episodes, the oldest first."""
        return self.episodes.returns

    @property
    def len_window(self) -> deque[int]:
        return self.episodes.lengths

    def predict(
        self, obs: Any, state: Any = None, *, deterministic: bool = True, action_mask: Any = None
    ) -> tuple[Any, Any]:
        """Returns what the policy does in an observation, ready for `env.step`, and its next state."""
        return self.policy.predict(obs, state, deterministic=deterministic, action_mask=action_mask)

    def save_checkpoint(self) -> Path:
        """Commits a checkpoint now and returns its directory."""
        return self.session.save(self)

    def load_checkpoint(self, path: str | Path) -> None:
        """Goes on with the run that a checkpoint is of, exactly where it stands; its directory is the path's.

        Make the trainer as the one that was saved. The path is a checkpoint's, or that of a run for its newest.
        """
        self.session.take_up(self, Path(path))

    def idle_events(self) -> list[str]:
        """Names the events of the trainer and of its environments that were never called."""
        evaluations = (entry.function for entry in self.events.entries if isinstance(entry.function, Evaluate))
        return [
            *self.events.never_fired(),
            *self.source.idle_env_events(),
            *(f"evaluate/{name}" for evaluation in evaluations for name in evaluation.idle_env_events()),
        ]

    def close(self) -> None:
        self.source.close()
        self.events.close()
        self.world.close()

    @property
    def published_policy(self) -> Policy:
        """The policy as it was last published; another than `policy` while an update goes on."""
        return self.policy

    learners_beside: Sequence[Any] = ()
    """Who computes updates beside this trainer."""

    @property
    def has_failed(self) -> bool:
        """Whether somebody who learns for this trainer failed."""
        return False

    def settle(self) -> None:
        """Waits until nobody changes anything; nobody does between stages, unless somebody else learns."""

    def state_dict(self) -> State:
        # Only what nobody is writing to can be saved.
        self.source.pause(self.should_stop)
        return {
            "training": {name: getattr(self, name).state_dict() for name in self.training_parts},
            "records": {name: getattr(self, name).state_dict() for name in self.record_parts},
        }

    def load_state_dict(self, state: State) -> None:
        for part in ("records", "training"):
            for name, saved in state[part].items():
                self.load_part(name, saved)
        if not self.progress.is_between_cycles and self.store.ready():
            self.batch = self.store.take()

    def load_part(self, name: str, saved: State) -> None:
        """Restores one part of the state."""
        getattr(self, name).load_state_dict(as_tensors(saved) if name == "policy" else saved)


def as_tensors(saved: State) -> State:
    """Makes what a module's `load_state_dict` takes from what a checkpoint gave back."""
    return {name: as_tensor(value) for name, value in saved.items()}
