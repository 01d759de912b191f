"""Acts in a second process: blocks and weights are in memory that both share, commands are small messages.

The process is forked by a server like those of environment workers, ends with the learner, and sends nothing that could
become code here.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from quintain.errors import QuintainError, SettingsError
from quintain.placements.ahead import AheadSource
from quintain.placements.commands import FILL, Answer, Command, Lend
from quintain.placements.conversation import Conversation
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_env import RemoteAgentEnv, RemoteEnv, remote_env
from quintain.placements.settings import ProcessesSettings
from quintain.placements.share import Share
from quintain.placements.shared_blocks import PULSE, STOP, SharedBlocks, lay_out, measure
from quintain.placements.snapshots import alignment_of
from quintain.placements.wire import answer_from, contents, parcel, place_blocks, places_of
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener
from quintain.rollouts.sync_collector import never
from quintain.services.processes import unnamed_memory


class ProcessesPlacement:
    """Makes the environment in another process, which says what it is like."""

    def __init__(self, settings: ProcessesSettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.conversation = Conversation(plan.to_json(), plan.pass_environment)
        self.env = remote_env(self.conversation.hear_at_start())

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Blocks]:
        size = measure(self.plan, self.env, policies)
        descriptor = unnamed_memory.allocate(size)
        alignment = {name: alignment_of(policy) for name, policy in policies.items()}
        self.conversation.say({"starts_fresh": starts_fresh, "size": size, "alignment": alignment}, [descriptor])
        shared = lay_out(mmap.mmap(descriptor, 0), self.plan, self.env, policies)
        os.close(descriptor)
        self.conversation.hear_at_start()
        process = CollectorProcess(self.conversation, self.env, shared, sends_blocks=self.plan.has_agents)
        faults, patience = self.plan.hosting.faults, self.plan.patience_seconds
        watch = WatchedOutpost(process, patience)
        shares = {
            name: Share(name, policy, shared.blocks[name], shared.snapshots[name]) for name, policy in policies.items()
        }
        return AheadSource(watch, shares, faults, on_episodes), shared.blocks


class CollectorProcess:
    """A collector at the other end of a conversation."""

    def __init__(
        self, conversation: Conversation, env: RemoteEnv | RemoteAgentEnv, shared: SharedBlocks, *, sends_blocks: bool
    ) -> None:
        """Takes the memory that both share; with `sends_blocks` the blocks are not in it and travel whole."""
        self.conversation = conversation
        self.env = env
        self.shared = shared
        self.sends_blocks = sends_blocks
        self.supervisors = [conversation.supervisor]
        self._unanswered: deque[tuple[Command, int | None]] = deque()
        """Commands, each with the memory that holds its arguments and is for what it returns."""

    def send(self, command: Command) -> None:
        lends = [Lend(*each) for each in command.arguments["lend"]] if command.do == FILL else []
        if command.do == FILL and not self.sends_blocks:
            # Not in shared memory, because these are Python's numbers.
            self._unanswered.append((command, None))
            self.conversation.say({"do": FILL, **command.arguments, "places": places_of(self.shared.blocks, lends)})
            return
        arguments = _plain(command.arguments)
        if command.do == FILL:
            arguments["blocks"] = [self.shared.blocks[lend.behavior][lend.block].state_dict() for lend in lends]
        descriptor = parcel(arguments)
        self._unanswered.append((command, descriptor))
        self.conversation.say({"do": command.do}, [descriptor])

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        words = self.conversation.hear(seconds)
        if words is None:
            return None
        answer = answer_from(words)
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
        return self.conversation.give_up(seconds)

    def close(self) -> None:
        self.interrupt(True)
        self.conversation.close()
        while self._unanswered:
            _, descriptor = self._unanswered.popleft()
            if descriptor is not None:
                os.close(descriptor)


def _plain(arguments: Any) -> Any:
    """Returns arguments as what a checkpoint could hold; refuses functions, which only a thread can be given."""
    if callable(arguments):
        raise SettingsError(
            "run.placement.type processes cannot call functions of this process at every step; use threads or local",
            code="E0252",
        )
    if isinstance(arguments, dict):
        return {name: _plain(value) for name, value in arguments.items()}
    return [_plain(value) for value in arguments] if isinstance(arguments, list | tuple) else arguments
