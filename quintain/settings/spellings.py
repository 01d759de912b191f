"""Names of settings in other frameworks, and their counterparts here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "env": {
            "num_envs": "num_lanes",
            "n_envs": "num_lanes",
            "env_wrapper": "wrappers",
            "env_kwargs": "kwargs",
            "time_limit": "max_episode_steps",
        },
        "budget": {"total_timesteps": "env_steps", "n_timesteps": "env_steps"},
        "algorithm": {
            "clip_range": "clip_coef",
            "clip_range_vf": "clip_value",
            "ent_coef": "entropy_coef",
            "vf_coef": "value_coef",
            "n_epochs": "num_epochs",
            "lambd": "gae_lambda",
            "lr": "learning_rate",
            "minibatch_size": "batch_size",
            "utd_ratio": "updates_per_step",
            "gradient_steps": "updates_per_step",
            "buffer_init_steps": "learning_starts",
            "alpha": "entropy_coef",
            "init_entcoef": "initial_entropy_coef",
            "target_policy_noise": "target_noise",
        },
        "policy": {
            "net_arch": "hidden_sizes",
            "activation_fn": "activation",
            "log_std_init": "initial_log_std",
            "sde_sample_freq": "noise_hold",
            "sde_sample_every": "noise_hold",
            "normalize": "normalize_obs",
            "norm_obs": "normalize_obs",
            "exploration_initial_eps": "epsilon.start",
            "exploration_final_eps": "epsilon.end",
            "exploration_fraction": "epsilon.until",
        },
        "rollout": {
            "n_steps": "num_steps",
            "buffer_size": "num_steps",
            "rollout_steps": "num_steps",
            "time_horizon": "num_steps",
            "train_freq": "num_steps",
            "n_step": "num_return_steps",
        },
        "reward_signal": {"discount": "gamma", "norm_reward": "normalize_reward"},
    }
)
"""Spellings of other frameworks, by the block of the canonical name; a dot leads into a schedule."""

GRADIENT_STEPS = "gradient_steps"
"""Counts per rollout where `updates_per_step` counts per environment step, so that its value is converted."""

NET_ARCH = "net_arch"
"""May be a mapping of lists (`pi`, `vf`, `qf`); networks have equal hidden layers here, so that equal lists are one."""

BY_SPACES = frozenset({"MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy", "CnnLstmPolicy"})
"""Policies of Stable-Baselines3 that here follow from the algorithm, the spaces and `memory`."""

COUNTERPARTS: Mapping[str, str] = MappingProxyType(
    {
        "policy_kwargs": "its entries are settings here: hidden_sizes, activation, initial_log_std",
        "verbose": "--quiet prints nothing, and writers says where metrics go",
        "tensorboard_log": "write writers=[tensorboard]",
        "callback": "a callback is an event: trainer.events.add(Every(env_steps=1000), function)",
        "progress_bar": "the terminal shows progress in any case; leave it out",
        "log_interval": "report.every_updates says how often there is a row",
        "tb_log_name": "run_id names a run and its folder",
        "reset_num_timesteps": "the number of steps is the total over all calls; leave it out",
        "eval_freq": "write events=[{type: evaluate, every_env_steps: 10k}]",
        "n_eval_episodes": "write events=[{type: evaluate, num_episodes: 20}]",
        "eval_episodes": "write events=[{type: evaluate, num_episodes: 20}]",
        "save_freq": "write checkpoint.every_env_steps=50k",
        "target_update_interval": "target_update_every is its counterpart, in gradient steps",
        "noise_std": "action_noise is its counterpart",
        "noise_type": "noise is Gaussian, and action_noise is its standard deviation",
        "optimize_memory_usage": "replay keeps each observation once in any case; leave it out",
        "ortho_init": "actor-critic policies begin with orthogonal weights, the others with uniform ones; leave it out",
        "use_rms_prop": "the optimizer is Adam; leave it out",
    }
)
"""What to do instead of settings of other frameworks that have no alias, by their names."""
