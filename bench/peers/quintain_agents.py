"""quintain's trainer of agents that come and go, by the file that ML-Agents is run by; no writers, no run directory."""

from __future__ import annotations

from typing import Any

import free_agents
import image_agents

from peers import Tick

KIT = "quintain"
PACKAGES = ("quintain", "torch", "numpy", "numba")


def collect(num_agents: int, tick: Tick) -> None:
    """Acts, steps and assembles trajectories into blocks that nobody learns from."""
    trainer = _trainer(num_agents, "ppo")
    num_steps, is_over = 0, False
    while not is_over:
        trainer._stage_collect()
        num_steps += trainer.taken.num_valid
        is_over = tick(num_steps)


assemble = collect
"""There is no way to assemble trajectories without values: the policy gives both at once."""


def ppo(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "ppo", tick)


def ppo_memory(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "ppo_memory", tick)


def poca(num_agents: int, tick: Tick) -> None:
    _learn(num_agents, "poca", tick)


def ppo_image(num_agents: int, tick: Tick) -> None:
    _advance(_trainer(num_agents, "ppo", image_agents), tick)


def sac_images(num_agents: int, tick: Tick) -> None:
    _advance(_trainer(num_agents, "sac", image_agents), tick, image_agents.NUM_TICK_STEPS)


def _learn(num_agents: int, trainer_type: str, tick: Tick) -> None:
    _advance(_trainer(num_agents, trainer_type), tick)


def _advance(trainer: Any, tick: Tick, tick_every: int = 1) -> None:
    """Trains; an iteration is a buffer that was learned from, or the first after so many steps."""
    [learner] = trainer.learners.values()
    num_steps, next_tick, is_over = 0, 0, False
    while not is_over:
        trainer.advance()
        num_steps += learner.taken.num_valid
        if num_steps >= next_tick:
            next_tick = num_steps + tick_every
            is_over = tick(num_steps)


def _trainer(num_agents: int, trainer_type: str, task: Any = free_agents) -> Any:
    import torch

    from quintain.behaviors.translate import CommandLine, translate
    from quintain.behaviors.yaml_import import check_configuration
    from quintain.runs.assemble import assemble
    from quintain.runs.run import Run
    from quintain.settings.tree import RunFile
    from quintain.settings.yaml_text import parse

    torch.set_num_threads(1)
    configuration = check_configuration(parse(task.trainer_file(trainer_type), "free.yaml"))
    asked = translate(configuration, CommandLine(env=f"{task.__name__}:ours", seed=0)).run_file.to_dict()
    asked["experiment"]["env"]["kwargs"] = task.arguments(num_agents, trainer_type)
    settings = RunFile.from_mapping({"experiment": asked["experiment"], "run": {"writers": [], "threads": 1}})
    run = Run(settings, [])
    return assemble(settings, run, run.writer)
