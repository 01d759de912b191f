"""Find the plus: provers see a board, and the verifier sees only the squares that they point at.

With label 1 one of `NUM_SQUARES` squares has a plus, with label 0 none has. A message points at a square. A verifier
that sees S squares by messages that do not depend on the board is right with probability 1/2 + S / 16 at most; the
proof is in docs/howto/find-the-plus.md.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.experiments.kernels.converse import bound
from quintain.experiments.kernels.find_the_plus import look
from quintain.experiments.protocols.base import ACCEPT, CONTINUE, DECISIONS, REJECT
from quintain.experiments.scenario_env import TensorScenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from quintain.experiments.hyper_parameters import HyperParameters
    from quintain.experiments.protocols.base import ProtocolHandler
    from quintain.typing import Array

NUM_SQUARES = 8
SURE = 30.0
"""Logit of a hand-written agent's choice, and minus that of all others."""


class FindThePlus(TensorScenario):
    """The board for provers, the squares pointed at for the verifier, the last messages and the round for all."""

    num_options = NUM_SQUARES
    datum_size = NUM_SQUARES
    num_draws = 2
    hand_written = MappingProxyType(
        {
            "prover": "quintain.experiments.find_the_plus:honest",
            "verifier": "quintain.experiments.find_the_plus:careful",
        }
    )

    def __init__(self, hyper_params: HyperParameters, protocol: ProtocolHandler) -> None:
        super().__init__(hyper_params, protocol)
        self.heard = np.array(protocol.agent_channel_visibility_mask)
        self.sees_board = np.array([name in protocol.prover_names for name in protocol.agent_names])
        channels = len(protocol.message_channel_names)
        self.view_size = NUM_SQUARES + channels * (NUM_SQUARES + 1) + protocol.max_message_rounds + 1
        self.pointers = np.eye(NUM_SQUARES + 1, NUM_SQUARES, dtype=np.float32)
        """Squares by message; the last row is no message."""

    def draw(self, uniforms: Array) -> tuple[Array, Array]:
        labels = (uniforms[:, 0] * 2).astype(np.int64)
        squares = (uniforms[:, 1] * NUM_SQUARES).astype(np.int64)
        return self.pointers[squares] * labels[:, None], labels

    def view(self, data: Array, messages: Array, rounds: Array) -> Array:
        seen = np.empty((len(data), len(self.sees_board), self.view_size), np.float32)
        self.bind_view(data, messages, rounds, np.ones(len(data), np.bool_), seen)()
        return seen

    def bind_view(self, data: Array, messages: Array, rounds: Array, chosen: Array, seen: Array) -> Callable[[], None]:
        return bound(look, (data, messages, rounds), chosen, self.sees_board, self.heard, seen)

    def describe(self, datum: Array) -> str:
        return "board " + "".join("+" if value else "." for value in datum)

    def describe_message(self, message: int) -> str:
        return f"square {message}"


def num_squares_seen(protocol: ProtocolHandler) -> int:
    """Returns how many squares a verifier can have seen in all its turns, at most."""
    found = 0
    for parity in (0, 1):
        total, channels = 0, set[str]()
        for number in range(protocol.max_message_rounds):
            spoken = {name: protocol.active_channels(name, number, parity) for name in protocol.agent_names}
            if any(spoken[name] for name in protocol.verifier_names):
                total, channels = total + len(channels), set()
            channels.update(*spoken.values())
        found = max(found, total)
    return found


def bound_alone(protocol: ProtocolHandler) -> float:
    """Returns the accuracy that no verifier exceeds if messages do not depend on the board."""
    return 0.5 + 0.5 * min(1.0, num_squares_seen(protocol) / NUM_SQUARES)


def honest(seen: torch.Tensor, output_size: int) -> torch.Tensor:
    """A hand-written prover that points at the plus in all its channels."""
    channels = (output_size - len(DECISIONS)) // NUM_SQUARES
    points = SURE * (2.0 * seen[:, :NUM_SQUARES] - 1.0)
    return torch.cat((points.repeat(1, channels), seen.new_zeros(len(seen), len(DECISIONS))), dim=1)


def careful(seen: torch.Tensor, output_size: int) -> torch.Tensor:
    """A hand-written verifier that accepts where it sees a plus, and rejects if it was shown squares without one."""
    channels = (output_size - len(DECISIONS)) // NUM_SQUARES
    told = seen[:, NUM_SQUARES : NUM_SQUARES + channels * (NUM_SQUARES + 1)].reshape(len(seen), channels, -1)
    has_plus, was_shown = told[..., -1].sum(1) > 0, told[..., :-1].sum((1, 2)) > 0
    wanted = torch.where(has_plus, ACCEPT, torch.where(was_shown, REJECT, CONTINUE))
    chosen = SURE * (2.0 * torch.nn.functional.one_hot(wanted, len(DECISIONS)).to(seen.dtype) - 1.0)
    return torch.cat((seen.new_zeros(len(seen), channels * NUM_SQUARES), chosen), dim=1)
