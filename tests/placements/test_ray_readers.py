"""Readers of rollout actors beside the learner, without Ray."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.placements.commands import FILL, Command
from quintain.placements.ray import api
from quintain.placements.ray.collector import RayCollector, Sent


def test_the_learner_takes_a_result_that_is_still_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, arrives, taken = threading.Event(), threading.Event(), []

    def get(reference: Any) -> Any:
        asked.set()
        arrives.wait()
        return {"failed": {}}, []

    monkeypatch.setattr(api, "is_ready", lambda reference, seconds=0.0: True)
    monkeypatch.setattr(api, "next_of", lambda reference: "a result")
    monkeypatch.setattr(api, "get", get)
    worker: Any = SimpleNamespace(members=[])
    nothing: Any = None
    collector = RayCollector(worker, 0, nothing, {}, nothing, sends_blocks=False, streams=True)
    sent = Sent(Command(FILL, {"lend": []}), object(), [])
    collector._unanswered.append(sent)
    reader = threading.Thread(target=collector.bring, args=(sent.reference,))
    learner = threading.Thread(target=lambda: taken.append(collector._result(sent, 0.0)))
    reader.start()
    try:
        assert asked.wait(60)
        learner.start()
        learner.join(60)
        assert taken == ["a result"]
    finally:
        arrives.set()
        reader.join()
    assert collector.num_brought == 0
