"""Policies: networks that act and are trained."""

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
        "DeterministicActor": "quintain.policies.deterministic_actor",
        "DeterministicActorSettings": "quintain.policies.settings",
        "Encoder": "quintain.policies.encoders",
        "ExploringPolicy": "quintain.policies.exploring",
        "NoiseSpec": "quintain.policies.heads",
        "ObsNormalizer": "quintain.policies.normalizer",
        "Policy": "quintain.policies.base",
        "PolicySettings": "quintain.policies.settings",
        "QNetwork": "quintain.policies.q_network",
        "QNetworkSettings": "quintain.policies.settings",
        "SoftActor": "quintain.policies.soft_actor",
        "SoftActorSettings": "quintain.policies.settings",
        "first_layers": "quintain.policies.networks",
        "mlp": "quintain.policies.networks",
    },
)
__all__ += ["register"]
__all__.sort()
