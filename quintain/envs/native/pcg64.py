"""The generator `numpy.random.default_rng(seed)`, from which Gymnasium's environments draw, inside compiled code.

A seed is spread over a pool of four words (numpy's SeedSequence), the pool over the state of a 128-bit linear
congruential generator whose output is folded to 64 bits (PCG64: O'Neill, "PCG: A Family of Simple Fast Space-Efficient
Statistically Good Algorithms for Random Number Generation", 2014).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from quintain.compiled.runtime.kernel import kernel_part

if TYPE_CHECKING:
    from quintain.typing import Array

Word: TypeAlias = np.uint64
"""64 bits, or 32 of them in use."""

# Every constant is a uint64: numba makes a float of a uint64 and a signed integer.
_0, _1, _11, _16, _32, _58, _63, _64 = (np.uint64(n) for n in (0, 1, 11, 16, 32, 58, 63, 64))
_LOW = np.uint64(0xFFFFFFFF)
_SPREAD_FIRST, _SPREAD_NEXT = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_TAKE_FIRST, _TAKE_NEXT = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
_MULTIPLIER = (np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645))
_STEP = 1.0 / 9007199254740992.0
"""2**-53: a double between 0 and 1 has 53 random bits."""


@kernel_part
def fill_uniform(out: Array, seed: int) -> None:
    """Fills `out` with the first uniform draws in [0, 1) of numpy's generator, for a seed below 2**32."""
    words = _seed_words(np.uint64(seed))
    increment_high, increment_low = (words[2] << _1) | (words[3] >> _63), (words[3] << _1) | _1
    # The state begins at zero, so its first step gives the increment.
    high, low = _add(increment_high, increment_low, words[0], words[1])
    high, low = _advance(high, low, increment_high, increment_low)
    for i in range(len(out)):
        high, low = _advance(high, low, increment_high, increment_low)
        out[i] = (_fold(high, low) >> _11) * _STEP


@kernel_part
def _seed_words(seed: Word) -> tuple[Word, Word, Word, Word]:
    """Spreads a seed over four words of 64 bits, as `SeedSequence(seed).generate_state(4, uint64)` does."""
    a, constant = _hash(seed, _SPREAD_FIRST, _SPREAD_NEXT)
    b, constant = _hash(_0, constant, _SPREAD_NEXT)
    c, constant = _hash(_0, constant, _SPREAD_NEXT)
    d, constant = _hash(_0, constant, _SPREAD_NEXT)
    b, constant = _mix(b, a, constant)
    c, constant = _mix(c, a, constant)
    d, constant = _mix(d, a, constant)
    a, constant = _mix(a, b, constant)
    c, constant = _mix(c, b, constant)
    d, constant = _mix(d, b, constant)
    a, constant = _mix(a, c, constant)
    b, constant = _mix(b, c, constant)
    d, constant = _mix(d, c, constant)
    a, constant = _mix(a, d, constant)
    b, constant = _mix(b, d, constant)
    c, constant = _mix(c, d, constant)
    first, constant = _word(a, b, _TAKE_FIRST)
    second, constant = _word(c, d, constant)
    third, constant = _word(a, b, constant)
    fourth, constant = _word(c, d, constant)
    return first, second, third, fourth


@kernel_part
def _mix(target: Word, source: Word, constant: Word) -> tuple[Word, Word]:
    """Stirs a word of the pool into another; returns that and the constant for the next one."""
    value, following = _hash(source, constant, _SPREAD_NEXT)
    mixed = (_MIX_LEFT * target - _MIX_RIGHT * value) & _LOW
    return mixed ^ (mixed >> _16), following


@kernel_part
def _word(low: Word, high: Word, constant: Word) -> tuple[Word, Word]:
    """Takes 64 bits from two words of the pool; returns them and the constant for the next ones."""
    first, constant = _hash(low, constant, _TAKE_NEXT)
    second, constant = _hash(high, constant, _TAKE_NEXT)
    return first | (second << _32), constant


@kernel_part
def _hash(value: Word, constant: Word, multiplier: Word) -> tuple[Word, Word]:
    """Scrambles a 32-bit word; returns it and the constant for the next one."""
    following = (constant * multiplier) & _LOW
    product = ((value ^ constant) * following) & _LOW
    return product ^ (product >> _16), following


@kernel_part
def _advance(high: Word, low: Word, increment_high: Word, increment_low: Word) -> tuple[Word, Word]:
    """Multiplies the 128-bit state and adds the increment."""
    times_high, times_low = _MULTIPLIER
    product_high, product_low = _product(low, times_low)
    product_high += high * times_low + low * times_high
    return _add(product_high, product_low, increment_high, increment_low)


@kernel_part
def _product(a: Word, b: Word) -> tuple[Word, Word]:
    """Multiplies two words of 64 bits to one of 128, by halves."""
    a_high, a_low, b_high, b_low = a >> _32, a & _LOW, b >> _32, b & _LOW
    low = a_low * b_low
    left = a_high * b_low + (low >> _32)
    right = a_low * b_high + (left & _LOW)
    return a_high * b_high + (left >> _32) + (right >> _32), (right << _32) | (low & _LOW)


@kernel_part
def _add(high: Word, low: Word, other_high: Word, other_low: Word) -> tuple[Word, Word]:
    total = low + other_low
    return high + other_high + (_1 if total < low else _0), total


@kernel_part
def _fold(high: Word, low: Word) -> Word:
    """Turns the state into 64 random bits: both halves together, rotated by the state's highest bits."""
    word, turn = high ^ low, high >> _58
    return (word >> turn) | (word << ((_64 - turn) & _63))
