"""Questions with solutions and labels, from JSON lines; the base of every text environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.services import plain_files
from quintain.text.scenarios.code_labels import small_programs
from quintain.text.scenarios.code_validation import records_of, small_records

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.text.settings import TextScenarioSettings

MAX_DATA_BYTES = 4 << 30


@dataclass(frozen=True)
class DataPoint:
    """One question with a proposed solution."""

    id: str
    question: str
    solution: str
    y: int
    """1 if the solution is correct, else 0."""
    prover_stance: int
    """The decision that a prover argues for where stances are random."""


class TextScenario:
    """The data of a text environment; another one overrides `load`.

    A subclass with settings of its own names their class, which derives from `TextScenarioSettings`, in
    `settings_class`.
    """

    def __init__(self, settings: TextScenarioSettings, rng: Rng) -> None:
        self.settings = settings
        self.rng = rng
        self.ends: Mapping[str, int] = {}
        """How many of the programs that were executed for their labels ended in which way, or were dropped."""

    def load(self) -> tuple[Sequence[DataPoint], Sequence[DataPoint]]:
        """Returns the data points for training and those for tests."""
        settings = self.settings
        if settings.train_file is None and settings.built_in == "small_programs":
            train, test = (small_records(is_test=is_test) for is_test in (False, True))
            self.ends = small_programs().counts
            return tuple(map(point_of, train)), tuple(map(point_of, test))
        if settings.train_file is None:
            points = tuple(_built_in())
        else:
            points = load_points(Path(settings.train_file), settings.apps_difficulty)
        if settings.test_file is not None:
            return points, load_points(Path(settings.test_file), settings.apps_difficulty)
        return self.split(points)

    def split(self, points: Sequence[DataPoint]) -> tuple[Sequence[DataPoint], Sequence[DataPoint]]:
        """Splits the part `test_size` off for tests, by the seed of the run."""
        order = self.rng.generator("split").permutation(len(points)).tolist()
        num_test = max(1, round(len(points) * self.settings.test_size))
        return tuple(points[each] for each in order[num_test:]), tuple(points[each] for each in order[:num_test])

    @cached_property
    def _loaded(self) -> tuple[Sequence[DataPoint], Sequence[DataPoint]]:
        train, test = self.load()
        if not train or not test:
            raise SettingsError(
                f"the scenario {type(self).__name__} has {len(train)} data points for training and {len(test)} for "
                f"tests, expected at least one of each",
                code="E0205",
            )
        for point in (*train, *test):
            try:
                f"{point.id}{point.question}{point.solution}".encode()
            except UnicodeEncodeError as error:
                raise SettingsError(
                    f"data point {point.id!r}: a lone surrogate at character {error.start}, which cannot be sent",
                    code="E0205",
                ) from error
        return train[: self.settings.max_train_size], test[: self.settings.max_test_size]

    def describe(self) -> str:
        """Returns what was loaded, in one line."""
        said = f"data: {len(self.train)} points for training, {len(self.test)} for tests"
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        return f"{said}; programs executed for labels: {ends}" if ends else said

    @property
    def train(self) -> Sequence[DataPoint]:
        return self._loaded[0]

    @property
    def test(self) -> Sequence[DataPoint]:
        return self._loaded[1]


def load_points(path: Path, difficulty: str | None = None) -> tuple[DataPoint, ...]:
    """Reads data points; a line has question, solution and y (0 or 1), or question, solutions and buggy_solutions."""
    points: list[DataPoint] = []
    try:
        lines = plain_files.read(path, MAX_DATA_BYTES).splitlines()
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); experiment.loop.scenario has train_file and test_file",
            code="E0210",
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            points += [point_of(record) for record in records_of(json.loads(line), difficulty)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SettingsError(
                f'{path}:{number}: {type(error).__name__} ({error}), expected {{"question": text, "solution": text, '
                f'"y": 0 or 1}}',
                code="E0205",
            ) from error
    if len(points) < 2:
        raise SettingsError(f"{path}: {len(points)} data points, expected at least 2", code="E0205")
    return tuple(points)


def point_of(record: object) -> DataPoint:
    """Makes a data point from a record of the data set."""
    if (
        not isinstance(record, dict)
        or not isinstance(record["question"], str)
        or not isinstance(record["solution"], str)
    ):
        raise TypeError("question and solution must be texts")
    if record["y"] not in (0, 1):
        raise ValueError(f"y is {record['y']!r}")
    digest = hashlib.sha256(record["solution"].encode("utf-8", "surrogatepass")).digest()
    stance = record.get("prover_stance", digest[0] % 2)
    if stance not in (0, 1):
        raise ValueError(f"prover_stance is {stance!r}")
    return DataPoint(
        str(record.get("id", digest.hex()[:16])), record["question"], record["solution"], int(record["y"]), int(stance)
    )


def _built_in() -> Iterator[DataPoint]:
    for number in range(10):
        solution = f"def f(x):\n    return x + {number if number % 2 else number + 1}"
        yield point_of(
            {"question": f"return x plus {number}", "solution": solution, "y": number % 2, "id": f"plus-{number}"}
        )
