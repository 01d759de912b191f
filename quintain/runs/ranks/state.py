"""The state of a run with several ranks: gathered into one tree for a checkpoint, and distributed again.

State that all ranks share is saved once; the state of a single rank is below `ranks/<rank>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain.services.checkpoints.packed_state import pack, unpack
from quintain.services.checkpoints.state_files import SUBTREES

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.trainers.loop import Loop
    from quintain.typing import State

RANKS = "ranks"


def gather_state(loop: Loop) -> State:
    """Returns the state of all ranks on rank 0, and this rank's own on the others; collective."""
    state = loop.state_dict()
    if loop.world.size == 1:
        return state
    own = {subtree: loop.rank_state(subtree, state[subtree]) for subtree in SUBTREES}
    for subtree in SUBTREES:
        state[subtree] = _without(state[subtree], own[subtree])
    for rank, data in enumerate(loop.world.collect(pack(own))):
        for subtree, parts in unpack(data).items():
            state[subtree].setdefault(RANKS, {})[str(rank)] = parts
    return state


def share_of(state: State, rank: int) -> State:
    """Returns the part of the joint state that one rank restores."""
    return {
        subtree: _merged(_without_ranks(tree), tree.get(RANKS, {}).get(str(rank), {}))
        for subtree, tree in state.items()
    }


def deal_anew(loop: Loop, state: State) -> None:
    """Restores the state that all ranks share, for another number of ranks; their lanes begin new episodes.

    Unconsumed experience and recent episodes belonged to the old ranks, and are dropped.
    """
    for subtree in reversed(SUBTREES):
        for name, saved in _without_ranks(state[subtree]).items():
            loop.load_shared(name, saved)
    training = state["training"]
    old = list(training[RANKS].values()) if RANKS in training else [training]
    loop.begin_anew(old)


def joint_exactness(loop: Loop) -> str:
    """Returns the exactness of a resume on rank 0: that of the least exact rank."""
    own = loop.exactness
    said = [data.decode() for data in loop.world.collect(own.encode())]
    return next((text for text in said if text != "exact"), own)


def broadcast_state(world: ProcessGroup, state: State | None) -> State:
    """Returns rank 0's state on all ranks, as a checkpoint would return it."""
    return unpack(world.broadcast(b"" if state is None else pack(state)))


def _without(tree: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Returns a tree without the values that are also in another tree at the same path."""
    return {
        name: _without(saved, own[name]) if name in own else saved
        for name, saved in tree.items()
        if name not in own or saved is not own[name]
    }


def _merged(tree: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merges two trees; no value is in both."""
    both = {name: _merged(tree[name], own[name]) for name in own if name in tree}
    return {**tree, **own, **both}


def _without_ranks(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: saved for name, saved in tree.items() if name != RANKS}
