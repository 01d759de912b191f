"""`quintain serve-text`: an OpenAI-compatible server on loopback in front of a provider of this machine."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from quintain.core import registry
from quintain.core.extras import require_extra
from quintain.errors import SettingsError
from quintain.services import plain_files
from quintain.services.files import atomic


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

    atomic.make_directory(folder)
    plan = {} if faults is None else json.loads(plain_files.read(faults, 1_000_000))
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
    behind = found.load()(found.settings_class(type=found.name), folder)
    server = TextServer(behind, folder, secret, Faults(plan, folder / "faults.jsonl"), latency)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        typer.echo(f"serving {provider} at {address}, token in {shown}")
        config = uvicorn.Config(server.app(), log_level="critical", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])
    behind.close()
