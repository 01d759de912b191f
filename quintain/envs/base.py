"""The environment interface: N lanes that step together, each one uninterrupted stream of episodes.

An environment resets a lane automatically when its episode ends, and returns the true last observation as `final_obs`.
The collector never sees a reset that could be mistaken for a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from quintain.core.state import KeepsState
from quintain.data.spec import BehaviorSpec
from quintain.envs.parameters import Parameters, require_attributes, set_lane_values
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Action, Array, Info, LaneIds, LaneMask, Mirror, Observation, State, Values


EPISODE = "ended_episodes"
"""Entry of a step's info with what is reported of ended episodes: arrays [N], NaN where there is nothing."""


SUCCESS = "is_success"
"""Entry of info at an episode's end that says whether the goal was reached; some environments call it `success`."""


class StepResult(NamedTuple):
    """Result of one step of all lanes; the environment may reuse the arrays at its next step."""

    obs: Observation
    """Next observations, in the spec's structure with [N, ...] leaves: after an episode's end, the first observation
    of the next."""
    reward: Values
    """[N]"""
    terminated: Values
    """[N] bool"""
    truncated: Values
    """[N] bool"""
    final_obs: Observation
    """The true last observation, like `obs`; meaningful in rows where the episode ended."""
    valid: Values | None = None
    """[N] bool, False where this step only reset the lane; None when all steps count."""
    info: Info | None = None
    action_mask: Values | None = None
    """[N, options] bool, the allowed discrete actions at `obs`; None where the environment has no masks."""
    aborted: Values | None = None
    """[N] bool, True where the environment broke: the step is discarded, the episode was truncated before it, and
    `obs` is the first of another; None if no lane broke."""


def no_env(settings: object, num_lanes: int, rng: object) -> Env:
    """Raises: type none makes no environment."""
    raise SettingsError("experiment.env none is only for a run with experiment.loop; name an environment")


class Env(KeepsState, ABC):
    """Steps `num_lanes` copies of a task. Its tensors, arrays, scalars and generators are its state."""

    spec: BehaviorSpec
    num_lanes: int
    group_size: int = 1
    """Number of neighbouring lanes with equal initial states."""
    first_lane: int = 0
    """Index of this environment's first lane among the lanes of all ranks."""
    notes: tuple[str, ...] = ()
    """Notes on how the environment was interpreted; printed when a run starts."""

    @abstractmethod
    def reset(self, lanes: LaneMask | None = None) -> Observation:
        """Starts a new episode in the masked lanes, or in all, and returns the observations of all lanes."""

    @abstractmethod
    def step(self, action: Action) -> StepResult:
        """Takes one step in all lanes; the action is a tensor, or dicts and tuples of tensors."""

    def begin_anew(self, played: Sequence[State]) -> Observation:
        """Starts episodes that none of these saved environments has played, and returns the observations.

        Used when lanes are distributed over another number of ranks. An environment that does not count its episodes
        starts as in a new run.
        """
        return self.reset()

    def be_watched(self) -> None:
        """Enables `pulse` to change within a step, where lanes are stepped one by one."""

    @property
    def pulse(self) -> int:
        """A counter that changes while lanes make progress; may be read from any thread."""
        return 0

    def action_mask(self) -> Values | None:
        """Returns the allowed discrete actions at the observations that `reset` returned; None without masks."""
        return None

    @property
    def mirror(self) -> Mirror | None:
        """The symmetry `mirror(obs, action)`, which returns symmetric batches, or None."""
        return None

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        """Sets environment parameters in the lanes of these ids, or in all: one value for all, or one per lane."""
        set_lane_values(self, type(self).__name__, values, lanes, self.num_lanes)

    def require_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_parameters` does not know, and changes nothing. Override both together."""
        if type(self).set_parameters is Env.set_parameters:
            require_attributes(self, type(self).__name__, names, self.num_lanes)

    @property
    def can_reset_lanes(self) -> bool:
        """Whether `reset` can reset single lanes."""
        return True

    def render(self) -> Array | None:
        """Returns an image [height, width, 3] of the first lane, or None."""
        return None

    @property
    def renders_ends(self) -> bool:
        """Whether `render` shows the end of an episode after the step that ended it, and not yet the next one."""
        return False

    @property
    def frames_per_second(self) -> float:
        """Steps per second of simulated time, for videos."""
        return 30.0

    def close(self) -> None:
        """Frees resources such as processes, windows and files."""

    @property
    def exactness(self) -> str:
        """ "exact", or "statistical: <why>": how a resumed run continues."""
        return "exact"


@runtime_checkable
class WritesRollout(Protocol):
    """An environment that writes reward, ends and next observation of a step directly into the rollout.

    The collector checks for this once, when it is made, and then copies nothing.
    """

    current_rollout_step: int
    """The time step that the next step writes."""

    def set_rollout_buffer(self, rollout: TensorDict) -> None:
        """Sets the memory [N, T+1] for the next T steps."""
