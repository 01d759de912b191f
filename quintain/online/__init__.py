"""Online training as MineStudio's users know it: configurations, generators and trainers, on quintain's core."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BaseTrainer": "quintain.online.base_trainer",
        "FragmentDataDict": "quintain.online.fragments",
        "FragmentIndex": "quintain.online.fragments",
        "GAEInfo": "quintain.online.gae_worker",
        "GAEWorker": "quintain.online.gae_worker",
        "OnlineConfig": "quintain.online.settings",
        "PPOBCTrainer": "quintain.online.ppo_trainer",
        "PPOTrainer": "quintain.online.ppo_trainer",
        "RolloutManager": "quintain.online.rollout_manager",
        "SampleFragment": "quintain.online.fragments",
        "batch_of": "quintain.online.fragments",
        "data_iter": "quintain.online.fragments",
        "file_settings": "quintain.online.start",
        "get_rollout_manager": "quintain.online.rollout_manager",
        "online_config": "quintain.online.config",
        "online_env": "quintain.online.envs",
        "start_rolloutmanager": "quintain.online.rollout_manager",
        "start_trainer": "quintain.online.start",
    },
)
