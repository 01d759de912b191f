"""A collector that fails ends the run at once, with its own error and traceback; nothing is left behind."""

from __future__ import annotations

import gc
import threading
import traceback
from typing import Any

import pytest

from quintain import Trainer
from quintain.envs.hosts.faults import FaultKeeper, FaultNews, LaneFault
from quintain.errors import CollectorDied, EnvError, NonFiniteError, QuintainError, SettingsError
from quintain.rollouts.sync_collector import SyncCollector
from tests import warm
from tests.envs.fragile import Walk
from tests.placements.broken import Unmade, Wrong
from tests.placements.runs import AHEAD, EITHER, LANES, STEPS, make, walk_of
from tests.resume.test_workers import is_alive

BUDGET = 20 * LANES * STEPS


def failure_of(trainer: Trainer) -> QuintainError:
    with pytest.raises(QuintainError) as failed:
        trainer.train(BUDGET)
    with pytest.raises(QuintainError):
        trainer.state_dict()  # it says so again, and does not wait for an answer that will not come
    trainer.close()
    return failed.value


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("placement", EITHER)
def test_numbers_that_are_not_finite_are_refused_with_the_evidence(placement: str, max_staleness: int) -> None:
    error = failure_of(make(placement, max_staleness, env=walk_of(Wrong, how="nan")))
    assert isinstance(error, NonFiniteError)
    assert (error.code, error.exit_code) == ("E0601", 6)
    # The fortieth step of a lane is the eighth of its third rollout.
    assert "lane 0, step 8 of the rollout: nan" in error.message
    assert error.evidence["obs"].shape == (9, 3)
    assert "refuse_nonfinite" in trace_of(error)


@pytest.mark.parametrize("placement", EITHER)
def test_an_environment_that_breaks_too_often_ends_the_run_in_an_orderly_way(placement: str) -> None:
    settings = {"env_workers.max_failures_in_a_row": 3}
    trainer = make(placement, 1, env=walk_of(Wrong, how="raise", at=1), **settings)
    with pytest.raises(EnvError, match="RuntimeError: the wheels came off") as failed:
        trainer.train(BUDGET)
    assert failed.value.code == "E0503"
    assert trainer.faults.restarts >= 3
    # What is there can be saved: the collector stands, and has not failed.
    assert trainer.state_dict()["records"]["faults"]["restarts"] == trainer.faults.restarts
    trainer.close()


@pytest.mark.parametrize("placement", EITHER)
def test_a_parameter_that_is_not_there_is_refused_where_it_is_set(placement: str) -> None:
    trainer = make(placement)
    with pytest.raises(EnvError, match="has no parameter 'gravity'"):
        trainer.source.set_env_parameters({"gravity": 1.0})
    trainer.close()


def test_a_bug_in_the_thread_ends_the_run_with_its_own_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError("of all things")

    # It raises as code of quintain's would.
    monkeypatch.setattr("quintain.services.user_code._OURS", warm.ROOT)
    trainer = make("threads", 1)
    monkeypatch.setattr(SyncCollector, "_follow_episodes", fail)
    error = failure_of(trainer)
    assert (error.code, error.exit_code) == ("E0102", 1)
    assert error.message == "the collector's thread failed: ZeroDivisionError: of all things"
    assert "in _follow_episodes" not in trace_of(error)  # the function was replaced
    assert "in fail" in trace_of(error)


def test_no_thread_outlives_its_trainer() -> None:
    before = threading.active_count()
    trainer = make("threads", 1)
    assert threading.active_count() == before + 1
    trainer.train(2 * LANES * STEPS)
    trainer.close()
    assert threading.active_count() == before
    forgotten: Any = make("threads", 1)
    thread = forgotten.source.remote.collector._thread
    del forgotten
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_collector_process_that_is_killed_ends_the_run_with_exit_code_5() -> None:
    trainer = make("processes", 1, env=walk_of(Wrong, how="kill"))
    error = failure_of(trainer)
    assert isinstance(error, CollectorDied)
    assert (error.code, error.exit_code) == ("E0540", 5)
    assert "was killed by SIGKILL" in error.message
    assert "quintain resume" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("placement", AHEAD)
def test_a_collector_that_hangs_ends_the_run_and_says_where(placement: str, max_staleness: int) -> None:
    # Plain, because compiling kernels may take longer than that.
    patience = {"env_workers.reset_timeout_seconds": 2.0, "compiled": False}
    error = failure_of(make(placement, max_staleness, env=walk_of(Wrong, how="hang"), **patience))
    assert isinstance(error, CollectorDied)
    assert (error.code, error.exit_code) == ("E0542", 5)
    assert "did nothing for 2 s" in error.message
    assert "broken.py" in trace_of(error)


@pytest.mark.slow
@pytest.mark.parametrize("placement", AHEAD)
def test_slow_lanes_one_after_the_other_are_not_mistaken_for_one_that_hangs(placement: str) -> None:
    patience = {"env_workers.reset_timeout_seconds": 2.0, "compiled": False}
    slow = walk_of(Walk, step_seconds=0.3)
    # One step of all lanes takes 2.4 s, and none of them takes more than a sixth of its time.
    trainer = make(placement, env=slow, num_lanes=8, num_steps=2, batch_size=16, **patience)
    trainer.train(32)
    assert trainer.progress.env_steps == 32
    trainer.close()


@pytest.mark.slow
def test_no_process_outlives_its_trainer() -> None:
    trainer: Any = make("processes", 1, env=walk_of(Wrong, how="hang", at=LANES * STEPS))
    child = trainer.source.remote.collector.process.child
    trainer._collect_rollout()
    trainer.source.remote.collector.process.supervisor.read_reports()
    assert child.pid is not None
    assert is_alive(child.pid)
    trainer.close()  # though it hangs
    assert not is_alive(child.pid)


@pytest.mark.slow
def test_what_goes_wrong_at_the_start_is_told_as_anywhere_else() -> None:
    with pytest.raises(EnvError, match="cannot be created: RuntimeError: no licence") as failed:
        make("processes", env=Unmade)
    assert failed.value.code == "E0505"
    assert "no licence" in trace_of(failed.value)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"env": Walk()}, "an environment that exists already cannot be sent"),
        ({"use_symmetry": True, "normalize_obs": False}, "use_symmetry.*mirror"),
    ],
)
def test_what_cannot_be_in_another_process_is_refused_with_a_sentence(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        make("processes", **settings)


def test_a_policy_that_exists_already_cannot_be_sent() -> None:
    local = make("local")
    with pytest.raises(SettingsError, match="a policy that exists already cannot be sent") as refused:
        Trainer(local.policy, Walk, "ppo", num_lanes=LANES, placement="processes", writers=[], events=[])
    assert refused.value.code == "E0252"
    local.close()


@pytest.mark.slow
def test_a_function_cannot_see_the_steps_of_another_process() -> None:
    trainer = make("processes")
    with pytest.raises(SettingsError, match="cannot call functions of this process at every step"):
        trainer.source.listen(lambda step, info: None)
    trainer.close()


@pytest.mark.slow
def test_the_environment_of_another_process_cannot_be_stepped_here() -> None:
    trainer = make("processes")
    assert trainer.env.num_lanes == LANES
    with pytest.raises(EnvError, match=r"lives in the collector's process, so reset\(\) cannot be called here"):
        trainer.env.reset()
    trainer.close()


def test_news_of_faults_are_counted_told_and_stop_the_run() -> None:
    keeper, told, stopped = FaultKeeper(), [], []
    fault = LaneFault((1,), "step", "env 'x' failed", "RuntimeError: y")
    keeper.listen(lambda fault, line: told.append((fault, line)), stopped.append)
    keeper.adopt(FaultNews(((fault, "warning[W0501]: x"),), restarts=2, aborted=1))
    assert (keeper.restarts, keeper.aborted, told, stopped) == (2, 1, [(fault, "warning[W0501]: x")], [])
    spent = EnvError("too often", code="E0503")
    keeper.adopt(FaultNews((), spent=spent, fatal=fault))
    assert (keeper.spent, keeper.fatal, len(stopped)) == (spent, fault, 1)
    with pytest.raises(EnvError, match="too often"):
        FaultKeeper().adopt(FaultNews(spent=spent))
