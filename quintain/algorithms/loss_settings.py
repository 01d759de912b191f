"""Settings of loss modules that users bring. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from quintain.algorithms.settings import TeamPPOSettings
from quintain.core.registry import Registration
from quintain.typing import Keywords


class LossModuleSettings(TeamPPOSettings):
    """A loss module of your own for a team: anything that maps a TensorDict to entries `loss_*`."""

    function: str = Field(default="quintain.experiments.objectives:clipped_ppo", min_length=1)
    """The function as module:name; it is called with the policy, and returns a loss module and, if it has one, an
    estimator of advantages."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of the function."""


REGISTERED = (
    Registration(
        "algorithm",
        "loss_module",
        LossModuleSettings,
        "quintain.algorithms.loss_module:LossModuleAlgorithm",
        {"policy": {"type": "team"}, "rollout": {"type": "block"}},
    ),
)
