"""Settings of the built-in policies. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Schedule, Settings, constant
from quintain.settings.choice import Choice


class PolicySettings(PartSettings):
    """Settings of a custom policy that needs none of its own."""


_TRANSFORMER = {"window": 32, "num_layers": 1, "num_heads": 4}
"""Defaults of settings that only a transformer has."""


class NetworkModuleSettings(PartSettings):
    """Settings of a torch module of your own; the parameters of its constructor are added."""


class MemorySettings(Settings):
    """Makes the policy recurrent."""

    cell: Literal["lstm", "gru", "transformer"] = "lstm"
    """Type of the layer: recurrent (lstm, gru), or causal attention over the last steps of the episode (transformer).
    """

    size: Count = 64
    """Number of outputs of the layer."""

    context_length: Count | None = None
    """Steps after which gradients end while the hidden state is carried on (truncated backpropagation through time);
    null goes back to the start of the sequence."""

    burn_in: Annotated[int, Field(ge=0)] = 0
    """Steps at the start of a sequence without loss and gradient, which refresh the stored hidden state by the current
    weights; an episode that begins among them is learned from whole."""

    window: Annotated[int, Field(ge=2)] | None = None
    """Steps, with the current one, that a transformer attends to; by itself 32. Null for other cells."""

    num_layers: Count | None = None
    """Layers of a transformer; by itself 1. Null for other cells."""

    num_heads: Count | None = None
    """Attention heads of each layer of a transformer, which share its size; by itself 4. Null for other cells."""

    @model_validator(mode="before")
    @classmethod
    def _complete_transformer(cls, data: object) -> object:
        if not isinstance(data, Mapping) or data.get("cell") != "transformer":
            return data
        return {**data, **{name: value for name, value in _TRANSFORMER.items() if data.get(name) is None}}

    @model_validator(mode="after")
    def _fits_cell(self) -> MemorySettings:
        if self.cell != "transformer":
            extra = [
                name
                for name, value in (
                    ("window", self.window),
                    ("num_layers", self.num_layers),
                    ("num_heads", self.num_heads),
                )
                if value is not None
            ]
            if extra:
                raise PydanticCustomError(
                    "memory",
                    "{names} goes with cell transformer; leave it out of cell {cell}",
                    {"names": ", ".join(extra), "cell": self.cell},
                )
        elif self.size % (self.num_heads or 1):
            raise PydanticCustomError(
                "memory",
                "num_heads {heads} does not divide size {size}; every head has an equal share of it",
                {"heads": self.num_heads, "size": self.size},
            )
        return self


class NetworkSettings(PolicySettings):
    """Settings of all policies with multi-layer perceptrons."""

    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Width of each hidden layer."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation function of the hidden layers."""

    normalize_obs: bool = False
    """Normalize observations by their running mean and deviation."""

    obs_clip: Annotated[float, Field(gt=0)] = 10.0
    """Clip range of normalized observations, in deviations."""

    image_encoder: Literal["convolution", "simple", "flatten"] = "convolution"
    """The encoder of observations with height, width and channels."""

    image_features: Count = 256
    """Number of features per image."""

    network: Annotated[PartSettings | None, Choice("network", is_optional=True)] = None
    """A torch module of your own (module:Name) that turns observations into features; null encodes by the spaces."""

    actor_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the actor sees; null means all."""


class CriticObsSettings(NetworkSettings):
    """Configures a policy whose critic may see other observations than its actor."""

    critic_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the critic sees, such as privileged simulator state; null means all."""


class StochasticSettings(CriticObsSettings):
    """Configures a policy that draws continuous actions from a Gaussian."""

    initial_log_std: float = 0.0
    """Initial log standard deviation of continuous actions."""


class ActorCriticSettings(StochasticSettings):
    """Actor and critic as two multi-layer perceptrons of the same shape."""

    clip_actions: bool = True
    """Clip continuous actions to the bounds of their space before they reach the environment."""

    squash_actions: bool = False
    """Squash continuous actions into their bounds by tanh instead of clipping them."""

    state_dependent_std: bool = False
    """Let the network output the standard deviation of continuous actions in each state."""

    use_sde: bool = False
    """Generalized state-dependent exploration (gSDE): noise on continuous actions is a function of the state that is
    kept for some steps, so that exploration is smooth."""

    noise_hold: Count | Literal["auto"] = 1
    """Steps of an environment for which the noise on continuous actions is held before it is drawn again; 1 is white
    noise. With auto it is 16 for an action that is one continuous value, and with use_sde; otherwise 1."""

    memory: MemorySettings | None = None
    """Recurrent layer; null for a feed-forward policy."""

    compiled: bool | None = None
    """Act and learn by compiled kernels, which round differently; null uses them where available and faster."""


class ActorOnlySettings(ActorCriticSettings):
    """An actor without a critic."""


class SoftActorSettings(StochasticSettings):
    """SAC's actor: tanh-squashed continuous actions and categorical discrete ones; for Q-function critics."""

    clip_actions: ClassVar[bool] = False
    squash_actions: ClassVar[bool] = True

    use_sde: bool = False
    """Generalized state-dependent exploration (gSDE): noise on continuous actions is a function of the state that is
    kept for some steps, so that exploration is smooth."""

    noise_hold: Count | Literal["auto"] = "auto"
    """Steps of an environment for which the noise on continuous actions is held before it is drawn again, that of
    random actions before learning starts too; 1 is white noise. With auto it is 16 with use_sde, otherwise 1."""

    hidden_sizes: tuple[Count, ...] = (256, 256)
    """Width of each hidden layer, of the actor and of each critic."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    """Activation function of the hidden layers."""

    memory: MemorySettings | None = None
    """Recurrent layer; null for a feed-forward policy."""

    compiled: bool | None = None
    """Act by compiled kernels and learn by hand-written gradients, which round differently; null uses them where
    faster."""

    @property
    def state_dependent_std(self) -> bool:
        """Whether the network outputs the standard deviation; with gSDE it follows from the features."""
        return not self.use_sde


class _WithoutDistribution:
    """Fixes the settings of continuous action distributions for policies that sample from none."""

    clip_actions: ClassVar[bool] = False
    squash_actions: ClassVar[bool] = False
    state_dependent_std: ClassVar[bool] = False
    use_sde: ClassVar[bool] = False
    noise_hold: ClassVar[int] = 1
    initial_log_std: ClassVar[float] = 0.0


class QNetworkSettings(_WithoutDistribution, NetworkSettings):
    """Acts by the largest of the values that one network gives each discrete action, and at random now and then."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    """Activation function of the hidden layers."""

    dueling: bool = False
    """Learns the value of a state and the advantages of its actions by two networks, and adds them up."""

    epsilon: Schedule = Schedule(start=1.0, end=0.05, shape="linear", until=0.1)
    """Probability of a uniformly random action (epsilon-greedy exploration)."""

    compiled: bool | None = None
    """Act by compiled kernels and learn by hand-written gradients, which round differently; null uses them where
    faster."""


class DeterministicActorSettings(_WithoutDistribution, CriticObsSettings):
    """Acts with one network whose outputs tanh squashes into the bounds of continuous actions, plus Gaussian noise."""

    hidden_sizes: tuple[Count, ...] = (256, 256)
    """Width of each hidden layer, of the actor and of each critic."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    """Activation function of the hidden layers."""

    action_noise: Schedule = constant(0.1)
    """Standard deviation of the noise that is added to actions to explore, where -1 and 1 are their bounds."""

    compiled: bool | None = None
    """Act by compiled kernels and learn by hand-written gradients, which round differently; null uses them where
    faster."""


class TeamSettings(_WithoutDistribution, PolicySettings):
    """A network of its own for each agent of a team; the entry `agent` of an observation says whose it is."""

    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Sizes of the layers of an agent's body."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation function of the hidden layers."""

    agents: tuple[str, ...] = ()
    """Names of the agents, in the order of their indices in observations."""

    shared_body: bool = True
    """Let an agent's policy head and value head share one body."""

    random_agents: tuple[str, ...] = ()
    """Agents that act uniformly at random and have no parameters."""

    initial_gains: dict[str, float | None] = Field(default_factory=dict)
    """Factor on the gains of an agent's initial orthogonal weights; without one, weights are drawn as by torch."""

    hand_written_agents: dict[str, str] = Field(default_factory=dict)
    """module:function of agents that are not learned: a function of what the agent sees and the number of logits."""

    keep_logits: bool = False
    """Keep the logits of every step in the rollout, for reward signals such as zero_knowledge."""

    compiled: bool | None = None
    """Act by compiled kernels, which round differently; null uses them where faster."""


class RecurrentImageSettings(NetworkModuleSettings):
    """A MinePolicy for images: convolutions, a memory, and MineStudio's heads."""

    hidden_size: Count = 64
    """Number of features that the heads read."""

    image_features: Count = 64
    """Number of features per image."""

    memory: MemorySettings | None = MemorySettings(size=64)
    """The layer with a hidden state; null for a feed-forward network."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Divides logits before probabilities are computed; below 1 actions are drawn closer to the likeliest."""

    nucleus_prob: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw discrete actions from the likeliest options with this probability in sum; null draws from all."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the features that dropout would leave out in training mode; policies act and learn in evaluation mode."""

    masks_camera: bool = True
    """Leave the camera of MineStudio's 8641 buttons and 121 bins out of probabilities, entropy and divergences where
    the buttons do not switch it on."""


class MinePolicySettings(PolicySettings):
    """A module under the contract of MineStudio's MinePolicy, trained as it is."""

    clip_actions: ClassVar[bool] = True
    squash_actions: ClassVar[bool] = False
    state_dependent_std: ClassVar[bool] = False
    use_sde: ClassVar[bool] = False
    noise_hold: ClassVar[int] = 1

    network: Annotated[PartSettings, Choice("network", default="recurrent_image")] = RecurrentImageSettings(
        type="recurrent_image"
    )
    """The module: a MinePolicy of your own (module:Name), a function that returns one, or the one that ships."""

    context_length: Count | None = None
    """Steps of an episode after which gradients end while the hidden state is carried on; null goes back to its start
    in the sequence."""

    initial_log_std: float = 0.0
    """Initial log standard deviation of continuous actions."""


REGISTERED = (
    Registration("policy", "mine_policy", MinePolicySettings, "quintain.policies.mine_adapter:MinePolicyAdapter"),
    Registration(
        "network", "recurrent_image", RecurrentImageSettings, "quintain.policies.recurrent_image:RecurrentImagePolicy"
    ),
    Registration("policy", "team", TeamSettings, "quintain.policies.team:TeamPolicy"),
    Registration("policy", "q_network", QNetworkSettings, "quintain.policies.q_network:QNetwork"),
    Registration(
        "policy",
        "deterministic_actor",
        DeterministicActorSettings,
        "quintain.policies.deterministic_actor:DeterministicActor",
    ),
    Registration("policy", "soft_actor", SoftActorSettings, "quintain.policies.soft_actor:SoftActor"),
    Registration("policy", "actor_only", ActorOnlySettings, "quintain.policies.actor_only:ActorOnly"),
    Registration("policy", "actor_critic", ActorCriticSettings, "quintain.policies.actor_critic:ActorCritic"),
)
