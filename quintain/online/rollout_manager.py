"""The rollout half of a configuration. Rollout workers belong to the run that learns from them, and end with it.

With an address the manager is an actor of a Ray cluster, and so are rollout workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from quintain.errors import SettingsError
from quintain.online.config import document_of, idle_keys, online_config, refuse_missing_gpus
from quintain.online.ray_actors import as_actor, ask, connect
from quintain.online.settings import OnlineConfig, RolloutConfig
from quintain.online.translate import Generators

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.policies.mine_policy import MinePolicy
    from quintain.typing import JsonObject, Saved

_started: dict[str, Saved] = {}
NAME = "rollout_manager"


class ManagerFacts(NamedTuple):
    """What a trainer has to know of its manager, which may be an actor."""

    config: OnlineConfig
    idle_keys: list[str]
    """Keys that were set and change nothing where rollout workers are."""
    address: str | None
    """The Ray cluster; null for processes of this machine."""


class RolloutManager:
    """Holds generators and settings of rollout workers until a trainer starts them."""

    def __init__(
        self,
        policy_generator: Callable[[], MinePolicy],
        env_generator: Callable[[], GymEnv],
        config: OnlineConfig | JsonObject | None = None,
        address: str | None = None,
    ) -> None:
        # What an iteration takes is known to the trainer, which may have a loop of its own.
        self.config = online_config({} if config is None else config, is_hosted=True)
        is_read = config is None or isinstance(config, OnlineConfig)
        self.idle_keys = [] if is_read else idle_keys(config, on_ray=address is not None)
        self.address = address
        self.generators = Generators(policy_generator, env_generator)

    @property
    def rollout_config(self) -> RolloutConfig:
        return self.config.rollout_config

    def describe(self) -> ManagerFacts:
        """Returns what a trainer has to know."""
        return ManagerFacts(self.config, self.idle_keys, self.address)

    def start(self) -> None:
        """Makes it the manager that `start_trainer` finds."""
        _started[NAME] = self

    def get_saved_config(self) -> JsonObject:
        """Returns the configuration of rollout workers."""
        return self.rollout_config.model_dump(mode="json")

    def get_replay_buffer_config(self) -> JsonObject:
        """Returns the configuration of the store of fragments."""
        return self.rollout_config.replay_buffer_config.model_dump(mode="json")


def start_rolloutmanager(
    policy_generator: Callable[[], MinePolicy],
    env_generator: Callable[[], GymEnv],
    online_cfg: OnlineConfig | JsonObject,
    address: str | None = None,
) -> Saved:
    """Checks the configuration and prepares rollout workers, which start with the trainer, and end with it.

    With an `address` they are actors of a Ray cluster, `local` for one on this machine, and so is the manager, whose
    handle is returned. Managers have no names on the cluster, so several experiments do not meet there.
    """
    given = online_cfg if isinstance(online_cfg, OnlineConfig) else document_of(online_cfg)
    manager = RolloutManager(policy_generator, env_generator, given, address)
    if address is None:
        refuse_missing_gpus(manager.config, torch.cuda.device_count())
        manager.start()
        return manager
    connect(manager.config, address)
    _started[NAME] = as_actor(RolloutManager, policy_generator, env_generator, given, address)
    facts_of(_started[NAME])
    return _started[NAME]


def facts_of(manager: Saved) -> ManagerFacts:
    """Returns what a manager, or the handle of one, says of itself; refuses anything else."""
    if not hasattr(manager, "describe"):
        raise SettingsError(
            f"rollout_manager is a {type(manager).__name__}; pass the result of start_rolloutmanager", code="E0266"
        )
    facts: ManagerFacts = ask(manager, "describe")
    return facts


def get_rollout_manager() -> Saved:
    """Returns the manager that was started last in this process, or the handle of one; None without one."""
    return _started.get(NAME)
