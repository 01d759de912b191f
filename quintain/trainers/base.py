"""Trains a policy: a loop whose cycle is collect, estimate, update and publish, one turn from experience to weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.core.state import as_tensors
from quintain.data.fields import Declared
from quintain.data.rollout import Batch
from quintain.data.saved_spec import require_same_spec
from quintain.envs.base import Env
from quintain.envs.events import EnvEventManager
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.sync_collector import StepListener
from quintain.services.events import EventManager
from quintain.services.processes.supervisor import Supervisor
from quintain.services.reporting.stats import stats_of_totals
from quintain.trainers.events import Evaluate, RandomizeEnv
from quintain.trainers.loop import Loop
from quintain.trainers.parts import Parts
from quintain.trainers.session import Session

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.typing import Metrics, State

__all__ = ["Parts", "Session", "Trainer", "as_tensors"]


class Trainer(Loop):
    """Repeats collect, estimate, update and publish over its parts until the budget is spent.

    `quintain.Trainer` is this class with a constructor that builds the parts; a subclass takes further parts in
    `_install`.
    """

    stages: ClassVar[tuple[str, ...]] = ("collect", "estimate", "update", "publish")
    counts_cycles: ClassVar[bool] = False
    training_parts: ClassVar[tuple[str, ...]] = (
        "progress", "policy", "algorithm", "source", "store", "events", "global_streams",
    )  # fmt: skip
    record_parts: ClassVar[tuple[str, ...]] = ("records", "stats", "episodes", "firings", "guard", "faults")
    rank_parts: ClassVar[tuple[str, ...]] = ("source", "store", "events", "global_streams", "episodes", "faults")

    def __init__(self, parts: Parts) -> None:
        self._install(parts)

    @classmethod
    def declare_fields(cls) -> Declared:
        """Declares fields of its own in every block, by name: `{"expert_action": like("action")}`."""
        return {}

    @classmethod
    def from_parts(cls, parts: Parts) -> Trainer:
        trainer = cls.__new__(cls)
        trainer._install(parts)
        return trainer

    def _install(self, parts: Parts) -> None:
        self.policy = parts.policy
        self.algorithm = parts.algorithm
        self.accelerated = parts.accelerated
        self.source = parts.source
        self.store = parts.store
        self.episodes = parts.episodes
        self.guard = parts.guard
        self.hosting = parts.hosting
        self.batch: Batch | None = None
        self.install_loop(
            progress=parts.progress,
            events=parts.events,
            stats=parts.stats,
            session=parts.session,
            writer=parts.writer,
            world=parts.world,
            faults=parts.hosting.faults,
        )

    def _start_events(self) -> None:
        for entry in self.events.entries:
            if isinstance(entry.function, RandomizeEnv):
                entry.function.check(self)
        super()._start_events()

    def wait(self) -> None:
        self.source.wait()

    def begin_from_policy(self) -> None:
        """Takes note that the policy was given other weights before the run began."""
        self.algorithm.begin_from_policy()

    def _cycle_ended(self) -> None:
        # Before the checkpoint: observations that were learned from would be most of it.
        self.store.spend()

    def _stage_collect(self) -> bool:
        # Only now: events and checkpoints at the end of the last cycle saw a quiet store.
        self.store.release()
        self.algorithm.adopt_weights()
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
        self.algorithm.adopt_weights()
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

    @property
    def exactness(self) -> str:
        return self.source.exactness

    def facts(self) -> dict[str, Any]:
        return {"spec": self.policy.spec.to_dict(), "device": str(self.policy.device), "paths": self.paths}

    def require_fit(self, about: Mapping[str, Any]) -> None:
        require_same_spec(self.policy.spec, about)

    def share(self) -> None:
        for tensor in self.policy.state_dict().values():
            self.world.share(tensor)

    def report(self) -> Metrics:
        for name, seconds in self.source.drain_seconds().items():
            self.stats.add_time(name, seconds)
        return {**self.episode_stats(), **self.fault_stats()}

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        team = self.hosting.team
        return [*([] if team is None else [team.supervisor]), *self.source.supervisors]

    def begin_anew(self, ranks: Sequence[State]) -> None:
        """Begins new episodes in all lanes: experience that waited belonged to the old ranks, and is dropped."""
        self.source.begin_anew([state["source"] for state in ranks])
        self.progress.begin_cycle_anew()

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
        return self.accelerated.paths

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
        self,
        obs: Any,
        state: Any = None,
        *,
        deterministic: bool = True,
        action_mask: Any = None,
        rng: Rng | np.random.Generator | None = None,
        seed: int | None = None,
    ) -> tuple[Any, Any]:
        """Returns what the policy does in an observation, ready for `env.step`, and its next state.

        With `deterministic=False` the action is sampled; see `Policy.predict` for `rng` and `seed`.
        """
        return self.policy.predict(obs, state, deterministic=deterministic, action_mask=action_mask, rng=rng, seed=seed)

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
        super().close()

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
        # Only what is not being written to can be saved.
        self.source.pause(self.should_stop)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if not self.progress.is_between_cycles and self.store.ready():
            self.batch = self.store.take()
        elif self.progress.stage > 0:
            raise ValueError(f"progress.stage is {self.progress.stage}, and there is nothing to learn from")

    def load_part(self, name: str, saved: State) -> None:
        """Restores one part of the state."""
        getattr(self, name).load_state_dict(as_tensors(saved) if name == "policy" else saved)
