"""Acts in a second process: blocks and weights are in memory that both share, commands are small messages.

The process is forked by a server like those of environment workers, ends with the learner, and sends nothing that could
become code here.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from quintain.data.fields import fields_to_json
from quintain.data.rollout import Rollout
from quintain.errors import QuintainError, SettingsError
from quintain.placements.ahead import AheadSource
from quintain.placements.commands import FILL, Answer, Command
from quintain.placements.conversation import Conversation
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.plan import ActingPlan
from quintain.placements.remote_env import RemoteEnv
from quintain.placements.settings import ProcessesSettings
from quintain.placements.shared_blocks import PULSE, STOP, SharedBlocks, lay_out, measure
from quintain.placements.snapshots import alignment_of
from quintain.placements.wire import answer_from, contents, parcel
from quintain.policies.base import Policy
from quintain.rollouts.sync_collector import EpisodeListener, never
from quintain.services.processes import unnamed_memory


class ProcessesPlacement:
    """Makes the environment in another process, which says what it is like."""

    def __init__(self, settings: ProcessesSettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.conversation = Conversation(plan.in_words(), plan.pass_environment)
        self.env = RemoteEnv(self.conversation.hear_at_start())

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Sequence[Rollout]]:
        size = measure(self.plan, self.env, policy)
        descriptor = unnamed_memory.allocate(size)
        words = {
            "starts_fresh": starts_fresh,
            "size": size,
            "alignment": alignment_of(policy),
            "fields": fields_to_json(self.plan.fields),
        }
        self.conversation.say(words, [descriptor])
        shared = lay_out(mmap.mmap(descriptor, 0), self.plan, self.env, policy)
        os.close(descriptor)
        self.conversation.hear_at_start()
        process = CollectorProcess(self.conversation, self.env, shared)
        faults, patience = self.plan.hosting.faults, self.plan.patience_seconds
        watch = WatchedOutpost(process, patience)
        return AheadSource(watch, shared.blocks, shared.snapshots, policy, faults, on_episodes), shared.blocks


class CollectorProcess:
    """A collector at the other end of a conversation."""

    def __init__(self, conversation: Conversation, env: RemoteEnv, shared: SharedBlocks) -> None:
        self.conversation = conversation
        self.env = env
        self.shared = shared
        self.supervisors = [conversation.supervisor]
        self._unanswered: deque[tuple[Command, int | None]] = deque()
        """Commands, each with the memory that holds its arguments and is for what it returns."""

    def send(self, command: Command) -> None:
        if command.do == FILL:
            block = self.shared.blocks[command.arguments["block"]]
            # Not in shared memory, because these are Python's numbers.
            place = {"sequence": block.sequence, "num_final": block.final.count}
            self._unanswered.append((command, None))
            self.conversation.say({"do": FILL, **command.arguments, **place})
            return
        descriptor = parcel(_plain(command.arguments))
        self._unanswered.append((command, descriptor))
        self.conversation.say({"do": command.do}, [descriptor])

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        words = self.conversation.hear(seconds)
        if words is None:
            return None
        answer = answer_from(words)
        command, descriptor = self._unanswered.popleft()
        if descriptor is not None:
            answer.value = contents(descriptor)
            os.close(descriptor)
        else:
            block = self.shared.blocks[command.arguments["block"]]
            block.sequence, block.final.count = int(words["sequence"]), int(words["num_final"])
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
