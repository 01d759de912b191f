"""Faults of a provider end as the table of failures says; no key ever has two jobs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from quintain.errors import QuintainError, ServiceError
from quintain.runs import launch
from quintain.text.calls import Calls
from quintain.text.ledger import KEY, Ledger
from quintain.text.providers.base import Job, JobRequest
from quintain.text.providers.scripted import ScriptedProvider
from quintain.text.settings import ApiSettings, ScriptedSettings
from tests.text.running import results, settings, train

SECRET = "sk-very-secret-0123456789abcdef"


def with_provider(**changes: object) -> dict[str, object]:
    return {"providers": {"scripted": changes}}


@pytest.mark.parametrize("fault", ["lost_answer", "timeout", "server_error", "rate_limit", "nonsense"])
def test_a_create_that_fails_makes_one_job(fault: str, tmp_path: Path) -> None:
    train(tmp_path, settings(2, **with_provider(faults={"create_job": [fault, "none", fault]})))
    found = results(tmp_path)
    assert len(found["made"]) == len(set(found["made"])) == len(found["created"]) == 2


def test_a_provider_that_drops_metadata_makes_one_job_too(tmp_path: Path) -> None:
    plan = {"create_job": ["lost_answer", "lost_answer"]}
    train(tmp_path, settings(2, **with_provider(keeps_metadata=False, faults=plan)))
    found = results(tmp_path)
    assert len(found["made"]) == len(set(found["made"])) == len(found["created"]) == 2


class OneJob(ScriptedProvider):
    """Has a job of the same file under another key."""

    def list_jobs(self, metadata: Mapping[str, str]) -> Sequence[Job]:
        stranger = Job("ftjob-stranger", "running", "base", training_file=self.upload("", b""), metadata={KEY: "other"})
        return [stranger] if not metadata else []

    def upload(self, name: str, data: bytes) -> str:
        return "file-same"


def test_a_job_under_another_key_is_not_adopted(tmp_path: Path) -> None:
    provider = OneJob(ScriptedSettings(type="scripted", faults={"create_job": ["server_error"]}), tmp_path)
    ledger = Ledger(tmp_path, Calls(ApiSettings(retry_seconds=0.0, settle_seconds=0.0)), lambda text: None)
    made = ledger.ensure(provider, (0, "prover", 0), JobRequest("base", ""), b"{}")
    assert made != "ftjob-stranger"
    ledger.close()
    provider.close()


@pytest.mark.parametrize("kind", ["chat", "get_job", "upload"])
@pytest.mark.parametrize("fault", ["server_error", "rate_limit", "timeout"])
def test_reads_are_repeated(kind: str, fault: str, tmp_path: Path) -> None:
    train(tmp_path / "plain", settings(2))
    train(tmp_path / "bad", settings(2, **with_provider(faults={kind: [fault, "none", fault]})))
    plain, bad = results(tmp_path / "plain"), results(tmp_path / "bad")
    assert bad == plain


def test_waits_end_with_their_limit(tmp_path: Path) -> None:
    bad = settings(
        2, api={"max_wait_seconds": 0.02, "retry_seconds": 0.01}, **with_provider(faults={"chat": ["timeout"] * 99})
    )
    with pytest.raises(ServiceError, match=r"max_wait_seconds") as raised:
        train(tmp_path, bad)
    assert (raised.value.code, raised.value.exit_code) == ("E0701", 7)


def test_a_refusal_is_final_and_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as raised:
        train(tmp_path, settings(2, **with_provider(faults={"create_job": ["refuse"]})))
    assert raised.value.code == "E0702"
    train(tmp_path, None)
    assert len(results(tmp_path)["made"]) == 2


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_job_that_ends_badly_stops_the_run(end: str, tmp_path: Path) -> None:
    run_file = settings(2, **with_provider(job_ends={"verifier": end}))
    with pytest.raises(ServiceError, match=end) as raised:
        train(tmp_path, run_file)
    assert raised.value.code == "E0705"
    # It is not paid again by a resume alone.
    with pytest.raises(ServiceError):
        train(tmp_path, None)
    assert len(results(tmp_path)["made"]) == 2


def test_a_failed_job_is_recreated_only_if_told(tmp_path: Path) -> None:
    again = {"on_failed_job": "recreate", "max_recreated_jobs": 1}
    bad = settings(2, api=again, **with_provider(job_ends={"verifier": "failed"}))
    with pytest.raises(ServiceError):
        train(tmp_path, bad)
    assert len(results(tmp_path)["made"]) == 3


def test_a_failed_job_may_leave_the_model(tmp_path: Path) -> None:
    kept = settings(2, api={"on_failed_job": "keep_model"}, **with_provider(job_ends={"verifier": "failed"}))
    trainer = train(tmp_path, kept)
    models = {name: group.model_name for name, group in trainer.shared_model_groups.items()}
    assert models["verifier"] == "base"
    assert models["prover"].startswith("ft:base:")


def test_a_stopped_run_goes_on_as_its_message_says(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"experiment\.loop\.api\.on_failed_job=recreate"):
        train(tmp_path, settings(2, **with_provider(job_ends={"verifier": "failed"})))
    launched = launch.resume(tmp_path, "r", ["experiment.loop.api.on_failed_job=keep_model"], quiet=True)
    summary = launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    assert summary.state == "finished"
    assert len(results(tmp_path)["made"]) == 2


def test_a_job_that_hangs_ends_with_its_deadline(tmp_path: Path) -> None:
    hangs = settings(2, api={"job_deadline_seconds": 0.05}, **with_provider(job_ends={"verifier": "hangs"}))
    with pytest.raises(ServiceError, match="did not end") as raised:
        train(tmp_path, hangs)
    assert raised.value.code == "E0706"


def test_sigterm_ends_a_wait_at_once(tmp_path: Path) -> None:
    hangs = settings(2, api={"poll_seconds": 3600.0}, **with_provider(job_ends={"verifier": "hangs"}))
    launched = launch.start(hangs, runs_dir=tmp_path, run_id="r", quiet=True)
    sent = []

    def send() -> None:
        while launched.trainer.progress.stage != 4:
            time.sleep(0.01)
        time.sleep(0.2)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(SystemExit):
        launched.trainer.train()
    # The wait is an hour; an absolute time is not asserted beyond that.
    assert time.monotonic() - sent[0] < 60
    sender.join()
    launched.trainer.close()
    launched.run.close()
    assert json.loads((tmp_path / "r" / "status.json").read_text())["state"] == "stopped"


def test_the_budget_guard_stops_before_it_pays(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="max_jobs") as raised:
        train(tmp_path, settings(3, api={"max_jobs": 3}))
    assert raised.value.code == "E0703"
    assert len(results(tmp_path)["made"]) == 3
    priced = settings(3, api={"max_cost": 0.001, "price_per_million_tokens": 10.0})
    with pytest.raises(ServiceError, match="max_cost"):
        train(tmp_path, priced, "s")
    assert results(tmp_path, "s")["made"] == []


def test_a_dry_run_calls_nothing(tmp_path: Path) -> None:
    train(tmp_path, settings(3, api={"dry_run": True}))
    found = results(tmp_path)
    assert (found["talks"], found["made"]) == ({}, [])


def test_no_secret_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    plans = [{"faults": {kind: [fault] * 9}} for kind in ("chat", "create_job") for fault in ("refuse", "timeout")]
    plans += [{"job_ends": {"verifier": end}} for end in ("failed", "cancelled")]
    for number, plan in enumerate(plans):
        with suppress(QuintainError):
            train(tmp_path, settings(2, api={"max_wait_seconds": 0.02}, **with_provider(**plan)), f"r{number}")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_changed_conversation_is_refused(tmp_path: Path) -> None:
    train(tmp_path, settings(2))
    path = tmp_path / "r" / "rollouts" / "train-000000.jsonl"
    path.write_text(path.read_text().replace("Sentence", "Sentense", 1))
    launched = launch.resume(tmp_path, "r", ["experiment.budget.updates=3"], quiet=True)
    with pytest.raises(QuintainError) as raised:
        launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    assert raised.value.code == "E0410"
