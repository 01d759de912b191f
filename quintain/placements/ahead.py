"""A source that orders work from an actor, which carries it out in order: inline, in a thread or in a process.

The source lends every free block when a cycle begins, each with a copy of the weights of that moment, and then waits
for the oldest. With one block for each behaviour that is acting and learning in turns. With more, the actor fills the
others while the learner learns, always with weights that are exactly as many versions behind as there are further
blocks: nothing depends on which side is quicker, so a run repeats itself and resumes exactly.

Several behaviours act in one environment. It is stepped only while every behaviour that still learns has a block to
fill, and blocks are learned from in the order in which they became full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.core.state import as_tensor, require_count
from quintain.data.rollout import Rollout
from quintain.envs.hosts.faults import FaultKeeper
from quintain.envs.parameters import Parameters
from quintain.placements.commands import FILL, RETIRE, Answer, Command, Filled, Lend, Report
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.snapshots import Snapshot, take_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener, both
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import StepListener, never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import Metrics, State

LOOK_SECONDS = 0.1
"""How often a learner that waits looks whether it was asked to stop."""


@dataclass
class Share:
    """What one behaviour has of a source: the blocks that go to the actor and back, and their weights."""

    policy: Policy
    blocks: Sequence[Rollout]
    snapshots: Sequence[Snapshot]
    """One copy of the weights for each block."""
    version: int = 0
    """The newest version that was published."""
    waiting: deque[Lend] = field(default_factory=deque)
    """Blocks that are reserved and not sent yet."""
    open: deque[Lend] = field(default_factory=deque)
    """Blocks that the actor has and has not filled, the current one first."""
    is_retired: bool = False
    """Whether the actor was told that this behaviour learns no more."""

    @property
    def num_lent(self) -> int:
        return len(self.open) + len(self.waiting)


class AheadSource:
    """Keeps an actor in work, and hands over its blocks in the order in which they became full."""

    def __init__(
        self,
        outpost: WatchedOutpost,
        shares: Mapping[str, Share],
        faults: FaultKeeper,
        on_episodes: BehaviorListener,
        *,
        reports_staleness: bool = True,
    ) -> None:
        self.outpost = outpost
        self.shares = dict(shares)
        self.faults = faults
        self.on_episodes = on_episodes
        self.reports_staleness = reports_staleness
        self.unsent: deque[Command] = deque()
        self.sent: deque[Command] = deque()
        self.undone: deque[Command] = deque()
        """What the actor was sent and stopped before."""
        self.is_held = False
        """Whether the actor waits to be told that it may go on."""
        self.saved_lends: dict[str, list[State]] = {}
        """Blocks that a checkpoint says were lent, with their weights; they are lent again when stores are known."""
        self.reports: deque[Report] = deque()
        """Of finished fills with a block that the learner has not taken, the oldest first."""
        self.partial = Report()
        """Of the fill that goes on."""
        self.stores: Mapping[str, RolloutStore] = {}
        self.learning: Collection[str] = ()
        self.on_step: StepListener | None = None
        self.seconds = {"act": 0.0, "env": 0.0}
        self.exactness = outpost.env.exactness

    def fill(
        self,
        stores: Mapping[str, RolloutStore],
        learning: Collection[str],
        should_stop: Callable[[], bool],
        wanted: str | None = None,
    ) -> str | None:
        """Orders what is free and waits for a full block; returns whose it is, or None if asked to stop first.

        `learning` are the behaviours that still learn; the others act on with their last version. With `wanted` the
        block of that behaviour is waited for; others that have no free block meanwhile act on too.
        """
        self.stores, self.learning = stores, learning
        self._find_full()
        while True:
            self._drop_unneeded()
            found = self._next_of(wanted)
            if found is None and should_stop():
                break
            # Also where a block waits already: the actor must not wait for the end of this cycle to go on.
            self._order(wanted)
            if found is not None:
                return found
            if not self._hear(should_stop):
                break
        self._interrupt()
        self._hand_over(self.partial)
        return None

    @property
    def _next(self) -> str:
        """The behaviour whose block became full first."""
        return next(iter(self.reports[0].filled))

    def _next_of(self, wanted: str | None) -> str | None:
        """Returns the behaviour whose block is taken next, if it is full."""
        if wanted is None:
            return self._next if self.reports else None
        return wanted if any(wanted in report.filled for report in self.reports) else None

    def _find_full(self) -> None:
        """Takes note of full blocks that another placement filled before a resume."""
        known = {name for report in self.reports for name in report.filled}
        for name in self.learning:
            if self.stores[name].ready() and name not in known:
                self.reports.append(Report({name: Filled(self.shares[name].version)}))

    def _drop_unneeded(self) -> None:
        """Drops full blocks of behaviours that learn no more, and reports of blocks that were taken without a word."""
        while self.reports:
            name = self._next
            is_there = self.stores[name].ready()
            if is_there and name in self.learning:
                return
            if is_there:
                self.stores[name].take()
                self.stores[name].spend()
                self.stores[name].release()
            self.drain_metrics(name)

    def publish(self, behavior: str, version: int, policy: Policy) -> None:
        """Takes note of a version; its weights are copied when a block is lent."""
        share = self.shares[behavior]
        share.version, share.policy = version, policy

    def set_env_parameters(self, values: Parameters, **more: Any) -> None:
        """Changes named numbers of the task in the whole environment, after what is ordered already."""
        self._command(Command("set_env_parameters", {"values": dict(values), **more}))

    def restore_env_parameters(self, values: Parameters, **more: Any) -> None:
        """Sets parameters again that are no part of the state that was just loaded."""
        self._call("restore_env_parameters", values=dict(values), **more)

    def require_env_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_env_parameters` would refuse, and changes nothing."""
        self._call("require_env_parameters", names=list(names))

    def end_episode(self) -> None:
        """Cuts the episodes that go on after what is ordered already, and begins new ones."""
        self._command(Command("end_episode"))

    def trigger(self, name: str, lanes: Any) -> None:
        """Fires the environment's events that wait for this name, after what is ordered already."""
        self._command(Command("trigger", {"name": name, "lanes": lanes}))

    def idle_env_events(self) -> list[str]:
        names: list[str] = self._call("idle_env_events")
        return names

    def listen(self, on_step: StepListener | None) -> None:
        """Lets a function see every step from now on, in the actor's thread, or none."""
        self._call("listen", on_step=on_step)
        self.on_step = on_step

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        """Lets a function see the steps that are ordered in this context; earlier listeners hear them too."""
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

    def drain_metrics(self, behavior: str) -> Metrics:
        """Takes note that the oldest full block of a behaviour was taken; returns its metrics.

        Episodes that ended before it was full are handed over with it.
        """
        place = next(place for place, report in enumerate(self.reports) if behavior in report.filled)
        for report in list(self.reports)[: place + 1]:
            self._hand_over(report)
        filled = self.reports[place].filled.pop(behavior)
        if not self.reports[place].filled:
            del self.reports[place]
        staleness = float(self.shares[behavior].version - filled.version)
        return {**filled.metrics, **({"rollout/staleness": staleness} if self.reports_staleness else {})}

    @property
    def env(self) -> Any:
        return self.outpost.env

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        return self.outpost.supervisors

    def state_dict(self) -> State:
        assert not self.sent, "only a source that pauses can be saved"
        versions = {name: share.version for name, share in self.shares.items()}
        return {"collector": self._call("save"), "versions": versions, "ahead": self._plans()}

    def load_state_dict(self, state: State) -> None:
        self._interrupt()
        for name, share in self.shares.items():
            share.version = require_count(f"versions.{name}", state["versions"][name])
            share.waiting.clear()
            share.open.clear()
            share.is_retired = False
        self._call("restore", state=state["collector"])
        self.is_held = False
        ahead = state["ahead"]
        self.unsent = deque(Command(str(each["do"]), dict(each["arguments"])) for each in ahead["commands"])
        self.reports = deque(Report.from_json(each) for each in ahead["reports"])
        self.partial = Report.from_json(ahead["partial"]) if "partial" in ahead else Report()
        self.saved_lends = {name: list(lends) for name, lends in ahead.get("lent", {}).items()}
        num_fills = sum(command.do == FILL for command in self.unsent)
        num_lent = max((len(lends) for lends in self.saved_lends.values()), default=0)
        if num_fills > num_lent or not set(self.saved_lends) <= set(self.shares):
            raise ValueError(f"the plan fills {num_fills} blocks, and {num_lent} are lent")

    def begin_anew(self, states: Sequence[State]) -> None:
        """Continues after sources that had other lanes: the newest versions, new episodes, noise not used before."""
        for name, share in self.shares.items():
            share.version = max(state["versions"][name] for state in states)
        self._call("begin_anew", states=[state["collector"] for state in states])

    # -- orders ----------------------------------------------------------------------------------------------------

    def _order(self, wanted: str | None) -> None:
        """Sends what was left undone, in its order, and then fills for the blocks that are free."""
        if self.is_held:
            self.is_held = False
            self._call("go_on")
        self._lend_again()
        while self.unsent:
            command = self.unsent.popleft()
            if command.do == FILL and not command.arguments:
                command = self._fill_command()
            self._send(command)
        for name, share in self.shares.items():
            if name not in self.learning:
                self._retire(name, share)
                continue
            while (block := self.stores[name].reserve()) is not None:
                number = _place_of(block, share.blocks)
                take_snapshot(share.policy, share.snapshots[number])
                share.waiting.append(Lend(name, number, share.version))
        # Each fill makes at least one block full: so many find a block of every behaviour that learns.
        needed = self.learning if wanted is None else [wanted]
        num_fills = min(self.shares[name].num_lent for name in needed)
        while sum(command.do == FILL for command in self.sent) < num_fills:
            self._send(self._fill_command())

    def _fill_command(self) -> Command:
        lends = [share.waiting.popleft() for share in self.shares.values() if share.waiting]
        for lend in lends:
            share = self.shares[lend.behavior]
            share.open.append(lend)
            share.is_retired = False
        return Command(FILL, {"lend": [list(astuple(lend)) for lend in lends]})

    def _retire(self, name: str, share: Share) -> None:
        """Lets a behaviour that learns no more act on with its newest weights."""
        if share.is_retired:
            return
        share.is_retired = True
        self._take_back(name, share.waiting)
        # The weights of a block that the actor has may not have been read yet.
        taken = {lend.block for lend in share.open}
        block = next(number for number in range(len(share.blocks)) if number not in taken)
        take_snapshot(share.policy, share.snapshots[block])
        self._send(Command(RETIRE, {"behavior": name, "block": block, "version": share.version}))

    def _take_back(self, name: str, lends: deque[Lend]) -> None:
        """Takes blocks back that are not filled further; they stay as they are."""
        while lends:
            self.stores[name].take_back(self.shares[name].blocks[lends.popleft().block])

    def _lend_again(self) -> None:
        """Lends the blocks that a checkpoint says were lent, with the weights that it has of them."""
        for name, lends in self.saved_lends.items():
            share = self.shares[name]
            for saved in lends:
                lend = Lend(name, require_count("block", saved["block"], len(share.blocks) - 1), saved["version"])
                block = self.stores[name].reserve()
                if block is not share.blocks[lend.block]:
                    raise ValueError(f"block {lend.block} of {name} is not the next to be filled")
                for key, value in saved["weights"].items():
                    share.snapshots[lend.block][key].copy_(as_tensor(value))
                share.waiting.append(lend)
        self.saved_lends = {}

    def _command(self, command: Command) -> None:
        """Gives a command its place after those that were given before; waits for it if it is the only one."""
        if self.unsent:
            self.unsent.append(command)
            return
        self._send(command)
        while self.sent and self.sent[0] is command:
            self._hear()

    def _call(self, method: str, **arguments: Any) -> Any:
        """Lets the actor do something as soon as it is idle, and returns what it says."""
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
        """Waits a little for an answer; returns False if it is that the actor stopped before it was done."""
        answer = self.outpost.receive(LOOK_SECONDS, should_stop)
        if answer is None:
            return True
        command = self.sent.popleft()
        if answer.report is not None:
            self.partial.extend(answer.report)
        if not answer.is_done:
            self.undone.append(command)
            self.is_held = True
        elif command.do == FILL:
            report, self.partial = self.partial, Report()
            for name in report.filled:
                share = self.shares[name]
                self.stores[name].commit(share.blocks[share.open.popleft().block])
            self.reports.append(report)
        elif command.do == RETIRE:
            name = command.arguments["behavior"]
            self._take_back(name, self.shares[name].open)
        if not self.sent:
            self.unsent.extendleft(reversed(self.undone))
            self.undone.clear()
        self._take_note(answer)
        return answer.is_done

    def _interrupt(self) -> None:
        """Stops the actor after its current step; what it was ordered to do stays to be done."""
        if not self.sent:
            return
        self.outpost.interrupt(True)
        while self.sent:
            self._hear()
        self.outpost.interrupt(False)

    def _take_note(self, answer: Answer) -> None:
        for name, seconds in answer.seconds.items():
            self.seconds[name] += seconds
        self.exactness = answer.exactness
        self.faults.adopt(answer.faults)

    def _hand_over(self, report: Report) -> None:
        """Tells of the episodes that ended, once."""
        for name, returns in report.returns.items():
            self.on_episodes(name, np.array(returns), np.array(report.lengths[name]))
        report.returns, report.lengths = {}, {}

    # -- state -----------------------------------------------------------------------------------------------------

    def _plans(self) -> State:
        """Returns what was ordered and not done, and what was not handed over.

        Where every behaviour has one block, orders need not be saved: the same ones are given again.
        """
        reports = [asdict(report) for report in self.reports]
        if all(len(share.blocks) == 1 for share in self.shares.values()):
            commands = [asdict(command) for command in self.unsent if command.do not in (FILL, RETIRE)]
            return {"commands": commands, "reports": reports}
        # All lent blocks are saved with their weights; a fill takes them up in their order.
        commands = [
            {"do": FILL, "arguments": {}} if each.do == FILL else asdict(each)
            for each in self.unsent
            if each.do != RETIRE
        ]
        lent = {
            name: [
                *self.saved_lends.get(name, ()),
                *(self._saved(share, lend) for lend in (*share.open, *share.waiting)),
            ]
            for name, share in self.shares.items()
        }
        return {"commands": commands, "reports": reports, "partial": asdict(self.partial), "lent": lent}

    def _saved(self, share: Share, lend: Lend) -> State:
        weights = {name: value.clone() for name, value in share.snapshots[lend.block].items()}
        return {"block": lend.block, "version": lend.version, "weights": weights}


def _place_of(block: Rollout, blocks: Sequence[Rollout]) -> int:
    return next(number for number, each in enumerate(blocks) if each is block)
