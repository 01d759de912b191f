"""The same run through the real SDK against `quintain serve-text`: equal transcripts, faults, and a killed server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quintain.cli.serve_text import read_plan
from quintain.errors import SettingsError
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.text.providers.base import ChatRequest, JobRequest, Message, Refused
from quintain.text.settings import OpenAiSettings
from tests.text.running import in_child, killing_at, results, settings, train

TOKEN = "local-token-0123456789"


@contextmanager
def serving(folder: Path, port: int = 0, **options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "quintain", "serve-text", "--provider", "scripted", "--folder", str(folder)),
            *("--port", str(port), "--token", "env:TEXT_TOKEN", *words),
        ],
        env={**os.environ, "TEXT_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3].rstrip(","), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def through(url: str, **changes: Any) -> dict[str, Any]:
    agent = {"model_provider": "openai", "model_name": "base"}
    provider = {"base_url": url, "api_key": "env:TEXT_TOKEN", "timeout_seconds": 5.0, **changes}
    return {"agents": {"_default": agent}, "providers": {"openai": provider}}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXT_TOKEN", TOKEN)


def transcripts(folder: Path) -> object:
    (folder / "r" / "provider" / "scripted-jobs.jsonl").touch()
    found = results(folder)
    return found["talks"], found["created"], found["rows"]


@pytest.mark.slow
def test_equal_transcripts_with_faults_and_a_killed_server(tmp_path: Path) -> None:
    few = {"rl": {"rollouts_per_iteration": 18}}
    train(tmp_path / "direct", settings(3, **few))
    plan = {
        "chat": ["rate_limit", "none", "lost_answer", "server_error", "nonsense"],
        "create_job": ["lost_answer", "none", "nonsense", "server_error"],
        "get_job": ["nonsense", "rate_limit"],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with serving(tmp_path / "server", faults=str(tmp_path / "plan.json")) as (url, _):

        def work() -> None:
            killing_at(15, (Run, "_commit"))
            train(tmp_path / "sdk", settings(3, **few, **through(url)))

        assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    # Another server process at the same address, with the jobs of the first one, which was killed too.
    port = int(url.split(":")[2].partition("/")[0])
    with serving(tmp_path / "server", port, faults=str(tmp_path / "plan.json")) as (again, _):
        assert again == url
        train(tmp_path / "sdk", None)
    assert transcripts(tmp_path / "sdk") == transcripts(tmp_path / "direct")
    jobs = (tmp_path / "server" / "scripted-jobs.jsonl").read_text().splitlines()
    assert len(jobs) == len(set(jobs)) == 4


def test_the_interface_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.text.providers.openai import OpenAiProvider

    with serving(tmp_path) as (url, process):
        provider = OpenAiProvider(OpenAiSettings(type="openai", base_url=url, api_key="env:TEXT_TOKEN"), tmp_path)
        request = ChatRequest("base", (Message("system", "Decision:"), Message("user", "hi", name="prover")), seed=4)
        assert provider.chat(request) == provider.chat(request)
        file_id = provider.upload("a.jsonl", b"{}\n")
        job = provider.create_job(JobRequest("base", file_id, suffix="x", metadata={"k": "1"}))
        assert [each.id for each in provider.list_jobs({"k": "1"})] == [job.id]
        assert provider.list_jobs({"k": "2"}) == []
        assert provider.client.fine_tuning.jobs.pause(job.id).status == "paused"
        assert provider.get_job(job.id).status == "paused"
        assert provider.get_job(job.id).fine_tuned_model is None
        provider.client.fine_tuning.jobs.resume(job.id)
        assert provider.get_job(job.id).status == "succeeded"
        assert "succeeded" in provider.events(job.id)[0].message
        other = provider.create_job(JobRequest("base", file_id, suffix="y"))
        assert provider.cancel_job(other.id).status == "cancelled"
        assert (
            [each.id for each in provider.client.models.list()]
            == provider.models()
            == ["base", f"ft:base:{job.id[6:]}"]
        )
        for address in ("/embeddings", "/nowhere"):
            with pytest.raises(provider.sdk.NotFoundError, match="is not served here; chat completions"):
                provider.client.post(address, body={}, cast_to=object)
        # In pages of one, newest first.
        assert [each.id for each in provider.client.fine_tuning.jobs.list(limit=1)] == [other.id, job.id]
        for wrong, said in (
            ({"stream": True}, "stream=false"),
            ({"n": 2}, "n=1"),
            ({"stop": "x"}, "stop is not served"),
            ({"temperature": -1}, "from 0 to 2"),
            ({"seed": "x"}, "invalid literal"),
            ({"messages": [{"content": "hi"}]}, "role is missing"),
            ({"messages": [{"role": "user", "content": None}]}, "expected text"),
        ):
            chat = {"model": "base", "messages": [{"role": "user", "content": "hi"}], **wrong}
            with pytest.raises(provider.sdk.BadRequestError, match=said):
                provider.client.post("/chat/completions", body=chat, cast_to=object)
        with pytest.raises(Refused):
            provider.get_job("ftjob-none")
        monkeypatch.setenv("TEXT_TOKEN", "wrong")
        stranger = OpenAiProvider(OpenAiSettings(type="openai", base_url=url, api_key="env:TEXT_TOKEN"), tmp_path)
        with pytest.raises(Refused, match="401"):
            stranger.chat(request)
        for each in (provider, stranger):
            each.close()
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ('{"chat": "rate_limit"}', "expected lists of"),
        ('{"chats": ["rate_limit"]}', "by kind of call: cancel_job, chat"),
        ('{"chat": ["rate_limits"]}', "expected lists of lost_answer"),
    ],
)
def test_a_plan_of_faults_is_checked(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_plan(tmp_path / "missing.json")


def test_a_foreign_host_must_be_named() -> None:
    from quintain.text.providers.openai import OpenAiProvider

    here = {"type": "openai", "api_key": "env:TEXT_TOKEN"}
    with pytest.raises(SettingsError, match=r"allow_host: models\.example"):
        OpenAiProvider.require(OpenAiSettings.model_validate({**here, "base_url": "https://models.example/v1"}))
    named = {**here, "base_url": "https://models.example/v1", "allow_host": "models.example"}
    OpenAiProvider.require(OpenAiSettings.model_validate(named))
    with pytest.raises(SettingsError, match="expected https"):
        OpenAiProvider.require(OpenAiSettings.model_validate({**named, "base_url": "http://models.example/v1"}))


def test_a_missing_key_says_which_words_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.text.providers.openai import OpenAiProvider

    monkeypatch.delenv("TEXT_TOKEN")
    without_key = OpenAiSettings.model_validate({"type": "openai", "api_key": "env:TEXT_TOKEN"})
    with pytest.raises(SettingsError, match=r"agents\._default\.model_name=tiny-base$"):
        OpenAiProvider.require(without_key)
    agents = {name: {"model_provider": "openai", "model_name": "m"} for name in ("verifier", "_default")}
    run_file = settings(2, agents=agents, providers={"openai": {"api_key": "env:TEXT_TOKEN"}})
    with pytest.raises(SettingsError) as raised:
        train(tmp_path, run_file)
    # The words of the message are what has to be typed, and nothing else.
    words = [word for word in str(raised.value).split() if "=" in word]
    assert len(words) == 4
    mended = RunFile.from_mapping(run_file.to_dict(), *words)
    loop: Any = mended.experiment.loop
    assert {(each.model_provider, each.model_name) for each in loop.agents.values()} == {("tiny", "tiny-base")}


def test_conversations_at_the_same_time(tmp_path: Path) -> None:
    """64 conversations at 200 ms for an answer: at least 5 times as fast as the delays alone are one after the other.

    The criterion, 20 times as fast as the same run with one at a time, is measured by `make text-faults`; here other
    programs may use the processors.
    """
    with serving(tmp_path / "server", latency="0.2") as (url, _):
        many = settings(1, rl={"rollouts_per_iteration": 64}, api={"num_workers": 64}, text_rl={"test_scheme": "none"},
                        **through(url))  # fmt: skip
        trainer = train(tmp_path, many)
    elapsed, _ = trainer.stats.total_times["sample"]
    lines = (tmp_path / "r" / "rollouts" / "train-000000.jsonl").read_text().splitlines()
    turns = sum(len(json.loads(line)["turns"]) for line in lines)
    assert trainer.num_iterations == 1
    print(f"{turns} answers of 0.2 s in {elapsed:.2f} s: {turns * 0.2 / elapsed:.1f} times")
    assert turns * 0.2 / elapsed >= 5
