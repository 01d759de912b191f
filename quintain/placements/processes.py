"""Acts in a second process: blocks and weights are in shared memory, commands are small messages.

The process is forked by a server like those of environment workers, ends with the learner, and sends nothing that could
become code here.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from quintain.data.fields import fields_to_json
from quintain.errors import QuintainError, SettingsError
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.collector_process import CollectorProcess
from quintain.placements.commands import FILL, Answer, Command, Lend
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_collector import WatchedCollector
from quintain.placements.remote_env import RemoteAgentEnv, RemoteEnv, remote_env
from quintain.placements.settings import ProcessesSettings
from quintain.placements.share import Share
from quintain.placements.shared_blocks import PULSE, STOP, SharedBlocks, lay_out, measure
from quintain.placements.snapshots import alignment_of
from quintain.placements.wire import answer_from_json, contents, parcel, place_blocks, places_of
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener
from quintain.rollouts.sync_collector import never
from quintain.services.processes import unnamed_memory


class ProcessesPlacement:
    """Makes the environment in another process, which sends its description."""

    def __init__(self, settings: ProcessesSettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.process = CollectorProcess(plan.to_json(), plan.pass_environment)
        self.env = remote_env(self.process.receive_at_start())

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Blocks]:
        size = measure(self.plan, self.env, policies)
        descriptor = unnamed_memory.allocate(size)
        alignment = {name: alignment_of(policy) for name, policy in policies.items()}
        fields = {name: fields_to_json(each) for name, each in self.plan.fields.items()}
        words = {"starts_fresh": starts_fresh, "size": size, "alignment": alignment, "fields": fields}
        self.process.send(words, [descriptor])
        shared = lay_out(mmap.mmap(descriptor, 0), self.plan, self.env, policies)
        os.close(descriptor)
        self.process.receive_at_start()
        process = ProcessCollector(self.process, self.env, shared, sends_blocks=self.plan.has_agents)
        faults, patience = self.plan.hosting.faults, self.plan.patience_seconds
        watch = WatchedCollector(process, patience)
        shares = {
            name: Share(name, policy, shared.blocks[name], shared.snapshots[name]) for name, policy in policies.items()
        }
        return AheadSource(SourceParts(watch, shares, faults, on_episodes)), shared.blocks


class ProcessCollector:
    """A collector in another process."""

    def __init__(
        self, process: CollectorProcess, env: RemoteEnv | RemoteAgentEnv, shared: SharedBlocks, *, sends_blocks: bool
    ) -> None:
        """Takes the shared memory; with `sends_blocks`, blocks are not in it and are sent whole."""
        self.process = process
        self.env = env
        self.shared = shared
        self.sends_blocks = sends_blocks
        self.supervisors = [process.supervisor]
        self._unanswered: deque[tuple[Command, int | None]] = deque()
        """Commands without an answer, each with the memory of its arguments and its return value."""

    def send(self, command: Command) -> None:
        lends = [Lend(*each) for each in command.arguments["lend"]] if command.do == FILL else []
        if command.do == FILL and not self.sends_blocks:
            # Not in shared memory, because these are Python's numbers.
            self._unanswered.append((command, None))
            self.process.send({"do": FILL, **command.arguments, "places": places_of(self.shared.blocks, lends)})
            return
        arguments = _plain(command.arguments)
        if command.do == FILL:
            arguments["blocks"] = [self.shared.blocks[lend.behavior][lend.block].state_dict() for lend in lends]
        descriptor = parcel(arguments)
        self._unanswered.append((command, descriptor))
        self.process.send({"do": command.do}, [descriptor])

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        words = self.process.receive(seconds)
        if words is None:
            return None
        answer = answer_from_json(words)
        command, descriptor = self._unanswered.popleft()
        if descriptor is None:
            place_blocks(self.shared.blocks, words["places"])
            return answer
        answer.value = contents(descriptor)
        os.close(descriptor)
        if command.do == FILL:
            for behavior, number, state in answer.value:
                self.shared.blocks[behavior][number].load_state_dict(state)
        return answer

    def interrupt(self, is_wanted: bool) -> None:
        self.shared.signals[STOP] = int(is_wanted)

    @property
    def pulse(self) -> int:
        return int(self.shared.signals[PULSE])

    def give_up(self, seconds: float) -> QuintainError:
        return self.process.give_up(seconds)

    def close(self) -> None:
        self.interrupt(True)
        self.process.close()
        while self._unanswered:
            _, descriptor = self._unanswered.popleft()
            if descriptor is not None:
                os.close(descriptor)


def _plain(arguments: Any) -> Any:
    """Returns arguments as data that can be serialized; refuses functions, which only threads can take."""
    if callable(arguments):
        raise SettingsError(
            "run.placement.type processes cannot call functions of this process at every step; use threads or local",
            code="E0252",
        )
    if isinstance(arguments, dict):
        return {name: _plain(value) for name, value in arguments.items()}
    return [_plain(value) for value in arguments] if isinstance(arguments, list | tuple) else arguments
