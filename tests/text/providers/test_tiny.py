"""The provider `tiny`: jobs in children that are the same in every process, and survive kills."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from quintain.errors import RunDirectoryError
from quintain.text.providers import tiny_training
from quintain.text.providers.base import ChatRequest, Job, JobRequest, Message, Refused
from quintain.text.providers.tiny import TinyProvider
from quintain.text.providers.tiny_settings import BASE_MODEL, TinySettings

QUESTION = Message("system", "say yes or no")


def lines(*answers: str, count: int = 40) -> bytes:
    made = [
        {"messages": [{"role": "system", "content": QUESTION.content}, {"role": "assistant", "content": answer}]}
        for _ in range(count)
        for answer in answers
    ]
    return "\n".join(map(json.dumps, made)).encode() + b"\n"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TinySettings:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    corpus.write_bytes(lines("yes", "no"))
    return TinySettings(corpus=str(corpus), pretraining_steps=100, width=16, num_layers=1, num_heads=2, context=32)


@pytest.fixture(scope="module")
def provider(settings: TinySettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyProvider]:
    made = TinyProvider(settings, tmp_path_factory.mktemp("provider"))
    yield made
    made.close()


def finished(provider: TinyProvider, job_id: str) -> Job:
    deadline = time.monotonic() + 60
    while not (job := provider.get_job(job_id)).is_terminal:
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    return job


def request(provider: TinyProvider, data: bytes, **changes: object) -> JobRequest:
    facts = {"model": BASE_MODEL, "training_file": provider.upload("data", data), "suffix": "run_iter_0_v", "seed": 5}
    return JobRequest(**{**facts, "metadata": {"key": "k1"}, **changes})  # type: ignore[arg-type]


def weights(provider: TinyProvider, job: Job) -> str:
    return str(json.loads((provider.folder / "jobs" / job.id / "result.json").read_text())["sha256"])


def test_a_supervised_job_changes_the_answers_and_is_the_same_job_in_another_folder(
    provider: TinyProvider, settings: TinySettings, tmp_path: Path
) -> None:
    asked = [ChatRequest(BASE_MODEL, (QUESTION,), seed) for seed in range(40)]
    before = [provider.chat(each).text for each in asked]
    assert {"yes", "no"} <= set(before)
    wanted = {"n_epochs": 20, "learning_rate_multiplier": 5.0}
    job = finished(provider, provider.create_job(request(provider, lines("yes"), hyperparameters=wanted)).id)
    assert job.status == "succeeded"
    assert job.fine_tuned_model == f"ft:tiny-base:quintain:run_iter_0_v:{job.id[6:18]}"
    after = [provider.chat(ChatRequest(job.fine_tuned_model, (QUESTION,), seed)).text for seed in range(40)]
    assert after.count("yes") > 35 > before.count("yes")
    assert [event.data["step"] for event in provider.events(job.id) if event.data] == [40]
    other = TinyProvider(settings, tmp_path / "other")
    try:
        assert [other.chat(each).text for each in asked] == before
        again = finished(
            other, other.create_job(request(other, lines("yes"), metadata={"key": "k2"}, hyperparameters=wanted)).id
        )
        assert (again.id, again.fine_tuned_model) == (job.id, job.fine_tuned_model)
        assert weights(other, again) == weights(provider, job)
    finally:
        other.close()


def test_a_job_whose_process_is_killed_is_repeated_with_the_same_weights(
    provider: TinyProvider, settings: TinySettings, tmp_path: Path
) -> None:
    data, longer = lines("no", count=64), {"n_epochs": 50}
    whole = finished(provider, provider.create_job(request(provider, data, hyperparameters=longer)).id)
    other = TinyProvider(settings, tmp_path / "other")
    job = other.create_job(request(other, data, hyperparameters=longer))
    child = other._children[job.id]
    while child.pid is None or not (other.folder / "jobs" / job.id / "events.jsonl").exists():
        time.sleep(0.01)
        other.get_job(job.id)
    os.kill(child.pid, signal.SIGKILL)
    assert not finished(other, job.id).error
    assert weights(other, job) == weights(provider, whole)
    assert len(other.events(job.id)) == len(provider.events(whole.id))
    # A process that ends leaves its job to the next one that opens the folder.
    left = other.create_job(request(other, data, hyperparameters={"n_epochs": 300}, seed=6))
    other.close()
    assert not (other.folder / "jobs" / left.id / "result.json").exists()
    other = TinyProvider(settings, tmp_path / "other")
    try:
        assert [each.id for each in other.list_jobs({"key": "k1"})] == [job.id, left.id]
        assert finished(other, left.id).status == "succeeded"
        assert other.list_jobs({"key": "k2"}) == []
    finally:
        other.close()


def test_a_paused_job_does_not_train_and_then_ends_with_the_same_weights(
    provider: TinyProvider, settings: TinySettings, tmp_path: Path
) -> None:
    data, longer = lines("no", count=64), {"n_epochs": 200}
    whole = finished(provider, provider.create_job(request(provider, data, hyperparameters=longer)).id)
    other = TinyProvider(settings, tmp_path / "other")
    job = other.create_job(request(other, data, hyperparameters=longer))
    child = other._children[job.id]
    while child.pid is None:
        other.get_job(job.id)
    assert other.set_paused(job.id, True).status == "paused"
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    # A pause outlives the process, and a job that waits is begun meanwhile.
    other.close()
    other = TinyProvider(settings, tmp_path / "other")
    try:
        next_one = other.create_job(request(other, lines("yes", "no"), hyperparameters={"n_epochs": 1}))
        assert finished(other, next_one.id).status == "succeeded"
        assert other.get_job(job.id).status == "paused"
        assert other.set_paused(job.id, False).status == "running"
        assert finished(other, job.id).status == "succeeded"
        assert weights(other, job) == weights(provider, whole)
        with pytest.raises(Refused, match="has succeeded"):
            other.set_paused(job.id, True)
        assert other.set_paused(job.id, False).status == "succeeded"
    finally:
        other.close()


def test_the_same_request_is_the_same_job_unless_it_was_cancelled(provider: TinyProvider) -> None:
    slow = request(provider, lines("no"), hyperparameters={"n_epochs": 5000}, metadata={"key": "slow"})
    job = provider.create_job(slow)
    assert provider.create_job(slow).id == job.id
    assert provider.cancel_job(job.id).status == "cancelled"
    assert provider.cancel_job(job.id).fine_tuned_model is None
    again = provider.create_job(slow)
    assert again.id != job.id
    assert [each.id for each in provider.list_jobs({"key": "slow"})] == [job.id, again.id]
    provider.cancel_job(again.id)


@pytest.mark.parametrize(
    ("data", "changes", "error"),
    [
        (lines("yes", count=9), {}, "9 examples, expected at least 10"),
        (lines("yes") + b"{", {}, "line 41 is no JSON"),
        (lines("yes") + b"[1]", {}, "line 41 is no object"),
        (lines("yes") + b'{"messages": []}', {}, "line 41 has no messages"),
        (
            lines("yes") + b'{"messages": [{"role": "user", "content": "x"}]}',
            {},
            "line 41: the last message is of user",
        ),
        (lines("yes") + b'{"messages": [{"role": "tool", "content": "x"}]}', {}, "line 41 has a message"),
        (lines("yes"), {"method": "dpo"}, "line 1 has no messages"),
        (lines("yes"), {"hyperparameters": {"n_epochs": -1}}, "n_epochs is -1"),
    ],
)
def test_a_file_that_cannot_be_used_fails_its_job(
    provider: TinyProvider, data: bytes, changes: dict[str, object], error: str
) -> None:
    job = finished(provider, provider.create_job(request(provider, data, **changes)).id)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.startswith("invalid_training_file: ")
    assert error in job.error
    assert provider.events(job.id)[-1].level == "error"


def test_wrong_names_are_refused(provider: TinyProvider) -> None:
    for call in (
        lambda: provider.chat(ChatRequest("gpt", (QUESTION,), 0)),
        lambda: provider.get_job("../../etc"),
        lambda: provider.create_job(JobRequest(BASE_MODEL, "../corpus")),
        lambda: provider.create_job(request(provider, lines("yes"), suffix="s" * 65)),
        lambda: provider.create_job(request(provider, lines("yes"), model="ft:x")),
    ):
        with pytest.raises(Refused):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"fine_tuned_model": BASE_MODEL},  # its weights may be those of the package
        {"fine_tuned_model": 3},
        {"metadata": []},
        {"seed": "x"},
        {"training_file": None},
    ],
)
def test_a_stored_record_that_is_no_job_is_not_carried_out(change: dict[str, object], tmp_path: Path) -> None:
    folder = tmp_path / "tiny" / "jobs" / "ftjob-1"
    folder.mkdir(parents=True)
    (tmp_path / "tiny" / "files").mkdir()
    (tmp_path / "tiny" / "files" / "file-1.jsonl").write_bytes(lines("accept"))
    record = {"model": BASE_MODEL, "training_file": "file-1", "method": "supervised", "suffix": None, "seed": 1}
    record |= {"hyperparameters": {}, "fine_tuned_model": "ft:x", "created_at": 1, "metadata": {}, **change}
    (folder / "job.json").write_text(json.dumps(record))
    provider = TinyProvider(TinySettings(), tmp_path)
    try:
        assert (provider.list_jobs({}), provider._children) == ([], {})
    finally:
        provider.close()


def test_a_folder_is_opened_by_one_provider(provider: TinyProvider, settings: TinySettings) -> None:
    with pytest.raises(RunDirectoryError, match="in use by another process"):
        TinyProvider(settings, provider.folder.parent)


def test_dpo_prefers_what_is_preferred(provider: TinyProvider) -> None:
    pair = {
        "input": {"messages": [{"role": "system", "content": QUESTION.content}]},
        "preferred_output": [{"role": "assistant", "content": "no"}],
        "non_preferred_output": [{"role": "assistant", "content": "yes"}],
    }
    data = "\n".join([json.dumps(pair)] * 32).encode()
    wanted = {"n_epochs": 60, "learning_rate_multiplier": 10.0, "beta": 0.5}
    job = finished(provider, provider.create_job(request(provider, data, method="dpo", hyperparameters=wanted)).id)
    assert job.fine_tuned_model is not None
    answers = [provider.chat(ChatRequest(job.fine_tuned_model, (QUESTION,), seed)).text for seed in range(20)]
    assert (answers.count("yes"), answers.count("no") > 10) == (0, True)


def test_the_loss_of_dpo_begins_at_log_two_and_that_of_answers_counts_answers_only(
    provider: TinyProvider, tmp_path: Path
) -> None:
    provider.chat(ChatRequest(BASE_MODEL, (QUESTION,), 0))  # makes the base model
    decoder = provider._decoder(BASE_MODEL)
    row = tiny_training._row(
        decoder, [("system", "say yes"), ("assistant", "no"), ("user", "or"), ("assistant", "yes")]
    )
    # <system> say yes <end> <assistant> no <end> <user> or <end> <assistant> yes <end>
    learned = [False] * 5 + [True] * 2 + [False] * 4 + [True] * 2
    assert row[1] == learned
    scores = decoder(torch.tensor([row[0][:-1]]))[0].log_softmax(-1).detach()
    by_hand = sum(scores[place - 1, row[0][place]] for place in (5, 6, 11, 12))
    assert tiny_training._log_likelihood(decoder, [row])[0].detach().item() == pytest.approx(float(by_hand), abs=1e-4)
    # Two equal models: the margin is 0, and -log(sigmoid(0)) is log 2.
    pair = {"input": {"messages": [{"role": "user", "content": "or"}]}}
    pair |= {
        name: [{"role": "assistant", "content": text}]
        for name, text in (("preferred_output", "no"), ("non_preferred_output", "yes"))
    }
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join([json.dumps(pair)] * 10))
    told: list[float] = []
    order = {
        "method": "dpo",
        "training_file": str(path),
        "start": str(provider._target(BASE_MODEL)),
        "seed": 0,
        "hyperparameters": {"n_epochs": 1},
    }
    tiny_training._trained(order, lambda message, **data: told.append(data["train_loss"]))
    assert told == [pytest.approx(math.log(2), abs=1e-5)]
