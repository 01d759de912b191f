"""How a policy changes: each algorithm is one file that reads like its paper."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("algorithm")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "A2C": "quintain.algorithms.a2c",
        "A2CSettings": "quintain.algorithms.settings",
        "Algorithm": "quintain.algorithms.base",
        "AlgorithmSettings": "quintain.algorithms.settings",
        "GRPO": "quintain.algorithms.grpo",
        "GRPOSettings": "quintain.algorithms.settings",
        "Loss": "quintain.algorithms.base",
        "POCA": "quintain.algorithms.poca",
        "POCASettings": "quintain.algorithms.settings",
        "PPO": "quintain.algorithms.ppo",
        "PPOSettings": "quintain.algorithms.settings",
        "SAC": "quintain.algorithms.sac",
        "SACSettings": "quintain.algorithms.settings",
    },
)
__all__ += ["register"]
