"""Reads the figures that quintain is measured by from wanted.toml, and says whether they stood before the results.

Needs nothing but Python, because it is read inside every peer's interpreter.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commits

PATH = Path(__file__).with_name("wanted.toml")
FILE = "bench/wanted.toml"
RECORDS = ("docs/results/bench.jsonl", "docs/results/bench.md")
EVERY_PEER = "every peer"


@dataclass(frozen=True)
class Claim:
    """Says how many times as fast as another library quintain is to be."""

    against: str
    """A peer's name, or `every peer`."""
    at_least: float
    is_aim: bool = False
    """Whether it is something to strive for instead of something that must hold."""


@dataclass(frozen=True)
class Earlier:
    """A criterion that was replaced after something had been measured by it."""

    until: str
    """The last commit that recorded results by it."""
    was: str


@dataclass(frozen=True)
class Wanted:
    """Everything in the file."""

    rounds: int
    step_microseconds: float
    pace: float
    claims: Mapping[str, tuple[Claim, ...]]
    """By workload."""
    earlier: Mapping[str, Earlier]


def read(text: str) -> Wanted:
    """Returns the contents of the file."""
    table: dict[str, Any] = tomllib.loads(text)
    return Wanted(
        rounds=table["rounds"],
        step_microseconds=table["step_microseconds"],
        pace=table["pace"],
        claims={name: _claims(about) for name, about in table["speed"].items()},
        earlier={name: Earlier(**about) for name, about in table["earlier"].items()},
    )


def _claims(about: dict[str, dict[str, float]]) -> tuple[Claim, ...]:
    return tuple(
        Claim(against, figure, is_aim=kind == "aim")
        for against, figures in about.items()
        for kind, figure in figures.items()
    )


def standing() -> str:
    """Says in which commit the file was last changed, and whether that one also records results.

    Raises SystemExit where the file has changes that are not committed: figures come before the results they judge.
    """
    if commits.has_changes(FILE):
        raise SystemExit(f"{FILE} has changes that are not committed; commit them before results are written")
    newest = commits.git("log", "-1", "--format=%h of %cs", "--", FILE)
    if not newest:
        return "It is not known when they were last changed."
    recorded = [path for path in changed_paths(newest.split()[0]) if path in RECORDS]
    also = f", **which also changes {', '.join(recorded)}**" if recorded else ", which records no results"
    return f"They were last changed in commit {newest}{also}."


def changed_paths(commit: str) -> list[str]:
    """Returns the files that a commit changes."""
    return commits.git("show", "--format=", "--name-only", commit).splitlines()


WANTED = read(PATH.read_text())
