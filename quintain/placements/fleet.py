"""Several collectors as one: each acts by itself for its group of lanes, or of copies of an environment of agents.

Every command goes to all of them, and is answered when all have answered. A stop may find a command done by some and
not by others. The fleet remembers which: the command is then sent again to the others only, and the reports of those
that have done it are kept until then. Episodes and metrics are reported in the order of collectors, so nothing
depends on which of them is quicker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.data.joined_blocks import join_blocks
from quintain.data.rollout import Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.hosts.faults import FaultNews
from quintain.placements.commands import FILL, IN_ORDER, Answer, Command, Filled, Lend, Report
from quintain.placements.plan import Blocks
from quintain.placements.remote_collector import WatchedCollector
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor
from quintain.services.reporting.stats import joined_metrics

if TYPE_CHECKING:
    from quintain.placements.share import Share
    from quintain.typing import State, TrainingEnv


@dataclass
class Member:
    """One collector of a fleet, and what it has done of the commands that others have not."""

    remote: WatchedCollector
    parts: Blocks
    """Its parts of all blocks, by behaviour."""
    answers: deque[Answer | None] = field(default_factory=deque)
    """One for each command that not all have answered; None until it has."""
    done: deque[tuple[str, Report | None]] = field(default_factory=deque)
    """Commands that a stop found done here and not everywhere, with their reports."""
    partial: Report = field(default_factory=Report)
    """Report of a fill that was stopped inside."""


class Fleet:
    """A collector made of several; implements `RemoteCollector` with their timeouts."""

    def __init__(
        self,
        env: TrainingEnv,
        shares: Mapping[str, Share],
        remotes: Sequence[WatchedCollector],
        parts: Sequence[Blocks],
    ) -> None:
        """Takes the collectors, with the parts of each behaviour's blocks that they fill, in their order."""
        self.env = env
        self.shares = shares
        self.members = [Member(remote, mine) for remote, mine in zip(remotes, parts, strict=True)]
        self.sent: deque[Command] = deque()

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        found = [each for member in self.members for each in member.remote.supervisors]
        return list(dict.fromkeys(found))

    def send(self, command: Command) -> None:
        """Sends a command to all collectors that have not done it before a stop."""
        if command.do == "restore":
            saved = command.arguments["state"]
            if len(saved["collectors"]) != len(self.members):
                raise ValueError(f"it is of {len(saved['collectors'])} collectors, and there are {len(self.members)}")
            self._load(saved["fleet"])
        if command.do == FILL:
            self._begin_parts([Lend(*each) for each in command.arguments["lend"]])
        self.sent.append(command)
        for place, member in enumerate(self.members):
            if command.do in IN_ORDER and member.done and member.done[0][0] == command.do:
                member.answers.append(Answer(is_done=True, report=member.done.popleft()[1], exactness=""))
                continue
            mine = self._command_for(command, place)
            member.answers.append(None if mine is not None else Answer(is_done=True, exactness=""))
            if mine is not None:
                member.remote.send(mine)

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        """Returns the answer to the oldest command if all have answered it; waits for the first that has not."""
        wait = seconds
        for member in self.members:
            while member.answers[0] is None:
                answer = member.remote.receive(wait, should_stop)
                if answer is None:
                    # The others are asked too: one may have failed.
                    wait = 0.0
                    break
                self._take(member, answer)
        if any(member.answers[0] is None for member in self.members):
            return None
        answers = [member.answers.popleft() for member in self.members]
        return self._joined(self.sent.popleft(), [answer for answer in answers if answer is not None])

    def interrupt(self, is_wanted: bool) -> None:
        for member in self.members:
            member.remote.interrupt(is_wanted)

    def close(self) -> None:
        for member in self.members:
            member.remote.close()

    # -- commands --------------------------------------------------------------------------------------------------

    def _begin_parts(self, lends: Sequence[Lend]) -> None:
        """Gives parts the sequence of their blocks; clears those with own memory, unless a stop left them half full."""
        for lend in lends:
            whole = self.shares[lend.behavior].blocks[lend.block]
            for member in self.members:
                part = member.parts[lend.behavior][lend.block]
                if _is_apart(part) and part.sequence != whole.sequence:
                    part.begin(whole.sequence, 0)
                part.sequence = whole.sequence

    def _command_for(self, command: Command, place: int) -> Command | None:
        """Returns a command with the arguments of one collector; None if it has nothing to do."""
        arguments = dict(command.arguments)
        if command.do == "restore":
            return Command("restore", {"state": arguments["state"]["collectors"][str(place)]})
        num_lanes, lanes = getattr(self.env, "num_lanes", None), None
        if num_lanes is not None:
            size = num_lanes // len(self.members)
            lanes = slice(place * size, (place + 1) * size)
        if lanes is not None and command.do in ("set_env_parameters", "restore_env_parameters"):
            values = {key: x if np.ndim(x) == 0 else x[lanes] for key, x in arguments["values"].items()}
            return Command(command.do, {**arguments, "values": values})
        if lanes is not None and command.do == "trigger" and arguments["lanes"] is not None:
            mine = [int(lane) - lanes.start for lane in arguments["lanes"] if lanes.start <= int(lane) < lanes.stop]
            return Command("trigger", {**arguments, "lanes": mine}) if mine else None
        return command

    # -- answers ---------------------------------------------------------------------------------------------------

    def _take(self, member: Member, answer: Answer) -> None:
        """Puts an answer in its place; the report of a fill is complete when the fill is done."""
        if answer.report is not None:
            member.partial.extend(answer.report)
            answer = replace(answer, report=member.partial if answer.is_done else None)
            if answer.is_done:
                member.partial = Report()
        member.answers[member.answers.index(None)] = answer

    def _joined(self, command: Command, answers: Sequence[Answer]) -> Answer:
        is_done = all(answer.is_done for answer in answers)
        if not is_done:
            for member, answer in zip(self.members, answers, strict=True):
                if answer.is_done:
                    member.done.append((command.do, answer.report))
        report = (
            self._joined_report([each.report or Report() for each in answers])
            if is_done and command.do == FILL
            else None
        )
        seconds: dict[str, float] = {}
        for answer in answers:
            for name, spent in answer.seconds.items():
                seconds[name] = seconds.get(name, 0.0) + spent
        value: Any = [answer.value for answer in answers]
        if command.do == "save":
            value = {"collectors": {str(place): each for place, each in enumerate(value)}, "fleet": self._saved()}
        elif command.do == "idle_env_events":
            value = [name for name in value[0] if all(name in each for each in value)]
        known = [answer.exactness for answer in answers if answer.exactness]
        return Answer(
            is_done,
            report,
            seconds,
            joined_news([answer.faults for answer in answers]),
            next((each for each in known if each != "exact"), "exact"),
            value,
        )

    def _joined_report(self, reports: Sequence[Report]) -> Report:
        """Joins the reports of a fill, and the parts of its blocks."""
        whole = Report()
        for name, filled in reports[0].filled.items():
            whole.filled[name] = Filled(filled.version, joined_metrics([each.filled[name].metrics for each in reports]))
            number = self.shares[name].open[0].block
            block, parts = self.shares[name].blocks[number], [member.parts[name][number] for member in self.members]
            if isinstance(block, TrajectoryBlock | SequenceBlock):
                join_blocks(block, parts)  # type: ignore[arg-type]  # made by the same function as the whole
                for part in parts:
                    part.begin(part.sequence, 0)
            elif not block.is_whole:
                # The collectors have begun it, each its part.
                block.sequence += 1
        for report in reports:
            whole.extend(replace(report, filled={}))
        return whole

    # -- state -----------------------------------------------------------------------------------------------------

    def _saved(self) -> State:
        """Returns what some have done and others not, and half-full parts of agents; those of lanes are in blocks."""
        members = {}
        for place, member in enumerate(self.members):
            done = [{"do": do, "report": None if report is None else asdict(report)} for do, report in member.done]
            parts = {
                name: {
                    str(number): part.state_dict()
                    for number, part in enumerate(some)
                    if isinstance(part, TrajectoryBlock | SequenceBlock) and part.num_held > 0
                }
                for name, some in member.parts.items()
            }
            members[str(place)] = {"done": done, "partial": asdict(member.partial), "parts": parts}
        return {"members": members}

    def _load(self, state: State) -> None:
        for place, member in enumerate(self.members):
            saved = state["members"][str(place)]
            member.done = deque(
                (str(each["do"]), None if each["report"] is None else Report.from_json(each["report"]))
                for each in saved["done"]
            )
            if strange := {do for do, _ in member.done} - IN_ORDER:
                raise ValueError(f"a collector has done {sorted(strange)}, which are no commands")
            member.partial = Report.from_json(saved["partial"])
            for name, some in member.parts.items():
                for number, part in enumerate(some):
                    if str(number) in saved["parts"][name]:
                        part.load_state_dict(saved["parts"][name][str(number)])
                    elif _is_apart(part):
                        part.begin(0, 0)


def _is_apart(part: Rollout) -> bool:
    """Whether a part has memory of its own, and is joined to its block when it is full."""
    return isinstance(part, TrajectoryBlock | SequenceBlock)


def joined_news(news: Sequence[FaultNews]) -> FaultNews:
    """Returns the faults of all collectors, in their order."""
    spent = next((each for each in news if each.spent is not None), FaultNews())
    return FaultNews(
        tuple(told for each in news for told in each.told),
        sum(each.restarts for each in news),
        sum(each.aborted for each in news),
        spent.spent,
        spent.fatal,
    )


def joined_pieces(answers: Sequence[Answer]) -> Answer:
    """Returns the answer to one command that came in pieces."""
    whole = answers[-1]
    for piece in reversed(answers[:-1]):
        assert piece.report is not None, "pieces are parts of fills"
        whole.report = Report() if whole.report is None else whole.report
        piece.report.extend(whole.report)
        whole.report = piece.report
        for name, seconds in piece.seconds.items():
            whole.seconds[name] = whole.seconds.get(name, 0.0) + seconds
        whole.faults = joined_news([piece.faults, whole.faults])
    return whole
