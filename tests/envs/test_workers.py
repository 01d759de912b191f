"""Lanes in worker processes: the same numbers as in this process, and nothing that an environment does ends the run."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.envs.base import StepResult
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.make import env_from_object, gym_env
from quintain.envs.hosts.faults import LaneFault
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import GymSettings
from quintain.errors import EnvError, SettingsError
from quintain.settings.run import EnvWorkerSettings
from tests.envs import fragile

LANES = 4
Make = Callable[..., LaneEnv]


class Crowd:
    """Makes environments and closes them when the test is over; remembers what was told of faults."""

    def __init__(self) -> None:
        self.made: list[LaneEnv] = []
        self.told: list[tuple[LaneFault, str]] = []
        self.given_up: list[str] = []

    def __call__(
        self,
        name: str,
        num_workers: int | None,
        num_lanes: int = LANES,
        env: dict[str, Any] | None = None,
        **settings: Any,
    ) -> LaneEnv:
        lenient = {"max_restarts": 10_000, "max_failures_in_a_row": 1000}
        hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=num_workers, **{**lenient, **settings}))
        hosting.faults.listen(lambda fault, line: self.told.append((fault, line)), self.given_up.append)
        made = gym_env(GymSettings(id=name, kwargs=env or {}), num_lanes, Rng(5), hosting=hosting)
        assert isinstance(made, LaneEnv)
        self.made.append(made)
        return made

    def close(self) -> None:
        for env in self.made:
            env.close()


@pytest.fixture
def make() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()


def fragile_name(name: str) -> str:
    return f"tests.envs.fragile:{name}"


def actions(step: int, num_lanes: int = LANES) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(step).integers(0, 2, num_lanes))


def numbers(result: StepResult) -> list[bytes]:
    done = np.asarray(result.terminated) | np.asarray(result.truncated)
    aborted = np.zeros(len(done), bool) if result.aborted is None else np.asarray(result.aborted)
    final = np.asarray(result.final_obs)[done]
    return [
        np.array(v).tobytes() for v in (result.obs, result.reward, result.terminated, result.truncated, aborted, final)
    ]


def play(env: LaneEnv, num_steps: int) -> list[list[bytes]]:
    first = np.array(env.reset()).tobytes()
    return [[first], *(numbers(env.step(actions(step, env.num_lanes))) for step in range(num_steps))]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids(env: LaneEnv) -> list[int]:
    assert isinstance(env, WorkerEnv)
    env.crew.supervisor.read_reports()  # type: ignore[attr-defined]
    return [worker.child.pid for worker in env.crew.workers]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "tests.envs.fragile:Walk"])
def test_the_numbers_do_not_depend_on_the_number_of_workers(name: str, make: Crowd) -> None:
    def steps(num_workers: int | None) -> list[list[bytes]]:
        env = make(name, num_workers)
        env.reset()
        acts = [actions(t) if name != "Pendulum-v1" else actions(t).float()[:, None] for t in range(80)]
        return [numbers(env.step(action)) for action in acts]

    alone = steps(None)
    assert steps(1) == alone
    assert steps(3) == alone


@pytest.mark.parametrize("call", ["step", "reset"])
def test_exceptions_on_a_schedule_give_the_same_numbers_everywhere(call: str, make: Crowd) -> None:
    settings = {"how": "raise", "chance": 0.1 if call == "step" else 0.4, "call": call}
    found = [play(make(fragile_name("Fragile"), workers, env=settings), 120) for workers in (None, 1, 3)]
    assert found[0] == found[1] == found[2]
    per_run = len(make.told) // 3
    assert per_run > 10
    assert [f.lanes for f, _ in make.told] == [f.lanes for f, _ in make.told[:per_run]] * 3


@pytest.mark.parametrize("how", ["leave", "exit", "segfault", "kill"])
def test_a_worker_that_dies_costs_only_its_own_lanes_one_step(how: str, make: Crowd, tmp_path: Path) -> None:
    command = tmp_path / "break"
    env = make(fragile_name("BreaksOnCommand"), 2, env={"path": str(command), "how": how})
    undisturbed = make(fragile_name("Walk"), None)
    env.reset()
    undisturbed.reset()
    for step in range(5):
        assert numbers(env.step(actions(step))) == numbers(undisturbed.step(actions(step)))
    command.touch()
    result, expected = env.step(actions(5)), undisturbed.step(actions(5))
    assert result.aborted is not None
    broken = np.flatnonzero(np.asarray(result.aborted)).tolist()
    [(fault, line)] = make.told
    # sys.exit() is caught in the worker and costs one lane; a death costs both lanes of its worker.
    assert len(broken) == (1 if how == "leave" else 2)
    assert fault.lanes == tuple(broken)
    assert fault.warning == ("W0501" if how == "leave" else "W0502")
    assert {"leave": "SystemExit", "exit": "exit code 7", "segfault": "SIGSEGV", "kill": "SIGKILL"}[how] in line
    others = [lane for lane in range(LANES) if lane not in broken]
    np.testing.assert_array_equal(np.asarray(result.obs)[others], np.asarray(expected.obs)[others])
    assert np.asarray(result.reward)[broken].tolist() == [0.0] * len(broken)
    assert not (np.asarray(result.terminated) | np.asarray(result.truncated))[broken].any()
    # The episode begins anew, as another attempt with another seed.
    assert env.attempt[broken].tolist() == [1] * len(broken)
    assert env.episode[broken].tolist() == [0] * len(broken)
    assert env.action_log.since_reset(broken[0]) == []
    after = env.step(actions(6))
    assert after.aborted is None
    assert env.exactness == "exact"


def test_the_new_attempt_has_the_seed_of_its_lane_episode_and_attempt(make: Crowd, tmp_path: Path) -> None:
    command = tmp_path / "break"
    env = make(fragile_name("BreaksOnCommand"), 1, num_lanes=1, env={"path": str(command), "how": "kill"})
    env.reset()
    command.touch()
    obs = np.array(env.step(actions(0, 1)).obs)[0]
    walk = fragile.Walk()
    expected, _ = walk.reset(seed=Rng(5).seed_for("reset", 0, 0, 1))
    np.testing.assert_array_equal(obs, expected)


@pytest.mark.parametrize("how", ["hang", pytest.param("hang hard", marks=pytest.mark.slow)])
def test_a_worker_that_hangs_is_asked_where_it_is_and_ended(how: str, make: Crowd, tmp_path: Path) -> None:
    command = tmp_path / "break"
    settings = {"path": str(command), "how": how}
    env = make(fragile_name("BreaksOnCommand"), 2, env=settings, step_timeout_seconds=0.5)
    env.reset()
    [first, second] = pids(env)
    command.touch()
    result = env.step(actions(0))
    [(fault, line)] = make.told
    assert fault.warning == "W0503"
    assert "gave no answer in step() on lane" in line
    assert "for 0.5 s" in line
    # The stack names the line in which the environment sleeps.
    assert 'fragile.py", line' in fault.trace
    assert "in strike" in fault.trace
    assert np.asarray(result.aborted).sum() == 2
    assert sorted((is_alive(first), is_alive(second))) == [False, True]
    assert env.step(actions(1)).aborted is None


def test_slow_lanes_are_not_mistaken_for_a_hang(make: Crowd) -> None:
    # Four lanes of 0.3 s in one worker take longer than the limit of one step together; each alone does not.
    env = make(fragile_name("Walk"), 1, env={"step_seconds": 0.3}, step_timeout_seconds=0.7)
    env.reset()
    assert env.step(actions(0)).aborted is None
    assert make.told == []


def test_a_killed_worker_is_noticed_within_half_a_second(make: Crowd) -> None:
    # A step would take half a minute, so it is not the end of the step that is noticed.
    env = make(fragile_name("Walk"), 1, num_lanes=1, env={"step_seconds": 30.0})
    env.reset()
    killed: list[float] = []
    noticed: list[float] = []
    env.faults.listen(lambda fault, line: noticed.append(time.monotonic()), make.given_up.append)

    def kill(pid: int) -> None:
        killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    for _ in range(3):
        timer = threading.Timer(0.5, kill, pids(env))
        timer.start()
        assert np.asarray(env.step(actions(0, 1)).aborted).tolist() == [True]
        timer.join()
    seconds = [after - before for before, after in zip(killed, noticed, strict=True)]
    # The quickest of three: other tests share the machine.
    assert min(seconds) < 0.5


def test_a_lane_that_cannot_come_up_stays_down_while_others_go_on(make: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(fragile_name("Fragile"), None, env={"how": "raise", "chance": 0.0})
    env.reset()
    broken = env.envs[2]
    broken.chance = 1.0
    monkeypatch.setattr(fragile.Fragile, "__init__", lambda self, **_: (_ for _ in ()).throw(OSError("still broken")))
    for step in range(3):
        before = np.array(env.obs["obs"])
        result = env.step(actions(step))
        assert np.asarray(result.aborted).tolist() == [False, False, True, False]
        np.testing.assert_array_equal(env.obs["obs"][2], before[2])
    assert [fault.call for fault, _ in make.told] == ["step", "create", "create", "create"]
    monkeypatch.undo()
    assert np.asarray(env.step(actions(3)).aborted).tolist() == [False, False, True, False]
    assert env.step(actions(4)).aborted is None
    assert env.attempt.tolist() == [0, 0, 4, 0]


def test_a_budget_that_is_spent_asks_to_stop_and_names_the_first_error(make: Crowd) -> None:
    env = make(fragile_name("Fragile"), 2, env={"how": "raise", "chance": 1.0}, max_failures_in_a_row=3)
    env.reset()
    for step in range(3):
        assert not make.given_up
        env.step(actions(step))
    assert len(make.given_up) == 1
    assert env.faults.spent is not None
    assert env.faults.spent.code == "E0503"
    said = str(env.faults.spent)
    assert "lane 0 failed 3 times in a row (run.env_workers.max_failures_in_a_row); first: env " in said
    assert "'tests.envs.fragile:Fragile' failed in step()" in said
    assert str(env.faults.spent).endswith("RuntimeError: the arm fell off")
    assert env.down.all()


def test_without_a_budget_the_first_fault_is_an_error() -> None:
    env = env_from_object(fragile.Fragile, 2, Rng(0))
    env.reset()
    env.envs[1].chance = 1.0  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"failed in step\(\) on lane 1, episode 0, action .*the arm fell off") as failed:
        env.step(actions(0, 2))
    assert failed.value.code == "E0501"
    assert isinstance(failed.value.__cause__, RuntimeError)


@pytest.mark.parametrize("num_workers", [None, 2])
def test_what_cannot_be_made_is_an_error_at_once(num_workers: int | None, make: Crowd) -> None:
    with pytest.raises(EnvError, match="cannot be created: OSError: no display") as failed:
        make(fragile_name("CannotBeMade"), num_workers)
    assert failed.value.code == "E0505"
    # The user's own line, also if it was in another process.
    assert failed.value.notes[0].startswith(f'note: File "{fragile.__file__}", line ')
    assert failed.value.notes[0].endswith("in __init__")
    with pytest.raises(EnvError, match="cannot be created: ValueError: spaces come later") as failed:
        make(fragile_name("HasNoSpaceYet"), num_workers)
    assert failed.value.code == "E0505"


def test_a_death_while_it_is_made_says_where(make: Crowd) -> None:
    with pytest.raises(EnvError, match=r"worker env-0 \(lanes 0-1\) was killed by SIGSEGV") as failed:
        make(fragile_name("DiesWhenMade"), 2)
    assert failed.value.code == "E0507"
    assert any(f'File "{fragile.__file__}", line ' in note for note in failed.value.notes)


def test_workers_see_the_variables_of_a_simulator(make: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATOR_HOME", "/opt/simulator")
    make(fragile_name("NeedsVariable"), 2)


def test_a_secret_that_workers_do_not_see_is_named(make: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    # By its value: this is what an access key looks like.
    monkeypatch.setenv("SIMULATOR_HOME", "sk-123456789012")
    make(fragile_name("NeedsVariable"), None)
    with pytest.raises(EnvError, match="KeyError: 'SIMULATOR_HOME'") as failed:
        make(fragile_name("NeedsVariable"), 2)
    help_line = "help: workers do not see SIMULATOR_HOME; add env_workers.pass_environment=[SIMULATOR_HOME]"
    assert failed.value.notes[-1] == help_line
    make(fragile_name("NeedsVariable"), 2, pass_environment=("SIMULATOR_HOME",))
    with pytest.raises(EnvError) as failed:
        make(fragile_name("CannotBeMade"), 2)
    assert "SIMULATOR_HOME" in failed.value.notes[-1]
    assert "look like secrets" in failed.value.notes[-1]
    with pytest.raises(EnvError) as failed:
        make(fragile_name("CannotBeMade"), None)
    assert not any("secrets" in note for note in failed.value.notes)


def test_what_is_named_and_not_there_is_refused(make: Crowd) -> None:
    with pytest.raises(SettingsError, match="cannot import env") as refused:
        make("tests.envs.fragile:NoSuchThing", 2)
    assert refused.value.code == "E0208"


def test_noise_and_changes_of_directory_do_no_harm_and_the_log_is_capped(make: Crowd, tmp_path: Path) -> None:
    here = os.getcwd()
    env = make(fragile_name("Noisy"), 1)
    assert isinstance(env, WorkerEnv)
    env.crew.supervisor.log_to(tmp_path)  # type: ignore[attr-defined]
    quiet = make(fragile_name("Walk"), None)
    assert play(env, 60) == play(quiet, 60)
    assert os.getcwd() == here
    env.close()
    logs = sorted(tmp_path.iterdir())
    assert [log.name for log in logs] == ["env-0.log", "env-0.log.1"]
    # 60 steps of four lanes print about 14 MB; two files of at most 1 MB are kept.
    assert all(0 < log.stat().st_size <= 1_000_000 for log in logs)
    assert all(log.stat().st_mode & 0o777 == 0o600 for log in logs)
    text = logs[0].read_bytes()
    assert b"garbage ?[31m{}" in text + logs[1].read_bytes()
    assert b"\x1b" not in text


def test_workers_see_no_secrets_and_import_no_torch(make: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_API_KEY", "sk-123456789012")
    monkeypatch.setenv("SOMETHING_ELSE", "sk-123456789012")
    first = np.array(make(fragile_name("Tells"), 2).reset())
    assert first[:, 0].tolist() == [0.0] * LANES
    assert first[:, 1].tolist() == [0.0] * LANES
    assert len(set(first[:, 2].tolist())) == 2
    passed_on = np.array(make(fragile_name("Tells"), 1, pass_environment=("WORKER_API_KEY",)).reset())
    assert passed_on[:, 0].tolist() == [1.0] * LANES


def test_a_worker_cannot_talk_for_ever(make: Crowd) -> None:
    env = make(fragile_name("Chatters"), 2)
    env.reset()
    aborted = [env.step(actions(step)).aborted for step in range(4)]
    assert aborted[:2] == [None, None]
    assert np.asarray(aborted[2]).any()
    assert "left the conversation" in make.told[0][1]


class Payload:
    """Becomes a call of `os.mkdir` where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["a pickle", "a pickle in a text", "nonsense", "others' fault", "deep nesting", "no object", "infinite lane"],
)
def test_a_hostile_worker_can_send_no_code_and_is_dismissed(what: str, make: Crowd, tmp_path: Path) -> None:
    pickled = pickle.dumps(Payload(tmp_path / "executed"))
    fault = json.dumps({"lanes": [3], "call": "step", "what": "", "error": "", "trace": "", "code": ""}).encode()
    message = {
        "a pickle": pickled,
        "a pickle in a text": b"=" + pickled,
        "nonsense": b"hello",
        "others' fault": b"=" + fault,
        "deep nesting": b"=" + b"[" * 50_000,
        "no object": b'=["failed"]',
        "infinite lane": b"=" + fault.replace(b"[3]", b"[Infinity]"),
    }[what]
    env = make(fragile_name("Hostile"), 2, env={"message": message.hex()})
    env.reset()
    aborted = [env.step(actions(step)).aborted for step in range(4)]
    # In the third step the first worker speaks out of turn; the second does the same.
    assert aborted[0] is None
    assert aborted[1] is None
    assert np.asarray(aborted[2]).tolist()[:2] == [True, True]
    assert aborted[3] is None
    assert not (tmp_path / "executed").exists()
    assert "left the conversation" in make.told[0][1]


def ends_soon(processes: list[int]) -> bool:
    deadline = time.monotonic() + 5.0
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, processes))


@pytest.mark.parametrize("name", ["Forks", "StartsSimulator"])
def test_closing_ends_every_process_and_those_they_started(name: str, make: Crowd, tmp_path: Path) -> None:
    env = make(fragile_name(name), 2, env={"path": str(tmp_path / "pids")})
    env.reset()
    workers = pids(env)
    grandchildren = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(grandchildren) == LANES
    assert all(map(is_alive, grandchildren))
    env.close()
    assert ends_soon(workers + grandchildren)


@pytest.mark.parametrize("name", ["Forks", "StartsSimulator"])
def test_what_a_dead_worker_started_ends_with_it_and_what_others_started_does_not(
    name: str, make: Crowd, tmp_path: Path
) -> None:
    path = tmp_path / "pids"
    env = make(fragile_name(name), 2, num_lanes=2, env={"path": str(path)})
    env.reset()
    victim, other = pids(env)
    [doomed], [spared] = (Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in (victim, other))
    assert {doomed, spared} == set(path.read_text().split())
    os.kill(victim, signal.SIGKILL)
    assert np.asarray(env.step(actions(0, 2)).aborted).tolist() == [True, False]
    assert ends_soon([int(doomed)])
    assert is_alive(int(spared))
    [new] = set(path.read_text().split()) - {doomed, spared}
    assert is_alive(int(new))


def test_the_state_is_that_of_lanes_in_this_process(make: Crowd) -> None:
    there, here, other = (make(fragile_name("Fragile"), workers) for workers in (2, None, 3))
    for env in (there, here):
        env.reset()
        for step in range(47):
            env.step(actions(step))
    saved, expected = there.state_dict(), here.state_dict()
    assert json.dumps(_listed(saved)) == json.dumps(_listed(expected))
    other.load_state_dict(saved)
    assert other.exactness == "exact"
    for step in range(47, 90):
        assert numbers(other.step(actions(step))) == numbers(here.step(actions(step)))


def _listed(tree: Any) -> Any:
    return {k: _listed(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree).tolist()


def test_what_lives_in_one_process_is_refused_with_a_sentence() -> None:
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=2))
    with pytest.raises(SettingsError, match="exists already lives in this process"):
        env_from_object(fragile.Walk(), 2, Rng(0), hosting=hosting)
    with pytest.raises(SettingsError, match=r"native .* steps all its lanes itself") as native:
        gym_env(GymSettings(id="CartPole-v1", vectorization="native"), 2, Rng(0), hosting=hosting)
    assert native.value.code == "E0232"


def test_a_class_of_an_importable_module_may_be_passed_as_an_object() -> None:
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=2))
    env = env_from_object(fragile.Walk, 2, Rng(0), hosting=hosting)
    try:
        assert isinstance(env, WorkerEnv)
        np.testing.assert_array_equal(env.reset(), env_from_object(fragile.Walk, 2, Rng(0)).reset())
    finally:
        env.close()


def test_a_keeper_tells_what_happened_before_anyone_listened() -> None:
    hosting = Hosting.from_settings(EnvWorkerSettings())
    env = gym_env(GymSettings(id=fragile_name("Fragile"), kwargs={"chance": 1.0}), 1, Rng(0), hosting=hosting)
    env.reset()
    env.step(actions(0, 1))
    told: list[str] = []
    hosting.faults.listen(lambda fault, line: told.append(line), lambda reason: None)
    assert len(told) == 1
    assert told[0].startswith("warning[W0501]: env 'tests.envs.fragile:Fragile' failed in step() on lane 0")
    assert told[0].endswith("(RuntimeError: the arm fell off), restarted (1 of 10 in 1000 steps)")
    assert (hosting.faults.restarts, hosting.faults.aborted) == (1, 1)
