"""Makes, checks and looks up the names of runs."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import RunDirectoryError, SettingsError
from quintain.services.checkpoints.catalog import FOLDER

LATEST = "latest"
"""Stands for the run that was last active."""
OLD_MARK = ".old-"
"""Separates the name of a run that was moved away from the time of the move."""
STATUS = "status.json"
_TAKEN = frozenset(
    {"checkpoints", "crash", "export", "rollouts", "run_logs", "tensorboard", "videos", "wandb", "workers"}
)

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_CHECKPOINT_SUFFIX = re.compile(r"latest|best|\d{1,18}|\d{6,12}-step-\d{1,18}")
_WORDS = (
    "adder badger bat bear beaver bison boar bream camel carp cat civet cobra cod colt coot coyote crab "
    "crane crow deer dingo dove eagle eel egret elk ermine ferret finch fox frog gecko goat goose hare "
    "hawk heron ibex jay kite koala lark lemur lion llama lynx mole moose moth newt otter owl panda "
    "pika puma raven robin seal shrew sloth swan tapir toad"
)


def check_run_id(run_id: str) -> str:
    """Returns the id if it can be a directory's name anywhere; refuses paths, device names and `latest`."""
    is_plain = _RUN_ID.fullmatch(run_id) and not _DEVICE_NAMES.fullmatch(run_id)
    if not is_plain or run_id == LATEST:
        expected = "1 to 64 of A-Z a-z 0-9 . _ -, the first a letter or digit"
        raise SettingsError(f"--run-id: found {run_id!r}, expected {expected}, and no reserved word", code="E0212")
    return run_id


def default_run_id(env: str, algorithm: str, *, runs_dir: Path) -> str:
    """Returns a readable id that is not in use, such as `cartpole-ppo-1115-otter`."""
    # A loop without an environment has "none".
    task = "" if env == "none" else re.sub(r"-v\d+$", "", env.rpartition("/")[2].rpartition(":")[2])
    stem = "-".join(filter(None, (_plain(task)[:32], _plain(algorithm)[:16], datetime.now(UTC).strftime("%m%d"))))
    words = _WORDS.split()
    free = [word for word in words if not (runs_dir / f"{stem}-{word}").exists()]
    if free:
        return f"{stem}-{secrets.choice(free)}"
    return f"{stem}-{secrets.choice(words)}-{secrets.token_hex(2)}"


def split_checkpoint_suffix(text: str) -> tuple[str, str | None]:
    """Splits `RUN@best`, `RUN@8192`, `RUN@000012-step-8192` or the path of a checkpoint into run and checkpoint.

    >>> split_checkpoint_suffix("a1@best")
    ('a1', 'best')
    >>> split_checkpoint_suffix("runs/a1/checkpoints/000012-step-8192")
    ('runs/a1', '000012-step-8192')
    >>> split_checkpoint_suffix("data@home/a1")
    ('data@home/a1', None)
    """
    path = Path(text)
    if path.parent.name == FOLDER and _CHECKPOINT_SUFFIX.fullmatch(path.name):
        run = str(path.parents[1])
        # With a slash, so that it stays a path.
        return run if "/" in run else f"./{run}", path.name
    run, mark, which = text.rpartition("@")
    if not mark or not run or not _CHECKPOINT_SUFFIX.fullmatch(which):
        return text, None
    return run, which


def resolve_run(runs_dir: Path, text: str) -> Path:
    """Returns the run directory meant by a path, an exact id, a unique prefix, or `latest`."""
    if "/" in text or text in (".", ".."):
        path = Path(text)
        if not path.is_dir():
            _refuse_odd_suffix(text, lambda run: Path(run).is_dir())
            raise RunDirectoryError(f"no run directory at {path}", code="E0304")
        return path
    runs = _runs_in(runs_dir)
    if text == LATEST:
        return _latest(runs_dir, runs)
    if text in runs:
        return runs_dir / text
    if (Path(text) / FOLDER).is_dir():
        return Path(text)
    candidates = [name for name in runs if text and name.startswith(text) and OLD_MARK not in name]
    if len(candidates) == 1:
        return runs_dir / candidates[0]
    if candidates:
        raise RunDirectoryError(
            f"{text!r} begins {len(candidates)} runs in {runs_dir}: {_some(candidates)}. Write more of it",
            code="E0304",
        )
    _refuse_odd_suffix(text, lambda run: run in runs)
    near = difflib.get_close_matches(text, runs, n=3, cutoff=0.5)
    all_runs = f"Runs there: {_some(sorted(runs))}" if runs else "There are no runs in it"
    advice = f"Did you mean {_some(near)}?" if near else all_runs
    raise RunDirectoryError(f"no run {text!r} in {runs_dir}. {advice}", code="E0304")


def _refuse_odd_suffix(text: str, is_run: Callable[[str], bool]) -> None:
    """Refuses RUN@which of a run that exists, where `which` can be no checkpoint."""
    run, _, which = text.rpartition("@")
    if run and is_run(run):
        expected = "latest, best, a step such as 8192, or a name such as 000012-step-8192"
        raise RunDirectoryError(f"{text!r}: found checkpoint {which!r}, expected {expected}", code="E0304")


def _runs_in(runs_dir: Path) -> list[str]:
    if not runs_dir.is_dir():
        return []
    return sorted(path.name for path in runs_dir.iterdir() if path.is_dir() and _RUN_ID.fullmatch(path.name))


def _latest(runs_dir: Path, runs: list[str]) -> Path:
    files = [runs_dir / name / STATUS for name in runs if OLD_MARK not in name]
    times = [(path.stat().st_mtime_ns, path.parent.name) for path in files if path.is_file()]
    if not times:
        raise RunDirectoryError(f"no run in {runs_dir} yet", code="E0303")
    return runs_dir / max(times)[1]


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def file_name(behavior: str) -> str:
    """Returns the file name of a behaviour: its name, with characters replaced that some systems do not allow.

    >>> file_name("Ball"), file_name("../Goal/Keeper?team=0"), file_name("checkpoints")
    ('Ball', '_._Goal_Keeper_team_0', 'checkpoints_')
    """
    safe = re.sub(r"[^\w .-]|^\.", "_", behavior)
    return f"{safe}_" if safe in _TAKEN else safe
