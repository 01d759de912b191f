"""Code validation: questions with programs that are correct or not, from the grammar or from lines of a data set.

A line of the real data set has a question with `solutions` and `buggy_solutions`; a line of a processed one has one
`solution` and its label `y`. Records here are processed ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quintain.text.scenarios.code_labels import small_programs

if TYPE_CHECKING:
    from quintain.typing import JsonObject


def small_records(*, is_test: bool) -> list[JsonObject]:
    """Returns programs of the grammar, as many correct ones as wrong ones; programs for tests are held out."""
    found: tuple[list[JsonObject], list[JsonObject]] = ([], [])
    for number, each in enumerate(small_programs().programs):
        if each.program.is_test == is_test:
            record = {"question": each.program.question, "solution": each.program.solution, "y": each.y}
            found[each.y].append({**record, "id": f"small-{number}"})
    # Wrong ones are spread over all questions, of which there are more wrong ones.
    size = min(map(len, found))
    chosen = [[each[place * len(each) // size] for place in range(size)] for each in found]
    return [record for pair in zip(*chosen, strict=True) for record in pair]


def small_lines() -> Iterator[str]:
    """Yields the programs of the grammar as lines of the real data set, one for each question."""
    lines: dict[str, JsonObject] = {}
    for each in small_programs().programs:
        line = lines.setdefault(each.program.question, {"solutions": [], "buggy_solutions": []})
        line["solutions" if each.y else "buggy_solutions"].append({"solution": each.program.solution})
    for number, (question, line) in enumerate(lines.items()):
        yield json.dumps({"problem_id": number, "question": question, "difficulty": "small", "flags": "", **line})


def records_of(line: object, difficulty: str | None = None) -> list[JsonObject]:
    """Returns the records of one line: all its solutions, correct ones first; none of another difficulty or flagged.

    Raises TypeError or KeyError for a line of another form.
    """
    if not isinstance(line, dict):
        raise TypeError(f"a line is a {type(line).__name__}")
    if "solutions" not in line:
        return [line]
    if line.get("flags") or difficulty not in (None, line.get("difficulty", difficulty)):
        return []
    found = []
    for y, name in ((1, "solutions"), (0, "buggy_solutions")):
        for number, each in enumerate(line[name]):
            record_id = f"{line.get('problem_id', str(line['question'])[:40])}-{name}-{number}"
            found.append({"question": line["question"], "solution": each["solution"], "y": y, "id": record_id})
    return found
