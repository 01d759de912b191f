"""The state of a run that several ranks share: gathered into one tree for a checkpoint, and dealt out again.

What all ranks have alike is saved once; what each has for itself stands below `ranks/<rank>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain.services.packed_state import pack, unpack
from quintain.services.state_files import SUBTREES

if TYPE_CHECKING:
    from quintain.policies.base import Policy
    from quintain.trainers.base import Trainer
    from quintain.typing import State
    from quintain.world import World

RANKS = "ranks"


def gather_state(trainer: Trainer) -> State:
    """Returns the state of all ranks to rank 0, and this rank's own to the others; all ranks call it."""
    state = trainer.state_dict()
    if trainer.world.size == 1:
        return state
    own = {subtree: _take(state[subtree], trainer.rank_parts) for subtree in SUBTREES}
    for rank, data in enumerate(trainer.world.collect(pack(own))):
        for subtree, parts in unpack(data).items():
            state[subtree].setdefault(RANKS, {})[str(rank)] = parts
    return state


def share_of(state: State, rank: int) -> State:
    """Returns what one rank restores of the state of all."""
    return {
        subtree: {**_without_ranks(tree), **tree.get(RANKS, {}).get(str(rank), {})} for subtree, tree in state.items()
    }


def deal_anew(trainer: Trainer, state: State) -> None:
    """Restores what ranks have alike, for another number of ranks; their lanes begin new episodes.

    Experience that waited and the recent episodes belonged to the old ranks, and are dropped.
    """
    for subtree in reversed(SUBTREES):
        for name, saved in _without_ranks(state[subtree]).items():
            if name not in trainer.rank_parts:
                trainer.load_part(name, saved)
    training = state["training"]
    old = list(training[RANKS].values()) if RANKS in training else [training]
    trainer.source.begin_anew([ranks["source"] for ranks in old])
    trainer.progress.begin_cycle_anew()


def joint_exactness(trainer: Trainer) -> str:
    """Returns how exactly the run resumes, to rank 0: as exactly as the least exact rank."""
    own = trainer.source.exactness
    said = [data.decode() for data in trainer.world.collect(own.encode())]
    return next((text for text in said if text != "exact"), own)


def share_policy(policy: Policy, world: World) -> None:
    """Gives all ranks the weights of rank 0."""
    for tensor in policy.state_dict().values():
        world.share(tensor)


def broadcast_state(world: World, state: State | None) -> State:
    """Returns rank 0's state to all ranks, as a checkpoint would give it back."""
    return unpack(world.broadcast(b"" if state is None else pack(state)))


def _take(tree: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: tree.pop(name) for name in names if name in tree}


def _without_ranks(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: saved for name, saved in tree.items() if name != RANKS}
