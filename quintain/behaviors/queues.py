"""ML-Agents' queues between acting and learning: bounded, and `get_nowait` never blocks.

A `TrajectoryQueue` is also a block: a collector appends the trajectories of a behaviour to it, and a trainer by hooks
takes them from it as objects, one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from quintain.behaviors.trajectory import Trajectory, trajectories_of
from quintain.core.state import require_count
from quintain.data.trajectory import Closed
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.data.spec import BehaviorSpec
    from quintain.typing import Array, State

Item = TypeVar("Item")


class AgentManagerQueue(Generic[Item]):
    """An ordered queue; when it is empty, `get_nowait` raises `Empty`."""

    class Empty(Exception):
        """Raised when the queue is empty."""

    def __init__(self, behavior_id: str, maxlen: int = 0) -> None:
        """Makes a queue for a behaviour; with a `maxlen` above 0 the oldest items are dropped, and counted."""
        self._items: deque[Item] = deque()
        self._maxlen = maxlen
        self._behavior_id = behavior_id
        self.num_dropped = 0

    @property
    def maxlen(self) -> int:
        return self._maxlen

    @property
    def behavior_id(self) -> str:
        return self._behavior_id

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def put(self, item: Item) -> None:
        if self._maxlen and len(self._items) >= self._maxlen:
            self._items.popleft()
            self.num_dropped += 1
        self._items.append(item)

    def get_nowait(self) -> Item:
        if not self._items:
            raise self.Empty(f"nothing waits in the queue of {self._behavior_id}")
        return self._items.popleft()


class TrajectoryQueue(AgentManagerQueue[Trajectory]):
    """A block of whole trajectories as objects; full when it holds the wanted number of steps."""

    is_whole: ClassVar[bool] = True

    def __init__(self, behavior_id: str, spec: BehaviorSpec, wanted: Callable[[], int]) -> None:
        """Makes a block; `wanted` returns the number of steps that fill it, whenever it begins."""
        super().__init__(behavior_id)
        self.spec = spec
        self.wanted = wanted
        self.sequence = -1
        self.num_held = 0
        self.num_wanted = 1

    def put(self, item: Trajectory) -> None:
        super().put(item)
        self.num_held += len(item)

    @property
    def has_steps(self) -> bool:
        return not self.empty()

    def begin(self, sequence: int, version: int) -> None:
        """Drops its contents."""
        self._items.clear()
        self.sequence, self.num_held, self.num_wanted = sequence, 0, self.wanted()

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None:
        """Copies trajectories that ended; `steps` are the fields of agents' slots, [slots, horizon, ...]."""
        for trajectory in trajectories_of(self.behavior_id, self.spec, closed, steps):
            self.put(trajectory)

    def state_dict(self) -> State:
        waiting = [each.state_dict() for each in self._items]
        return {"sequence": self.sequence, "num_wanted": self.num_wanted, "waiting": waiting}

    def load_state_dict(self, state: State) -> None:
        self.begin(require_count("sequence", state["sequence"]), 0)
        self.num_wanted = require_count("num_wanted", state["num_wanted"])
        for saved in state["waiting"]:
            self.put(Trajectory.from_state(self.behavior_id, self.spec, saved))


class TrajectoryQueues(RolloutBuffer):
    """A ring of such blocks."""

    def batch_of(self, rollout: Any) -> Any:
        """Returns the block itself: hooks see its trajectories one by one."""
        return rollout
