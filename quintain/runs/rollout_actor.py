"""The class of a Ray actor: some of a run's collectors, made from serialized settings and driven by commands.

Commands are executed in order by one thread; a second one takes stops, pulses and newest weights meanwhile, and each
collector fills blocks with fragments in a thread of its own. Errors are returned as data, so that the learner raises
the same class with the same code. Imports nothing of Ray.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch

from quintain.data.fragments import FragmentBlock
from quintain.errors import NonFiniteError
from quintain.placements.actor import Actor
from quintain.placements.commands import FILL, RETIRE, Command, Lend
from quintain.placements.remote_errors import error_to_json
from quintain.placements.shared_blocks import SharedBlocks, allocate_here
from quintain.placements.wire import answer_to_json, as_arrays
from quintain.runs.hosted_collectors import HostedCollectors, as_ours
from quintain.services.checkpoints.packed_state import pack_value, unpack_value
from quintain.services.processes.child_environment import add_code_paths
from quintain.services.reporting.redaction import redact

if TYPE_CHECKING:
    from quintain.typing import Array, JsonObject, Saved, State

CONTROL = "control"
"""The concurrency group of methods that are called while a command is executed."""
Reply: TypeAlias = "tuple[JsonObject, Saved]"
"""What a method returns: words, and arrays or packed values that belong to them."""
_Method = TypeVar("_Method", bound=Callable[..., object])
_KEPT = frozenset({"env", "episode", "lane_step", "cursor", "fragment", "num_open", "counts", "num_acts"})
_NAMED = frozenset({"halves", "collectors", "groups"})
"""Parts of a collector's state whose keys are names."""


def _answering(method: Callable[..., Reply]) -> Callable[..., Reply]:
    """Makes a method return an error as data, and act with the run's threads."""

    @wraps(method)
    def answer(self: RolloutActor, *arguments: object, **named: object) -> Reply:
        if self.hosted is not None:
            # Threads have settings of their own.
            torch.set_num_threads(self.hosted.plan.run_file.run.threads)
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            trace = redact("".join(traceback.format_exception(error)))
            evidence = error.evidence if isinstance(error, NonFiniteError) else {}
            return {"failed": error_to_json(as_ours(error, "the rollout actor"), trace)}, pack_value(dict(evidence))

    return answer


def _meanwhile(method: _Method) -> _Method:
    """Makes Ray call a method beside the command that is executed, as its own decorator of methods does."""
    method.__ray_concurrency_group__ = CONTROL  # type: ignore[attr-defined]
    return method


class RolloutActor:
    """Hosts collectors in a Ray actor; methods in order return words and data, also of a failure."""

    def __init__(self, words: JsonObject) -> None:
        self.words = words
        self.hosted: HostedCollectors | None = None
        self.actors: dict[int, Actor] = {}
        self.shared: SharedBlocks | None = None
        self.is_stopping = False
        self.left: dict[int, int] = {}
        """The number of the last block of fragments that others have filled, by collector."""

    # -- in order --------------------------------------------------------------------------------------------------

    @_answering
    def start(self) -> Reply:
        """Makes the environments; returns their descriptions."""
        words = self.words
        add_code_paths(words)
        self.hosted = HostedCollectors(words)
        return {"envs": self.hosted.make_envs(), "pid": os.getpid()}, None

    @_answering
    def build(self, words: JsonObject) -> Reply:
        """Makes the actors, with blocks and weights in this process."""
        assert self.hosted is not None, "start() comes first"
        self.actors, self.shared = self.hosted.make_actors(words, allocate_here, takes_turns=False)
        plan = self.hosted.plan
        for actor in self.actors.values() if plan.takes_newest else ():
            # The learner puts the fragments of all together.
            actor.blocks = plan.make_blocks(words["num_lanes"], actor.collector.policies)
        return {}, None

    @_answering
    def fill(self, number: int, lends: Sequence[Saved], blocks: Sequence[State], *weights: State | None) -> Reply:
        """Fills lent blocks with these weights; returns the current ones whole, full or not."""
        actor = self.actors[number]
        for lend, state, snapshot in zip((Lend(*each) for each in lends), blocks, weights, strict=True):
            # One that was stopped is sent again, with a block that is here already.
            if lend not in actor.lent[lend.behavior]:
                block = actor.blocks[lend.behavior][lend.block]
                if "fields" in state:
                    block.load_state_dict(state)
                else:
                    block.sequence = state["sequence"]
                self._take_weights(lend.behavior, lend.block, snapshot)
        command = Command(FILL, {"lend": lends})
        current = actor.current_with(command)
        answer = actor.obey(command, lambda: self.is_stopping)
        assert answer is not None, "collectors take no turns here"
        filled = [
            [each.behavior, each.block, as_arrays(actor.blocks[each.behavior][each.block].contents())]
            for each in current
        ]
        words = answer_to_json(answer)
        if answer.is_done:
            words["standing"] = _pruned(actor.collector.state_dict())
        return words, filled

    def fill_by_pieces(self, number: int, lends: Sequence[Saved], held: Sequence[State]) -> Iterator[Reply]:
        """Fills lent blocks with fragments; yields those that are complete while it goes on, and then the reply.

        What is yielded belongs to the learner, so that a fragment that is complete survives this process.
        """
        while True:
            reply = self._piece(number, lends, held, streams=True)
            yield reply
            if not reply[0].get("is_piece"):
                return

    def fill_with_fragments(self, number: int, lends: Sequence[Saved], held: Sequence[State]) -> Reply:
        """Fills lent blocks with fragments; returns all of this call at once."""
        return self._piece(number, lends, held, streams=False)

    @_answering
    def _piece(self, number: int, lends: Sequence[Saved], held: Sequence[State], *, streams: bool) -> Reply:
        """Collects until the fill is over, or with `streams` until a fragment is complete."""
        actor, command = self.actors[number], Command(FILL, {"lend": lends})
        for each, state in zip((Lend(*each) for each in lends), held, strict=True):
            if each not in actor.lent[each.behavior]:
                self._fragments(actor, each).begin_after(state["sequence"], state["num_held"])
        (lend,) = actor.current_with(command)
        block = self._fragments(actor, lend)
        first = block.num_fragments

        def is_over() -> bool:
            if self.left.get(number) == block.sequence:
                block.close()
            return self.is_stopping or (streams and block.num_fragments > first)

        answer = actor.obey(command, is_over)
        assert answer is not None, "collectors take no turns here"
        words = answer_to_json(answer)
        # A restart begins new episodes where these fragments end, and goes on counting.
        words["standing"] = actor.collector.state_dict()
        if streams and not answer.is_done and block.num_fragments > first:
            words["is_piece"] = True
            actor.go_on()
        return words, [[lend.behavior, lend.block, as_arrays(block.columns(first))]]

    @staticmethod
    def _fragments(actor: Actor, lend: Lend) -> FragmentBlock:
        block = actor.blocks[lend.behavior][lend.block]
        assert isinstance(block, FragmentBlock), "only fragments come by pieces"
        return block

    @_answering
    def obey(self, number: int, do: str, arguments: bytes, *weights: State | None) -> Reply:
        """Executes any other command; arguments and the return value are packed."""
        command = Command(do, unpack_value(arguments))
        if do in ("restore", "begin_anew"):
            self.left.pop(number, None)
        if do == RETIRE:
            self._take_weights(command.arguments["behavior"], command.arguments["block"], weights[0])
        answer = self.actors[number].obey(command, lambda: self.is_stopping)
        assert answer is not None, "collectors take no turns here"
        return answer_to_json(answer), pack_value(answer.value)

    def close(self) -> None:
        """Closes the environments."""
        if self.hosted is not None:
            self.hosted.close()

    # -- meanwhile -------------------------------------------------------------------------------------------------

    @_meanwhile
    def interrupt(self, is_wanted: bool) -> None:
        """Requests that collectors stop after their current step, or no longer."""
        self.is_stopping = is_wanted

    @_meanwhile
    def leave(self, number: int, sequence: int) -> None:
        """Lets a collector leave the block of fragments with this number, which others have filled."""
        self.left[number] = sequence

    @_meanwhile
    def pulse(self) -> int:
        """Returns a counter that changes while any collector makes progress."""
        return sum(actor.pulse for actor in self.actors.values())

    @_meanwhile
    def publish(self, behavior: str, label: Sequence[int], weights: State) -> None:
        """Makes weights the newest, for collectors that take them between two acts."""
        assert self.shared is not None, "build() comes first"
        self.shared.published[behavior].publish_arrays(label, weights)

    @_meanwhile
    def stack(self) -> str:
        """Returns where all threads of this process stand."""
        return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())

    def _take_weights(self, behavior: str, block: int, weights: Mapping[str, Array] | None) -> None:
        assert self.shared is not None, "build() comes first"
        if weights is not None:
            for name, tensor in self.shared.snapshots[behavior][block].items():
                np.copyto(tensor.numpy(), weights[name])


def _pruned(state: State, *, has_names: bool = False) -> State:
    """Returns what `begin_anew` needs of a collector's state, which is small; where lanes are is not in it."""
    return {
        key: _pruned(value, has_names=key in _NAMED) if isinstance(value, dict) else value
        for key, value in state.items()
        if has_names or key in _KEPT or key in _NAMED
    }
