"""What ranks on Ray need and no cluster is needed for; the ranks themselves are in `make test-ray`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from quintain.errors import ServiceError, SettingsError
from quintain.placements.ray.mailbox import Mailbox
from quintain.placements.settings import RaySettings
from quintain.runs.ranks.lead import Ranks
from quintain.runs.ranks.on_ray import are_on_ray, new_run
from quintain.runs.ranks.ray_rank import require_reachable
from quintain.services.processes.signals import SignalRelay, StopSignals
from quintain.settings.tree import RunFile


def settings(*overrides: str) -> RunFile:
    return RunFile.from_names("ppo", "CartPole-v1", "num_lanes=4", "max_staleness=1", "placement=ray", *overrides)


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_run_in_a_thread_stops_by_a_signal_of_the_driver(comes_first: bool) -> None:
    relay, stopped, is_watching = SignalRelay(), threading.Event(), threading.Event()
    signals, reasons = StopSignals(), []

    def train() -> None:
        with relay.current(), signals.watching(reasons.append, lambda: "none", lambda line: None):
            is_watching.set()
            stopped.wait(5.0)

    if comes_first:
        relay.deliver("SIGTERM")
    thread = threading.Thread(target=train)
    thread.start()
    assert is_watching.wait(5.0)
    if not comes_first:
        relay.deliver("SIGTERM")
    stopped.set()
    thread.join(timeout=5.0)
    assert reasons == ["SIGTERM"]
    assert signals.received is signal.SIGTERM
    assert signals.exit_code == 143
    assert SignalRelay.find() is None


def test_rank_0_sees_whether_the_folder_of_runs_is_the_drivers(tmp_path: Path) -> None:
    (tmp_path / ".probe-1").touch()
    require_reachable(tmp_path, ".probe-1")
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        ServiceError, match=r"rank 0 is on node .*Set --runs-dir to storage that all nodes share"
    ) as refused:
        require_reachable(tmp_path, ".probe-2")
    assert refused.value.code == "E0549"


def test_one_rank_is_the_driver_and_several_are_rays() -> None:
    assert not are_on_ray(settings())
    assert are_on_ray(settings("placement.num_ranks=2"))
    assert not are_on_ray(RunFile.from_names("ppo", "CartPole-v1", "placement.num_ranks=2"))


def test_a_description_of_a_run_is_plain_words(tmp_path: Path) -> None:
    run = new_run(settings("placement.num_ranks=2"), runs_dir=tmp_path, run_id="walk")
    words = run.to_json(".probe", quiet=True, warnings=[("W0530", "again")])
    assert (words["runs_dir"], words["run_id"], words["resumes"]) == (str(tmp_path), "walk", None)
    assert RunFile.from_mapping(words["settings"]) == run.run_file
    assert not list(tmp_path.iterdir()), "nothing is written by a description"


def test_ranks_on_ray_are_not_started_as_processes_and_cannot_be_fewer_than_the_least() -> None:
    with pytest.raises(SettingsError, match="ranks on Ray are started by `quintain train`"):
        Ranks(settings("placement.num_ranks=2"))
    with pytest.raises(SettingsError, match=r"min_ranks.*3 is more than run.placement.num_ranks, 2"):
        settings("placement.num_ranks=2", "placement.min_ranks=3")
    assert RaySettings().min_ranks is None


def test_a_mailbox_keeps_messages_in_order_until_they_are_taken() -> None:
    mailbox = Mailbox()
    mailbox.post({"text": "a"})
    mailbox.post({"text": "b"})
    assert [each["text"] for each in mailbox.take()] == ["a", "b"]
    assert mailbox.take() == []
    assert mailbox.ask() == ""
    mailbox.stop("SIGINT")
    assert mailbox.ask() == "SIGINT"
