"""One round of all conversations: messages, the decision, rewards and ends, by the tables of a protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from quintain.compiled.runtime.kernel import Kernel, kernel, why_unavailable

if TYPE_CHECKING:
    from quintain.typing import Array

Result = TypeVar("Result")

NO_DECISION = 2
"""The decision to continue."""


class Rules(NamedTuple):
    """A protocol as tables."""

    speaks: Array
    """[rounds, variants, A, C] bool: whether an agent speaks in a channel. A variant is 2 * phase + parity."""
    can_decide: Array
    """[rounds, variants, A] bool"""
    place: Array
    """[A] int64: the place value of an agent's decision among those of all verifiers, a number to the base 3; 0 for
    other agents."""
    reward: Array
    """[rounds, variants, decisions, labels, A] float32"""
    ends: Array
    """[rounds, variants, decisions, labels] bool"""
    decision: Array
    """[rounds, variants, decisions, labels] int64: the decision that counts."""
    next_phase: Array
    """[rounds, variants, decisions, labels] int64"""
    num_options: int
    """Number of messages."""
    shuffles: bool
    """Whether an agent's message is heard in the next conversation in which it speaks."""


class Talks(NamedTuple):
    """The state of all conversations."""

    round: Array
    """[rows] int64"""
    parity: Array
    """[rows] int64"""
    phase: Array
    """[rows] int64"""
    label: Array
    """[rows] int64"""
    messages: Array
    """[rows, C] int64: the last message in each channel."""
    earned: Array
    """[rows, A] float64"""
    passed_on: Array
    """[A, C] int64: with `shuffles`, the last message of each agent, for the next row."""


class Results(NamedTuple):
    """Results of a round."""

    spoken: Array
    """[rows, A, C] bool: whether an agent spoke in a channel."""
    reward: Array
    """[rows, A] float32"""
    ends: Array
    """[rows, A] bool: the same for all agents of a row."""
    decision: Array
    """[rows] int64: the decision that counts."""


def bound(function: Kernel[..., Result], *args: object) -> Callable[[], Result]:
    """Returns the call of a kernel; where nothing can be compiled, of the same source as Python, with equal results."""
    return partial(function.function, *args) if why_unavailable() else function.bind(*args)


@kernel
def converse(rules: Rules, talks: Talks, action: Array, results: Results) -> int:
    """Takes a round in all rows; returns how many conversations ended, or -1 - lane for an impossible action.

    An impossible action changes nothing.
    """
    num_agents, num_channels = rules.speaks.shape[2], rules.speaks.shape[3]
    for lane in range(len(action)):
        for c in range(num_channels):
            if action[lane, c] < 0 or action[lane, c] >= rules.num_options:
                return -1 - lane
        if action[lane, num_channels] < 0 or action[lane, num_channels] > NO_DECISION:
            return -1 - lane
    num_ended = 0
    for row in range(len(talks.round)):
        number, label = talks.round[row], talks.label[row]
        variant = 2 * talks.phase[row] + talks.parity[row]
        decision = rules.reward.shape[2] - 1
        for a in range(num_agents):
            lane = row * num_agents + a
            for c in range(num_channels):
                results.spoken[row, a, c] = rules.speaks[number, variant, a, c]
                if results.spoken[row, a, c]:
                    message = action[lane, c]
                    if rules.shuffles:
                        message, talks.passed_on[a, c] = talks.passed_on[a, c], message
                    talks.messages[row, c] = message
            if rules.can_decide[number, variant, a]:
                decision += rules.place[a] * (action[lane, num_channels] - NO_DECISION)
        is_end = rules.ends[number, variant, decision, label]
        results.decision[row] = rules.decision[number, variant, decision, label]
        talks.phase[row] = rules.next_phase[number, variant, decision, label]
        for a in range(num_agents):
            reward = rules.reward[number, variant, decision, label, a]
            results.reward[row, a] = reward
            results.ends[row, a] = is_end
            talks.earned[row, a] += reward
        talks.round[row] = number + 1
        num_ended += is_end
    return num_ended
