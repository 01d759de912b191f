"""Requests of the commands that start and resume a run, and options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quintain.cli.words import USAGE_CODE, FileSource, NamesSource
from quintain.errors import SettingsError

DEFAULT_RUNS_DIR = Path("runs")
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run directories are.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="MODULE:NAME", help="Code that the stored run file may load. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]


@dataclass(frozen=True)
class AgentOptions:
    """Options that apply only to ML-Agents' configurations."""

    env: str | None = None
    num_envs: int | None = None
    is_inference: bool = False
    is_deterministic: bool = False

    def names(self) -> list[str]:
        """Returns the given options that require such a configuration."""
        given = {
            "--env": self.env,
            "--num-envs": self.num_envs,
            "--inference": self.is_inference,
            "--deterministic": self.is_deterministic,
        }
        return [name for name, value in given.items() if value]


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `quintain train`."""

    source: FileSource | NamesSource | None
    """None only where an earlier run supplies the settings (`--resume`, `--initialize-from`)."""
    overrides: tuple[str, ...]
    runs_dir: Path
    run_id: str | None
    is_resume: bool
    is_forced: bool
    initialize_from: str | None
    allow: tuple[str, ...]
    is_json: bool
    is_quiet: bool
    is_tuned: bool = False
    agents: AgentOptions = AgentOptions()


@dataclass(frozen=True)
class ResumeRequest:
    """The arguments of `quintain resume`."""

    run: str
    overrides: tuple[str, ...]
    runs_dir: Path
    allow: tuple[str, ...]
    is_json: bool
    is_quiet: bool


def usage_error(message: str) -> SettingsError:
    """Returns the error for words that cannot be parsed."""
    return SettingsError(message, code=USAGE_CODE)
