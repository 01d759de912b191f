"""The environment contract: N lanes that step together, each one uninterrupted stream of episodes.

An environment resets a lane by itself when its episode ends and hands over the true last observation; the collector
never sees a reset that it could mistake for a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quintain.data.spec import BehaviorSpec
from quintain.state import KeepsState

if TYPE_CHECKING:
    from quintain.typing import State, Values


class StepResult(NamedTuple):
    """What one step of all lanes gave; arrays may be reused by the environment at its next step."""

    obs: Any
    """What to act on next, in the spec's own shape with [N, ...] leaves: after an episode's end, the first observation
    of the next one."""
    reward: Values
    """[N]"""
    terminated: Values
    """[N] bool"""
    truncated: Values
    """[N] bool"""
    final_obs: Any
    """The true last observation, like `obs`; meaningful in rows where the episode ended."""
    valid: Values | None = None
    """[N] bool, False where this step only reset the lane; None when all count."""
    info: dict[str, Any] | None = None
    action_mask: Values | None = None
    """[N, choices] bool, what may be chosen in `obs`; None where the environment has no masks."""
    aborted: Values | None = None
    """[N] bool, True where the environment broke: the step counts for nothing, the episode before it was cut there,
    and `obs` is the first of another; None when all went well."""


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
    def reset(self, lanes: Any = None) -> Any:
        """Starts a new episode in the masked lanes, or in all, and returns the observations of all lanes."""

    @abstractmethod
    def step(self, action: Any) -> StepResult:
        """Takes one step in all lanes; the action is a tensor, or dicts and tuples of tensors."""

    def begin_anew(self, played: Sequence[State]) -> Any:
        """Starts episodes that none of these saved environments has played, and returns the observations.

        For lanes that are dealt to another number of ranks. An environment that does not count its episodes begins as
        it did at first.
        """
        return self.reset()

    def action_mask(self) -> Values | None:
        """Returns what may be chosen in the observations that `reset` returned; None without masks."""
        return None

    @property
    def mirror(self) -> Any:
        """A function `mirror(obs, action)` that returns symmetric batches, or None."""
        return None

    def close(self) -> None:
        """Frees what the environment holds outside of memory."""

    @property
    def exactness(self) -> str:
        """Says how exactly a resumed run continues: "exact", or "statistical: <why>"."""
        return "exact"
