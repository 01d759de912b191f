"""Labels of programs by execution: a program is correct if it returns what the reference returns, for every input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from quintain.text.scenarios import code_grammar, code_sandbox
from quintain.text.scenarios.code_grammar import Program
from quintain.text.scenarios.code_sandbox import LIMITS, ProgramLimits


@dataclass(frozen=True)
class Labelled:
    """A program with its label."""

    program: Program
    y: int


@dataclass(frozen=True)
class Labels:
    """Programs with labels, and how programs ended: `returned`, `raised`, `deadline`, `killed`, and `dropped`."""

    programs: tuple[Labelled, ...]
    counts: Counter[str]


def label(programs: Sequence[Program], inputs: Sequence[object], limits: ProgramLimits = LIMITS) -> Labels:
    """Executes programs and their references; one whose reference does not return is dropped, and counted."""
    texts = list(dict.fromkeys(text for each in programs for text in (each.reference, each.solution)))
    outcomes = dict(zip(texts, code_sandbox.run(texts, inputs, limits), strict=True))
    counts: Counter[str] = Counter(outcomes[each.solution].end for each in programs)
    found = []
    for each in programs:
        expected = outcomes[each.reference]
        if expected.end == "returned":
            found.append(Labelled(each, int(outcomes[each.solution] == expected)))
        else:
            counts["dropped"] += 1
    return Labels(tuple(found), counts)


@cache
def small_programs() -> Labels:
    """Executes all programs of the grammar, once in a process."""
    return label(list(code_grammar.programs()), code_grammar.INPUTS)
