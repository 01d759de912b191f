"""Writes counts, returns, intervals and durations with the digits that a reader can use. Imports nothing heavy."""

from __future__ import annotations

import math

_ROUNDING = 1e-6
"""Relative error of a sum of float32 rewards."""


def grouped(number: int) -> str:
    """Writes a count with its digits in groups of three.

    Example:
        >>> grouped(100000)
        '100 000'
    """
    return f"{number:,}".replace(",", " ")


def short_count(number: float) -> str:
    """Writes a count in at most five characters.

    Example:
        >>> short_count(57344), short_count(1_250_000)
        ('57k', '1.2M')
    """
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            scaled = number / unit
            return f"{scaled:.0f}{suffix}" if scaled >= 10 else f"{scaled:.1f}{suffix}"
    return f"{number:.0f}"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def measured(value: float) -> str:
    """Writes a return or a length with the digits that a reader can use.

    Example:
        >>> measured(412.63), measured(12345.6), measured(0.0123)
        ('412.6', '12346', '0.0123')
    """
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    # What three digits round to 1 is written like 1.
    return f"{value:.1f}" if size >= 0.9995 or size == 0 else f"{value:.3g}"


def spread(value: float) -> str:
    """Writes a standard deviation, which needs fewer digits than a mean."""
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Writes a length of time with its two largest units.

    Example:
        >>> duration(31.4), duration(250), duration(7500)
        ('31 s', '4 min 10 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def estimated(mean: float, low: float, high: float) -> tuple[str, str, str]:
    """Writes a mean and its confidence interval with as many digits as the interval deserves: two of its half width.

    Example:
        >>> estimated(487.314, 475.1, 499.5), estimated(0.01234, 0.0121, 0.0126), estimated(500.0, 500.0, 500.0)
        (('487', '475', '500'), ('0.01234', '0.01210', '0.01260'), ('500.0', '500.0', '500.0'))
    """
    half = 0.5 * (high - low)
    # Below the rounding of rewards there is no difference between episodes.
    if not _ROUNDING * abs(mean) < half < math.inf:
        return measured(mean), measured(low), measured(high)
    decimals = max(0, 1 - math.floor(math.log10(half)))
    # Zero is added so that none is -0.
    mean, low, high = (round(each, decimals) + 0.0 for each in (mean, low, high))
    return f"{mean:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"
