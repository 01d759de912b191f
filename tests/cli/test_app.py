"""Whatever a command raises becomes one line and a documented exit code, and the help needs no torch."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from quintain.cli import app, train
from quintain.cli.errors import EXIT_CODES
from quintain.cli.train import ResumeRequest, TrainRequest
from quintain.cli.words import FileSource, NamesSource, source_of, split_words
from quintain.errors import CheckpointError, HostedError, NonFiniteError, QuintainError, ResourceError, SettingsError
from quintain.services.reporting.crash_reports import crash_reports, redact
from tests import warm

Raise = Callable[[BaseException], None]


@pytest.fixture(autouse=True)
def _temporary_crash_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Raise:
    """Makes `quintain train ppo X` raise what it is given, as code of quintain's would."""
    monkeypatch.setattr("quintain.services.user_code._OURS", warm.ROOT)

    def install(error: BaseException) -> None:
        def run_training(request: TrainRequest) -> None:
            raise error

        monkeypatch.setattr(train, "run_training", run_training)

    return install


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[TrainRequest | ResumeRequest]:
    """Collects what the commands would have run."""
    seen: list[TrainRequest | ResumeRequest] = []
    monkeypatch.setattr(train, "run_training", seen.append)
    monkeypatch.setattr(train, "run_resume", seen.append)
    return seen


def quintain(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quintain", *words], capture_output=True, text=True, check=False, timeout=60
    )


def imported_by(*words: str) -> set[str]:
    program = (
        "import sys; from quintain.__main__ import main; main(sys.argv[1:]);sys.stderr.write('|'.join(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ended.stderr.split("|"))


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name in ("train", "resume", "eval", "checkpoints", "config", "validate", "list"):
        assert f"\n  {name} " in printed
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in printed
    assert printed.rstrip().endswith("143: by SIGTERM)")


def test_help_imports_no_command_and_no_torch() -> None:
    modules = imported_by("--help")
    assert "quintain.cli.app" in modules
    heavy = {"torch", "tensordict", "gymnasium", "numpy", "quintain.cli.train", "quintain.cli.config"}
    assert not modules & heavy


def test_train_help_imports_no_torch() -> None:
    modules = imported_by("train", "--help")
    assert "quintain.cli.train" in modules
    assert not modules & {"torch", "tensordict", "gymnasium"}


def test_every_command_in_the_table_loads() -> None:
    for name in ("train", "resume", "eval"):
        assert app.main([name, "--help"]) == 0


def test_no_command_at_all_shows_the_help_as_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("quintain ")


def test_the_script_ends_with_the_code_of_main() -> None:
    ended = quintain("tran")
    assert ended.returncode == 2
    assert ended.stderr == (
        "error[E0201]: quintain: no such command 'tran'. Did you mean 'train'? See quintain --help\n"
    )
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--sed", "3"], "quintain train: no such option --sed; did you mean --seed?"),
        (["train", "--learning-rate", "3"], "settings are written learning_rate=VALUE"),
        (["train", "--algo", "ppo", "--env", "CartPole-v1"], "are words: quintain train ppo CartPole-v1"),
        (["train", "--device", "cpu"], "settings are written device=VALUE"),
        (["enjoy", "a"], "quintain: no such command 'enjoy'; its counterpart is eval."),
        (["train", "CartPole-v1", "PPO"], "the algorithm comes first: PPO CartPole-v1"),
        (["--verzion"], "quintain: no such option --verzion; did you mean --version?"),
        (["eval"], "quintain eval: missing argument 'RUN'."),
        (["transcripts", "r", "--split", "foo"], "invalid value for '--split': 'foo' is not one of 'train', 'test'"),
        (["train", "ppo", "X", "--seed", "many"], "quintain train: invalid value for '--seed'"),
        (["train", "ppo"], "expected FILE, or ALGO ENV, and found 'ppo'"),
        (["train"], "expected FILE, or ALGO ENV, and found 'nothing'"),
        (["train", "ppo", "X", "--resume"], "--resume needs --run-id"),
        (["train", "--resume", "--force", "--run-id", "a"], "--resume and --force exclude each other"),
        (["train", "ppo", "X", "seed=1", "--seed", "2"], "--seed 2 and seed=1 both set the seed"),
        (["train", "ppo", "X", "=1"], "the override '=1' has no key"),
        (["resume", "a", "b"], "expected key=value after RUN and found 'b'"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error[E0201]: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_group_without_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.Typer(no_args_is_help=True)
    group.command("show")(lambda: None)
    group.command("schema")(lambda: None)
    monkeypatch.setattr(train, "group", group, raising=False)
    monkeypatch.setitem(app.COMMANDS, "config", ("quintain.cli.train:group", "Shows settings."))
    assert app.main(["config"]) == 2
    assert "quintain config: a command is missing; there are show, schema." in capsys.readouterr().err


def test_an_error_of_ours_prints_its_lines_and_gives_its_code(
    failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(CheckpointError("damaged \x1b[2J", code="E0402", notes=["help: use \x07 another"]))
    assert app.main(["train", "ppo", "X"]) == 4
    printed = capsys.readouterr()
    assert printed.err == "error[E0402]: damaged \\x1b[2J\nhelp: use \\x07 another\n"
    assert printed.out == ""


def test_json_puts_the_error_on_stdout_too(failing: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    failing(NonFiniteError("loss is nan", code="E0604", notes=["note: a", "note: b"]))
    assert app.main(["train", "ppo", "X", "--json"]) == 6
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "error": {"code": "E0604", "message": "loss is nan", "exit_code": 6, "notes": ["note: a", "note: b"]}
    }
    assert printed.err.startswith("error[E0604]: loss is nan\n")


@pytest.mark.parametrize(
    ("error", "exit_code", "expected"),
    [
        (MemoryError(), 8, "error[E0803]: out of memory."),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.bin"),
            8,
            "error[E0801]: No space left on device in a.bin",
        ),
        (OSError(errno.EMFILE, "Too many open files"), 8, "error[E0805]: Too many open files."),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C"),
        (typer.Exit(143), 143, ""),
    ],
)
def test_what_the_system_raises_has_its_own_code(
    error: BaseException, exit_code: int, expected: str, failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)
    assert app.main(["train", "ppo", "X"]) == exit_code
    assert capsys.readouterr().err.startswith(expected)


def test_a_bug_is_one_line_and_a_private_crash_report(
    failing: Raise, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(ZeroDivisionError("first\nsecond"))
    assert app.main(["train", "ppo", "X"]) == 1
    [report] = tmp_path.glob("quintain-crash-*.txt")
    printed = capsys.readouterr().err
    assert printed == (f"error[E0101]: internal error: ZeroDivisionError: first. A crash report is in {report}\n")
    assert "Traceback" in report.read_text()
    assert stat.S_IMODE(report.stat().st_mode) == 0o600


def test_a_crash_report_that_cannot_be_written(
    failing: Raise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", os.devnull)
    failing(ZeroDivisionError())
    assert app.main(["train", "ppo", "X"]) == 1
    assert "No crash report could be written; use --debug" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--debug", "train", "ppo", "X"], ["train", "ppo", "X", "--debug"]])
def test_debug_shows_the_traceback(words: list[str], failing: Raise, capsys: pytest.CaptureFixture[str]) -> None:
    failing(SettingsError("wrong"))
    assert app.main(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback (most recent call last):\n")
    assert printed.endswith("error[E0200]: wrong\n")


@pytest.mark.parametrize("kind", ["refusal", "caused", "fault"])
def test_only_what_a_message_does_not_explain_leaves_a_crash_report(kind: str, tmp_path: Path) -> None:
    error: QuintainError = NonFiniteError("nan") if kind == "fault" else HostedError("returned without a tick")
    error.__cause__ = KeyError("inside") if kind == "caused" else None
    with pytest.raises(QuintainError), crash_reports(lambda text: tmp_path / f"{len(text)}.txt"):
        raise error
    assert ("crash_report" in vars(error)) == (kind != "refusal")


def test_an_active_run_takes_the_crash_report(
    tmp_path: Path, failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "crash.txt"

    def write(text: str) -> Path:
        path.write_text(text)
        return path

    error = RuntimeError("inside")
    with pytest.raises(RuntimeError, match="inside"), crash_reports(write):
        raise error
    failing(error)
    assert app.main(["train", "ppo", "X"]) == 1
    assert f"A crash report is in {path}" in capsys.readouterr().err
    assert "RuntimeError: inside" in path.read_text()
    assert list(tmp_path.glob("quintain-crash-*")) == []


def test_a_run_that_cannot_write_its_crash_report_keeps_the_error(
    tmp_path: Path, failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(text: str) -> Path:
        raise ResourceError("cannot write the crash report: No space left on device", code="E0801")

    error = RuntimeError("inside")
    with pytest.raises(RuntimeError, match="inside"), crash_reports(write):
        raise error
    failing(error)
    assert app.main(["train", "ppo", "X"]) == 1
    assert f"RuntimeError: inside. A crash report is in {tmp_path}/quintain-crash-" in capsys.readouterr().err


def test_an_error_of_ours_inside_a_run_names_its_crash_report(
    tmp_path: Path, failing: Raise, capsys: pytest.CaptureFixture[str]
) -> None:
    error = QuintainError("broken")
    with pytest.raises(QuintainError), crash_reports(lambda text: tmp_path / "c.txt"):
        raise error
    failing(error)
    assert app.main(["train", "ppo", "X"]) == 1
    assert capsys.readouterr().err.endswith(f"note: the traceback is in {tmp_path / 'c.txt'}\n")


def test_secrets_do_not_reach_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "abcdefgh12345")
    monkeypatch.setenv("SHORT_TOKEN", "1234")
    assert redact("a abcdefgh12345 b sk-" + "x" * 20 + " 1234") == "a [redacted] b [redacted] 1234"


def test_a_reader_that_leaves_is_no_error() -> None:
    program = (
        "import sys, typer; from quintain.cli import app, train\n"
        "train.run_training = lambda request: [typer.echo('x' * 1000) for _ in range(1000)]\n"
        "sys.exit(app.main(['train', 'ppo', 'X']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


INTERRUPTED_TWICE = """
import os, signal, sys; from quintain.cli import app, train
def run_training(request):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
train.run_training = run_training
sys.exit(app.main(['train', 'ppo', 'X']))
"""
INTERRUPTED_IMPORT = """
import importlib, os, signal, sys; from quintain import __main__
importlib.import_module = lambda name: os.kill(os.getpid(), signal.SIGINT)
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("program", [INTERRUPTED_TWICE, INTERRUPTED_IMPORT], ids=["twice", "while importing"])
def test_ctrl_c_is_quiet_at_any_time(program: str) -> None:
    ended = warm.run([sys.executable, "-c", program], capture_output=True, cwd=warm.ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped by Ctrl-C\n")


def test_an_interrupt_that_a_library_turned_into_another_error_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_training(request: TrainRequest) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("cannot import name") from error

    monkeypatch.setattr(train, "run_training", run_training)
    assert app.main(["train", "ppo", "X"]) == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_pipe_that_broke_elsewhere_is_an_error(failing: Raise) -> None:
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert app.main(["train", "ppo", "X"]) == 1


def test_words_are_overrides_if_their_equals_sign_comes_before_any_slash() -> None:
    assert split_words(["ppo", "seed=1", "a/b=c.yaml", "env.kwargs={x: 'a/b'}", "k="]) == (
        ["ppo", "a/b=c.yaml"],
        ["seed=1", "env.kwargs={x: 'a/b'}", "k="],
    )
    assert split_words([]) == ([], [])


def test_a_source_is_a_file_or_two_names(tmp_path: Path) -> None:
    assert source_of(["missing.yaml"]) == FileSource(Path("missing.yaml"))
    existing = tmp_path / "settings"
    existing.touch()
    assert source_of([str(existing)]) == FileSource(existing)
    assert source_of(["ppo", "CartPole-v1"]) == NamesSource("ppo", "CartPole-v1")
    for names in (["a.yaml", "CartPole-v1"], ["ppo"], ["ppo", "X", "Y"], []):
        with pytest.raises(SettingsError, match="expected FILE, or ALGO ENV"):
            source_of(names)


def test_train_passes_on_what_was_asked(requests: list[TrainRequest | ResumeRequest]) -> None:
    words = "train ppo CartPole-v1 num_envs=16 --seed 3 --run-id a --runs-dir /r --force --quiet lr=1"
    assert app.main(words.split()) == 0
    assert requests == [
        TrainRequest(
            source=NamesSource("ppo", "CartPole-v1"),
            overrides=("num_envs=16", "lr=1", "experiment.seed=3"),
            runs_dir=Path("/r"),
            run_id="a",
            is_resume=False,
            is_forced=True,
            initialize_from=None,
            allow=(),
            is_json=False,
            is_quiet=True,
        )
    ]


def test_an_earlier_run_can_stand_for_the_names(requests: list[TrainRequest | ResumeRequest]) -> None:
    assert app.main(["train", "--initialize-from", "otter@best", "lr=1"]) == 0
    assert app.main(["train", "--resume", "--run-id", "otter"]) == 0
    assert [request.source for request in requests if isinstance(request, TrainRequest)] == [None, None]


def test_resume_passes_on_what_was_asked(requests: list[TrainRequest | ResumeRequest]) -> None:
    assert app.main(["resume", "otter", "seed=2", "--allow", "a:B", "--allow", "c:D", "--json"]) == 0
    assert requests == [ResumeRequest("otter", ("seed=2",), Path("runs"), ("a:B", "c:D"), True, False)]
