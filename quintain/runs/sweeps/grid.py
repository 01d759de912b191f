"""Grids: which settings a sweep combines, from a file (YAML or JSON) or from Python. Imports no torch."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from quintain.errors import SettingsError
from quintain.settings.base import Count, Settings, plain
from quintain.settings.errors import problems_of, settings_error
from quintain.settings.yaml_text import KeyPath, read_file, write_flow
from quintain.typing import Json, Keyword, Keywords

GRID_CODE = "E0270"
MAX_RUNS = 10_000
DEFAULT_METRIC = "eval/mean_reward"

_SEED_KEYS = ("seed", "seeds", "experiment.seed")
_RUN_ID_LENGTH = 64
_DIGEST_LENGTH = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")

_NOT_NAMED = (
    'the groups of settings of {0} need names of up to 40 letters, digits, "_", "." and "-", and a mapping of settings '
    "each; found {1}"
)

Axes = dict[str, list[Keyword] | dict[str, Keywords]]


class GridFile(Settings):
    """The contents of a grid file."""

    train: Annotated[str, Field(min_length=1)]
    """A run file, or the names of an algorithm and an environment, as after `quintain train`."""

    tuned: bool = False
    """Begin with the tuned settings that ship for the two names."""

    settings: Keywords = Field(default={})
    """Settings of all runs, by path, short name or alias."""

    grid: Axes | list[Keywords] = Field(default={})
    """Settings to combine: each with the list of its values, or a name with named groups of settings; or a list of
    combinations."""

    seeds: tuple[int, ...] | None = None
    """Seeds of every combination, or their number; null takes the seed of the run file."""

    jobs: Count = 1
    """Runs at the same time, each in a process of its own."""

    metric: str = DEFAULT_METRIC
    """Metric of the summary; its last value in each run counts."""

    mode: Literal["max", "min"] = "max"
    """Whether the largest or the smallest mean is best."""

    @field_validator("grid", mode="plain")
    @classmethod
    def _lists_values(cls, grid: object) -> Axes | list[Keywords]:
        if isinstance(grid, Mapping):
            found: Axes = {}
            for name, given in grid.items():
                values = plain(given)
                if isinstance(values, Mapping):
                    for each, settings in values.items():
                        if not _NAME.fullmatch(str(each)) or not isinstance(settings, Mapping):
                            raise PydanticCustomError("axis", "{about}", {"about": _NOT_NAMED.format(name, each)})
                    found[str(name)] = {str(each): _plain(settings) for each, settings in values.items()}
                else:
                    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
                    found[str(name)] = list(listed)
                if not found[str(name)]:
                    raise PydanticCustomError(
                        "axis", "{name} lists no value; give it one, or leave it out", {"name": name}
                    )
            return found
        if isinstance(grid, list | tuple) and all(isinstance(each, Mapping) for each in grid):
            return [_plain(each) for each in grid]
        raise PydanticCustomError(
            "grid", "expected settings with lists of values, or a list of combinations, each a mapping of settings"
        )

    @field_validator("seeds", mode="plain")
    @classmethod
    def _are_seeds(cls, seeds: object) -> tuple[int, ...] | None:
        if seeds is None:
            return None
        listed = range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
        if (
            not isinstance(listed, Sequence)
            or not 0 < len(listed) <= MAX_RUNS
            or any(type(each) is not int or each < 0 for each in listed)
        ):
            raise PydanticCustomError("seeds", "expected a number of seeds, or a list of them, each at least 0")
        if twice := [each for number, each in enumerate(listed) if each in listed[:number]]:
            raise PydanticCustomError("seeds", "seed {seed} is listed twice", {"seed": twice[0]})
        return tuple(listed)


@dataclass(frozen=True)
class Combination:
    """One point of a grid."""

    shown: dict[str, Json]
    """Values by the names of the axes, as the table lists them."""
    settings: dict[str, Json]
    """Settings that make it, by path, short name or alias."""

    def run_id(self, seed: int) -> str:
        """Returns the id of its run: readable, the same in every sweep with these axes, and at most 64 characters.

        >>> Combination({"learning_rate": 0.001, "net": "small"}, {}).run_id(3)
        'learning_rate-0.001-net-small-s3'
        >>> Combination({"hidden_sizes": [64, 64]}, {}).run_id(0)
        'hidden_sizes-64-64-1d13a8fa-s0'
        """
        exact = {key.rpartition(".")[2]: write_flow(value) for key, value in self.shown.items()}
        plain_texts = {
            key: text if _PLAIN.fullmatch(text) else re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")
            for key, text in exact.items()
        }
        name, suffix = "-".join(f"{key}-{text}" for key, text in plain_texts.items()), f"s{seed}"
        if plain_texts != exact or len(exact) < len(self.shown) or len(name) + len(suffix) >= _RUN_ID_LENGTH:
            digest = hashlib.sha256(json.dumps(self.shown).encode()).hexdigest()[:_DIGEST_LENGTH]
            room = _RUN_ID_LENGTH - len(suffix) - _DIGEST_LENGTH - 2
            name = f"{name[:room].rstrip('-.')}-{digest}"
        return f"{name}-{suffix}" if name else suffix

    def __str__(self) -> str:
        return " ".join(f"{key}={write_flow(value)}" for key, value in self.shown.items()) or "the settings as they are"


@dataclass(frozen=True)
class Grid:
    """A grid file, or the arguments of `sweep`, with its combinations."""

    file: GridFile
    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...] | None
    """Seeds of every combination; None for the one seed of the run file."""
    place: str = ""
    """The grid file, for messages."""
    overrides: tuple[str, ...] = ()
    """`key=value` from the command line, for all runs."""
    folder: Path = field(default=Path())
    """Where the run file is looked for first."""

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> Grid:
        """Reads a grid file."""
        try:
            document = read_file(path)
        except SettingsError as error:
            message = error.message.replace("a mapping with experiment", "a mapping with train and grid")
            raise SettingsError(message, code=error.code, notes=error.notes) from error
        values = document.value
        if "experiment" in values or "behaviors" in values:
            raise SettingsError(
                f"{path}: this is a run file, not a grid: train it with quintain train {path}, or name it in a grid "
                f"file as train: {path.name}",
                code=GRID_CODE,
            )

        def place(at: KeyPath) -> str:
            for length in range(len(at), 0, -1):
                if (found := document.positions.get(at[:length])) is not None:
                    return f"{document.source}:{found[0]}:{found[1]}"
            return document.source

        try:
            return cls.made_of(values, str(path), overrides, path.parent)
        except ValidationError as error:
            names = list(GridFile.model_fields)
            problems = problems_of(error.errors(include_url=False), lambda at: [] if at else names)
            raise settings_error(problems, place) from None

    @classmethod
    def made_of(
        cls, values: Mapping[str, object], place: str = "", overrides: Sequence[str] = (), folder: Path = Path()
    ) -> Grid:
        """Makes a grid of the contents of a file; raises pydantic's error for those that are none."""
        file = GridFile.model_validate(values)
        axes, seeds = file.grid, file.seeds
        before = f"{place}: " if place else ""
        if isinstance(axes, dict) and (key := next((key for key in _SEED_KEYS if key in axes), None)) is not None:
            if seeds is not None:
                raise SettingsError(f"{before}seeds and grid.{key} both list seeds. Leave one out", code=GRID_CODE)
            as_seeds = {
                **values,
                "grid": {name: each for name, each in axes.items() if name != key},
                "seeds": axes[key],
            }
            return cls.made_of(as_seeds, place, overrides, folder)
        if not axes and seeds is None:
            raise SettingsError(
                f"{before}the grid is empty: there is nothing to combine. Write grid: {{learning_rate: [1e-3, 3e-4]}}, "
                f"or seeds: 5",
                code=GRID_CODE,
            )
        found = tuple(_combined(axes) if isinstance(axes, dict) else [Combination(each, each) for each in axes])
        if (count := len(found) * len(seeds or [0])) > MAX_RUNS:
            raise SettingsError(f"{before}the grid has {count:,} runs, expected at most {MAX_RUNS:,}", code=GRID_CODE)
        return cls(file, found, seeds, place, tuple(overrides), folder)

    @property
    def axes(self) -> list[str]:
        """The names of everything that combinations differ in, in the order of the grid."""
        return list(dict.fromkeys(name for each in self.combinations for name in each.shown))

    def run_file_path(self) -> Path | None:
        """Returns the run file that `train` names, beside the grid file or here; None for two names."""
        named = self.file.train
        for path in (self.folder / named, Path(named)):
            if path.is_file():
                return path
        return None if len(named.split()) == 2 else self.folder / named


def _plain(settings: Mapping[str, object]) -> Keywords:
    return {str(key): plain(value) for key, value in settings.items()}


def _combined(axes: Axes) -> list[Combination]:
    """Returns all combinations; the last axis changes fastest."""
    points: list[list[Combination]] = []
    for name, values in axes.items():
        if isinstance(values, dict):
            points.append([Combination({name: each}, settings) for each, settings in values.items()])
        else:
            points.append([Combination({name: value}, {name: value}) for value in values])
    found = []
    for parts in itertools.product(*points):
        shown = {name: value for part in parts for name, value in part.shown.items()}
        found.append(Combination(shown, {name: value for part in parts for name, value in part.settings.items()}))
    return found
