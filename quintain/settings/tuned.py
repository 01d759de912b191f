"""Tuned settings that ship: one file per algorithm and environment, each with the scores that it was seen to reach.

The files lie in `quintain/tuned/`. Settings are written by their short names, as on the command line, and lie below a
user's own overrides. `bench/tuned.py` runs the files and writes their scores; no other hand does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.errors import SettingsError
from quintain.settings.base import Count, Settings
from quintain.settings.yaml_text import read_file
from quintain.typing import Keywords

FOLDER = Path(__file__).resolve().parents[1] / "tuned"
MIN_SEEDS = 3


class Measured(Settings):
    """Scores of the settings: the mean return of the final policy of each seed."""

    seeds: tuple[int, ...]
    """Seeds of the runs."""

    scores: tuple[float, ...]
    """Mean return of the final policy of each seed, without exploring."""

    num_episodes: Count
    """Episodes behind each score."""

    cpu_minutes: float = Field(gt=0)
    """CPU minutes of training per seed, in one thread."""

    commit: str = Field(min_length=1)
    """The code that was run."""

    note: str = ""
    """Limits of the measurement."""

    @model_validator(mode="after")
    def _has_a_score_for_each_seed(self) -> Measured:
        if not self.seeds or len(self.seeds) != len(self.scores):
            raise PydanticCustomError("measured", "expected one score for each seed")
        return self

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"mean return {fmean(self.scores):.4g} over seed{'s' if len(self.seeds) > 1 else ''} {seeds}"


class TunedFile(Settings):
    """The contents of one file."""

    algorithm: str
    """Name of the algorithm."""

    env: str
    """Id of the environment."""

    settings: Keywords
    """Settings by their short names, the budget included."""

    measured: Measured | None = None
    """Scores of exactly these settings; a file ships with them."""


@dataclass(frozen=True)
class Tuned:
    """A file that ships."""

    name: str
    """Its place, for origins and messages: tuned/ppo-CartPole-v1.yaml."""
    file: TunedFile


def tuned_settings(algorithm: str, env: str) -> Tuned:
    """Returns the tuned settings of a pair; where there are none, says for which there are."""
    if (path := tuned_path(algorithm, env)) is not None:
        return _read(path)
    pairs = ", ".join(f"{each.file.algorithm} {each.file.env}" for each in all_tuned())
    raise SettingsError(
        f"there are no tuned settings for {algorithm} on {env}; there are for: {pairs}. Leave --tuned out", code="E0204"
    )


def tuned_path(algorithm: str, env: str) -> Path | None:
    """Returns the file of a pair, if there is one; an id may name the package that Gymnasium is told to import."""
    wanted = f"{algorithm.lower()}-{env.rpartition(':')[2].replace('/', '_')}.yaml"
    # Not by the path itself: a name may be longer than a file's can be.
    return next((path for path in FOLDER.glob("*.yaml") if path.name == wanted), None)


def all_tuned() -> list[Tuned]:
    """Returns all files that ship, by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.yaml"))]


def _read(path: Path) -> Tuned:
    return Tuned(f"{FOLDER.name}/{path.name}", TunedFile.model_validate(read_file(path).value))
