"""`quintain serve-text`: an OpenAI-compatible server on loopback in front of a provider of this machine."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, get_args

import typer

from quintain.core import registry
from quintain.core.extras import require_extra
from quintain.errors import SettingsError
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.text.settings import Fault

KINDS = frozenset(
    {"chat", "upload", "create_job", "list_jobs", "get_job", "events", "cancel_job", "pause_job", "resume_job"}
)
"""The kinds of calls that a plan of faults may name."""
FAULTS = frozenset(get_args(Fault))
_BACKLOG = 256


def serve_text(
    folder: Annotated[Path, typer.Option(help="Where jobs, files and models are kept.")] = Path("text-server"),
    provider: Annotated[str, typer.Option(help="The provider behind it.")] = "tiny",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8040,
    token: Annotated[str | None, typer.Option(help="env:NAME of the token; by default one is made.")] = None,
    faults: Annotated[Path | None, typer.Option(help="JSON file with faults of the first calls by kind.")] = None,
    latency: Annotated[float, typer.Option(min=0, help="Seconds that every answer takes longer.")] = 0.0,
) -> None:
    """Serves chat completions, files and fine-tuning jobs as OpenAI does, on loopback and with a token."""
    require_extra("serve-text", "uvicorn")
    import uvicorn

    from quintain.text.server.app import Faults, TextServer

    plan = {} if faults is None else read_plan(faults)
    atomic.make_directory(folder)
    place = folder / "token"
    if token is not None:
        secret = os.environ.get(token.removeprefix("env:"), "") if token.startswith("env:") else ""
        if not secret:
            raise SettingsError(f"--token {token}: expected env:NAME of a variable that is set", code="E0205")
        shown = token
    else:
        secret, shown = secrets.token_hex(16), str(place)
        atomic.replace_file(place, secret.encode())
    found = registry.get("provider", provider)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            # From here on requests wait instead of being refused, also before the server is ready.
            listening.listen(_BACKLOG)
        except OSError as error:
            raise SettingsError(f"--port {port}: {error.strerror}; --port 0 takes a free one", code="E0205") from error
        behind = found.load()(found.settings_class(type=found.name), folder)
        server = TextServer(behind, secret, Faults(plan, folder / "faults.jsonl"), latency)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        typer.echo(f"serving {provider} at {address}, token in {shown}")
        config = uvicorn.Config(server.app(), log_level="critical", access_log=False, backlog=_BACKLOG)
        uvicorn.Server(config).run(sockets=[listening])
    behind.close()


def read_plan(path: Path) -> dict[str, list[str]]:
    """Reads a plan of faults: for each kind of call what happens to the first ones."""
    try:
        plan: dict[str, list[str]] = json.loads(plain_files.read(path, 1_000_000))
    except OSError as error:
        raise SettingsError(f"--faults {path}: cannot be read ({error.strerror})", code="E0210") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--faults {path}: no JSON ({error})", code="E0205") from error
    is_plan = isinstance(plan, dict) and plan.keys() <= KINDS and all(isinstance(each, list) for each in plan.values())
    if not is_plan or any(fault not in FAULTS for each in plan.values() for fault in each):
        raise SettingsError(
            f"--faults {path}: expected lists of {', '.join(sorted(FAULTS))} by kind of call: "
            f"{', '.join(sorted(KINDS))}",
            code="E0205",
        )
    return plan
