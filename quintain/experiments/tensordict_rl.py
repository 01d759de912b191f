"""Reinforcement learning of tensor agents on the core's loop: a trainer brings a loss module, or names an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from quintain.algorithms.loss_module import Estimator, LossModuleAlgorithm, joint_view
from quintain.algorithms.loss_settings import LossModuleSettings
from quintain.errors import SettingsError
from quintain.experiments.operators import policy_operator, value_operator
from quintain.experiments.registry import register_trainer
from quintain.experiments.trainer import (
    TRAIN_LOOP,
    IterationContext,
    KeptObjects,
    RunStatLogger,
    TensorDictTrainer,
    attach_progress_bar,
)
from quintain.policies.team import TeamPolicy
from quintain.rollouts.evaluate import Evaluator
from quintain.trainers.learner import train_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

    from quintain.algorithms.base import Algorithm
    from quintain.core.progress import Progress
    from quintain.core.rng import Rng
    from quintain.data.rollout import Batch
    from quintain.experiments.scenario_env import ScenarioEnv
    from quintain.policies.base import Policy
    from quintain.rewards.base import RewardSignal
    from quintain.trainers.loop import Loop
    from quintain.typing import Metrics


HOOKS_NOT_CALLED: Mapping[str, str] = MappingProxyType(
    {
        "_initialise_state": "fields of State have defaults",
        "_add_normalization_transforms": "no transform is between the environment and the agents",
        "_build_operators": "self.policy_operator and self.value_operator are made of the agents' parts",
        "_get_data_collectors": "the core's loop collects",
        "_get_replay_buffer": "the core's loop has the batch",
        "_get_optimizer_and_param_freezer": "optimizers follow learning-rate factors and update schedules of agents",
        "_train_on_replay_buffer": "epochs and minibatches are the core's; train_iteration is one cycle of its loop",
        "_pretrain_agents": "pretrain_agents=True fits the bodies before the first rollout",
        "_train_and_test": "train calls both loops",
    }
)
"""Methods of nip's that no trainer here is asked for, with what there is in their place."""


class TensorDictRlTrainer(TensorDictTrainer):
    """The base of trainers with a loss of their own in the core's loop: `_get_loss_module_and_gae` returns it."""

    core_algorithm: ClassVar[str] = "loss_module"
    """The algorithm of the core."""

    loop: Loop
    """The core's loop: collects, estimates, updates and publishes."""
    policy: TeamPolicy
    """All agents; `scenario_instance.agents` has the same modules by name."""
    loss_module: nn.Module
    gae: Estimator | None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in HOOKS_NOT_CALLED.keys() & vars(cls).keys():
            raise SettingsError(
                f"{cls.__name__}.{name} would never be called: {HOOKS_NOT_CALLED[name]}. For a loop of your own derive "
                "from TensorDictTrainer",
                code="E0274",
            )

    def _get_loss_module_and_gae(self) -> tuple[nn.Module, Estimator | None]:
        """Returns the loss module, and the module that estimates advantages; without one the core's GAE is used.

        `self.policy_operator` and `self.value_operator` are the agents' policies and critics.
        """
        raise SettingsError(
            f"{type(self).__name__} has no loss; define _get_loss_module_and_gae, which returns a loss module and a "
            "GAE module or None",
            code="E0274",
        )

    def connect(self, policy: TeamPolicy) -> None:
        """Takes the policy of the run: its parts are those of the agents from now on."""
        self.policy = policy
        self.policy_operator, self.value_operator = policy_operator(policy), value_operator(policy)
        for name, agent in self.scenario_instance.agents.items():
            if name in policy.agents:
                for part in agent.parts().keys() - {"solo_head"}:
                    setattr(agent, part, getattr(policy.agents[name], part))

    def make_algorithm(
        self,
        settings: LossModuleSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> Algorithm:
        """Makes the algorithm of the core, with this trainer's loss."""

        def make_loss(team: TeamPolicy) -> tuple[nn.Module, Estimator | None]:
            self.connect(team)
            found = self._get_loss_module_and_gae()
            if not isinstance(found, tuple) or len(found) != 2:
                raise SettingsError(
                    f"{type(self).__name__}._get_loss_module_and_gae returned {type(found).__name__}, expected a loss "
                    "module and an estimator or None",
                    code="E0271",
                )
            self.loss_module, self.gae = found
            return found

        algorithm = LossOfTrainer(settings, policy, signals, rng, make_loss)
        algorithm.kept = KeptObjects({"state": self.state})
        algorithm.log_stats = self._get_log_stats
        return algorithm

    def _get_log_stats(self, rollouts: TensorDict, mean_train_results: Metrics, *, train: bool = True) -> Metrics:
        """Returns the statistics of an iteration, of its joint rollouts [N, T] and the means of its losses.

        Override it for more. It is part of the update: changes of `self.state` here are in the iteration's checkpoint.
        """
        return dict(mean_train_results)

    def begin(self, loop: Loop) -> None:
        """Takes the loop of the run, which may have been resumed."""
        self.loop = loop
        policy = loop.policy  # type: ignore[attr-defined]  # loops of the core that train have one
        if getattr(self, "policy", None) is not policy:
            self.connect(policy)
        self.state.phases[TRAIN_LOOP] = self.state.iteration = loop.progress.iteration

    def train(self) -> None:
        """Trains and then tests, each in its contexts."""
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()  # type: ignore[call-arg]  # the decorator gives the context
        if not self.loop.should_stop():
            with ExitStack() as stack:
                self._build_test_context(stack)
                self._run_test_loop()  # type: ignore[call-arg]  # as above

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        """Runs one cycle of the core's loop in each iteration.

        A resumed run begins at the iteration where it stands: cycles that are done are not run again.
        """
        iteration_context.set_description("Training")
        while self.train_iteration():
            iteration_context.step()

    def train_iteration(self) -> bool:
        """Collects a batch and trains on it; returns False once training is finished, or asked to stop."""
        return self.loop.run_cycle()

    def write_row(self) -> None:
        """Writes a row of the statistics that `settings.stat_logger` took since the last iteration."""
        logger = self.settings.stat_logger
        if isinstance(logger, RunStatLogger):
            self.loop.stats.set_all(train_metrics(logger.take()))
        self.loop.session.report(self.loop)

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        """Plays conversations of the test environment, which leaves training as it is, and logs the results."""
        iteration_context.set_description("Testing")
        env = self.scenario_instance.test_environment
        assert env is not None, "trainers of this type have environments"
        sums: Metrics = {}
        accuracies: dict[bytes, list[float]] = {}
        with self.loop.global_streams.untouched():
            for iteration in range(iteration_context.num_iterations):
                found = self._test_iteration(iteration, accuracies)
                sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
                iteration_context.step()
        count = max(1, iteration_context.num_iterations)
        means = {name: value / count for name, value in sums.items()}
        worst = [sum(each) / len(each) for each in accuracies.values()]
        self.settings.stat_logger.log({**means, **({"test_worst_datapoint_accuracy": min(worst)} if worst else {})})
        self.write_row()

    def _test_iteration(self, iteration: int, accuracies: dict[bytes, list[float]]) -> Metrics:
        """Plays one conversation in each row of a test environment, and returns nip's statistics of them.

        Whether the verifier was right is added to `accuracies`, by datum.
        """
        env = self.scenario_instance.test_environment
        assert env is not None
        rng = env.rng.child("play").child(str(iteration))
        test = type(env)(env.settings, env.num_lanes, rng.child("env"))
        evaluator = Evaluator(test, env.num_lanes, rng.child("act"), max_episode_steps=None)
        data: list[bytes] = []

        def look(env: ScenarioEnv, has_ended: bool) -> None:
            if not data:
                data.extend(datum.tobytes() for datum in env.data)

        policies = {"default": self.policy}
        played = evaluator.play(policies, deterministic=False, should_stop=lambda: False, on_step=look)
        assert played is not None, "nothing asks it to stop"
        results = played["default"]
        rewards = results.returns.reshape(-1, self.num_agents).mean(axis=0)
        stats = {
            f"{name}.test_mean_episode_reward": float(each)
            for name, each in zip(self.agent_names, rewards, strict=True)
        }
        accuracy = results.said["info/accuracy"]
        for datum, is_right in zip(data, accuracy.reshape(len(data), -1)[:, 0], strict=True):
            accuracies.setdefault(datum, []).append(float(is_right))
        return {
            "test_mean_accuracy": float(accuracy.mean()),
            "test_std_accuracy": float(accuracy.std()),
            "test_mean_episode_length": results.mean_length,
            **stats,
        }


class LossOfTrainer(LossModuleAlgorithm):
    """The algorithm of a trainer: its loss module, with the trainer's own state."""

    not_state = LossModuleAlgorithm.not_state | {"log_stats"}
    kept: KeptObjects
    log_stats: Callable[[TensorDict, Metrics], Metrics]

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        metrics = super().update(batch, progress)
        return train_metrics(self.log_stats(joint_view(self.policy, batch.rollout), metrics))


@register_trainer("vanilla_ppo")
class VanillaPpoTrainer(TensorDictRlTrainer):
    """PPO of each agent by itself (IPPO): the algorithm `team_ppo`."""

    core_algorithm = "team_ppo"


@register_trainer("reinforce")
class ReinforceTrainer(TensorDictRlTrainer):
    """REINFORCE of each agent, with or without a critic: the algorithm `team_reinforce`."""

    core_algorithm = "team_reinforce"
