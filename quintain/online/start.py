"""The ways in: `start_trainer`, and configuration modules (`online_dict`, `env_generator`, `policy_generator`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from quintain.core import registry, trust
from quintain.errors import SettingsError
from quintain.online.base_trainer import BaseTrainer
from quintain.online.config import document_of, idle_keys, online_config, refuse_impossible, refuse_missing_gpus
from quintain.online.ppo_trainer import PPOBCTrainer, PPOTrainer
from quintain.online.ray_actors import LOCAL, as_actor, has_joined
from quintain.online.rollout_manager import RolloutManager, facts_of, get_rollout_manager
from quintain.online.runner import RayPlace, idle_note, train_online
from quintain.online.settings import OnlineConfig, TrainConfig
from quintain.online.translate import HOST, Generators, path_of, run_settings

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.policies.mine_policy import MinePolicy
    from quintain.services.reporting.writers import RunSummary
    from quintain.trainers.hosted_trainer import HostedTrainer
    from quintain.typing import JsonObject, Keywords, Saved

SHIPPED: dict[str, type[BaseTrainer]] = {"PPOTrainer": PPOTrainer, "PPOBCTrainer": PPOBCTrainer}
NAMES = ("online_dict", "env_generator", "policy_generator")
"""The names of a configuration module."""
_OF_RUN = ("num_iterations", "resume", "resume_optimizer", "save_interval", "keep_interval", "save_path",
           "record_video_interval")  # fmt: skip
"""Keys of train_config that stand elsewhere in the run file."""


def start_trainer(
    policy_generator: Callable[[], MinePolicy],
    env_generator: Callable[[], GymEnv],
    online_cfg: OnlineConfig | JsonObject,
    whole_config: str | None = None,
    *,
    trainer_class: type[BaseTrainer] | None = None,
) -> RunSummary:
    """Trains by the trainer that the configuration names, in a run directory, to the end of the run.

    `trainer_class` takes the place of `trainer_name`, for one of the main script. `whole_config`, the text of the
    configuration, is not needed: the run directory has all settings.
    """
    trainer_class = trainer_class or _trainer_class(online_cfg)
    config, own = _split(online_cfg, trainer_class)
    manager = get_rollout_manager()
    address = None if manager is None else facts_of(manager).address
    place = None if address is None else RayPlace(address)
    is_read = isinstance(online_cfg, OnlineConfig)
    idle = [] if is_read else [key for key in idle_keys(online_cfg, on_ray=place is not None) if key not in own]
    generators = Generators(policy_generator, env_generator)
    if not trainer_class.has_own_loop:
        return train_online(config, generators, idle=idle, place=place)
    named = _by_names(config, own, trainer_class, generators)
    if named is not None:
        return train_online(config, generators, trainer=named, idle=idle, place=place)
    if place is None:
        manager = RolloutManager(policy_generator, env_generator, config)
    made = _make(trainer_class, manager, generators, config, own)
    trainer = {"type": "hosted", "function": f"{trainer_class.__module__}:{trainer_class.__qualname__}"}
    return train_online(config, generators, trainer=trainer, function=made._train_in, idle=idle, place=place)


def host_trainer(
    host: HostedTrainer,
    *,
    trainer: str,
    policy_generator: str,
    env_generator: str,
    rollout_config: JsonObject,
    train_config: JsonObject,
    own: Keywords | None = None,
) -> None:
    """Makes a trainer from names and settings of a run file, and trains; see `experiment...trainer.function`."""
    updates = host.progress.budget.updates
    train = {**train_config, **({"num_iterations": updates} if updates else {})}
    config = online_config({"rollout_config": rollout_config, "train_config": train}, is_hosted=True)
    made_policy, made_env = (registry.import_part("function", each) for each in (policy_generator, env_generator))
    trainer_class: type[BaseTrainer] = registry.import_part("trainer", trainer)  # type: ignore[assignment]  # a class
    generators = Generators(made_policy, made_env)
    # On Ray a manager is an actor, also where this process has not started it.
    manager: Saved = RolloutManager(made_policy, made_env, config)
    if has_joined():
        manager = as_actor(RolloutManager, made_policy, made_env, config, LOCAL)
    made = _make(trainer_class, manager, generators, config, own or {})
    made._train_in(host)


def _make(
    trainer_class: type[BaseTrainer],
    manager: Saved,
    generators: Generators,
    config: OnlineConfig,
    own: Keywords,
) -> BaseTrainer:
    """Makes a trainer of a user's own; `own` are parameters of its constructor that no configuration has."""
    values = {name: value for name, value in config.train_config if value != TrainConfig.model_fields[name].default}
    return trainer_class(
        rollout_manager=manager,
        policy_generator=generators.policy_generator,
        env_generator=generators.env_generator,
        **values,
        **own,
    )


def _by_names(
    config: OnlineConfig, own: Keywords, trainer_class: type[BaseTrainer], generators: Generators
) -> JsonObject | None:
    """Returns settings by which any process can make the trainer again; None if a part is of the main script."""
    paths = [path_of(trainer_class), generators.policy_path, generators.env_path]
    if not all(paths):
        return None
    train = config.train_config.model_dump(mode="json", exclude_defaults=True, exclude=set(_OF_RUN))
    names = dict(zip(("trainer", "policy_generator", "env_generator"), paths, strict=True))
    rollout = config.rollout_config.model_dump(mode="json", exclude_defaults=True)
    kwargs = {**names, "rollout_config": rollout, "train_config": train, **({"own": own} if own else {})}
    return {"type": "hosted", "function": HOST, "kwargs": kwargs}


def _trainer_class(given: object, module: Mapping[str, object] | None = None) -> type[BaseTrainer]:
    """Finds the trainer class that a configuration names."""
    name = given.trainer_name if isinstance(given, OnlineConfig) else document_of(given).get("trainer_name")
    name = "PPOTrainer" if name is None else name
    found: object = SHIPPED.get(str(name)) or (module or {}).get(str(name))
    if found is None and ":" in str(name):
        found = registry.import_part("trainer", str(name))
    if not isinstance(found, type) or not issubclass(found, BaseTrainer):
        raise SettingsError(
            f"trainer_name is {name!r}; expected {', '.join(SHIPPED)}, a BaseTrainer of the configuration's module, or "
            f"module:Name of one",
            code="E0261",
        )
    return found


def _split(given: object, trainer_class: type[BaseTrainer]) -> tuple[OnlineConfig, Keywords]:
    """Reads a configuration; parameters of the trainer's own constructor are taken out of its train_config."""
    is_hosted = trainer_class.has_own_loop
    if isinstance(given, OnlineConfig):
        refuse_impossible(given, is_hosted=is_hosted)
        return given, {}
    document = document_of(given)
    takes = {name for base in trainer_class.__mro__ if base is not BaseTrainer and "__init__" in vars(base)
             and issubclass(base, BaseTrainer) for name in inspect.signature(base).parameters}  # fmt: skip
    train = document.get("train_config")
    if not isinstance(train, dict):
        return online_config(document, is_hosted=is_hosted), {}
    own = {name: train.pop(name) for name in sorted(takes & set(train) - set(TrainConfig.model_fields))}
    return online_config(document, is_hosted=is_hosted), own


def config_module(path: Path) -> dict[str, object]:
    """Imports a configuration module from its file, and returns its names."""
    if not path.is_file():
        raise SettingsError(f"{path}: cannot read: No such file or directory", code="E0210")
    if "." in path.stem:
        raise SettingsError(f"{path} has a dot in its name, so nothing can import it; rename it", code="E0261")
    trust.search(str(path.parent.resolve()))
    module = trust.import_module(path.stem)
    if Path(str(module.__file__)).resolve() != path.resolve():
        raise SettingsError(
            f"{path} has the name of the module {module.__name__} in {module.__file__}; rename it", code="E0261"
        )
    names = vars(module)
    if missing := [name for name in NAMES if name not in names]:
        raise SettingsError(
            f"{path} has no {' and no '.join(missing)}; a configuration module has {', '.join(NAMES)}", code="E0261"
        )
    return names


def module_config(path: Path) -> OnlineConfig:
    """Returns the configuration of a module."""
    names = config_module(path)
    return _split(names["online_dict"], _trainer_class(names["online_dict"], names))[0]


def file_settings(path: Path, *, on_ray: bool = False) -> tuple[JsonObject, list[str]]:
    """Returns the run file of a configuration module, and notes for the user."""
    names = config_module(path)
    given = names["online_dict"]
    trainer_class = _trainer_class(given, names)
    config, own = _split(given, trainer_class)
    generators = Generators(names["policy_generator"], names["env_generator"], path.stem)  # type: ignore[arg-type]  # checked there
    trainer = _by_names(config, own, trainer_class, generators) if trainer_class.has_own_loop else None
    refuse_missing_gpus(config, torch.cuda.device_count())
    settings = run_settings(config, generators, trainer, LOCAL if on_ray else None)
    settings["run"]["id"] = config.logger_config.name
    settings["run"]["code_dir"] = None if path.parent == Path() else str(path.parent)
    idle = [key for key in idle_keys(given, on_ray=on_ray) if key not in own]
    return settings, [idle_note(idle, on_ray=on_ray)] if idle else []
