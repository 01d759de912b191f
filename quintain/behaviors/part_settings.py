"""ML-Agents' settings of a behaviour's parts: networks, reward signals, demonstrations, self-play. No torch."""

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
    """Makes the policy recurrent (LSTM)."""

    sequence_length: Count = 64
    """Length of the sequences for training."""

    memory_size: Count = 128
    """Size of the hidden state; even, because half is the cell state."""

    @model_validator(mode="after")
    def _is_even(self) -> MemorySettings:
        if self.memory_size % 2:
            raise PydanticCustomError("memory_size", "memory_size {n} must be even", {"n": self.memory_size})
        return self


class NetworkSettings(Settings):
    """Describes a policy's networks."""

    normalize: bool = False
    """Normalize vector observations by their running mean and deviation."""

    hidden_units: Count = 128
    """Width of each hidden layer."""

    num_layers: Count = 2
    """Number of hidden layers."""

    vis_encode_type: Literal["simple", "fully_connected", "nature_cnn", "resnet", "match3"] = "simple"
    """The encoder of images."""

    memory: MemorySettings | None = None
    """The recurrent layer; null for a feed-forward policy."""

    goal_conditioning_type: Literal["hyper", "none"] = "hyper"
    """Type of conditioning on goal observations."""

    deterministic: bool = False
    """Take the most likely action instead of sampling."""


class RewardSignalSettings(Settings):
    """The environment's reward, and settings that all signals share."""

    gamma: Fraction = 0.99
    """Discount factor."""

    strength: NonNegative = 1.0
    """Weight of the reward."""

    network_settings: NetworkSettings | None = None
    """The signal's own network."""


class CuriositySettings(RewardSignalSettings):
    """Intrinsic Curiosity Module: rewards prediction errors of a forward model."""

    learning_rate: Positive = 3e-4
    """Learning rate of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""


class RNDSettings(RewardSignalSettings):
    """Random Network Distillation: rewards novel observations."""

    learning_rate: Positive = 1e-4
    """Learning rate of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""


class GAILSettings(RewardSignalSettings):
    """Generative Adversarial Imitation Learning: rewards similarity to demonstrations."""

    demo_path: str
    """A demonstration file, or a folder of them."""

    learning_rate: Positive = 3e-4
    """Learning rate of Adam."""

    encoding_size: Count | None = None
    """Old name of network_settings.hidden_units."""

    use_actions: bool = False
    """The discriminator sees actions too."""

    use_vail: bool = False
    """Adds a variational information bottleneck to the GAIL discriminator (VAIL)."""


class BehavioralCloningSettings(Settings):
    """Behavioural cloning: an imitation loss beside the algorithm's."""

    demo_path: str
    """A demonstration file, or a folder of them."""

    steps: Natural = 0
    """Steps over which its strength decays to 0; 0 for no decay."""

    strength: NonNegative = 1.0
    """Factor on the learning rate."""

    samples_per_update: Natural = 0
    """Maximum number of samples per update; 0 for all."""

    num_epoch: Count | None = None
    """Epochs per buffer; null is 3."""

    batch_size: Count | None = None
    """Minibatch size; null is the trainer's."""


class SelfPlaySettings(Settings):
    """Self-play: trains against past versions of the policy."""

    save_steps: Count = 20_000
    """Steps between two snapshots of the policy."""

    team_change: Count | None = None
    """Steps after which the learning team changes; null is five times save_steps."""

    swap_steps: Count = 2_000
    """Steps after which the opponent is replaced."""

    window: Count = 10
    """Number of snapshots to keep."""

    play_against_latest_model_ratio: Fraction = 0.5
    """Probability that the opponent is the newest policy."""

    initial_elo: float = 1200.0
    """Initial Elo rating."""


class RewardSignals(Settings):
    """Reward signals: ML-Agents' own, and registered ones by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[PartSettings, Choice("reward_signal")]] = Field(init=False)

    extrinsic: RewardSignalSettings | None = None
    """The environment's reward."""

    curiosity: CuriositySettings | None = None
    """Curiosity (ICM)."""

    gail: GAILSettings | None = None
    """GAIL, from demonstrations."""

    rnd: RNDSettings | None = None
    """Random Network Distillation (RND)."""

    @property
    def registered(self) -> dict[str, PartSettings]:
        """The signals that are not ML-Agents' own, each with its settings."""
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
