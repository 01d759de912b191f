"""ML-Agents' own trainer and agent manager in this process: no Unity, no worker, no port.

Version 0.28, the last one that can be installed beside Python 3.11, with today's torch.
"""

from __future__ import annotations

import operator
from functools import partial
from tempfile import mkdtemp
from typing import Any

import free_agents
import image_agents

from peers import Tick

KIT = "mlagents"
PACKAGES = ("mlagents", "torch", "numpy")


def assemble(num_agents: int, tick: Tick) -> None:
    """Acts, steps and assembles trajectories, which nobody takes in."""
    env, manager, _ = _begin(num_agents, "ppo")
    [queue] = [each.trajectory_queue for each in manager.agent_managers.values()]
    next_tick, is_over = 0, False
    while not is_over:
        manager.process_steps(manager.get_steps())
        while not queue.empty():
            queue.get_nowait()
        if env.num_decisions >= next_tick:
            next_tick += free_agents.BUFFER_SIZE
            is_over = tick(env.num_decisions)


def collect(num_agents: int, tick: Tick) -> None:
    """Does what comes before an update: trajectories are valued and put into the buffer that is learned from."""
    _, manager, controller = _begin(num_agents, "ppo")
    [trainer] = controller.trainers.values()
    trainer._update_policy = partial(_learn_nothing, trainer)
    _advance(manager, controller, tick)


def _learn_nothing(trainer: Any) -> bool:
    trainer._clear_update_buffer()
    return False


def ppo(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "ppo", tick)


def ppo_memory(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "ppo_memory", tick)


def poca(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "poca", tick)


def ppo_image(num_agents: int, tick: Tick) -> None:
    _, manager, controller = _begin(num_agents, "ppo", image_agents)
    _advance(manager, controller, tick)


def sac_images(num_agents: int, tick: Tick) -> None:
    """Learns from replay, whose buffer never empties; an iteration is so many steps."""
    _, manager, controller = _begin(num_agents, "sac", image_agents)
    [trainer] = controller.trainers.values()
    next_tick, is_over = 0, False
    while not is_over:
        for _ in range(controller.advance(manager)):
            controller.reset_env_if_ready(manager)
        if trainer.get_step >= next_tick:
            next_tick = trainer.get_step + image_agents.NUM_TICK_STEPS
            is_over = tick(trainer.get_step)


def _learn(num_agents: int, trainer_type: str, tick: Tick) -> None:
    _, manager, controller = _begin(num_agents, trainer_type)
    _advance(manager, controller, tick)


def _advance(manager: Any, controller: Any, tick: Tick) -> None:
    """Trains as the command does; an iteration is a buffer that was learned from."""
    [trainer] = controller.trainers.values()
    is_over = False
    while not is_over:
        num_rows = trainer.update_buffer.num_experiences
        for _ in range(controller.advance(manager)):
            controller.reset_env_if_ready(manager)
        if trainer.update_buffer.num_experiences < num_rows:
            is_over = tick(trainer.get_step)


def _begin(num_agents: int, trainer_type: str, task: Any = free_agents) -> tuple[free_agents.Free, Any, Any]:
    """Returns the environment, its manager and the controller, after the first reset."""
    _let_old_cattrs_meet_new_python()
    import torch
    import yaml
    from mlagents.trainers.environment_parameter_manager import EnvironmentParameterManager
    from mlagents.trainers.settings import RunOptions
    from mlagents.trainers.simple_env_manager import SimpleEnvManager
    from mlagents.trainers.trainer import TrainerFactory
    from mlagents.trainers.trainer_controller import TrainerController
    from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel

    # It chose a number of threads when it was imported.
    torch.set_num_threads(1)
    options = RunOptions.from_dict(yaml.safe_load(task.trainer_file(trainer_type)))
    env, folder, parameters = (
        task.theirs(**task.arguments(num_agents, trainer_type)),
        mkdtemp(dir="."),
        EnvironmentParameterManager(),
    )
    factory = TrainerFactory(
        trainer_config=options.behaviors,
        output_path=folder,
        train_model=True,
        load_model=False,
        seed=0,
        param_manager=parameters,
    )
    controller = TrainerController(factory, folder, "bench", parameters, True, 0)
    manager = SimpleEnvManager(env, EnvironmentParametersChannel())
    controller._reset_env(manager)
    return env, manager, controller


def _let_old_cattrs_meet_new_python() -> None:
    """Registers generic types by equality, because `singledispatch` takes classes only since Python 3.11."""
    from cattr.dispatch import MultiStrategyDispatch

    register = MultiStrategyDispatch.register_cls_list

    def register_each(self: Any, handlers: list[tuple[Any, Any]], direct: bool = False) -> None:
        for kind, handler in handlers:
            try:
                register(self, [(kind, handler)], direct)
            except TypeError:
                self.register_func_list([(partial(operator.eq, kind), handler)])

    MultiStrategyDispatch.register_cls_list = register_each
