"""Translates a trainer configuration of ML-Agents to quintain's settings.

Keys of unsupported features are refused by name. Keys that have no effect without a Unity build are listed once.
docs/migrating/mlagents.md says where the meaning differs.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from quintain.behaviors.run_options import CurriculumSettings, RunOptions, SamplerSettings
from quintain.behaviors.trainer_settings import (
    HyperparameterSettings,
    OnPolicyHyperparameterSettings,
    POCASettings,
    SACSettings,
    TrainerSettings,
)
from quintain.behaviors.unsupported import notes_of, unsupported
from quintain.behaviors.yaml_import import Configuration, is_code
from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.typing import JsonObject

CODE = "E0228"
FALLBACK = "default"
"""The behaviour whose settings apply to behaviours that are not named."""
MAX_DRAWN_SEED = 10_000
KEEP_ALL = 1_000_000
SMALLEST = {"learning_rate": 1e-10, "beta": 1e-5, "epsilon": 0.1}
"""The end value of ML-Agents' linear schedules."""


@dataclass(frozen=True)
class CommandLine:
    """Command-line options beside the file; None and False where not given."""

    env: str | None = None
    num_envs: int | None = None
    seed: int | None = None
    run_id: str | None = None
    initialize_from: str | None = None
    is_resume: bool = False
    is_forced: bool = False
    is_inference: bool = False
    is_deterministic: bool = False
    results_dir: str | None = None


@dataclass(frozen=True)
class Request:
    """A requested run."""

    settings: JsonObject
    """The run file's settings."""
    run_id: str | None
    results_dir: str | None
    initialize_from: str | None
    is_resume: bool
    is_forced: bool
    is_inference: bool
    is_deterministic: bool
    notes: tuple[str, ...]

    @property
    def run_file(self) -> RunFile:
        return RunFile.from_mapping(self.settings)


def translate(configuration: Configuration, typed: CommandLine) -> Request:
    """Translates a configuration and command-line options, which take precedence, to a run."""
    options = configuration.options
    refusals = list(unsupported(options))
    if refusals:
        path, why = refusals[0]
        more = [f"{where}: {reason}" for where, reason in refusals[1:20]]
        raise SettingsError(f"{configuration.source}: {path}: {why}", code=CODE, notes=more)
    kept = options.checkpoint_settings
    resumes = typed.is_resume or ((kept.resume or kept.load_model) and typed.initialize_from is None)
    initialize_from = typed.initialize_from or kept.initialize_from
    notes = list(notes_of(configuration))
    if resumes and initialize_from is not None:
        notes.append("note: the run is resumed, so initialize_from has no effect")
        initialize_from = None
    settings = _settings(configuration, typed)
    # What cannot be a run is refused here.
    RunFile.from_mapping(settings)
    return Request(
        settings=settings,
        run_id=typed.run_id or kept.run_id,
        results_dir=typed.results_dir or kept.results_dir,
        initialize_from=initialize_from,
        is_resume=resumes,
        is_forced=typed.is_forced or (kept.force and not resumes),
        is_inference=typed.is_inference or kept.inference,
        is_deterministic=typed.is_deterministic or _all_deterministic(options),
        notes=tuple(notes),
    )


def _all_deterministic(options: RunOptions) -> bool:
    blocks = [*options.behaviors.values(), *([options.default_settings] if options.default_settings else [])]
    return bool(blocks) and all(each.network_settings.deterministic for each in blocks)


def _settings(configuration: Configuration, typed: CommandLine) -> JsonObject:
    options = configuration.options
    named, fallback = options.behaviors, options.default_settings
    blocks = dict(named) if fallback is None else {FALLBACK: fallback, **named}
    longest = max(each.max_steps for each in (named or blocks).values())
    behaviors = {name: behavior_settings(each, longest) for name, each in blocks.items()}
    run = run_settings(options, list((named or blocks).values()))
    beside = [name for name, each in blocks.items() if each.threaded]
    for name in beside:
        behaviors[name]["rollout"]["max_staleness"] = 1
    if beside:
        run["placement"] = {"type": "threads"}
    experiment = {
        "seed": _seed(options, typed),
        "budget": {"env_steps": longest},
        "env": _env(configuration, typed),
        "behaviors": behaviors,
    }
    return {"experiment": experiment, "run": run}


def _seed(options: RunOptions, typed: CommandLine) -> int:
    chosen = options.env_settings.seed if typed.seed is None else typed.seed
    # Drawn once: the run's own file has the number, so that it can be repeated.
    return secrets.randbelow(MAX_DRAWN_SEED) if chosen < 0 else chosen


def _env(configuration: Configuration, typed: CommandLine) -> dict[str, Any]:
    settings = configuration.options.env_settings
    chosen = typed.env or settings.env_path
    if chosen is None:
        raise SettingsError(
            f"{configuration.source}: no environment: the Unity editor cannot be connected to yet. Name one with --env "
            f"module:Name",
            code=CODE,
        )
    if not is_code(chosen):
        raise SettingsError(
            f"env_path {chosen}: Unity builds cannot be run yet. Name an environment with --env module:Name", code=CODE
        )
    parameters = configuration.options.environment_parameters
    return {
        "type": "agents",
        "id": chosen,
        "num_lanes": settings.num_envs if typed.num_envs is None else typed.num_envs,
        "parameters": {name: value for name, value in parameters.items() if isinstance(value, float)},
        "samplers": {name: _sampler(each) for name, each in parameters.items() if isinstance(each, SamplerSettings)},
        "curricula": {
            name: _lessons(each) for name, each in parameters.items() if isinstance(each, CurriculumSettings)
        },
    }


def _lessons(settings: CurriculumSettings) -> list[dict[str, Any]]:
    """Returns the lessons of one parameter; the criterion of the last is ignored."""
    lessons = []
    for lesson in settings.curriculum:
        value, until = lesson.value, lesson.completion_criteria
        is_drawn = isinstance(value, SamplerSettings)
        made: dict[str, Any] = {"name": lesson.name, "sampler" if is_drawn else "value": _value(value)}
        if until is not None and lesson is not settings.curriculum[-1]:
            made["until"] = {
                "behavior": until.behavior,
                "measure": until.measure,
                "threshold": until.threshold,
                "min_episodes": until.min_lesson_length,
                "is_smoothed": until.signal_smoothing,
                "resets": until.require_reset,
            }
        lessons.append(made)
    return lessons


def _value(value: float | SamplerSettings) -> Any:
    return _sampler(value) if isinstance(value, SamplerSettings) else value


def _sampler(settings: SamplerSettings) -> dict[str, Any]:
    given = settings.sampler_parameters
    if settings.sampler_type == "gaussian":
        return {"distribution": "gaussian", "numbers": [given.get("mean", 1.0), given.get("st_dev", 1.0)]}
    if settings.sampler_type == "multirangeuniform":
        pairs = given.get("intervals", [[0.0, 1.0]])
        return {"distribution": "ranges", "numbers": [number for pair in pairs for number in pair]}
    if settings.sampler_type == "constant":
        return {"distribution": "uniform", "numbers": [given.get("value", 0.0)] * 2}
    return {"distribution": "uniform", "numbers": [given.get("min_value", 0.0), given.get("max_value", 1.0)]}


def run_settings(options: RunOptions, blocks: list[TrainerSettings]) -> dict[str, Any]:
    """Returns the settings under `run` of a run with these behaviours."""
    keep = min(each.keep_checkpoints for each in blocks)
    intervals = [
        each.max_steps // each.keep_checkpoints
        if each.even_checkpoints and each.keep_checkpoints > 0
        else each.checkpoint_interval
        for each in blocks
    ]
    return {
        "device": options.torch_settings.device or "cpu",
        "checkpoint": {
            "every_env_steps": max(1, min(intervals)),
            # One is kept beside the newest in any case: a checkpoint that is being written may not be the only one.
            "keep": KEEP_ALL if keep <= 0 else max(2, keep),
        },
        "report": {"every_env_steps": min(each.summary_freq for each in blocks)},
        # There every run writes curves for TensorBoard; here every run that can.
        "writers": ["console", *(["tensorboard"] if find_spec("tensorboard") else [])],
    }


def behavior_settings(settings: TrainerSettings, run_budget: int) -> dict[str, Any]:
    """Returns the blocks of one behaviour; with its own budget if it differs from the run's."""
    makers = {SACSettings: _sac_blocks, POCASettings: _poca_blocks}
    blocks = makers.get(type(settings.hyperparameters), _ppo_blocks)(settings)
    budget = None if settings.max_steps == run_budget else settings.max_steps
    return {
        **blocks,
        "rollout": {"time_horizon": settings.time_horizon, **blocks["rollout"], "budget_env_steps": budget},
        "reward_signals": _signals(settings),
        "events": [],
    }


def _signals(settings: TrainerSettings) -> dict[str, Any]:
    extrinsic = settings.reward_signals.extrinsic
    own = {} if extrinsic is None else {"extrinsic": {"gamma": extrinsic.gamma, "strength": extrinsic.strength}}
    # By module:Name, so that whoever reads the run's own file knows where to look.
    registered = {
        name: {**each.model_dump(mode="json"), "type": registry.importable_name("reward_signal", each.type)}
        for name, each in settings.reward_signals.registered.items()
    }
    return {**own, **registered}


def _ppo_blocks(settings: TrainerSettings) -> dict[str, Any]:
    numbers = settings.hyperparameters
    assert isinstance(numbers, OnPolicyHyperparameterSettings)
    return {
        "algorithm": {
            "type": "ppo",
            "batch_size": numbers.batch_size,
            "num_epochs": numbers.num_epoch,
            "gae_lambda": numbers.lambd,
            "reward_streams": "averaged",
            "learning_rate": _schedule(numbers, "learning_rate"),
            "clip_coef": _schedule(numbers, "epsilon"),
            # Values are not clipped there, because what they are compared with is overwritten, and learn better so.
            "clip_value": None,
            "clip_per_component": True,
            "entropy_coef": _schedule(numbers, "beta"),
            "value_coef": 0.5,
            "max_grad_norm": None,
            "adam_eps": 1e-8,
        },
        # There an action is drawn with deviation 1, cut to +-3 and divided by 3; here it is drawn as it is used.
        "policy": {
            "type": "actor_critic",
            **_network(settings),
            "initial_log_std": round(-math.log(3.0), 6),
            "memory": _memory(settings),
        },
        "rollout": {"type": "trajectories", "buffer_size": numbers.buffer_size},
    }


def _poca_blocks(settings: TrainerSettings) -> dict[str, Any]:
    blocks = _ppo_blocks(settings)
    own = {
        "type": "poca",
        "embedding_size": settings.network_settings.hidden_units,
        "clip_value": blocks["algorithm"]["clip_coef"],
    }
    return {
        **blocks,
        "algorithm": {**blocks["algorithm"], **own},
        "policy": {**blocks["policy"], "type": "actor_only"},
    }


def _sac_blocks(settings: TrainerSettings) -> dict[str, Any]:
    numbers = settings.hyperparameters
    assert isinstance(numbers, SACSettings)
    memory = settings.network_settings.memory
    # A row of replay has room for the longest trajectory: cut where theirs are, as many fit in. And as there, each is
    # learned from before the next (decision 0029).
    horizon = settings.time_horizon
    cut = {} if memory is None else {"time_horizon": min(horizon, memory.sequence_length), "num_steps": 1}
    return {
        "algorithm": {
            "type": "sac",
            "batch_size": numbers.batch_size,
            "learning_rate": _schedule(numbers, "learning_rate"),
            "learning_starts": max(1, numbers.buffer_init_steps),
            "tau": numbers.tau,
            "updates_per_step": 1.0 / numbers.steps_per_update,
            "initial_entropy_coef": numbers.init_entcoef,
            "target_entropy_fraction": 0.2,
        },
        "policy": {"type": "soft_actor", **_network(settings), "memory": _memory(settings)},
        "rollout": {"type": "trajectory_replay", "buffer_size": numbers.buffer_size, **cut},
    }


def _memory(settings: TrainerSettings) -> dict[str, Any] | None:
    memory = settings.network_settings.memory
    # There half of the numbers are the cell's own; here the size is of what is passed on.
    return None if memory is None else {"cell": "lstm", "size": memory.memory_size // 2}


def _network(settings: TrainerSettings) -> dict[str, Any]:
    network = settings.network_settings
    return {
        "hidden_sizes": [network.hidden_units] * network.num_layers,
        "activation": "silu",
        "normalize_obs": network.normalize,
        "obs_clip": 5.0,
        "image_encoder": "flatten" if network.vis_encode_type == "fully_connected" else "simple",
        "image_features": network.hidden_units,
    }


def _schedule(numbers: HyperparameterSettings, name: str) -> Any:
    start = getattr(numbers, name)
    if getattr(numbers, f"{name}_schedule") == "constant":
        return start
    return {"start": start, "end": SMALLEST[name], "shape": "linear"}
