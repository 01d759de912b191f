"""The rollout half of a configuration. Rollout workers belong to the run that learns from them, and end with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.online.config import idle_keys, online_config
from quintain.online.settings import OnlineConfig, RolloutConfig
from quintain.online.translate import Generators

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.policies.mine_policy import MinePolicy
    from quintain.typing import JsonObject

_started: dict[str, RolloutManager] = {}
NAME = "rollout_manager"


class RolloutManager:
    """Holds generators and settings of rollout workers until a trainer starts them."""

    def __init__(
        self,
        policy_generator: Callable[[], MinePolicy],
        env_generator: Callable[[], GymEnv],
        config: OnlineConfig | JsonObject | None = None,
    ) -> None:
        self.config = online_config({} if config is None else config)
        self.idle_keys = [] if config is None or isinstance(config, OnlineConfig) else idle_keys(config)
        """Keys that were set and change nothing on processes."""
        self.generators = Generators(policy_generator, env_generator)

    @property
    def rollout_config(self) -> RolloutConfig:
        return self.config.rollout_config

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
) -> RolloutManager:
    """Checks the configuration and prepares rollout workers; processes start with the trainer, and end with it."""
    if address is not None:
        raise SettingsError(
            f"start_rolloutmanager got the address {address!r} of a Ray cluster, and these are processes of this "
            f"machine; leave it out",
            code="E0265",
        )
    manager = RolloutManager(policy_generator, env_generator, online_cfg)
    manager.start()
    return manager


def get_rollout_manager() -> RolloutManager | None:
    """Returns the manager that was started last."""
    return _started.get(NAME)
