"""Makes foreign text (environment names, model output, error messages) safe to print on a terminal."""

from __future__ import annotations

import unicodedata

# Cc control, Cf format (bidirectional overrides, zero width), Cs lone surrogates, Zl and Zp line separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape_control_characters(text: str) -> str:
    r"""Replaces every character that could move the cursor or hide text by its Python escape.

    Example:
        >>> escape_control_characters("CartPole\x1b[2J")
        'CartPole\\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def fit_encoding(text: str, encoding: str) -> str:
    """Replaces every character that the encoding lacks by its Python escape."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(character: str) -> str:
    if unicodedata.category(character) in _UNSAFE_CATEGORIES:
        return character.encode("unicode_escape").decode("ascii")
    return character
