"""Policies: networks that act and are trained."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("policy")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ActionHead": "quintain.policies.mine_policy",
        "ActorCritic": "quintain.policies.actor_critic",
        "ActorCriticSettings": "quintain.policies.settings",
        "ActorOnly": "quintain.policies.actor_only",
        "ActorOnlySettings": "quintain.policies.settings",
        "DeterministicActor": "quintain.policies.deterministic_actor",
        "DeterministicActorSettings": "quintain.policies.settings",
        "Encoder": "quintain.policies.encoders",
        "ExploringPolicy": "quintain.policies.exploring",
        "CategoricalActionHead": "quintain.policies.mine_policy",
        "DictActionHead": "quintain.policies.mine_policy",
        "MeanActionHead": "quintain.policies.mine_policy",
        "MemorySettings": "quintain.policies.settings",
        "MinePolicy": "quintain.policies.mine_policy",
        "MinePolicyAdapter": "quintain.policies.mine_adapter",
        "MinePolicySettings": "quintain.policies.settings",
        "NoiseSpec": "quintain.policies.heads",
        "NormalizeEwma": "quintain.policies.mine_policy",
        "ObsNormalizer": "quintain.policies.normalizer",
        "Policy": "quintain.policies.base",
        "PolicySettings": "quintain.policies.settings",
        "QNetwork": "quintain.policies.q_network",
        "QNetworkSettings": "quintain.policies.settings",
        "RecurrentImagePolicy": "quintain.policies.recurrent_image",
        "RecurrentImageSettings": "quintain.policies.settings",
        "ScaledMSEHead": "quintain.policies.mine_policy",
        "SoftActor": "quintain.policies.soft_actor",
        "SoftActorSettings": "quintain.policies.settings",
        "first_layers": "quintain.policies.networks",
        "make_action_head": "quintain.policies.mine_policy",
        "mlp": "quintain.policies.networks",
    },
)
__all__ += ["register"]
__all__.sort()
