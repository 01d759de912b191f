"""The state of a run that several ranks share: gathered into one tree for a checkpoint, and dealt out again.

What all ranks have alike is saved once; what each has for itself stands below `ranks/<rank>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain.services.checkpoints.packed_state import pack, unpack
from quintain.services.checkpoints.state_files import SUBTREES

if TYPE_CHECKING:
    from quintain.core.process_group import World
    from quintain.trainers.loop import Loop
    from quintain.typing import State

RANKS = "ranks"


def gather_state(loop: Loop) -> State:
    """Returns the state of all ranks to rank 0, and this rank's own to the others; all ranks call it."""
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
    """Returns what one rank restores of the state of all."""
    return {
        subtree: _merged(_without_ranks(tree), tree.get(RANKS, {}).get(str(rank), {}))
        for subtree, tree in state.items()
    }


def deal_anew(loop: Loop, state: State) -> None:
    """Restores what ranks have alike, for another number of ranks; their lanes begin new episodes.

    Experience that waited and the recent episodes belonged to the old ranks, and are dropped.
    """
    for subtree in reversed(SUBTREES):
        for name, saved in _without_ranks(state[subtree]).items():
            loop.load_shared(name, saved)
    training = state["training"]
    old = list(training[RANKS].values()) if RANKS in training else [training]
    loop.begin_anew(old)


def joint_exactness(loop: Loop) -> str:
    """Returns how exactly the run resumes, to rank 0: as exactly as the least exact rank."""
    own = loop.exactness
    said = [data.decode() for data in loop.world.collect(own.encode())]
    return next((text for text in said if text != "exact"), own)


def broadcast_state(world: World, state: State | None) -> State:
    """Returns rank 0's state to all ranks, as a checkpoint would give it back."""
    return unpack(world.broadcast(b"" if state is None else pack(state)))


def _without(tree: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Returns a tree without the values that are in another, wherever they stand."""
    return {
        name: _without(saved, own[name]) if name in own else saved
        for name, saved in tree.items()
        if name not in own or saved is not own[name]
    }


def _merged(tree: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Returns both trees as one; no value is in both."""
    both = {name: _merged(tree[name], own[name]) for name in own if name in tree}
    return {**tree, **own, **both}


def _without_ranks(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: saved for name, saved in tree.items() if name != RANKS}
