"""Keys of ML-Agents' configurations that are not supported yet, or have no effect here."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.behaviors.run_options import RunOptions
from quintain.behaviors.trainer_settings import PPOSettings, TrainerSettings
from quintain.behaviors.yaml_import import Configuration

NUM_HEADS = 4
"""Attention heads in POCA's critic."""
_WITHOUT_UNITY = frozenset({"base_port", "num_areas", "timeout_wait", "max_lifetime_restarts", "restarts_rate_limit_n",
                            "restarts_rate_limit_period_s"})  # fmt: skip


def unsupported(options: RunOptions) -> Iterator[tuple[str, str]]:
    """Yields the keys that are known and not supported yet, with the reason."""
    blocks = {f"behaviors.{name}": each for name, each in options.behaviors.items()}
    if options.default_settings is not None:
        blocks["default_settings"] = options.default_settings
    for path, settings in blocks.items():
        yield from ((f"{path}.{key}", why) for key, why in _unsupported_of_behavior(settings))
    if options.env_settings.env_args:
        yield "env_settings.env_args", "Unity builds cannot be run yet"


def _unsupported_of_behavior(settings: TrainerSettings) -> Iterator[tuple[str, str]]:
    if settings.trainer_type == "poca" and settings.network_settings.hidden_units % NUM_HEADS:
        yield "network_settings.hidden_units", f"poca shares them between {NUM_HEADS} heads; use a multiple of that"
    for name in ("curiosity", "gail", "rnd"):
        if dict(settings.reward_signals)[name] is not None:
            yield f"reward_signals.{name}", "this reward signal is not built yet; leave it out"
    extrinsic, registered = settings.reward_signals.extrinsic, settings.reward_signals.registered
    if extrinsic is None and not registered:
        yield "reward_signals", "nothing is left to learn from without extrinsic"
    if settings.trainer_type == "sac" and len(registered) + (extrinsic is not None) > 1:
        yield "reward_signals", "sac has one critic for all signals and not one for each; have one, or use ppo or poca"
    if extrinsic is not None and extrinsic.network_settings is not None:
        yield "reward_signals.extrinsic.network_settings", "the environment's own reward has no network; leave it out"
    for name in ("self_play", "behavioral_cloning", "init_path"):
        if dict(settings)[name] is not None:
            yield name, "this is not built yet; leave it out"
    network = settings.network_settings
    if network.vis_encode_type not in ("simple", "fully_connected"):
        yield "network_settings.vis_encode_type", f"{network.vis_encode_type} is not built yet; use simple"
    if isinstance(settings.hyperparameters, PPOSettings) and settings.hyperparameters.shared_critic:
        yield "hyperparameters.shared_critic", "actor and critic have layers of their own; set it to false"


def notes_of(configuration: Configuration) -> Iterator[str]:
    """Yields notes on keys that have no effect."""
    idle = [
        ".".join(map(str, path))
        for path in sorted(configuration.given, key=str)
        if (path[0] == "env_settings" and path[-1] in _WITHOUT_UNITY)
        or (path[0] == "engine_settings" and len(path) == 2)
        or path in {("debug",), ("checkpoint_settings", "train_model")}
        or path[-1] == "framework"
    ]
    for name, settings in configuration.options.behaviors.items():
        memory = settings.network_settings.memory
        if memory is None or settings.trainer_type == "sac":
            # SAC cuts trajectories at either.
            continue
        if memory.sequence_length != settings.time_horizon:
            yield (
                f"note: memory of {name} is learned over whole trajectories, time_horizon {settings.time_horizon}, and "
                f"not over sequence_length {memory.sequence_length}"
            )
    if idle:
        yield f"note: without a Unity build these have no effect: {', '.join(idle)}"
