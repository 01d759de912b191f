"""The actor, in any thread or process: a collector with its own copies of the policies, driven by commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quintain.data.rollout import Rollout
from quintain.envs.hosts.faults import FaultKeeper, FaultNews, LaneFault
from quintain.envs.parameters import Parameters
from quintain.placements.commands import FILL, IN_ORDER, Answer, Command, Filled, Lend, Report
from quintain.placements.snapshots import Snapshot, load_snapshot
from quintain.rollouts.source import Collector, fire_env_events, idle_env_events
from quintain.rollouts.sync_collector import StepListener

if TYPE_CHECKING:
    from quintain.typing import Array, LaneIds, State

NO_NEWS = FaultNews()


class Actor:
    """Executes one command at a time, with copies of the policies that change only by command."""

    def __init__(
        self,
        collector: Collector,
        blocks: Mapping[str, Sequence[Rollout]],
        snapshots: Mapping[str, Sequence[Snapshot]],
        faults: FaultKeeper | None,
    ) -> None:
        """Takes the blocks to fill, and as many snapshots of weights to fill them with, by behaviour.

        `faults` are relayed with the answers; None where the run's own keeper hears of them directly.
        """
        self.collector = collector
        self.blocks = blocks
        self.snapshots = snapshots
        self.lent: dict[str, deque[Lend]] = {name: deque() for name in blocks}
        """Blocks to fill, the current one first."""
        self.report = Report()
        self.num_looks = 0
        self.is_giving_up = False
        self.is_held = False
        """Whether a command was interrupted; later commands of the order then wait."""
        collector.on_episodes = self._remember
        collector.env.be_watched()
        self.faults = None if faults is None else FaultRelay(faults, self._give_up)

    def obey(self, command: Command, should_stop: Callable[[], bool]) -> Answer | None:
        """Executes a command. After a stop, later commands are left undone too, so that the order is kept.

        None if its turn ended before: the same command has to be given to it again.
        """
        self.num_looks += 1
        if command.do in IN_ORDER and (self.is_held or should_stop()):
            self.is_held = True
            return self._answer(is_done=False, report=self._take_report() if command.do == FILL else None)
        if command.do == FILL:
            return self._fill(command, should_stop)
        value = getattr(self, command.do)(**command.arguments)
        return self._answer(is_done=True, value=value)

    def current_with(self, command: Command) -> list[Lend]:
        """Takes the blocks that come with a `fill`, and returns the current block of each behaviour."""
        for lend in (Lend(*each) for each in command.arguments["lend"]):
            # A command that was stopped is sent again with the same blocks.
            if lend not in self.lent[lend.behavior]:
                self.lent[lend.behavior].append(lend)
        return [waiting[0] for waiting in self.lent.values() if waiting]

    def _fill(self, command: Command, should_stop: Callable[[], bool]) -> Answer | None:
        current = {lend.behavior: lend for lend in self.current_with(command)}
        for name, lend in current.items():
            load_snapshot(self.collector.policies[name], self.snapshots[name][lend.block])
        self.is_giving_up = False

        def is_to_stop() -> bool:
            self.num_looks += 1
            return self.is_giving_up or should_stop()

        orders = {name: (self.blocks[name][lend.block], lend.version) for name, lend in current.items()}
        full = self.collector.fill(orders, is_to_stop)
        if not full and not is_to_stop():
            return None
        report = self._take_report()
        for name in full:
            version = self.lent[name].popleft().version
            report.filled[name] = Filled(version, self.collector.drain_metrics(name))
        self.is_held = not full
        return self._answer(is_done=bool(full), report=report)

    def _take_report(self) -> Report:
        """Returns the episodes since the last call."""
        report, self.report = self.report, Report()
        return report

    @property
    def pulse(self) -> int:
        """A counter that changes whenever the actor makes progress; may be read from another thread."""
        return self.num_looks + int(self.collector.env.pulse)

    def go_on(self) -> None:
        self.is_held = False

    def retire(self, behavior: str, block: int, version: int) -> None:
        """Lets a behaviour continue to act with these weights; its steps are discarded until a block is lent again."""
        self.lent[behavior].clear()
        load_snapshot(self.collector.policies[behavior], self.snapshots[behavior][block])
        self.collector.act_on(behavior, version)

    def set_env_parameters(self, values: Parameters, **more: State) -> None:
        self.collector.env.set_parameters(values, **more)

    def restore_env_parameters(self, values: Parameters, **more: State) -> None:
        """Sets parameters again that a restored state does not contain; does not count as a new draw."""
        env = self.collector.env
        num_settings = env.num_settings
        env.set_parameters(values, **more)
        env.num_settings = num_settings
        if env.exactness != "exact":
            self.collector.start_episodes()

    def require_env_parameters(self, names: Sequence[str]) -> None:
        self.collector.env.require_parameters(names)

    def end_episode(self) -> None:
        self.collector.start_episodes()

    def trigger(self, name: str, lanes: LaneIds | None) -> None:
        fire_env_events(self.collector.env, name, lanes)

    def idle_env_events(self) -> list[str]:
        return idle_env_events(self.collector.env)

    def listen(self, on_step: StepListener | None) -> None:
        self.collector.on_step = on_step

    def save(self) -> State:
        return self.collector.state_dict()

    def restore(self, state: State) -> None:
        self.report, self.is_held = Report(), False
        for waiting in self.lent.values():
            waiting.clear()
        self.collector.load_state_dict(state)

    def begin_anew(self, states: Sequence[State]) -> None:
        self.collector.begin_anew(states)

    def close(self) -> None:
        self.collector.env.close()

    def _answer(self, *, is_done: bool, report: Report | None = None, value: Any = None) -> Answer:
        return Answer(
            is_done,
            report,
            self.collector.drain_seconds(),
            NO_NEWS if self.faults is None else self.faults.drain(),
            self.collector.env.exactness,
            value,
        )

    def _remember(self, behavior: str, returns: Array, lengths: Array) -> None:
        self.report.add_episodes(behavior, returns.tolist(), lengths.tolist())

    def _give_up(self, reason: str) -> None:
        self.is_giving_up = True


class FaultRelay:
    """Buffers the notifications of a `FaultKeeper` until they are drained."""

    def __init__(self, keeper: FaultKeeper, give_up: Callable[[str], None]) -> None:
        self.keeper = keeper
        self.told: list[tuple[LaneFault, str]] = []
        self.num_told = (0, 0)
        self.is_spent_told = False
        keeper.listen(lambda fault, line: self.told.append((fault, line)), give_up)

    def drain(self) -> FaultNews:
        """Returns the faults since the last call."""
        keeper, (restarts, aborted) = self.keeper, self.num_told
        is_new = keeper.spent is not None and not self.is_spent_told
        news = FaultNews(
            tuple(self.told),
            keeper.restarts - restarts,
            keeper.aborted - aborted,
            keeper.spent if is_new else None,
            keeper.fatal if is_new else None,
        )
        self.told, self.num_told = [], (keeper.restarts, keeper.aborted)
        self.is_spent_told = keeper.spent is not None
        return news
