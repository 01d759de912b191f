"""The environment contract: N lanes that step together, each one uninterrupted stream of episodes.

An environment resets a lane by itself when its episode ends and hands over the true last observation; the collector
never sees a reset that it could mistake for a step.
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


class StepResult(NamedTuple):
    """What one step of all lanes gave; arrays may be reused by the environment at its next step."""

    obs: Observation
    """What to act on next, in the spec's own shape with [N, ...] leaves: after an episode's end, the first observation
    of the next one."""
    reward: Values
    """[N]"""
    terminated: Values
    """[N] bool"""
    truncated: Values
    """[N] bool"""
    final_obs: Observation
    """The true last observation, like `obs`; meaningful in rows where the episode ended."""
    valid: Values | None = None
    """[N] bool, False where this step only reset the lane; None when all count."""
    info: Info | None = None
    action_mask: Values | None = None
    """[N, choices] bool, what may be chosen in `obs`; None where the environment has no masks."""
    aborted: Values | None = None
    """[N] bool, True where the environment broke: the step counts for nothing, the episode before it was cut there,
    and `obs` is the first of another; None when all went well."""


def no_env(settings: object, num_lanes: int, rng: object) -> Env:
    """Refuses to make an environment of type none."""
    raise SettingsError("experiment.env none is only for a run with experiment.loop; name an environment")


class Env(KeepsState, ABC):
    """Steps `num_lanes` copies of a task. Tensors, arrays, scalars and generators it holds are its state."""

    spec: BehaviorSpec
    num_lanes: int
    group_size: int = 1
    """Neighbouring lanes whose episodes begin alike."""
    first_lane: int = 0
    """Where this environment's lanes begin among those of all ranks."""
    notes: tuple[str, ...] = ()
    """What the user should know of how the environment was understood; shown when a run starts."""

    @abstractmethod
    def reset(self, lanes: LaneMask | None = None) -> Observation:
        """Starts a new episode in the masked lanes, or in all, and returns the observations of all lanes."""

    @abstractmethod
    def step(self, action: Action) -> StepResult:
        """Takes one step in all lanes; the action is a tensor, or dicts and tuples of tensors."""

    def begin_anew(self, played: Sequence[State]) -> Observation:
        """Starts episodes that none of these saved environments has played, and returns the observations.

        For lanes that are dealt to another number of ranks. An environment that does not count its episodes begins as
        it did at first.
        """
        return self.reset()

    def be_watched(self) -> None:
        """Lets `pulse` change from now on while lanes of a single step move on, where they do so one by one."""

    @property
    def pulse(self) -> int:
        """A number that stands still while nothing moves; may be read in any thread."""
        return 0

    def action_mask(self) -> Values | None:
        """Returns what may be chosen in the observations that `reset` returned; None without masks."""
        return None

    @property
    def mirror(self) -> Mirror | None:
        """A function `mirror(obs, action)` that returns symmetric batches, or None."""
        return None

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        """Changes named numbers of the task, in the lanes of these ids or in all; a number for all, or one for each."""
        set_lane_values(self, type(self).__name__, values, lanes, self.num_lanes)

    def require_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_parameters` does not know, and changes nothing; one of your own knows best."""
        if type(self).set_parameters is Env.set_parameters:
            require_attributes(self, type(self).__name__, names, self.num_lanes)

    @property
    def can_reset_lanes(self) -> bool:
        """Whether `reset` can start some lanes anew and leave the others alone."""
        return True

    def render(self) -> Array | None:
        """Returns a picture [height, width, 3] of the first lane, or None where there is none."""
        return None

    @property
    def frames_per_second(self) -> float:
        """How many steps make a second for someone who watches."""
        return 30.0

    def close(self) -> None:
        """Frees what the environment holds outside of memory."""

    @property
    def exactness(self) -> str:
        """Says how exactly a resumed run continues: "exact", or "statistical: <why>"."""
        return "exact"


@runtime_checkable
class WritesRollout(Protocol):
    """An environment that writes reward, ends and next observation of a step into the rollout itself.

    The collector asks once, when it is made, and then copies nothing for such an environment.
    """

    current_rollout_step: int
    """The slot that the next step writes."""

    def set_rollout_buffer(self, rollout: TensorDict) -> None:
        """Takes the memory [N, T+1] that the next T steps are written into."""
