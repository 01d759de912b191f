"""Serializes commands and answers between a learner and its collector process.

Messages are JSON; arrays are packed in memory that is sent with a command. Nothing that is received is unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.envs.hosts.faults import FaultNews, LaneFault
from quintain.errors import EnvError
from quintain.placements.commands import Answer, Lend, Report
from quintain.services.checkpoints.packed_state import pack_value, unpack_value
from quintain.services.processes import unnamed_memory

if TYPE_CHECKING:
    from quintain.placements.plan import Blocks
    from quintain.typing import Saved


def answer_to_json(answer: Answer) -> dict[str, Any]:
    """Serializes an answer without its value, which is too large for a message."""
    return {
        "is_done": answer.is_done,
        "report": None if answer.report is None else asdict(answer.report),
        "seconds": answer.seconds,
        "faults": _news_to_json(answer.faults),
        "exactness": answer.exactness,
    }


def answer_from_json(words: dict[str, Any]) -> Answer:
    report = words["report"]
    return Answer(
        bool(words["is_done"]),
        None if report is None else Report.from_json(report),
        {str(name): float(seconds) for name, seconds in words["seconds"].items()},
        _news_from_json(words["faults"]),
        str(words["exactness"]),
    )


def places_of(blocks: Blocks, lends: Iterable[Lend]) -> list[list[Any]]:
    """Returns the attributes of lent blocks that are not in shared memory: sequence number and count of final rows."""
    lent = ((lend, blocks[lend.behavior][lend.block]) for lend in lends)
    return [[lend.behavior, lend.block, block.sequence, block.final.count] for lend, block in lent]


def place_blocks(blocks: Blocks, places: Iterable[Sequence[Any]]) -> None:
    """Applies the attributes that `places_of` returned in the other process."""
    for behavior, number, sequence, num_final in places:
        block = blocks[behavior][number]
        block.sequence, block.final.count = int(sequence), int(num_final)


def as_arrays(state: Saved) -> Saved:
    """Returns a state with whole arrays in place of tensors; those of the CPU share their memory where they can."""
    if isinstance(state, torch.Tensor | np.ndarray):
        # What is not in one piece would be sent among the words, and be copied again where it is read.
        return np.asarray(state.detach().numpy() if isinstance(state, torch.Tensor) else state, order="C")
    if isinstance(state, Mapping):
        return {name: as_arrays(value) for name, value in state.items()}
    return [as_arrays(value) for value in state] if isinstance(state, list | tuple) else state


def parcel(value: Any) -> int:
    """Returns a descriptor of memory that holds a serialized value."""
    descriptor = unnamed_memory.growing()
    refill(descriptor, value)
    return descriptor


def refill(descriptor: int, value: Any) -> None:
    """Replaces the value in the memory of a descriptor."""
    data = pack_value(value)
    os.truncate(descriptor, len(data))
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], written)


def contents(descriptor: int) -> Any:
    """Deserializes the value in the memory of a descriptor; tensors are returned as arrays."""
    size = os.fstat(descriptor).st_size
    data = b""
    while len(data) < size:
        data += os.pread(descriptor, size - len(data), len(data))
    return unpack_value(data)


def _news_to_json(news: FaultNews) -> dict[str, Any]:
    return {
        "told": [[_fault_to_json(fault), line] for fault, line in news.told],
        "restarts": news.restarts,
        "aborted": news.aborted,
        "spent": None if news.spent is None else [news.spent.message, news.spent.code],
        "fatal": None if news.fatal is None else _fault_to_json(news.fatal),
    }


def _news_from_json(words: dict[str, Any]) -> FaultNews:
    spent, fatal = words["spent"], words["fatal"]
    return FaultNews(
        tuple((_fault_from_json(fault), str(line)) for fault, line in words["told"]),
        int(words["restarts"]),
        int(words["aborted"]),
        None if spent is None else EnvError(str(spent[0]), code=str(spent[1])),
        None if fatal is None else _fault_from_json(fatal),
    )


def _fault_to_json(fault: LaneFault) -> list[Any]:
    return [list(fault.lanes), fault.call, fault.what, fault.error, fault.trace, fault.code, fault.warning]


def _fault_from_json(words: list[Any]) -> LaneFault:
    lanes, *texts = words
    call, what, error, trace, code, warning = map(str, texts)
    return LaneFault(tuple(int(lane) for lane in lanes), call, what, error, trace, code, warning)
