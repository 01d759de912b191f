"""A key is in no file, log, transcript or crash report, even if the server repeats it in every answer."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from quintain.services.reporting.redaction import redact
from quintain.text.providers.base import ChatRequest, Message, Unavailable
from quintain.text.providers.openai import OpenAiProvider
from quintain.text.settings import OpenAiSettings
from tests import warm
from tests.text.running import LOOP

IMPORTS = ("openai", "quintain.text.expert_iteration")
SECRET = "quite-secret-0123456789abcdef"
JOB_MODES = {
    "file": "E0702", "id": "E0702", "listed": "E0702", "model": "E0702",  # the key is a part of an identifier
    "lost": "E0701", "failed": "E0705", "cancelled": "E0705", "hangs": "E0706",
}  # fmt: skip
"""How the jobs of `Echo` end, with the error of the run."""


class Echo(BaseHTTPRequestHandler):
    """Repeats the Authorization header in whatever it answers; jobs are answered in the modes of `JOB_MODES`."""

    mode: ClassVar[str] = ""

    def log_message(self, format: str, *args: object) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        told = str(self.headers["authorization"])
        error = json.dumps({"error": {"message": f"wrong key {told}", "type": told, "code": told}})
        said = f"Decision: accept\nI know {told}" if self.mode in JOB_MODES else f"I know {told}"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        chat = json.dumps({"id": told, "object": "chat.completion", "created": 0, "model": told, "choices": [choice]})
        if "chat" in self.path:
            status, body = {
                "refused": (401, error),
                "broken": (500, error),
                "limited": (429, error),
                "nonsense": (200, f"<html>{told}</html>"),
                "cut": (200, '{"choices": ["' + told),
            }.get(self.mode, (200, chat))
        elif self.mode not in JOB_MODES:
            status, body = 400, error
        elif "files" in self.path:
            file_id = "file-" + (self.secret if self.mode == "file" else "1")
            status, body = 200, json.dumps({"id": file_id, "object": "file", "filename": told})
        else:
            status, body = (500, error) if self.mode in ("lost", "listed") else (200, self.job("queued"))
        self.answer(status, body)

    def do_GET(self) -> None:
        told = str(self.headers["authorization"])
        if "events" in self.path:
            event = {"id": told, "level": "info", "message": told, "data": {"step": told, "total_steps": told}}
            self.answer(200, json.dumps({"data": [event], "has_more": False}))
        elif "ftjob" in self.path:
            self.answer(200, self.job({"model": "succeeded", "hangs": "running"}.get(self.mode, self.mode)))
        else:
            found = [json.loads(self.job("running"))] if self.mode == "listed" else []
            self.answer(200, json.dumps({"object": "list", "data": found, "has_more": False}))

    @property
    def secret(self) -> str:
        return str(self.headers["authorization"]).split()[1]

    def job(self, status: str) -> str:
        told = str(self.headers["authorization"])
        return json.dumps(
            {
                "id": "ftjob-" + (self.secret if self.mode in ("id", "listed") else "1"),
                "status": status,
                "model": told,
                "fine_tuned_model": f"ft:{told}" if status == "succeeded" else None,
                "created_at": 1,
                "metadata": {told: told},
                "error": {"code": told, "message": told, "param": told} if status == "failed" else None,
                "training_file": told,
            }
        )

    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/html" if self.mode == "nonsense" else "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", str(self.headers["authorization"]))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def echoing(answering: type[Echo] = Echo) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Endless(Echo):
    """Answers in chunks that never end, and says no length."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"a" * 1_000_000)


def test_an_answer_without_an_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", SECRET)
    with echoing(Endless) as url:
        provider = OpenAiProvider(OpenAiSettings(type="openai", base_url=url, api_key="env:MY_API_KEY"), tmp_path)
        with pytest.raises(Unavailable, match="more than 8000000 bytes"):
            provider.chat(ChatRequest("m", (Message("user", "hi"),), seed=0))
        provider.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "modes"),
    [
        ("env", ("broken", "limited", "nonsense", "cut", "job")),
        ("file", ("refused", "job", "failed", "id")),
        ("env", tuple(JOB_MODES)),
    ],
)
def test_a_key_that_the_server_repeats_is_nowhere(
    kind: str, modes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "here").write_text(SECRET + "\n")
    place = "env:MY_API_KEY" if kind == "env" else f"file:{tmp_path / 'key' / 'here'}"
    environment = {**warm.ENVIRONMENT, **({"MY_API_KEY": SECRET} if kind == "env" else {})}
    runs = tmp_path / "runs"
    with echoing() as url:
        for mode in modes:
            monkeypatch.setattr(Echo, "mode", mode)
            loop = {
                **LOOP,
                "protocol": {"name": "debate", "max_message_rounds": 3},
                "agents": {
                    "_default": {"model_provider": "openai", "model_name": "m", "num_invalid_generation_retries": 0}
                },
                "providers": {"openai": {"base_url": url, "api_key": place}},
                "api": {
                    "max_wait_seconds": 0.05,
                    "retry_seconds": 0.02,
                    "settle_seconds": 0.01,
                    "num_workers": 2,
                    "poll_seconds": 0.05,
                    "job_deadline_seconds": 0.2,
                },
            }
            path = tmp_path / f"{mode}.yaml"
            path.write_text(yaml.safe_dump({"experiment": {"budget": {"updates": 2}, "loop": loop}}))
            words = [sys.executable, "-m", "quintain", "train", str(path), "--runs-dir", str(runs), "--run-id", mode]
            done = warm.run([*words, "--debug"], capture_output=True, env=environment, text=True, imports=IMPORTS)
            assert done.returncode == 7, done.stderr
            assert f"error[{JOB_MODES.get(mode, 'E070')}" in done.stderr
            assert SECRET not in done.stdout + done.stderr
    assert "[redacted]" in (runs / modes[-1] / "rollouts" / "train-000000.jsonl").read_text()
    if "nonsense" in modes:
        kept = [path for path in (runs / "nonsense" / "crash").iterdir() if path.name.startswith("answer")]
        assert "<html>" in kept[0].read_text()
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert len(files) > 5 * len(modes)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_short_word_instead_of_a_key_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Servers without accounts take any word, and "none" is a part of many texts.
    monkeypatch.setenv("MY_API_KEY", "know")
    monkeypatch.setattr(Echo, "mode", "job")
    with echoing() as url:
        provider = OpenAiProvider(OpenAiSettings(type="openai", base_url=url, api_key="env:MY_API_KEY"), tmp_path)
        assert provider.chat(ChatRequest("m", (Message("user", "hi"),), seed=0)).text == "I know Bearer know"
        provider.close()
    assert redact("I know") == "I know"
