"""What ranks on Ray need and no cluster is needed for; the ranks themselves are in `make test-ray`."""

from __future__ import annotations

import io
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from quintain.errors import RankError, ResourceError, RunDirectoryError, ServiceError, SettingsError
from quintain.placements.ray.mailbox import Mailbox
from quintain.placements.settings import RaySettings
from quintain.runs.assemble import Slots
from quintain.runs.ranks.lead import Ranks, are_on_ray, num_ranks_of
from quintain.runs.ranks.on_ray import RayRun, _Driver, new_run
from quintain.runs.ranks.ray_rank import _lead, require_reachable
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
    assert SignalRelay.installed is None


def test_rank_0_sees_whether_the_folder_of_runs_is_the_drivers(tmp_path: Path) -> None:
    (tmp_path / ".probe-1").touch()
    require_reachable(tmp_path, ".probe-1")
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        ServiceError, match=r"rank 0 is on node .*Set --runs-dir to storage that all nodes share"
    ) as refused:
        require_reachable(tmp_path, ".probe-2")
    assert refused.value.code == "E0549"


def test_a_folder_of_runs_that_the_driver_cannot_write_is_refused(tmp_path: Path) -> None:
    runs_dir, run_file = tmp_path / "runs", settings("placement.num_ranks=2")
    run = new_run(run_file, runs_dir=runs_dir, run_id="walk")
    runs_dir.write_text("a file")
    with pytest.raises(RunDirectoryError, match=r"not writable: .*runs .*Choose another with --runs-dir") as refused:
        driver_of(Small(2), run_file).train(run)
    assert refused.value.code == "E0305"


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


class Console(io.StringIO):
    """The console of rank 0, without a mailbox."""

    def post(self, message: Any, *, waits: bool = False) -> None: ...


def test_rank_0_says_in_the_words_of_the_script_how_the_run_goes_on(tmp_path: Path) -> None:
    small = RunFile.from_names("ppo", "CartPole-v1", "num_lanes=2", "num_steps=8", "batch_size=8", "budget.updates=1")
    run = replace(new_run(small, runs_dir=tmp_path, run_id="walk"), continued_by='resume = "walk"')
    (tmp_path / ".probe").touch()
    console: Any = Console()
    _lead(run.to_json(".probe", quiet=False, warnings=[]), Slots(env=partial(gymnasium.make, "CartPole-v1")), console)
    assert 'what was saved; resume = "walk" goes on from there' in console.getvalue()


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


class Small:
    """A cluster with room for so many ranks."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.asked: list[tuple[int, int]] = []

    def require_room(self, num_ranks: int, num_actors: int, settings: RaySettings) -> None:
        self.asked.append((num_ranks, num_actors))
        if num_ranks > self.num_ranks:
            raise ResourceError(f"no room for {num_ranks}", code="E0545")


def driver_of(cluster: Small, run_file: RunFile) -> _Driver:
    placement: Any = run_file.run.placement
    return _Driver(cluster, placement, StopSignals(), sys.stdout, quiet=True)  # type: ignore[arg-type]  # a stand-in


def test_an_elastic_run_takes_as_many_ranks_as_there_is_room_for_and_lanes_can_be_shared_by(tmp_path: Path) -> None:
    run_file = settings("placement.num_ranks=4", "placement.min_ranks=1", "num_collectors=1")
    run = new_run(run_file, runs_dir=tmp_path, run_id="walk")
    cluster = Small(3)
    fitting = driver_of(cluster, run_file)._fitting(run)
    # Three ranks cannot share 4 lanes, so they are not even asked for.
    assert cluster.asked == [(4, 4), (2, 2)]
    assert num_ranks_of(fitting.run_file) == 2
    assert fitting.overrides == ("run.placement.num_ranks=2",)
    assert driver_of(Small(4), run_file)._fitting(run) is run
    with pytest.raises(ResourceError, match="no room for 4"):
        driver_of(Small(0), run_file)._fitting(run)


@pytest.mark.parametrize(("received", "said", "exit_code"), [(None, 0, 0), (15, 0, 143), (15, 143, 143), (None, 3, 3)])
def test_a_stop_that_rank_0_did_not_hear_itself_is_the_end_of_the_driver(
    received: int | None, said: int, exit_code: int
) -> None:
    driver = driver_of(Small(2), settings("placement.num_ranks=2"))
    driver.signals.received = None if received is None else signal.Signals(received)
    summary = {"state": "stopped", "seconds": 1.0, "env_steps": 256}
    driver._hear({"ended": {"summary": summary, "digest": None, "exit_code": said}})
    assert driver.end is not None
    assert driver.end.exit_code == exit_code


def test_readers_are_reserved_with_their_rank() -> None:
    assert RaySettings(num_cpus_per_rank=1.5, num_readers=4, num_cpus_per_reader=0.25).cpus_of_rank == 2.5


def test_what_ended_a_rank_decides_whether_all_are_started_again(tmp_path: Path) -> None:
    run_file = settings("placement.num_ranks=2", "placement.max_failures=1")
    attempts: list[str | None] = []

    class Failing(_Driver):
        def _attempt(self, run: RayRun, words: Any) -> None:
            attempts.append(run.resumes)
            self.has_begun, self.lost, self.error = True, {1: "gone"}, None
            self.failures = [] if code is None else [(1, SettingsError("wrong", code=code))]

    def train() -> None:
        placement: Any = run_file.run.placement
        run = new_run(run_file, runs_dir=tmp_path, run_id="walk")
        Failing(Small(2), placement, StopSignals(), sys.stdout, quiet=True).train(run)  # type: ignore[arg-type]

    code: str | None = None
    with pytest.raises(RankError, match="rank 1 died under Ray Train"):
        train()
    assert attempts == [None, "walk"], "once more, from the last checkpoint"
    attempts.clear()
    code = "E0201"
    with pytest.raises(SettingsError, match="wrong"):
        train()
    assert attempts == [None], "an error of the user's is not repeated"
    assert not list(tmp_path.iterdir()), "a probe was left"
