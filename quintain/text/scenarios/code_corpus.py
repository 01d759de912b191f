"""Texts for the base model of the provider `tiny`: conversations about small programs, with random decisions.

They stand in for what a large model knows before it is fine-tuned. The expert's answers tell whether a program agrees
with its question, and decisions are drawn at random: the base model can read programs and speak in the right form, and
decides no better than by chance. Programs for tests do not occur.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from quintain.core.rng import Rng
from quintain.text.prompts import AgentTurn, Prompts
from quintain.text.protocols import VERIFIER, make_protocol
from quintain.text.providers.tiny_model import words_of
from quintain.text.scenario import DataPoint
from quintain.text.scenarios import code_grammar
from quintain.text.scenarios.code_grammar import OPERATORS
from quintain.text.scenarios.code_labels import small_programs
from quintain.text.settings import ProtocolSettings

if TYPE_CHECKING:
    from quintain.text.providers.base import Message

QUESTIONS = ("does it agree ?", "explain it")
ANSWERS = ("it differs", "it agrees")
"""What the expert says of a wrong and of a correct program."""
DECISIONS = ("Decision: reject", "Decision: accept")
_SHARES = (("expert", 0.7), ("verifier", 0.25), ("solo", 0.05))
_MAX_WORDS = {"prover": 20, VERIFIER: 20}


def words() -> frozenset[str]:
    """Returns the words that the base model reads and writes; others of the prompts are left out of its texts."""
    numbers = [str(number) for number in code_grammar.NUMBERS]
    spoken = " ".join((*QUESTIONS, *ANSWERS)).split()
    return frozenset(
        {*OPERATORS, *OPERATORS.values(), *numbers, *spoken, "x", "Task:", "Solution:"}
        | {"expert", "Decision:", "accept", "reject"}
    )


def texts(count: int) -> bytes:
    """Returns this many conversations as JSON lines; half of the programs are correct."""
    by_label = [
        [each for each in small_programs().programs if each.y == y and not each.program.is_test] for y in (0, 1)
    ]
    nip = Prompts(make_protocol(ProtocolSettings(max_message_rounds=3, min_message_rounds=3)), None, _MAX_WORDS)
    solo = Prompts(make_protocol(ProtocolSettings(name="solo_verifier")), None, _MAX_WORDS)
    draws = Rng(0).generator("corpus")
    kinds = draws.choice(len(_SHARES), count, p=[share for _, share in _SHARES])
    lines = []
    for kind in kinds.tolist():
        y = int(draws.integers(2))
        program = by_label[y][draws.integers(len(by_label[y]))].program
        point = DataPoint("", program.question, program.solution, y, 1)
        ask = QUESTIONS[draws.integers(len(QUESTIONS))]
        decision = DECISIONS[draws.integers(2)]
        turns = [
            AgentTurn(VERIFIER, 0, (), ask, {"main": ask}),
            AgentTurn("prover", 1, (), ANSWERS[y], {"main": ANSWERS[y]}),
        ]
        who = _SHARES[kind][0]
        if who == "expert":
            lines.append(_line(nip.build("prover", 1, 0, point, turns[:1]), ANSWERS[y]))
        elif who == "verifier":
            lines.append(_line(nip.build(VERIFIER, 2, 0, point, turns), decision))
        else:
            lines.append(_line(solo.build(VERIFIER, 0, 0, point, ()), decision))
    return "\n".join(lines).encode()


def _line(prompt: tuple[Message, ...], answer: str) -> str:
    known = words()
    messages = [
        {"role": each.role, "content": " ".join(filter(known.__contains__, words_of(each.content)))} for each in prompt
    ]
    return json.dumps({"messages": [*messages, {"role": "assistant", "content": answer}]})
