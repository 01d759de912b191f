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
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.core.state import require_count
from quintain.envs.hosts.faults import FaultKeeper
from quintain.envs.parameters import Parameters
from quintain.placements.commands import FILL, IN_ORDER, RETIRE, Answer, Command, Filled, Report
from quintain.placements.fleet import Fleet
from quintain.placements.remote_collector import WatchedCollector
from quintain.placements.share import Share
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener, both
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import StepListener, never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import LaneIds, Metrics, State, TrainingEnv

LOOK_SECONDS = 0.1
"""Interval at which a waiting learner checks whether it was asked to stop."""


@dataclass(frozen=True)
class SourceParts:
    """The parts that a placement gives to its source."""

    remote: WatchedCollector | Fleet
    shares: Mapping[str, Share]
    faults: FaultKeeper
    on_episodes: BehaviorListener


class AheadSource:
    """An asynchronous source: keeps an actor busy, and returns its blocks in the order in which they became full."""

    def __init__(self, parts: SourceParts) -> None:
        self.remote = parts.remote
        self.shares = dict(parts.shares)
        self.faults = parts.faults
        self.on_episodes = parts.on_episodes
        self.unsent: deque[Command] = deque()
        self.sent: deque[Command] = deque()
        self.undone: deque[Command] = deque()
        """Commands that were sent to the actor and interrupted."""
        self.is_held = False
        """Whether the actor is paused until `go_on`."""
        self.saved_lends: dict[str, list[State]] = {}
        """Blocks that were lent according to a checkpoint, with their weights; lent again once the stores are known."""
        self.reports: deque[Report] = deque()
        """Reports of completed fills with a block that the learner has not taken, oldest first."""
        self.partial = Report()
        """Report of the current fill."""
        self.stores: Mapping[str, RolloutStore] = {}
        self.learning: Collection[str] = ()
        self.on_step: StepListener | None = None
        self.seconds = {"act": 0.0, "env": 0.0}
        self.exactness = self.remote.env.exactness

    def next_full(
        self,
        stores: Mapping[str, RolloutStore],
        learning: Collection[str],
        should_stop: Callable[[], bool],
        wanted: str | None = None,
    ) -> str | None:
        """Lends all free blocks and waits for a full one; returns its behaviour, or None if asked to stop first.

        `learning` are the behaviours that still learn; the others continue to act with their last version. With
        `wanted`, waits for the block of that behaviour; other behaviours that have no free block meanwhile continue to
        act.
        """
        self.stores, self.learning = stores, learning
        known = {name for report in self.reports for name in report.filled}
        for name in learning:
            if stores[name].ready() and name not in known:
                # Another placement filled it, before a resume.
                self.reports.append(Report({name: Filled(self.shares[name].version)}))
        while True:
            self._drop_unneeded()
            full = [name for report in self.reports for name in report.filled]
            found = next((name for name in full if wanted in (None, name)), None)
            if found is None and should_stop():
                break
            # Also where a block waits already: the actor must not wait for the end of this cycle to go on.
            self._order(wanted)
            if found is not None:
                return found
            if not self._hear(should_stop):
                break
        self._interrupt()
        if not self.reports:
            # Else the fill that was waited for ended meanwhile, and these are episodes of a later block.
            self._hand_over(self.partial)
        return None

    def _drop_unneeded(self) -> None:
        """Drops full blocks of behaviours that no longer learn, and reports of blocks that were taken directly."""
        while self.reports:
            name = next(iter(self.reports[0].filled))
            is_there = self.stores[name].ready()
            if is_there and name in self.learning:
                return
            if is_there:
                self.stores[name].take()
                self.stores[name].mark_consumed()
                self.stores[name].release()
            self.drain_metrics(name)

    def publish(self, behavior: str, version: int, policy: Policy) -> None:
        """Records the newest version; its weights are copied when a block is lent, or now for fragments."""
        share = self.shares[behavior]
        share.policy = policy
        share.offer(version, 0 if share.published_for is None else share.published_for.session)

    def set_env_parameters(self, values: Parameters, **more: State) -> None:
        """Sets environment parameters in all training lanes, after the commands that were sent before."""
        self._command(Command("set_env_parameters", {"values": dict(values), **more}))

    def restore_env_parameters(self, values: Parameters, **more: State) -> None:
        """Sets parameters again that the loaded state does not contain."""
        self._call("restore_env_parameters", values=dict(values), **more)

    def require_env_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_env_parameters` would refuse, and changes nothing."""
        self._call("require_env_parameters", names=list(names))

    def end_episode(self) -> None:
        """Truncates the running episodes, after the commands that were sent before, and starts new ones."""
        self._command(Command("end_episode"))

    def trigger(self, name: str, lanes: LaneIds | None) -> None:
        """Fires the environment's events of this name, after the commands that were sent before."""
        self._command(Command("trigger", {"name": name, "lanes": lanes}))

    def idle_env_events(self) -> list[str]:
        names: list[str] = self._call("idle_env_events")
        return names

    def listen(self, on_step: StepListener | None) -> None:
        """Sets the callback that receives every step, in the actor's thread; None removes it."""
        self._call("listen", on_step=on_step)
        self.on_step = on_step

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        """Adds a step callback for the duration of this context; earlier callbacks receive the steps too."""
        before = self.on_step
        self.listen(on_step if before is None else both(before, on_step))
        try:
            yield
        finally:
            self.listen(before)

    def wait(self) -> None:
        """Returns at once: `next_full` itself waits."""

    def pause(self, should_stop: Callable[[], bool]) -> None:
        """Waits until all commands are done; if there is no time for that, stops the actor after its current step."""
        while self.sent and not should_stop():
            self._hear(should_stop)
        self._interrupt()

    def complete(self, stores: Mapping[str, RolloutStore]) -> None:
        """Carries out all that was ordered, also before a stop: a finished run ends alike wherever it stopped."""
        self.stores = stores
        self._send_undone()
        while self.sent:
            self._hear()

    def close(self) -> None:
        self.remote.close()

    def drain_seconds(self) -> dict[str, float]:
        """Returns the seconds spent acting and stepping since the last call, as far as they are reported."""
        seconds, self.seconds = self.seconds, {"act": 0.0, "env": 0.0}
        return seconds

    def drain_metrics(self, behavior: str) -> Metrics:
        """Marks the oldest full block of a behaviour as taken; returns its metrics.

        Episodes that ended before the block was full are reported with it.
        """
        place = next(place for place, report in enumerate(self.reports) if behavior in report.filled)
        for report in list(self.reports)[: place + 1]:
            self._hand_over(report)
        filled = self.reports[place].filled.pop(behavior)
        if not self.reports[place].filled:
            del self.reports[place]
        share = self.shares[behavior]
        if share.published is not None:
            # Fragments have steps of several versions: their store says how old they are.
            return filled.metrics
        return {**filled.metrics, "rollout/staleness": float(share.version - filled.version)}

    @property
    def env(self) -> TrainingEnv:
        return self.remote.env

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        return self.remote.supervisors

    def state_dict(self) -> State:
        assert not self.sent, "only a source that pauses can be saved"
        versions = {name: share.version for name, share in self.shares.items()}
        return {"collector": self._call("save"), "versions": versions, "ahead": self._plans()}

    def load_state_dict(self, state: State) -> None:
        self._interrupt()
        for name, share in self.shares.items():
            share.version = require_count(f"versions.{name}", state["versions"][name])
            share.forget()
        self._call("restore", state=state["collector"])
        self.is_held = False
        ahead = state["ahead"]
        self.unsent = deque(Command(str(each["do"]), dict(each["arguments"])) for each in ahead["commands"])
        self.reports = deque(Report.from_json(each) for each in ahead["reports"])
        self.partial = Report.from_json(ahead["partial"]) if "partial" in ahead else Report()
        if strange := {command.do for command in self.unsent} - IN_ORDER:
            raise ValueError(f"the plan has the commands {sorted(strange)}, which are none")
        self.saved_lends = {name: list(lends) for name, lends in ahead.get("lent", {}).items()}
        for name, lends in self.saved_lends.items():
            self.shares[name].require_lends(lends)
        num_fills = sum(command.do == FILL for command in self.unsent)
        num_lent = max((len(lends) for lends in self.saved_lends.values()), default=0)
        if num_fills > num_lent:
            raise ValueError(f"the plan fills {num_fills} blocks, and {num_lent} are lent")

    def begin_anew(self, states: Sequence[State]) -> None:
        """Continues after sources with other lanes or collectors: newest versions, new episodes, unused noise."""
        for name, share in self.shares.items():
            share.version = max(state["versions"][name] for state in states)
        saved = [each["collector"] for each in states]
        parts = [part for each in saved for part in (each["collectors"].values() if "fleet" in each else [each])]
        self._call("begin_anew", states=parts)

    # -- orders ----------------------------------------------------------------------------------------------------

    def _send_undone(self) -> None:
        """Sends the commands that a stop left undone, in their order, with the blocks and weights that they had."""
        if self.is_held:
            self.is_held = False
            self._call("go_on")
        for name, lends in self.saved_lends.items():
            self.shares[name].reserve_saved(self.stores[name], lends)
        self.saved_lends = {}
        while self.unsent:
            command = self.unsent.popleft()
            if command.do == RETIRE and "block" not in command.arguments:
                self._retire(command.arguments["behavior"])
            else:
                self._send(command if command.do != FILL or command.arguments else self._fill_command())

    def _order(self, wanted: str | None) -> None:
        """Sends interrupted commands in their order, and then a fill for each free block."""
        self._send_undone()
        for name, share in self.shares.items():
            if name in self.learning:
                share.reserve(self.stores[name])
            elif not share.is_retired:
                self._retire(name)
        # Each fill makes at least one block full: so many find a block of every behaviour that learns.
        num_fills = min(self.shares[name].num_lent for name in (self.learning if wanted is None else [wanted]))
        while sum(command.do == FILL for command in self.sent) < num_fills:
            self._send(self._fill_command())

    def _retire(self, name: str) -> None:
        """Lets a behaviour that no longer learns continue to act with its newest weights."""
        share = self.shares[name]
        share.is_retired = True
        share.take_back(self.stores[name], share.waiting)
        self._send(Command(RETIRE, {"behavior": name, "block": share.last_weights(), "version": share.version}))

    def _fill_command(self) -> Command:
        lends = [share.send_next() for share in self.shares.values()]
        return Command(
            FILL, {"lend": [[each.behavior, each.block, each.version] for each in lends if each is not None]}
        )

    def _command(self, command: Command) -> None:
        """Appends a command to the order; waits for it if it is the only one."""
        if self.unsent:
            self.unsent.append(command)
            return
        self._send(command)
        while self.sent and self.sent[0] is command:
            self._hear()

    def _call(self, method: str, **arguments: Any) -> Any:
        """Calls a method of the actor as soon as the actor is idle, and returns the result."""
        while self.sent:
            self._hear()
        self.remote.send(Command(method, arguments))
        while (answer := self.remote.receive(LOOK_SECONDS)) is None:
            pass
        self._take_note(answer)
        return answer.value

    def _send(self, command: Command) -> None:
        self.sent.append(command)
        self.remote.send(command)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _hear(self, should_stop: Callable[[], bool] = never) -> bool:
        """Waits shortly for an answer; returns False if the actor was interrupted before it was done."""
        answer = self.remote.receive(LOOK_SECONDS, should_stop)
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
            share = self.shares[command.arguments["behavior"]]
            share.take_back(self.stores[share.behavior], share.open)
        if not self.sent:
            self.unsent.extendleft(reversed(self.undone))
            self.undone.clear()
        self._take_note(answer)
        return answer.is_done

    def _interrupt(self) -> None:
        """Stops the actor after its current step; unfinished commands stay in the order."""
        if not self.sent:
            return
        self.remote.interrupt(True)
        while self.sent:
            self._hear()
        self.remote.interrupt(False)

    def _take_note(self, answer: Answer) -> None:
        for name, seconds in answer.seconds.items():
            self.seconds[name] += seconds
        self.exactness = answer.exactness
        self.faults.adopt(answer.faults)

    def _hand_over(self, report: Report) -> None:
        """Reports completed episodes, once."""
        for name, returns in report.returns.items():
            self.on_episodes(name, np.array(returns), np.array(report.lengths[name]))
        report.returns, report.lengths = {}, {}

    # -- state -----------------------------------------------------------------------------------------------------

    def _plans(self) -> State:
        """Returns the unfinished commands and the reports that were not handed over.

        Where every behaviour has one block, fills are not saved: the same ones are sent again.
        """
        reports = [asdict(report) for report in self.reports]
        if all(len(share.blocks) == 1 for share in self.shares.values()):
            commands = [asdict(command) for command in self.unsent if command.do not in (FILL, RETIRE)]
            return {"commands": commands, "reports": reports}
        # All lent blocks are saved with their weights; a fill takes them up in their order.
        retiring = {each.arguments["behavior"] for each in self.unsent if each.do == RETIRE}
        retired = [name for name, share in self.shares.items() if share.is_retired and name not in retiring]
        commands = [
            # The weights that these act on with are no part of the state: they are given to them again, first.
            *({"do": RETIRE, "arguments": {"behavior": name}} for name in retired),
            *map(_planned, self.unsent),
        ]
        lent = {name: [*self.saved_lends.get(name, ()), *share.saved_lends()] for name, share in self.shares.items()}
        return {"commands": commands, "reports": reports, "partial": asdict(self.partial), "lent": lent}


def _planned(command: Command) -> State:
    """Serializes a command for a checkpoint; blocks and weights are chosen when it is sent again."""
    if command.do == FILL:
        return {"do": FILL, "arguments": {}}
    if command.do == RETIRE:
        return {"do": RETIRE, "arguments": {"behavior": command.arguments["behavior"]}}
    return asdict(command)
