"""Acts in other processes: blocks and weights are in shared memory, commands are small messages.

Each process is forked by a server like those of environment workers, ends with the learner, and sends nothing that
could become code here.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from quintain.data.fields import fields_to_json
from quintain.errors import QuintainError, SettingsError
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.collector_process import CHILD_MODULE, CollectorProcess
from quintain.placements.commands import FILL, Answer, Command, Lend
from quintain.placements.fleet import Fleet
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_collector import WatchedCollector
from quintain.placements.remote_env import RemoteAgentEnv, RemoteEnv, remote_env
from quintain.placements.settings import ProcessesSettings
from quintain.placements.share import Share
from quintain.placements.shared_blocks import PULSE, STOP, lay_out, measure
from quintain.placements.snapshots import alignment_of
from quintain.placements.wire import answer_from_json, contents, parcel, place_blocks, places_of
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener
from quintain.rollouts.sync_collector import never
from quintain.services.processes import unnamed_memory
from quintain.services.processes.supervisor import Supervisor


class ProcessesPlacement:
    """Makes the environment in another process, which sends its description."""

    def __init__(self, settings: ProcessesSettings, plan: ActingPlan) -> None:
        self.plan = plan
        words, num_collectors = plan.to_json(), plan.num_collectors
        supervisor = Supervisor([CHILD_MODULE], plan.pass_environment)
        shares = np.array_split(
            np.arange(num_collectors), min(settings.num_processes or num_collectors, num_collectors)
        )
        self.processes = [
            CollectorProcess(words, share.tolist(), supervisor, plan.pass_environment) for share in shares
        ]
        self.env = remote_env([env for words in self._received_from_all() for env in words["envs"]])

    def _received_from_all(self) -> list[dict[str, Any]]:
        """Returns a message of each process; one that fails ends the others."""
        try:
            return [process.receive_at_start() for process in self.processes]
        except BaseException:
            for process in self.processes:
                process.close()
            raise

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Blocks]:
        plan, num_lanes = self.plan, self.env.num_lanes if isinstance(self.env, RemoteEnv) else 0
        size = measure(plan, num_lanes, policies)
        descriptor = unnamed_memory.allocate(size)
        alignment = {name: alignment_of(policy) for name, policy in policies.items()}
        fields = {name: fields_to_json(each) for name, each in plan.fields.items()}
        words = {"starts_fresh": starts_fresh, "size": size, "alignment": alignment, "fields": fields}
        for process in self.processes:
            process.send({**words, "num_lanes": num_lanes}, [descriptor])
        shared = lay_out(mmap.mmap(descriptor, 0), plan, num_lanes, policies)
        os.close(descriptor)
        self._received_from_all()
        shares = {
            name: Share(name, policy, shared.blocks[name], shared.snapshots[name], shared.published.get(name))
            for name, policy in policies.items()
        }
        remotes, parts = [], []
        for process in self.processes:
            for number in process.collectors:
                parts.append(plan.parts_of(shared.blocks, policies, number))
                signals = shared.signals[number]
                mine = ProcessCollector(process, number, self.env, parts[-1], signals, sends_blocks=plan.has_agents)
                remotes.append(WatchedCollector(mine, plan.patience_seconds))
        remote = remotes[0] if len(remotes) == 1 else Fleet(self.env, shares, remotes, parts)
        return AheadSource(SourceParts(remote, shares, plan.hosting.faults, on_episodes)), shared.blocks


class ProcessCollector:
    """A collector in another process, which may have several."""

    def __init__(
        self,
        process: CollectorProcess,
        number: int,
        env: RemoteEnv | RemoteAgentEnv,
        blocks: Blocks,
        signals: torch.Tensor,
        *,
        sends_blocks: bool,
    ) -> None:
        """Takes its number and its parts of blocks; with `sends_blocks`, they are not shared and are sent whole."""
        self.process = process
        self.number = number
        self.env = env
        self.blocks = blocks
        self.signals = signals
        self.sends_blocks = sends_blocks
        self.supervisors = [process.supervisor]
        self._unanswered: deque[tuple[Command, int | None]] = deque()
        """Commands without an answer, each with the memory of its arguments and its return value."""

    def send(self, command: Command) -> None:
        lends = [Lend(*each) for each in command.arguments["lend"]] if command.do == FILL else []
        if command.do == FILL and not self.sends_blocks:
            # Not in shared memory, because these are Python's numbers.
            self._unanswered.append((command, None))
            places = places_of(self.blocks, lends)
            self.process.send({"do": FILL, "collector": self.number, **command.arguments, "places": places})
            return
        arguments = plain_arguments(command.arguments)
        if command.do == FILL:
            arguments["blocks"] = [self.blocks[lend.behavior][lend.block].state_dict() for lend in lends]
        descriptor = parcel(arguments)
        self._unanswered.append((command, descriptor))
        self.process.send({"do": command.do, "collector": self.number}, [descriptor])

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        words = self.process.receive_from(self.number, seconds)
        if words is None:
            return None
        answer = answer_from_json(words)
        command, descriptor = self._unanswered.popleft()
        if descriptor is None:
            place_blocks(self.blocks, words["places"])
            return answer
        answer.value = contents(descriptor)
        os.close(descriptor)
        if command.do == FILL:
            for behavior, number, state in answer.value:
                self.blocks[behavior][number].load_state_dict(state)
        return answer

    def interrupt(self, is_wanted: bool) -> None:
        self.signals[STOP] = int(is_wanted)

    @property
    def pulse(self) -> int:
        return int(self.signals[PULSE])

    def give_up(self, seconds: float) -> QuintainError:
        return self.process.give_up(seconds)

    def close(self) -> None:
        self.interrupt(True)
        self.process.close()
        while self._unanswered:
            _, descriptor = self._unanswered.popleft()
            if descriptor is not None:
                os.close(descriptor)


def plain_arguments(arguments: Any) -> Any:
    """Returns arguments as data that can be serialized; refuses functions, which only threads can take."""
    if callable(arguments):
        raise SettingsError(
            "run.placement.type processes cannot call functions of this process at every step; use threads or local",
            code="E0252",
        )
    if isinstance(arguments, dict):
        return {name: plain_arguments(value) for name, value in arguments.items()}
    return [plain_arguments(value) for value in arguments] if isinstance(arguments, list | tuple) else arguments
