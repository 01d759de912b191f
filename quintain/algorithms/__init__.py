"""Algorithms: each is one file that reads like its paper."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("algorithm")
register_auxiliary_loss = registrar("auxiliary_loss")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "A2C": "quintain.algorithms.a2c",
        "A2CSettings": "quintain.algorithms.settings",
        "Algorithm": "quintain.algorithms.base",
        "AlgorithmSettings": "quintain.algorithms.settings",
        "AuxiliaryLoss": "quintain.algorithms.auxiliary",
        "AuxiliaryLossSettings": "quintain.algorithms.settings",
        "BehaviorCloning": "quintain.algorithms.behavior_cloning",
        "BehaviorCloningSettings": "quintain.algorithms.online_settings",
        "DQN": "quintain.algorithms.dqn",
        "DQNSettings": "quintain.algorithms.settings",
        "GRPO": "quintain.algorithms.grpo",
        "GRPOSettings": "quintain.algorithms.settings",
        "Loss": "quintain.algorithms.losses",
        "OffPolicy": "quintain.algorithms.off_policy",
        "OffPolicySettings": "quintain.algorithms.settings",
        "OnlinePPO": "quintain.algorithms.online_ppo",
        "OnlinePPOSettings": "quintain.algorithms.online_settings",
        "Optimizer": "quintain.algorithms.optimizer",
        "POCA": "quintain.algorithms.poca",
        "POCASettings": "quintain.algorithms.settings",
        "PPO": "quintain.algorithms.ppo",
        "PPOSettings": "quintain.algorithms.settings",
        "ParameterGroup": "quintain.algorithms.settings",
        "REINFORCE": "quintain.algorithms.reinforce",
        "REINFORCESettings": "quintain.algorithms.settings",
        "SAC": "quintain.algorithms.sac",
        "SACSettings": "quintain.algorithms.settings",
        "TD3": "quintain.algorithms.td3",
        "TD3Settings": "quintain.algorithms.settings",
        "TorchOptimizer": "quintain.algorithms.torch_optimizer",
        "generalized_advantages": "quintain.algorithms.returns",
        "next_of": "quintain.algorithms.off_policy",
        "soft_update_": "quintain.algorithms.off_policy",
        "target_network": "quintain.algorithms.off_policy",
    },
)
__all__ += ["register", "register_auxiliary_loss"]
__all__.sort()
