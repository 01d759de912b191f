"""Translates a configuration and its generators into one run file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import gymnasium
from torch import nn

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.online.envs import online_env
from quintain.online.ray_actors import LOCAL
from quintain.online.settings import OnlineConfig
from quintain.runs.output import ONLINE_ENV

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.policies.mine_policy import MinePolicy
    from quintain.typing import JsonObject

HOST = "quintain.online.start:host_trainer"
"""The function that a run file names for trainers of a user's own."""


@dataclass(frozen=True)
class Generators:
    """The functions that make policies and environments."""

    policy_generator: Callable[[], MinePolicy]
    env_generator: Callable[[], GymEnv]
    module: str | None = None
    """The configuration module that has them by these names, such as lambdas, which have none of their own."""

    def __post_init__(self) -> None:
        for name, made, kinds in (
            ("policy_generator", self.policy_generator, nn.Module),
            ("env_generator", self.env_generator, gymnasium.Env),
        ):
            if isinstance(made, kinds) or not callable(made):
                raise SettingsError(
                    f"{name} is a {type(made).__name__}, expected a function without arguments that makes one, such as "
                    f"lambda: {type(made).__name__}(...)",
                    code="E0264",
                )

    @property
    def env_path(self) -> str:
        """The module:Name of env_generator; empty if there is none."""
        return path_of(self.env_generator) or self._name_in_module("env_generator")

    @property
    def policy_path(self) -> str:
        """The module:Name of policy_generator; empty if there is none."""
        return path_of(self.policy_generator) or self._name_in_module("policy_generator")

    def _name_in_module(self, name: str) -> str:
        return "" if self.module is None else f"{self.module}:{name}"


def path_of(part: Callable[..., object]) -> str:
    """Returns the module:Name under which any process can import a function or class; empty if there is none."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    found: object = sys.modules.get(module or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    return f"{module}:{name}" if found is part and module != "__main__" else ""


def env_slot(config: OnlineConfig, generators: Generators) -> Callable[..., GymEnv] | None:
    """Returns the factory of environments, where settings cannot name it."""
    if generators.env_path:
        return None
    worker = config.rollout_config.worker_config
    made = partial(online_env, generators.env_generator, worker.restart_interval or None, float(worker.video_fps))
    # What messages call it.
    vars(made)["__name__"] = _name_of_env(generators.env_generator)
    return made


def _name_of_env(generator: Callable[[], GymEnv]) -> str:
    return str(getattr(generator, "__name__", type(generator).__name__))


def run_settings(
    config: OnlineConfig,
    generators: Generators,
    trainer: JsonObject | None = None,
    address: str | None = None,
) -> JsonObject:
    """Returns the run file of a configuration; `trainer` are settings of a trainer of a user's own.

    With the address of a Ray cluster, rollout workers are its actors.
    """
    rollout, train = config.rollout_config, config.train_config
    lanes, is_synchronous = rollout.num_lanes, rollout.is_synchronous
    # MineStudio's BaseTrainer has no save_interval: a loop of a user's own is saved at each broadcast.
    is_set = "save_interval" in train.model_fields_set
    behavior: JsonObject = {
        "algorithm": algorithm_settings(config, is_hosted=trainer is not None),
        "policy": {
            "type": "mine_policy",
            "network": {"type": _name_of_policy(generators)},
            "context_length": train.context_length,
        },
        "reward_signals": {"extrinsic": {"gamma": train.discount}},
        "rollout": rollout_settings(config, is_hosted=trainer is not None),
        "events": ["none"],
    }
    # An interval beyond the budget would never be due.
    if 0 < train.record_video_interval <= train.num_iterations:
        pace = float(rollout.worker_config.video_fps)
        video = {"type": "record_video", "every_updates": train.record_video_interval, "frames_per_second": pace}
        behavior["events"].append(video)
    if train.bc_coef > 0.0:
        cloning = {"path": train.mine_data, "coef": train.bc_coef}
        behavior["auxiliary_losses"] = {"behavior_cloning": {**cloning, "batch_size": _steps_per_batch(config)}}
    if trainer is not None:
        behavior["trainer"] = trainer
    experiment = {
        "seed": config.seed,
        "budget": {"updates": train.num_iterations},
        "env": {
            **env_settings(config, generators),
            "num_lanes": lanes,
            "num_collectors": 1 if is_synchronous else rollout.num_rollout_workers // train.num_workers,
        },
        "behaviors": {"default": behavior},
    }
    run: JsonObject = {
        "placement": {**placement_settings(config, address), "num_ranks": train.num_workers},
        "device": "cuda" if train.num_gpus_per_worker else "cpu",
        "env_workers": {"num_workers": lanes},
        "checkpoint": {
            "every_updates": 1 if trainer is not None and not is_set else train.save_interval,
            "every_seconds": None,
            "keep_every_updates": train.keep_interval,
        },
    }
    if config.logger_config.project is not None:
        run["writers"] = ["console", {"type": "wandb", "project": config.logger_config.project}]
    return {"experiment": experiment, "run": run}


def placement_settings(config: OnlineConfig, address: str | None) -> JsonObject:
    """Returns where rollout workers act; with the address of a Ray cluster, as its actors."""
    rollout, train = config.rollout_config, config.train_config
    if address is None:
        return {"type": "local" if rollout.is_synchronous else "processes"}
    return {
        "type": "ray",
        "address": None if address == LOCAL else address,
        "num_cpus_per_actor": rollout.num_cpus_per_worker,
        "num_gpus_per_rank": train.num_gpus_per_worker,
        "num_readers": train.num_readers,
        "num_cpus_per_reader": train.num_cpus_per_reader,
        "prefetch_batches": train.prefetch_batches,
    }


def _steps_per_batch(config: OnlineConfig) -> int:
    """Returns the steps in a micro-batch of a learner rank."""
    return config.train_config.batch_size_per_gpu * config.rollout_config.fragment_length


def _name_of_policy(generators: Generators) -> str:
    """Returns a name for the policy's network: module:Name, or that under which it is registered in this process."""
    if path := generators.policy_path:
        return path

    def policy_generator() -> nn.Module:
        return generators.policy_generator()

    return registry.name_for("network", policy_generator)


def env_settings(config: OnlineConfig, generators: Generators) -> JsonObject:
    """Returns the settings of the environment: the generator by its name, or a description of it."""
    worker, path = config.rollout_config.worker_config, generators.env_path
    if not path:
        return {"type": "gym", "id": _name_of_env(generators.env_generator)}
    given = {"generator": path, "restart_interval": worker.restart_interval or None}
    return {
        "type": "gym",
        "id": ONLINE_ENV,
        "kwargs": {**given, "frames_per_second": float(worker.video_fps)},
    }


def rollout_settings(config: OnlineConfig, *, is_hosted: bool) -> JsonObject:
    """Returns the settings of the store: fragments, or blocks of lanes that step together where runs are exact."""
    rollout, train = config.rollout_config, config.train_config
    buffer, wanted = rollout.replay_buffer_config, train.fragments_per_iteration
    if rollout.is_synchronous:
        # A trainer of a user's own asks for any number of fragments, block by block.
        per_lane = 1 if is_hosted else wanted // rollout.num_lanes
        if train.fragments_per_step % per_lane:
            return {"type": "lockstep", "num_steps": rollout.fragment_length, "fragments_per_lane": per_lane}
        # Where steps of the optimizer take all of a lane, its fragments are one sequence.
        return {"type": "block", "num_steps": rollout.fragment_length * per_lane}
    return {
        "type": "fragments",
        "num_steps": rollout.fragment_length,
        "num_fragments": _num_fragments(config, is_hosted=is_hosted),
        "max_staleness": buffer.max_staleness,
        "max_reuse": buffer.max_reuse,
        "capacity": buffer.max_chunks,
    }


def _num_fragments(config: OnlineConfig, *, is_hosted: bool) -> int:
    """Returns the fragments of a batch; a loop of a user's own begins with them, and asks for any number."""
    wanted = config.train_config.fragments_per_iteration
    return min(wanted, config.rollout_config.replay_buffer_config.max_chunks) if is_hosted else wanted


def algorithm_settings(config: OnlineConfig, *, is_hosted: bool) -> JsonObject:
    """Returns the settings of MineStudio's objective."""
    rollout, train = config.rollout_config, config.train_config
    micro_batch_size = _steps_per_batch(config)
    batch_size = train.fragments_per_step * rollout.fragment_length
    # Minibatches of a loop of a user's own are the user's; those of the settings only have to exist.
    most = (
        rollout.num_lanes if rollout.is_synchronous else _num_fragments(config, is_hosted=is_hosted)
    ) * rollout.fragment_length
    is_cut = is_hosted and batch_size > most
    rate = train.learning_rate
    return {
        "type": "online_ppo",
        "learning_rate": {"start": rate, "end": 0.0} if train.anneal_lr_linearly else rate,
        "weight_decay": train.weight_decay,
        "adam_eps": train.adam_eps,
        "batch_size": most if is_cut else batch_size,
        "micro_batch_size": None if is_cut else micro_batch_size,
        "num_epochs": train.epochs_per_iteration,
        "max_grad_norm": train.max_grad_norm,
        "gae_lambda": train.gae_lambda,
        "clip_coef": train.ppo_clip,
        "clip_value": train.ppo_clip if train.clip_vloss else None,
        "policy_coef": train.ppo_policy_coef,
        "value_coef": train.ppo_vf_coef,
        "entropy_coef": train.entropy_bonus_coef,
        "kl_coef": train.kl_divergence_coef_rho,
        "kl_decay": train.coef_rho_decay,
        "kl_direction": train.kl_direction,
        "update_reference": train.enable_ref_update,
        "value_warmup": train.vf_warmup,
        "normalize_values": train.use_normalized_vf,
        # The model of a loop of a user's own is the user's, or has the weights of a checkpoint.
        "zero_initial_values": train.zero_initial_vf and not is_hosted,
        "log_ratio_range": train.log_ratio_range,
        "normalize_advantage": train.normalize_advantage_full_batch,
    }
