"""The acting half itself, in whichever thread or process: a collector with a policy of its own, driven by commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from quintain.data.rollout import Rollout
from quintain.envs.hosts.faults import FaultKeeper, FaultNews, LaneFault
from quintain.envs.parameters import Parameters
from quintain.placements.commands import FILL, IN_ORDER, Answer, Command, Report
from quintain.placements.snapshots import Snapshot, load_snapshot
from quintain.rollouts.source import Collector, fire_env_events, idle_env_events
from quintain.rollouts.sync_collector import StepListener

if TYPE_CHECKING:
    from quintain.typing import Array, State


class Actor:
    """Carries out one command at a time; the policy it acts with is nobody else's."""

    def __init__(
        self,
        collector: Collector,
        blocks: Sequence[Rollout],
        snapshots: Sequence[Snapshot],
        faults: FaultKeeper,
    ) -> None:
        self.collector = collector
        self.blocks = blocks
        self.snapshots = snapshots
        self.report = Report()
        self.num_looks = 0
        self.is_giving_up = False
        self.is_held = False
        """Whether a command in the order was left undone, so that no later one may be done."""
        collector.on_episodes = self._remember
        collector.env.be_watched()
        self.faults = FaultRelay(faults, self._give_up)

    def obey(self, command: Command, should_stop: Callable[[], bool]) -> Answer:
        """Does what is asked; whatever comes after a stop is left for later, so that the order stays."""
        self.num_looks += 1
        if command.do in IN_ORDER and (self.is_held or should_stop()):
            self.is_held = True
            return self._answer(is_done=False)
        if command.do == FILL:
            return self._fill(command.arguments["block"], command.arguments["version"], should_stop)
        value = getattr(self, command.do)(**command.arguments)
        return self._answer(is_done=True, value=value)

    def _fill(self, number: int, version: int, should_stop: Callable[[], bool]) -> Answer:
        load_snapshot(self.collector.policy, self.snapshots[number])
        self.is_giving_up = False

        def is_to_stop() -> bool:
            self.num_looks += 1
            return self.is_giving_up or should_stop()

        is_done = self.collector.collect(self.blocks[number], version, is_to_stop)
        report, self.report = self.report, Report()
        report.version = version
        self.is_held = not is_done
        if is_done:
            report.metrics = self.collector.drain_metrics()
        return self._answer(is_done=is_done, report=report)

    @property
    def pulse(self) -> int:
        """A number that changes whenever something happens; may be read in another thread."""
        return self.num_looks + self.collector.env.pulse

    def go_on(self) -> None:
        self.is_held = False

    def set_env_parameters(self, values: Parameters) -> None:
        self.collector.env.set_parameters(values)

    def require_env_parameters(self, names: Sequence[str]) -> None:
        self.collector.env.require_parameters(names)

    def end_episode(self) -> None:
        self.collector.start_episodes()

    def trigger(self, name: str, lanes: Any) -> None:
        fire_env_events(self.collector.env, name, lanes)

    def idle_env_events(self) -> list[str]:
        return idle_env_events(self.collector.env)

    def listen(self, on_step: StepListener | None) -> None:
        self.collector.on_step = on_step

    def save(self) -> State:
        return self.collector.state_dict()

    def restore(self, state: State) -> None:
        self.report, self.is_held = Report(), False
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
            self.faults.drain(),
            self.collector.env.exactness,
            value,
        )

    def _remember(self, returns: Array, lengths: Array) -> None:
        self.report.returns += returns.tolist()
        self.report.lengths += lengths.tolist()

    def _give_up(self, reason: str) -> None:
        self.is_giving_up = True


class FaultRelay:
    """Keeps what a keeper of faults tells until somebody comes for it."""

    def __init__(self, keeper: FaultKeeper, give_up: Callable[[str], None]) -> None:
        self.keeper = keeper
        self.told: list[tuple[LaneFault, str]] = []
        self.num_told = (0, 0)
        self.is_spent_told = False
        keeper.listen(lambda fault, line: self.told.append((fault, line)), give_up)

    def drain(self) -> FaultNews:
        """Returns what happened since the last time."""
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
