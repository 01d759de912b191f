"""Questions about small programs from a grammar: 8 operators, 10 constants, 2 ways to write a solution.

A program is the solution of the question, or a mutated one with another operator. Its label is not known here: programs
are executed for it (`code_labels`), because some mutations change nothing (x * 1 is x // 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

OPERATORS = {
    "plus": "+",
    "minus": "-",
    "multiplied": "*",
    "over": "//",
    "modulo": "%",
    "above": ">",
    "below": "<",
    "equals": "==",
}
"""The word of a question and the operator of its solution."""
OPPOSITE = {
    "plus": "minus",
    "minus": "plus",
    "multiplied": "over",
    "over": "multiplied",
    "modulo": "equals",
    "equals": "modulo",
    "above": "below",
    "below": "above",
}
NUMBERS = (1, *range(3, 12))
"""Not 2, which the prompts have as a number of questions."""
FORMS = ("def f(x):\n    return {term}", "def f(x):\n    y = {term}\n    return y")
INPUTS = (-20, -3, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 30)
"""Arguments with which programs are compared; each operator differs from each other one on some, or is equal to it."""
_TEST_SHARE = 4


@dataclass(frozen=True)
class Program:
    """A proposed solution of a question."""

    question: str
    solution: str
    term: str
    """The term that it computes, in whichever form."""
    reference: str
    """A correct solution, with which it is compared."""

    @property
    def is_test(self) -> bool:
        """Whether the program is held out: a quarter, by a hash of question and term, the same in every run."""
        return hashlib.sha256(f"{self.question}\n{self.term}".encode()).digest()[0] % _TEST_SHARE == 0


def programs() -> Iterator[Program]:
    """Yields all programs: for each question both forms of the solution and of two mutations."""
    words = list(OPERATORS)
    for word, number in product(words, NUMBERS):
        question = f"return x {word} {number}"
        others = [each for each in words if each not in (word, OPPOSITE[word])]
        other = others[hashlib.sha256(question.encode()).digest()[0] % len(others)]
        reference = FORMS[0].format(term=f"x {OPERATORS[word]} {number}")
        for operator in (word, OPPOSITE[word], other):
            term = f"x {OPERATORS[operator]} {number}"
            for form in FORMS:
                yield Program(question, form.format(term=term), term, reference)
