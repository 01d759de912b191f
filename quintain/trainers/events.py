"""The events that ship. Each is built once from its settings and what the run offers, and called with the trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quintain.envs.base import Env
from quintain.rng import Rng
from quintain.rollouts.evaluate import Evaluator
from quintain.services.events import CYCLE_END, Every, On, When
from quintain.trainers.global_streams import GlobalStreams
from quintain.world import World

if TYPE_CHECKING:
    from quintain.trainers.base import Trainer
    from quintain.trainers.settings import EvaluateSettings, ScheduledEventSettings, StopAtReturnSettings
    from quintain.typing import Metrics

MAX_EVAL_LANES = 10


@dataclass(frozen=True)
class EventContext:
    """What an event may be built from."""

    make_env: Callable[[int, Rng], Env]
    rng: Rng
    budget_env_steps: int
    world: World


class Evaluate:
    """Plays whole episodes with the current policy and remembers the best; of several ranks, the first plays."""

    def __init__(self, settings: EvaluateSettings, context: EventContext) -> None:
        self.settings = settings
        interval = settings.every_env_steps or max(1, context.budget_env_steps // 10)
        self.when: When = Every(env_steps=interval, at_end=True)
        self.evaluator = self._make_evaluator(context) if context.world.rank == 0 else None

    def _make_evaluator(self, context: EventContext) -> Evaluator:
        rng = context.rng.child("evaluation")
        # An environment may draw from a global generator when it is made; training must not notice.
        with GlobalStreams().untouched():
            env = context.make_env(min(MAX_EVAL_LANES, self.settings.num_episodes), rng.child("env"))
        return Evaluator(env, self.settings.num_episodes, rng)

    def __call__(self, trainer: Trainer) -> bool:
        with trainer.stats.timer("evaluate"):
            metrics = json.loads(trainer.world.broadcast(json.dumps(self._play(trainer)).encode()))
        if metrics is None:
            return False
        trainer.stats.set_all(metrics)
        trainer.records.evaluated(trainer.progress.env_steps, metrics["eval/mean_reward"], self.settings.num_episodes)
        return True

    def _play(self, trainer: Trainer) -> Metrics | None:
        """Returns what the episodes were like; None if the run was asked to stop, or if another rank plays them."""
        if self.evaluator is None:
            return None
        with trainer.global_streams.untouched():
            results = self.evaluator.play(
                trainer.policy, deterministic=self.settings.deterministic, should_stop=trainer.should_stop
            )
        if results is None:
            return None
        return {
            "eval/mean_reward": results.mean_return,
            "eval/std_reward": results.std_return,
            "eval/mean_ep_length": results.mean_length,
        }

    def close(self) -> None:
        if self.evaluator is not None:
            self.evaluator.env.close()


class StopAtReturn:
    """Ends the run at the first evaluation that is good enough."""

    def __init__(self, settings: StopAtReturnSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = On(CYCLE_END)

    def __call__(self, trainer: Trainer) -> None:
        records = trainer.records
        if records.evaluated_at == trainer.progress.env_steps and records.last_return >= self.settings.mean_return:
            records.goal_reached = True


class CallFunction:
    """Calls a registered function `f(trainer, **parameters)` at an interval."""

    def __init__(self, function: Callable[..., None], settings: ScheduledEventSettings) -> None:
        self.function = function
        self.parameters: dict[str, Any] = settings.parameters()
        self.when: When = Every(env_steps=settings.every_env_steps, updates=settings.every_updates)

    def __call__(self, trainer: Trainer) -> None:
        self.function(trainer, **self.parameters)
