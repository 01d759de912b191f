"""Queues between what acts and what learns, by ML-Agents' names: bounded, and never waited for.

Trajectories of one behaviour wait here as objects, one for each trajectory, for trainers that want to see each of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quintain.behaviors.trajectory import Trajectory, trajectories_of
from quintain.data.trajectory import Closed

if TYPE_CHECKING:
    from quintain.data.spec import BehaviorSpec
    from quintain.typing import Array, State

Item = TypeVar("Item")


class AgentManagerQueue(Generic[Item]):
    """Hands items from one side to the other in order; where nothing waits, `get_nowait` raises `Empty`."""

    class Empty(Exception):
        """Says that nothing waits."""

    def __init__(self, behavior_id: str, maxlen: int = 0) -> None:
        """Makes a queue for a behaviour; with a `maxlen` above 0 the oldest items make room, and are counted."""
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


class TrajectoryQueueStore:
    """Stands where a block of trajectories would: each that ends goes into the queues of a trainer at once."""

    def __init__(self, behavior_id: str, spec: BehaviorSpec, horizon: int, maxlen: int = 0) -> None:
        self.spec = spec
        self.horizon = horizon
        self.queue: AgentManagerQueue[Trajectory] = AgentManagerQueue(behavior_id, maxlen)
        self.num_awaited = 0
        """Steps that are to wait before somebody looks; 0 is any."""
        self._num_waiting = 0
        """Steps that wait; only right while some are awaited, because nobody takes any then."""

    def await_steps(self, num_steps: int) -> None:
        """Lets nobody look before so many steps wait; with 0, as soon as there is a trajectory."""
        self.num_awaited = num_steps
        self._num_waiting = sum(len(each) for each in self.queue._items)

    is_lent, is_spent, is_full = True, False, False

    @property
    def trajectories(self) -> TrajectoryQueueStore:
        return self

    @property
    def utilisation(self) -> float:
        return min(1.0, self.queue.qsize() / self.queue.maxlen) if self.queue.maxlen else 0.0

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None:
        """Puts trajectories that ended into the queue."""
        for trajectory in trajectories_of(self.queue.behavior_id, self.spec, closed, steps):
            self.queue.put(trajectory)
            self._num_waiting += len(trajectory)

    def ready(self) -> bool:
        return self.has_waiting

    @property
    def has_waiting(self) -> bool:
        """Whether somebody should look."""
        return self._num_waiting >= self.num_awaited if self.num_awaited else not self.queue.empty()

    def reserve(self) -> Any:
        return None

    def commit(self, rollout: Any) -> None:
        raise AssertionError("trajectories go into a queue one by one")

    def take(self) -> Any:
        raise AssertionError("trajectories are taken from the queue one by one")

    def spend(self) -> None:
        """Does nothing: what was taken from a queue is gone."""

    def release(self) -> None:
        """Does nothing, for the same reason."""

    def state_dict(self) -> State:
        waiting = list(self.queue._items)
        return {"waiting": [each.state_dict() for each in waiting], "num_dropped": self.queue.num_dropped}

    def load_state_dict(self, state: State) -> None:
        self.queue._items.clear()
        self.queue.num_dropped = state["num_dropped"]
        for saved in state["waiting"]:
            self.queue.put(Trajectory.from_state(self.queue.behavior_id, self.spec, saved))
        self.await_steps(self.num_awaited)
