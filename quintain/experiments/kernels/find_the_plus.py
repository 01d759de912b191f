"""What the agents of find the plus see, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@kernel
def look(talks: tuple[Array, Array, Array], chosen: Array, sees_board: Array, heard: Array, seen: Array) -> None:
    """Writes [rows, A, size], of the chosen rows: the board, per channel the square pointed at and its content, and
    the round. `talks` are boards [rows, squares], messages [rows, C] and rounds [rows].

    Agents without a board have zeros there, and zeros for a channel that they do not hear or that has no message.
    """
    boards, messages, rounds = talks
    num_squares, num_channels = boards.shape[1], messages.shape[1]
    for row in range(len(boards)):
        if not chosen[row]:
            continue
        for a in range(len(sees_board)):
            view = seen[row, a]
            for s in range(num_squares):
                view[s] = boards[row, s] if sees_board[a] else _ZERO
            first = num_squares
            for c in range(num_channels):
                square = messages[row, c]
                is_heard = heard[a, c] and square >= 0
                for s in range(num_squares + 1):
                    view[first + s] = _ZERO
                if is_heard:
                    view[first + square] = _ONE
                    view[first + num_squares] = boards[row, square]
                first += num_squares + 1
            for k in range(first, len(view)):
                view[k] = _ONE if k - first == rounds[row] else _ZERO
