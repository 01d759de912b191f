"""Parses the words of `quintain train FILE | ALGO ENV key=value ...`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import SettingsError

USAGE_CODE = "E0201"


@dataclass(frozen=True)
class FileSource:
    """Names a run file."""

    path: Path


@dataclass(frozen=True)
class NamesSource:
    """Names an algorithm and an environment, without a file."""

    algorithm: str
    env: str


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates names from overrides: an override has an equals sign, and no slash before it.

    Example:
        >>> split_words(["ppo", "CartPole-v1", "seed=3", "runs/a=b.yaml"])
        (['ppo', 'CartPole-v1', 'runs/a=b.yaml'], ['seed=3'])
    """
    names, overrides = [], []
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals or "/" in key:
            names.append(word)
        elif key.strip():
            overrides.append(word)
        else:
            raise SettingsError(f"the override {word!r} has no key. Write key=value", code=USAGE_CODE)
    return names, overrides


def source_of(names: Sequence[str]) -> FileSource | NamesSource:
    """Distinguishes a run file from the names of an algorithm and an environment."""
    if len(names) == 1 and _is_file_name(names[0]):
        return FileSource(Path(names[0]))
    if len(names) == 2 and not _is_file_name(names[0]):
        return NamesSource(*names)
    found = " ".join(names) if names else "nothing"
    raise SettingsError(
        f"expected FILE, or ALGO ENV, and found {found!r}. Write for example: quintain train ppo CartPole-v1 seed=1",
        code=USAGE_CODE,
    )


def _is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml", ".py")) or Path(name).is_file()
