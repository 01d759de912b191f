"""Faults of a provider end as the table of failures says; no key ever has two jobs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from quintain.errors import QuintainError, ServiceError
from quintain.runs import launch
from quintain.text.calls import Calls
from quintain.text.estimate import estimate
from quintain.text.ledger import KEY, Ledger
from quintain.text.model_groups import PureTextSharedModelGroup
from quintain.text.providers.base import Job, JobEvent, JobRequest, Refused
from quintain.text.providers.scripted import ScriptedProvider
from quintain.text.settings import ApiSettings, JobSettings, ScriptedSettings, TextAgentSettings
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


def test_a_failed_job_is_told_while_another_one_goes_on(tmp_path: Path) -> None:
    ends = {"prover": "hangs", "verifier": "failed"}
    with pytest.raises(ServiceError, match=r"ftjob-.* failed: invalid_training_file"):
        train(tmp_path, settings(2, api={"job_deadline_seconds": 60.0}, **with_provider(job_ends=ends)))


class NoEvents(ScriptedProvider):
    """Has no list of events, as some servers."""

    def events(self, job_id: str) -> Sequence[JobEvent]:
        raise Refused("404 not found")


def test_a_server_without_events_only_lacks_their_progress(tmp_path: Path) -> None:
    provider = NoEvents(ScriptedSettings(type="scripted"), tmp_path)
    group = PureTextSharedModelGroup("g", {"a": TextAgentSettings()}, ("a",), JobSettings(), Calls(ApiSettings()))
    group.provider = provider
    group.job = Job("ftjob-1", "running", "base")
    assert group.describe_progress(7.0) == 'group "g": ftjob-1 is running, waited 7 s'
    provider.close()


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


def test_the_deadline_of_a_job_goes_on_while_no_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = {"api": {"job_deadline_seconds": 3600.0, "poll_seconds": 0.0}}
    hangs = settings(2, **loop, **with_provider(job_ends={"verifier": "hangs"}))
    looks: list[str] = []

    def resumed_after(hours: float) -> None:
        """Resumes with a clock that is ahead; stops at the third look."""
        moved = datetime.now(UTC) + timedelta(hours=hours)
        monkeypatch.setattr("quintain.text.ledger.datetime", SimpleNamespace(now=lambda zone: moved))
        looks.clear()
        run_file = None if (tmp_path / "r").exists() else hangs
        if run_file is None:
            launched = launch.resume(tmp_path, "r", quiet=True)
        else:
            launched = launch.start(run_file, runs_dir=tmp_path, run_id="r", quiet=True)
        plain = ScriptedProvider.get_job

        def look(self: ScriptedProvider, job_id: str) -> Job:
            looks.append(job_id)
            if len(looks) == 4:
                launched.trainer.stop("test")
            return plain(self, job_id)

        with monkeypatch.context() as patch:
            patch.setattr(ScriptedProvider, "get_job", look)
            try:
                launched.trainer.train()
            finally:
                launched.trainer.close()
                launched.run.close()

    for hours in (0.0, 0.9, -5.0):  # less than an hour, or a clock that was set back
        resumed_after(hours)
        assert len(looks) >= 4
    with pytest.raises(ServiceError, match="did not end in 3600 s") as raised:
        resumed_after(1.1)
    assert (raised.value.code, len(looks) < 4) == ("E0706", True)


def test_looks_at_a_job_become_rarer(tmp_path: Path) -> None:
    trainer = train(tmp_path, settings(1, api={"poll_seconds": 10.0}))
    for waited, seconds in ((0.0, 10.0), (90.0, 10.0), (600.0, 60.0), (3000.0, 300.0), (1_000_000.0, 300.0)):
        trainer._waiting_since = time.monotonic() - waited
        assert trainer._seconds_to_next_look() == pytest.approx(seconds, abs=0.5)
    trainer.text_settings = trainer.text_settings.model_copy(update={"api": ApiSettings(poll_seconds=3600.0)})
    assert trainer._seconds_to_next_look() == 3600.0


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


@pytest.mark.parametrize("kind", ["chat", "upload", "create_job", "get_job"])
def test_a_stop_does_not_wait_for_a_request_that_hangs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = launch.start(settings(2), runs_dir=tmp_path, run_id="r", quiet=True)
    hanging = threading.Event()

    def hang(*args: object) -> None:
        launched.trainer.stop("test")
        hanging.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedProvider, kind, hang)
        began = time.monotonic()
        launched.trainer.train()
    # The request hangs for a minute; an absolute time is not asserted beyond that.
    assert time.monotonic() - began < 50
    hanging.set()
    launched.trainer.close()
    launched.run.close()
    train(tmp_path, None)
    train(tmp_path / "plain", settings(2))
    assert results(tmp_path) == results(tmp_path / "plain")


def test_the_budget_guard_stops_before_it_pays(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="max_jobs") as raised:
        train(tmp_path, settings(3, api={"max_jobs": 3}))
    assert raised.value.code == "E0703"
    assert len(results(tmp_path)["made"]) == 3
    priced = settings(3, api={"max_cost": 0.001, "price_per_million_tokens": 10.0})
    with pytest.raises(ServiceError, match="max_cost"):
        train(tmp_path, priced, "s")
    assert results(tmp_path, "s")["made"] == []


def test_a_limit_of_cost_needs_a_price() -> None:
    with pytest.raises(QuintainError, match=r"max_cost is 5\.0 and price_per_million_tokens is 0") as raised:
        settings(1, api={"max_cost": 5.0})
    assert raised.value.code == "E0205"


def test_every_epoch_of_a_job_is_paid_for(tmp_path: Path) -> None:
    api = ApiSettings(price_per_million_tokens=1e6, max_cost=300.0)  # 1 for each token
    ledger = Ledger(tmp_path, Calls(api), lambda text: None)
    provider = ScriptedProvider(ScriptedSettings(type="scripted"), tmp_path)
    examples = b"a" * 79 + b"\n"  # 80 characters are 20 tokens
    # 20 tokens in 10 epochs are 200, and 5 epochs of another 20 are 100 more: exactly the limit.
    for iteration, epochs in ((0, 10), (1, 5)):
        ledger.ensure(
            provider, (iteration, "g", 0), JobRequest("base", "", hyperparameters={"n_epochs": epochs}), examples
        )
    with pytest.raises(ServiceError, match=r"estimated cost to 320\.00"):
        ledger.ensure(provider, (2, "g", 0), JobRequest("base", "", hyperparameters={"n_epochs": 1}), examples)
    ledger.close()
    # A job without a number of epochs is assumed to have 25, for one example.
    again = Ledger(tmp_path, Calls(ApiSettings(price_per_million_tokens=1e6, max_cost=799.0)), lambda text: None)
    with pytest.raises(ServiceError, match=r"estimated cost to 800\.00"):
        again.ensure(provider, (2, "g", 0), JobRequest("base", ""), examples)
    again.close()
    provider.close()


def test_an_estimate_is_at_least_what_the_run_pays(tmp_path: Path) -> None:
    loop = {"api": {"price_per_million_tokens": 10.0}, "jobs": {"n_epochs": 2},
            "text_rl": {"fine_tune_on_all_previous_rollouts": True, "test_scheme": "last"}}  # fmt: skip
    trainer = train(tmp_path, settings(3, **loop))
    paid = sum(each.billed_tokens for each in trainer.ledger.entries.values())
    told = estimate(trainer.train_environment, trainer.test_environment, trainer.shared_model_groups, 3)
    # 3 x 24 conversations and 2 of the test; two groups and two fine-tunes.
    assert told.startswith("estimate: 74 conversations of at most 4 turns, 4 fine-tune jobs on at most ")
    most = int(told.split("at most ")[2].split()[0].replace("_", ""))
    assert 0 < paid <= most
    assert told.endswith(f"cost of jobs at most {most / 1e6 * 10:.2f}")


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


def test_data_that_cannot_be_sent_are_refused_before_the_run_begins(tmp_path: Path) -> None:
    lines = [{"question": "q", "solution": text, "y": 1} for text in ("a", "b", "c\ud800", "d")]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(QuintainError, match="a lone surrogate at character") as raised:
        train(tmp_path / "runs", settings(1, scenario={"train_file": str(tmp_path / "data.jsonl")}))
    assert raised.value.code == "E0205"
    assert not (tmp_path / "runs").exists()


def test_a_run_without_a_number_of_iterations_has_no_directory(tmp_path: Path) -> None:
    with pytest.raises(QuintainError, match=r"budget\.updates is missing") as raised:
        train(tmp_path / "runs", settings(None))
    assert (raised.value.code, (tmp_path / "runs").exists()) == ("E0205", False)


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
