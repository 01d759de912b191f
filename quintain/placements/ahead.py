"""A source whose collector works beside the learner, in a thread or in a process of its own.

The learner orders every free block when a cycle begins, each with a copy of the weights it has at that moment, and
then waits for the oldest. With one block that is acting in turns. With more, the collector fills the others while the
learner learns, always with weights that are exactly as many versions behind as there are further blocks: nothing
depends on who is quicker, so a run repeats itself and resumes exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.core.state import as_tensor
from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.envs.hosts.faults import FaultKeeper
from quintain.envs.parameters import Parameters
from quintain.placements.commands import FILL, Answer, Command, Report
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.snapshots import Snapshot, take_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import both
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import EpisodeListener, StepListener, never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import Metrics, State

LOOK_SECONDS = 0.1
"""How often a learner that waits looks whether it was asked to stop."""


class AheadSource:
    """Keeps a collector in work, and hands over what it did in the order in which it was ordered."""

    def __init__(
        self,
        outpost: WatchedOutpost,
        blocks: Sequence[Rollout],
        snapshots: Sequence[Snapshot],
        policy: Policy,
        faults: FaultKeeper,
        on_episodes: EpisodeListener,
    ) -> None:
        self.outpost = outpost
        self.blocks = list(blocks)
        self.snapshots = snapshots
        self.policy = policy
        self.faults = faults
        self.on_episodes = on_episodes
        self.version = 0
        self.unsent: deque[Command] = deque()
        self.sent: deque[Command] = deque()
        self.undone: deque[Command] = deque()
        """What the collector was sent and stopped before."""
        self.is_held = False
        """Whether the collector waits to be told that it may go on."""
        self.stores: dict[int, RolloutStore] = {}
        """Where each block that is being filled goes when it is full."""
        self.reports: deque[Report] = deque()
        """Of the blocks that the learner has not taken yet, the oldest first."""
        self.on_step: StepListener | None = None
        self.seconds = {"act": 0.0, "env": 0.0}
        self.exactness = outpost.env.exactness

    def fill(self, store: RolloutStore, should_stop: Callable[[], bool]) -> bool:
        """Orders what is free and waits until the store is ready; returns False if asked to stop first."""
        while True:
            if store.ready():
                # The collector was quicker; it must not wait for the end of this cycle to go on.
                self._order(store)
                break
            if should_stop():
                break
            self._order(store)
            if not self._hear(should_stop):
                break
        if not store.ready():
            self._interrupt()
        self._hand_over_episodes()
        return store.ready()

    def publish(self, version: int, policy: Policy) -> None:
        """Takes note of a version; its weights are copied when a block is ordered."""
        self.version, self.policy = version, policy

    def set_env_parameters(self, values: Parameters) -> None:
        """Changes named numbers of the task in all training lanes, after the blocks that are ordered already."""
        self._command(Command("set_env_parameters", {"values": dict(values)}))

    def require_env_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_env_parameters` would refuse, and changes nothing."""
        self._call("require_env_parameters", names=list(names))

    def end_episode(self) -> None:
        """Cuts the episodes that go on after the blocks that are ordered already, and begins new ones."""
        self._command(Command("end_episode"))

    def trigger(self, name: str, lanes: Any) -> None:
        """Fires the environment's events that wait for this name, after the blocks that are ordered already."""
        self._command(Command("trigger", {"name": name, "lanes": lanes}))

    def idle_env_events(self) -> list[str]:
        names: list[str] = self._call("idle_env_events")
        return names

    def listen(self, on_step: StepListener | None) -> None:
        """Lets a function see every step from now on, in the collector's thread, or none."""
        self._call("listen", on_step=on_step)
        self.on_step = on_step

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        """Lets a function see the steps that are ordered in this block; who listened before hears them too."""
        before = self.on_step
        self.listen(on_step if before is None else both(before, on_step))
        try:
            yield
        finally:
            self.listen(before)

    def wait(self) -> None:
        """Returns at once: `fill` waits itself."""

    def pause(self, should_stop: Callable[[], bool]) -> None:
        """Waits until all that was ordered is done, or stops after the current step if there is no time for that."""
        while self.sent and not should_stop():
            self._hear(should_stop)
        self._interrupt()

    def close(self) -> None:
        self.outpost.close()

    def drain_seconds(self) -> dict[str, float]:
        """Returns and forgets the seconds spent acting and stepping, as far as they are known by now."""
        seconds, self.seconds = self.seconds, {"act": 0.0, "env": 0.0}
        return seconds

    def drain_metrics(self) -> Metrics:
        """Returns what happened in the block that was taken last."""
        self._hand_over_episodes()
        # A block that another placement filled has left its numbers where that placement keeps them.
        report = self.reports.popleft() if self.reports else Report(self.version)
        return {**report.metrics, "rollout/staleness": float(self.version - report.version)}

    @property
    def env(self) -> Env:
        return self.outpost.env

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        return self.outpost.supervisors

    def state_dict(self) -> State:
        assert not self.sent, "only a source that pauses can be saved"
        return {"collector": self._call("save"), "version": self.version, "ahead": self._plans()}

    def load_state_dict(self, state: State) -> None:
        self._interrupt()
        self.version = state["version"]
        self.stores.clear()
        self._call("restore", state=state["collector"])
        self.is_held = False
        self.reports = deque(Report(**report) for report in state["ahead"]["reports"])
        self.unsent = deque(Command(**command) for command in state["ahead"]["commands"])

    def begin_anew(self, states: Sequence[State]) -> None:
        """Continues after sources that had other lanes: the newest version, new episodes, noise not used before."""
        self.version = max(state["version"] for state in states)
        self._call("begin_anew", states=[state["collector"] for state in states])

    # -- orders ----------------------------------------------------------------------------------------------------

    def _order(self, store: RolloutStore) -> None:
        """Sends what was left undone, in its order, and then an order for every block that is free."""
        if self.is_held:
            self.is_held = False
            self._call("go_on")
        while self.unsent:
            command = self.unsent.popleft()
            if "weights" in command.arguments:
                self._lend_again(command, store)
            self._send(command)
        while (block := store.reserve()) is not None:
            number = self._lend(block, store)
            take_snapshot(self.policy, self.snapshots[number])
            self.reports.append(Report())
            self._send(Command(FILL, {"block": number, "version": self.version}))

    def _lend_again(self, command: Command, store: RolloutStore) -> None:
        """Takes up an order that a checkpoint held, with the weights that it was given with."""
        block = store.reserve()
        assert block is not None, "an order that was not carried out has its block"
        assert self._lend(block, store) == command.arguments["block"], "blocks are lent again in their order"
        for name, value in command.arguments.pop("weights").items():
            self.snapshots[command.arguments["block"]][name].copy_(as_tensor(value))

    def _lend(self, block: Rollout, store: RolloutStore) -> int:
        number = next(i for i, each in enumerate(self.blocks) if each is block)
        self.stores[number] = store
        return number

    def _command(self, command: Command) -> None:
        """Gives a command its place after those that were given before; waits for it if it is the only one."""
        if self.unsent:
            self.unsent.append(command)
            return
        self._send(command)
        while self.sent and self.sent[0] is command:
            self._hear()

    def _call(self, method: str, **arguments: Any) -> Any:
        """Lets the collector do something as soon as it is idle, and returns what it says."""
        while self.sent:
            self._hear()
        self.outpost.send(Command(method, arguments))
        while (answer := self.outpost.receive(LOOK_SECONDS)) is None:
            pass
        self._take_note(answer)
        return answer.value

    def _send(self, command: Command) -> None:
        self.sent.append(command)
        self.outpost.send(command)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _hear(self, should_stop: Callable[[], bool] = never) -> bool:
        """Waits a little for an answer; returns False if it is that the collector stopped before it was done."""
        answer = self.outpost.receive(LOOK_SECONDS, should_stop)
        if answer is None:
            return True
        report = self.reports[-self._num_open] if answer.report is not None else None
        command = self.sent.popleft()
        if not answer.is_done:
            self.undone.append(command)
            self.is_held = True
        elif command.do == FILL:
            number = command.arguments["block"]
            self.stores.pop(number).commit(self.blocks[number])
        if report is not None and answer.report is not None:
            report.extend(answer.report)
        if not self.sent:
            self.unsent.extendleft(reversed(self.undone))
            self.undone.clear()
        self._take_note(answer)
        return answer.is_done

    def _interrupt(self) -> None:
        """Stops the collector after its current step; what it was ordered to do stays to be done."""
        if not self.sent:
            return
        self.outpost.interrupt(True)
        while self.sent:
            self._hear()
        self.outpost.interrupt(False)

    @property
    def _num_open(self) -> int:
        """How many blocks are ordered and not full."""
        return sum(command.do == FILL for commands in (self.undone, self.sent, self.unsent) for command in commands)

    def _take_note(self, answer: Answer) -> None:
        for name, seconds in answer.seconds.items():
            self.seconds[name] += seconds
        self.exactness = answer.exactness
        self.faults.adopt(answer.faults)

    def _hand_over_episodes(self) -> None:
        """Tells of the episodes of the block that is taken next, as far as they are known: the learner waits for it."""
        if self.reports and self.reports[0].returns:
            report = self.reports[0]
            self.on_episodes(np.array(report.returns), np.array(report.lengths))
            report.returns, report.lengths = [], []

    # -- state -----------------------------------------------------------------------------------------------------

    def _plans(self) -> State:
        """Returns what was ordered and not done, and what is not handed over; the only block needs no order."""
        if len(self.blocks) == 1:
            commands = [asdict(command) for command in self.unsent if command.do != FILL]
            reports = list(self.reports)[: len(self.reports) - self._num_open]
        else:
            commands = [self._with_weights(command) for command in self.unsent]
            reports = list(self.reports)
        return {"commands": commands, "reports": [asdict(report) for report in reports]}

    def _with_weights(self, command: Command) -> State:
        saved = asdict(command)
        if command.do == FILL and "weights" not in command.arguments:
            snapshot = self.snapshots[command.arguments["block"]]
            saved["arguments"]["weights"] = {name: value.clone() for name, value in snapshot.items()}
        return saved
