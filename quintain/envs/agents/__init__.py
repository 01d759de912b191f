"""Multi-agent environments whose agents come and go: specs, reports at a step, and slots of agents.

Names and shapes are those of ML-Agents' `mlagents_envs.base_env`. Any object with the interface of its environments is
accepted: returned values are converted to arrays once, in `boundary`.
"""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ActionSpec": "quintain.envs.agents.specs",
        "ActionTuple": "quintain.envs.agents.specs",
        "BehaviorSpec": "quintain.envs.agents.specs",
        "DecisionSteps": "quintain.envs.agents.steps",
        "ObservationSpec": "quintain.envs.agents.specs",
        "TerminalSteps": "quintain.envs.agents.steps",
    },
)
