"""Minibatches: rows in random order, or whole lanes in random order for a recurrent policy.

Rows are gathered into memory that the next minibatch reuses, so a minibatch is valid until the next one is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.errors import SpecMismatch

Minibatch = Mapping[str, torch.Tensor]
"""Fields by name, [B, ...]; for recurrent policies B = T * n in time-major order, and `policy_state [n, S]` before
step 0."""


GATHER_BYTES = 1 << 20
"""Bytes gathered at once: for small minibatches, one call per field and minibatch costs more than the copy."""


class MinibatchSampler:
    """Samples minibatches from a batch."""

    def __init__(self, rng: Rng, burn_in: int = 0) -> None:
        self.rng = rng
        self.burn_in = burn_in
        """Steps at the start of a sequence that are left out of losses."""
        self.world: ProcessGroup = SingleProcess()
        self.scratch: dict[str, torch.Tensor] = {}

    def rows(self, batch: Batch, names: Sequence[str], batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields all valid steps in a new random order; the last minibatch keeps the remainder."""
        fields = {name: batch.rollout.flat(name) for name in _with_leaves(batch, names)}
        mask = fields.get(f.ACTION_MASK)
        if mask is not None and mask.device.type == "cpu" and bool(mask.all()):
            # Nothing is left out, so that nobody has to look. A device would have to be waited for.
            del fields[f.ACTION_MASK]
        row_bytes = sum(_size(field.shape[1:]) * field.element_size() for field in fields.values())
        for sizes, chosen in _together(self.row_numbers(batch, batch_size, *counters), GATHER_BYTES // row_bytes):
            gathered = [torch.split(self._gather(name, field, 0, chosen), sizes) for name, field in fields.items()]
            for parts in zip(*gathered, strict=True):
                yield dict(zip(fields, parts, strict=True))

    def row_numbers(self, batch: Batch, batch_size: int, *counters: int) -> tuple[torch.Tensor, ...]:
        """Returns the row indices of each minibatch of `rows`."""
        order = self._permutation(batch.num_valid, counters).to(batch.valid_rows.device)
        return self._split(batch.valid_rows[order], batch_size)

    def joint_numbers(self, batch: Batch, num_agents: int, batch_size: int, *counters: int) -> tuple[torch.Tensor, ...]:
        """Returns the indices of joint rows [T * N / A], each with all its agents, of each minibatch."""
        num_rows = batch.rollout.num_steps * batch.rollout.num_lanes // num_agents
        return self._split(self._permutation(num_rows, counters).to(batch.rollout.device), batch_size)

    def lanes(self, batch: Batch, names: Sequence[str], batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields whole lanes in a new random order, as many at a time as fit into `batch_size`, at least one."""
        rollout = batch.rollout
        fields = {name: rollout.storage[name][:-1] for name in [*_with_leaves(batch, names), f.FIRST]}
        fields[f.VALID] = self.counted(batch)
        for chosen in self.lane_numbers(batch, batch_size, *counters):
            minibatch = {name: self._gather(name, field, 1, chosen).flatten(0, 1) for name, field in fields.items()}
            yield {**minibatch, f.POLICY_STATE: rollout.policy_state[chosen]}

    def lane_numbers(self, batch: Batch, batch_size: int, *counters: int) -> tuple[torch.Tensor, ...]:
        """Returns the lane indices of each minibatch of `lanes`."""
        rollout = batch.rollout
        # A lane in which nothing counts would make a minibatch of nothing.
        lanes = self.counted(batch).any(dim=0).nonzero().squeeze(1)
        order = lanes[self._permutation(len(lanes), counters).to(rollout.device)]
        return self._split(order, max(self.world.size, batch_size // rollout.num_steps))

    def everything(self, batch: Batch, names: Sequence[str], *, are_sequences: bool) -> Minibatch:
        """Returns all steps of a batch in their own order, valid or not, as one minibatch of views."""
        rollout = batch.rollout
        fields = {name: rollout.flat(name) for name in _with_leaves(batch, names)}
        return (
            {**fields, f.FIRST: rollout.flat(f.FIRST), f.POLICY_STATE: rollout.policy_state}
            if are_sequences
            else fields
        )

    def counted(self, batch: Batch) -> torch.Tensor:
        """Returns which steps [T, N] of sequences count in losses: valid ones after the burn-in.

        An episode that begins during the burn-in has an exact hidden state, so its steps count at once.
        """
        valid = batch.rollout.storage[f.VALID][:-1]
        if not self.burn_in:
            return valid
        is_current = batch.rollout.storage[f.FIRST][:-1].cumsum(dim=0) > 0
        is_current[self.burn_in :] = True
        return valid & is_current

    def join(self, world: ProcessGroup) -> None:
        """Samples this rank's share of every minibatch from now on, in its own order."""
        self.world = world
        self.rng = self.rng.child(f"rank_{world.rank}") if world.rank else self.rng

    def _split(self, rows: torch.Tensor, batch_size: int) -> tuple[torch.Tensor, ...]:
        """Splits rows or lanes into minibatches of `batch_size` over all ranks: as many on every rank, none empty.

        Ranks take their steps together, so one with fewer valid steps has smaller shares, not fewer.
        """
        share = batch_size // self.world.size
        counts = [int(count) for [count] in self.world.gather([len(rows)])]
        if min(counts) == max(counts):
            return torch.split(rows, share)
        num_minibatches = min(-(-max(counts) // share), max(1, min(counts)))
        return torch.tensor_split(rows, num_minibatches)

    def _permutation(self, size: int, counters: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(self.rng.generator("minibatches", *counters).permutation(size))

    def _gather(self, name: str, field: torch.Tensor, dim: int, chosen: torch.Tensor) -> torch.Tensor:
        shape = (*field.shape[:dim], len(chosen), *field.shape[dim + 1 :])
        memory = self.scratch.get(name)
        if memory is None or memory.numel() < _size(shape):
            memory = self.scratch[name] = torch.empty(_size(shape), dtype=field.dtype, device=field.device)
        return torch.index_select(field, dim, chosen, out=memory[: _size(shape)].view(shape))


def moved(minibatch: Minibatch, device: torch.device) -> Minibatch:
    """Returns a minibatch on a device: itself, where it is there already."""
    if next(iter(minibatch.values())).device == device:
        return minibatch
    return {name: field.to(device) for name, field in minibatch.items()}


def only_valid(minibatch: Minibatch, judged: Minibatch) -> tuple[Minibatch, Minibatch]:
    """Drops invalid steps, which sequences carry for the recurrent layer."""
    if f.VALID not in minibatch:
        return minibatch, judged
    valid = minibatch[f.VALID]
    kept = {name: field[valid] for name, field in minibatch.items() if len(field) == len(valid)}
    return kept, {name: field[valid] for name, field in judged.items()}


def split(minibatch: Minibatch, size: int) -> Iterator[Minibatch]:
    """Yields parts of at most `size` rows, or of whole lanes for recurrent policies, for accumulated gradients."""
    if f.POLICY_STATE not in minibatch:
        for start in range(0, len(minibatch[f.LOG_PROB]), size):
            yield {name: field[start : start + size] for name, field in minibatch.items()}
        return
    state = minibatch[f.POLICY_STATE]
    num_steps = len(minibatch[f.LOG_PROB]) // len(state)
    by_lane = {n: x.view(num_steps, -1, *x.shape[1:]) for n, x in minibatch.items() if n != f.POLICY_STATE}
    num_lanes = max(1, size // num_steps)
    for start in range(0, len(state), num_lanes):
        lanes = slice(start, start + num_lanes)
        part = {name: field[:, lanes].flatten(0, 1) for name, field in by_lane.items()}
        yield {**part, f.POLICY_STATE: state[lanes]}


def join_parts(parts: Sequence[torch.Tensor], num_steps: int, *, are_sequences: bool) -> torch.Tensor:
    """Returns results of the parts of `split` as one field [T * N, ...], in the order of the whole."""
    if not are_sequences:
        return torch.cat(list(parts))
    return torch.cat([part.view(num_steps, -1, *part.shape[1:]) for part in parts], dim=1).flatten(0, 1)


def num_valid(minibatch: Minibatch) -> torch.Tensor:
    """Returns the number of valid steps of a minibatch, without waiting for a device."""
    valid = minibatch.get(f.VALID)
    return torch.tensor(len(next(iter(minibatch.values())))) if valid is None else valid.sum()


def _with_leaves(batch: Batch, names: Sequence[str]) -> list[str]:
    """Replaces structured fields by their leaves, and adds the action mask if there is one."""
    known = batch.rollout.storage
    expanded = []
    for name in names:
        found = f.names_of(name, known)
        if not found:
            raise SpecMismatch(
                f"minibatch_fields has {name!r}, which no part declares; return it from declare_fields() of the "
                f"algorithm, the policy, a reward signal or the trainer"
            )
        expanded += found
    return expanded + f.names_of(f.ACTION_MASK, known)


def _together(minibatches: Sequence[torch.Tensor], max_rows: int) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Yields the sizes and the joint row indices of as many minibatches as have so many rows, at least one."""
    waiting: list[torch.Tensor] = []
    for rows in minibatches:
        if waiting and sum(map(len, waiting)) + len(rows) > max_rows:
            yield [len(each) for each in waiting], torch.cat(waiting)
            waiting = []
        waiting.append(rows)
    if waiting:
        yield [len(each) for each in waiting], torch.cat(waiting)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
