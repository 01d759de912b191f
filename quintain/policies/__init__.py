"""What acts and is trained."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("policy")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ActorCritic": "quintain.policies.actor_critic",
        "ActorCriticSettings": "quintain.policies.settings",
        "ActorOnly": "quintain.policies.actor_only",
        "ActorOnlySettings": "quintain.policies.settings",
        "Policy": "quintain.policies.base",
        "PolicySettings": "quintain.policies.settings",
        "SoftActor": "quintain.policies.soft_actor",
        "SoftActorSettings": "quintain.policies.settings",
    },
)
__all__ += ["register"]
