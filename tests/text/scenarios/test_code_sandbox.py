"""Untrusted programs: they end, they reach nothing, and what they do is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from quintain.runs.run import Run
from quintain.text.scenarios import code_grammar, code_sandbox
from quintain.text.scenarios.code_grammar import Program
from quintain.text.scenarios.code_labels import label
from quintain.text.scenarios.code_sandbox import ProgramLimits, run
from tests.text.running import settings, train

LOOPS = "def f(x):\n    while True:\n        pass"
PRINTS = "def f(x):\n    while True:\n        print('a' * 1_000_000)"
FORKS = "import os\ndef f(x):\n    os.fork()\n    return x"


def test_values_are_compared_by_type_and_text() -> None:
    found = run(["def f(x):\n    return x + 1", "def f(x):\n    return x > 0"], [0, 1])
    assert found[0].end == "returned"
    assert found[0].outputs == (("int", "1"), ("int", "2"))
    assert found[1].outputs == (("bool", "False"), ("bool", "True"))


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (FORKS, "PermissionError"),
        ("def f(x):\n    return open('/etc/hostname').read()", "PermissionError"),
        ("import os\ndef f(x):\n    return os.listdir('/')", "PermissionError"),
        ("import os\ndef f(x):\n    os.kill(os.getppid(), 9)", "PermissionError"),
        ("import os\ndef f(x):\n    os.execv('/bin/true', ['true'])", "PermissionError"),
        ("import _socket\ndef f(x):\n    return _socket.socket()", None),
        ("import time\ndef f(x):\n    time.sleep(100)", "PermissionError"),
        ("def f(x):\n    return 'a' * 10 ** 10", "MemoryError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("def f(x) return", "SyntaxError"),
        ("x = 1", "KeyError"),
    ],
)
def test_a_program_cannot_do_more_than_compute(program: str, error: str | None) -> None:
    (found,) = run([program], [1])
    assert found.end == "raised"
    assert error is None or found.error == error


def test_programs_that_do_not_end_are_ended() -> None:
    outcomes = run([LOOPS, PRINTS, "def f(x):\n    return x"], [1], ProgramLimits(seconds=5.0, cpu_seconds=1))
    assert [each.end for each in outcomes] == ["deadline", "deadline", "returned"]


def test_a_deadline_counts_seconds_on_the_wall() -> None:
    # Waits without computing: only the deadline ends it, long before the limit of processor time.
    waits = "import select\ndef f(x):\n    while True:\n        pass"
    (found,) = run([waits], [1], ProgramLimits(seconds=0.3, cpu_seconds=60))
    assert found.end == "deadline"


@pytest.mark.parametrize(
    "program",
    [
        "import os\ndef f(x):\n    os._exit(0)",
        "import os\ndef f(x):\n    for each in range(64):\n        try:\n            os.write(each, b'{\"end\": 3}')\n"
        "        except OSError:\n            pass\n    os._exit(0)",
        "import os\ndef f(x):\n    for each in range(64):\n        try:\n            os.write(each, b'[' * 99_000)\n"
        "        except OSError:\n            pass\n    os._exit(0)",
        "import os\ndef f(x):\n    for each in range(64):\n        try:\n            os.write(each, b'a' * 10 ** 7)\n"
        "        except OSError:\n            pass",
    ],
)
def test_a_program_that_writes_its_own_result_gains_nothing(program: str) -> None:
    (found,) = run([program], [1])
    assert found.end == "killed"


def test_files_of_the_user_are_not_touched(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("kept")
    (found,) = run([f"import os\ndef f(x):\n    os.unlink({str(target)!r})"], [1])
    assert found.end == "raised"
    assert target.read_text() == "kept"


def test_the_environment_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    (found,) = run(["import os\ndef f(x):\n    return dict(os.environ)"], [1])
    assert "canary" not in str(found)


def test_labels_come_from_execution_and_ends_are_counted() -> None:
    right, wrong = "def f(x):\n    return 1 * x", "def f(x):\n    return x + 1"
    reference = "def f(x):\n    return x"
    programs = [Program("q", text, "", reference) for text in (right, wrong, LOOPS, FORKS)]
    programs.append(Program("q", right, "", LOOPS))  # no reference to compare with
    found = label(programs, [1, 2], ProgramLimits(seconds=5.0))
    assert [each.y for each in found.programs] == [1, 0, 0, 0]
    assert found.counts == Counter({"returned": 3, "deadline": 1, "raised": 1, "dropped": 1})


def test_the_grammar_is_labelled_as_arithmetic_says() -> None:
    programs = list(code_grammar.programs())
    assert len(programs) == 8 * 10 * 3 * 2
    chosen = [each for each in programs if each.question in ("return x multiplied 1", "return x plus 3")]
    labels = {(each.program.question, each.program.solution): each.y for each in label(chosen, (-2, 0, 3)).programs}
    assert labels["return x plus 3", "def f(x):\n    return x + 3"] == 1
    assert labels["return x plus 3", "def f(x):\n    y = x - 3\n    return y"] == 0
    # x // 1 is x * 1: a mutation that changes nothing.
    assert labels["return x multiplied 1", "def f(x):\n    return x // 1"] == 1


def test_what_became_of_the_programs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(Run, "tell", lambda self, text: told.append(text))
    train(tmp_path, settings(1, scenario={"built_in": "small_programs"}, rl={"rollouts_per_iteration": 1},
                             text_rl={"test_scheme": "none"}))  # fmt: skip
    # 8 * 10 * 3 * 2 programs of the grammar; dividing by zero is none of them.
    assert told[0].endswith("programs executed for labels: 480 returned")


def test_held_out_programs_are_the_same_in_every_process() -> None:
    held_out = [each for each in code_grammar.programs() if each.is_test]
    assert len(held_out) == 96
    assert held_out[0] == next(each for each in code_grammar.programs() if each.is_test)


def test_a_runner_that_cannot_start_is_an_error_of_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.errors import ResourceError

    monkeypatch.setattr(code_sandbox, "_RUNNER", Path("/nowhere/runner.py"))
    with pytest.raises(ResourceError, match="ended with exit code 2 after 0 of 1 programs"):
        run(["def f(x):\n    return x"], [1])
