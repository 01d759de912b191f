"""Reinforcement learning that is right, fast, exact on resume, and pleasant.

Names are imported when they are first used, so that `import quintain` costs nothing.
"""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "A2CSettings": "quintain.algorithms.settings",
        "ActorCritic": "quintain.policies.actor_critic",
        "ActorCriticSettings": "quintain.policies.settings",
        "Algorithm": "quintain.algorithms.base",
        "BehaviorSpec": "quintain.data.spec",
        "DQNSettings": "quintain.algorithms.settings",
        "EmbodiedEnv": "quintain.envs.embodied",
        "Env": "quintain.envs.base",
        "EnvSettings": "quintain.envs.settings",
        "Every": "quintain.services.events",
        "EventManager": "quintain.services.events",
        "GymSettings": "quintain.envs.settings",
        "KeepsState": "quintain.core.state",
        "PPO": "quintain.algorithms.ppo",
        "PPOSettings": "quintain.algorithms.settings",
        "Policy": "quintain.policies.base",
        "QuintainError": "quintain.errors",
        "RewardSignal": "quintain.rewards.base",
        "REINFORCESettings": "quintain.algorithms.settings",
        "Rng": "quintain.core.rng",
        "Rollout": "quintain.data.rollout",
        "RunFile": "quintain.settings.tree",
        "SACSettings": "quintain.algorithms.settings",
        "StepResult": "quintain.envs.base",
        "SyncCollector": "quintain.rollouts.sync_collector",
        "TD3Settings": "quintain.algorithms.settings",
        "Trainer": "quintain.runs.slots",
        "box": "quintain.data.spec",
        "discrete": "quintain.data.spec",
        "evaluate": "quintain.runs.trained",
        "host": "quintain.runs.hosted",
        "launch": "quintain.runs",
        "load_policy": "quintain.runs.trained",
        "register": "quintain.core.registry",
        "sweep": "quintain.runs.sweeps",
        "transition_view": "quintain.data.views",
    },
)
