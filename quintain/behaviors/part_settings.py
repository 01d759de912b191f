"""ML-Agents' settings of what a behaviour is made of: networks, reward signals, demonstrations, self-play. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings, Settings, parse_count
from quintain.settings.choice import Choice

Whole = Annotated[int, BeforeValidator(parse_count)]
Natural = Annotated[int, Field(ge=0), BeforeValidator(parse_count)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
ScheduleType = Literal["constant", "linear"]


class MemorySettings(Settings):
    """Lets a policy remember."""

    sequence_length: Count = 64
    """Steps that are learned from in a row."""

    memory_size: Count = 128
    """Numbers of memory; even, because half are the cell's."""

    @model_validator(mode="after")
    def _is_even(self) -> MemorySettings:
        if self.memory_size % 2:
            raise PydanticCustomError("memory_size", "memory_size {n} must be even", {"n": self.memory_size})
        return self


class NetworkSettings(Settings):
    """Describes a policy's networks."""

    normalize: bool = False
    """Scale vector observations by their running mean and deviation."""

    hidden_units: Count = 128
    """Width of each hidden layer."""

    num_layers: Count = 2
    """Hidden layers."""

    vis_encode_type: Literal["simple", "fully_connected", "nature_cnn", "resnet", "match3"] = "simple"
    """How images are read."""

    memory: MemorySettings | None = None
    """Recurrent memory."""

    goal_conditioning_type: Literal["hyper", "none"] = "hyper"
    """How goal observations shape the network."""

    deterministic: bool = False
    """Take the likeliest action."""


class RewardSignalSettings(Settings):
    """Configures the environment's own reward, and what all signals share."""

    gamma: Fraction = 0.99
    """Discount."""

    strength: NonNegative = 1.0
    """Weight."""

    network_settings: NetworkSettings | None = None
    """The signal's own network."""


class CuriositySettings(RewardSignalSettings):
    """Rewards what is hard to foresee."""

    learning_rate: Positive = 3e-4
    """Step size of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""


class RNDSettings(RewardSignalSettings):
    """Rewards what is new."""

    learning_rate: Positive = 1e-4
    """Step size of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""


class GAILSettings(RewardSignalSettings):
    """Rewards what looks like a demonstration."""

    demo_path: str
    """A demonstration, or a folder of them."""

    learning_rate: Positive = 3e-4
    """Step size of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""

    use_actions: bool = False
    """Judge actions too."""

    use_vail: bool = False
    """Let the judge see less."""


class BehavioralCloningSettings(Settings):
    """Imitates demonstrations beside learning."""

    demo_path: str
    """A demonstration, or a folder of them."""

    steps: Natural = 0
    """Steps over which it fades; 0 is never."""

    strength: NonNegative = 1.0
    """Part of the learning rate."""

    samples_per_update: Natural = 0
    """Samples for each update; 0 is all."""

    num_epoch: Count | None = None
    """Passes over each buffer; null is 3."""

    batch_size: Count | None = None
    """Steps in one minibatch; null is the trainer's."""


class SelfPlaySettings(Settings):
    """Lets a policy play against its past."""

    save_steps: Count = 20_000
    """Steps between two snapshots."""

    team_change: Count | None = None
    """Steps after which another team learns; null is five times save_steps."""

    swap_steps: Count = 2_000
    """Steps after which opponents change."""

    window: Count = 10
    """Snapshots that are kept."""

    play_against_latest_model_ratio: Fraction = 0.5
    """How often the opponent is the newest policy."""

    initial_elo: float = 1200.0
    """Rating at the start."""


class RewardSignals(Settings):
    """What counts as good: ML-Agents' own signals, and any that is registered as a reward signal, under its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[PartSettings, Choice("reward_signal")]] = Field(init=False)

    extrinsic: RewardSignalSettings | None = None
    """The environment's own reward."""

    curiosity: CuriositySettings | None = None
    """What is hard to foresee."""

    gail: GAILSettings | None = None
    """What looks like a demonstration."""

    rnd: RNDSettings | None = None
    """What is new."""

    @property
    def registered(self) -> dict[str, PartSettings]:
        """The signals that are not ML-Agents' own, each with settings of its own."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="before")
    @classmethod
    def _name_is_type(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        signals = dict(data)
        for name in foreign_names(data):
            given = {} if data[name] is None else data[name]
            if not isinstance(given, Mapping):
                continue
            # A file of ML-Agents names no code to import beside its environment.
            if "type" in given or ":" in name:
                raise PydanticCustomError(
                    "signal_name", "{n} must be a registered name, with no type beside it", {"n": name}
                )
            signals[name] = {"type": name, **given}
        return signals


def foreign_names(signals: Mapping[str, object]) -> list[str]:
    """Returns the names of reward signals that are not ML-Agents' own."""
    return [name for name in signals if name not in RewardSignals.model_fields]
