"""Small runs of our own agent tasks."""

from __future__ import annotations

from typing import Any

from quintain.placements.threads import CollectorThread
from quintain.rollouts.agent_world import AgentWorld
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer

BEHAVIORS = {
    "balance_ball": ("Ball",),
    "gates": ("Gate",),
    "ball_and_gates": ("Ball", "Gate"),
    "door": ("Door",),
    "couriers": ("Courier",),
    "recall": ("Recall",),
}
WHERE = {
    "door": ("group_tasks", "num_groups"),
    "couriers": ("hybrid_tasks", "num_agents"),
    "recall": ("memory_tasks", "num_agents"),
}
"""Which module a task is in, and what it calls the number of its agents, where that is not as usual."""


def run_file(task: str, env_steps: int = 600, *, budgets: dict[str, int] | None = None, **changes: Any) -> RunFile:
    """Returns settings that are small enough for a test; `changes` are those of every behaviour's blocks."""
    behavior: dict[str, Any] = {
        "algorithm": {"type": "ppo", "batch_size": 64, "num_epochs": 2},
        "policy": {"hidden_sizes": [8, 8], "compiled": False},
        "rollout": {"buffer_size": 128, "time_horizon": 16},
    }
    for block, values in changes.items():
        behavior[block] = {**behavior[block], **values}
    behaviors = {name: dict(behavior) for name in BEHAVIORS[task]}
    for name, budget in (budgets or {}).items():
        behaviors[name]["rollout"] = {**behavior["rollout"], "budget_env_steps": budget}
    where, size = WHERE.get(task, ("tasks", "num_agents"))
    env = {"type": "agents", "id": f"quintain.envs.agents.{where}:{task}", "kwargs": {size: 5}, "num_lanes": 2}
    return RunFile.from_mapping(
        {
            "experiment": {"seed": 3, "budget": {"env_steps": env_steps}, "env": env, "behaviors": behaviors},
            "run": {"writers": []},
        }
    )


def poca_file(env_steps: int = 600, **changes: Any) -> RunFile:
    """Returns the same for groups before a door."""
    chosen = {"algorithm": {"type": "poca", "embedding_size": 8}, "policy": {"type": "actor_only"}}
    for block, values in changes.items():
        chosen[block] = {**chosen.get(block, {}), **values}
    return run_file("door", env_steps, **chosen)


def world_of(trainer: Any) -> AgentWorld:
    """Returns the collector of a trainer of agents, in whichever thread it acts."""
    remote = trainer.source.remote.collector
    world = (remote._actor if isinstance(remote, CollectorThread) else remote.actor).collector
    assert isinstance(world, AgentWorld)
    return world


def make(settings: RunFile) -> Trainer:
    run = Run(settings, [])
    return assemble(settings, run, run.writer)
