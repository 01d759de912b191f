"""Rollout actors of Ray: the numbers of every other placement, deaths that are survived, errors as the user's own.

One local cluster serves all of it, so all of it is one test; what kills drivers, nodes and ranks is `make test-ray`.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quintain import Trainer
from quintain.cli.app import main
from quintain.core.versions import quintain_version
from quintain.data import fields as f
from quintain.errors import (
    CollectorDied,
    EnvError,
    NonFiniteError,
    QuintainError,
    RankError,
    ResourceError,
    RunDirectoryError,
    ServiceError,
    SettingsError,
)
from quintain.services.events import After
from quintain.settings.layers import with_algorithm_defaults
from quintain.settings.tree import RunFile
from tests.contracts import test_source
from tests.envs.fragile import Walk
from tests.hold import wait_for
from tests.placements.broken import Unmade, Wrong
from tests.placements.gated import Gated
from tests.placements.runs import LANES, STEPS, make, outcome, trained, walk_of
from tests.placements.test_agents import make as make_agents
from tests.placements.test_agents import outcome as outcome_of_agents
from tests.placements.test_parity import REPLAY
from tests.placements.test_stops import BUDGET, gated, through_files, train_to_the_gate
from tests.resume.test_workers import is_alive
from tests.warm import ROOT

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster() -> Iterator[Any]:
    from quintain.placements.ray.cluster import Cluster
    from quintain.placements.settings import RaySettings

    cluster = Cluster.join(RaySettings())
    yield cluster
    cluster.leave()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_one_cluster_serves_all_of_it(cluster: Any, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    test_source.test_a_loaded_state_continues_inside_a_rollout("ray")
    test_source.test_rollouts_carry_the_version_that_acted("ray")
    test_source.test_it_says_how_exactly_it_resumes_and_how_long_it_took("ray")
    lanes_give_the_numbers_of_local()
    agents_give_the_numbers_of_local()
    replay_gives_the_numbers_of_local()
    fragments_are_collected_with_the_newest_weights()
    readers_bring_fragments_while_the_learner_learns()
    readers_of_a_trainer_that_is_forgotten_end()
    a_connection_of_the_users_is_used_and_left_open(cluster)
    a_stop_inside_a_block_is_resumed_elsewhere(tmp_path)
    a_killed_actor_is_started_again()
    actors_are_forked(cluster)
    agents_of_a_killed_actor_go_on()
    finished_fragments_survive_their_actor()
    an_actor_that_dies_again_and_again_ends_the_run()
    errors_are_the_users_own()
    what_the_cluster_cannot_hold_is_refused_at_once()
    gpus_that_the_cluster_does_not_have_are_refused_at_once(cluster)
    a_second_driver_of_a_run_is_refused()
    ranks_that_cannot_be_heard_end_the_run(cluster)
    the_doctor_explains_the_cluster(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is handler, "Ray took over a signal"
    listener = ray._private.worker.global_worker.listener_thread
    assert not listener.is_alive(), "Ray prints to stdout, which with --json is one object"
    directory, head = cluster.head.directory, cluster.head
    pids = _descendants(head.child.pid) | _descendants(head.forks.pid)
    assert directory.stat().st_mode & 0o077 == 0, "other users of the machine reach its sockets"
    assert (directory / "token").stat().st_mode & 0o077 == 0
    assert len(pids) > 3
    assert not _strangers(pids), "it listens on more than the loopback interface"
    cluster.num_users += 1  # the fixture leaves once more
    cluster.leave()
    cluster.leave()
    cluster.num_users = 1
    assert not any(map(is_alive, pids))
    assert not directory.exists()


def lanes_give_the_numbers_of_local() -> None:
    assert trained("ray", 0, num_collectors=2) == trained("local", 0, num_collectors=2)
    # One actor with both collectors, and a reader; its weights are put once for each version.
    trainer = make("ray", 1, num_collectors=2, **{"placement.num_actors": 1, "placement.num_readers": 1})
    puts: list[int] = []
    put = ray.put

    def count(value: Any) -> Any:
        puts.append(1)
        return put(value)

    ray.put = count
    try:
        trainer.train(6 * LANES * STEPS)
    finally:
        ray.put = put
    # Versions 0 to 4 act for 6 blocks, the first two of them with version 0; a further block is ordered with version 5.
    assert sum(puts) == trainer.progress.version
    assert outcome(trainer) == trained("local", 1, cycles=6, num_collectors=2)
    trainer.close()


def agents_give_the_numbers_of_local() -> None:
    for max_staleness in (0, 1):
        found = []
        for placement in ("local", "ray"):
            trainer = make_agents("two behaviours", placement, max_staleness)
            trainer.train()
            found.append(outcome_of_agents(trainer))
            trainer.close()
        assert found[0] == found[1], max_staleness


def replay_gives_the_numbers_of_local() -> None:
    found = []
    for placement in ("local", "ray"):
        trainer = Trainer("sac", "Pendulum-v1", **REPLAY, placement=placement, max_staleness=1)
        trainer.train(160)
        found.append(outcome(trainer))
        trainer.close()
    assert found[0] == found[1]


def fragments_are_collected_with_the_newest_weights() -> None:
    trainer = Trainer(
        "ppo", Walk, num_lanes=2, num_collectors=2, batch_size=16, num_epochs=1, seed=4, writers=[], events=[],
        placement="ray", **{"rollout.type": "fragments", "rollout.num_fragments": 4, "num_steps": 8},
    )  # fmt: skip
    seen: list[int] = []
    update = trainer.algorithm.update

    def look(batch: Any, *more: Any, **named: Any) -> Any:
        # The last row of a column is padding.
        seen.extend(int(block[f.POLICY_VERSION][:, :-1].max()) for block in batch)
        return update(batch, *more, **named)

    trainer.algorithm.update = look  # type: ignore[method-assign]
    trainer.train(6 * 32)
    assert trainer.progress.env_steps == 6 * 32
    assert seen[0] == 0
    assert seen[-1] >= 3, "blocks are collected one update ahead, and acts take the newest weights"
    trainer.close()


def readers_bring_fragments_while_the_learner_learns() -> None:
    trainer: Any = Trainer(
        "ppo", walk_of(Walk, step_seconds=0.001), num_lanes=4, num_collectors=2, batch_size=16, num_epochs=1, seed=4,
        writers=[], events=[], placement={"type": "ray", "num_readers": 2, "prefetch_batches": 1},
        **{"rollout.type": "fragments", "rollout.num_fragments": 8, "num_steps": 8, "max_staleness": 8},
    )  # fmt: skip
    collectors = trainer.source.readers.collectors
    most: list[int] = []
    update, learned = trainer.algorithm.update, []

    def slow(batch: Any, *more: Any, **named: Any) -> Any:
        for block in batch:
            learned.extend(zip(block.array(f.LANE)[0].tolist(), block.array(f.FRAGMENT)[0].tolist(), strict=True))
        # Until as many are here as fill a batch: nothing but readers takes them meanwhile.
        wait_for(lambda: sum(each.num_brought for each in collectors) >= 8 - 2)
        most.append(sum(each.num_brought for each in collectors))
        return update(batch, *more, **named)

    trainer.algorithm.update = slow
    trainer.train(4 * 8 * 8)
    # A result has at most one fragment of each of a collector's two lanes, and two readers may look at once.
    assert max(most) <= 8 + 2 * (2 - 1) + 2
    assert len(set(learned)) == len(learned) == 4 * 8, "a fragment was lost, or came twice"
    trainer.close()


def readers_of_a_trainer_that_is_forgotten_end() -> None:
    trainer: Any = make("ray", 1, num_collectors=2, **{"placement.num_readers": 2})
    pids = [worker.pid for worker in trainer.source.placement.workers]
    del trainer

    def are_gone() -> bool:
        # Parts of a source know each other.
        gc.collect()
        return not any(map(is_alive, pids))

    wait_for(are_gone)


def a_connection_of_the_users_is_used_and_left_open(cluster: Any) -> None:
    from quintain.placements.settings import RaySettings

    cls = type(cluster)
    cls._current = None
    try:
        with pytest.raises(SettingsError, match=r"runtime_env: this script is connected by its own ray.init\(\)"):
            cls.join(RaySettings(runtime_env={"env_vars": {"SHIPPED": "1"}}))
        found = cls.join(RaySettings())
        assert found.head is None, "a second cluster was started"
        found.leave()
        assert ray.is_initialized()
    finally:
        cls._current = cluster


def a_stop_inside_a_block_is_resumed_elsewhere(tmp_path: Path) -> None:
    whole = make("threads", 1, env=walk_of(Gated, gate="/", wait_at=0))
    whole.train(BUDGET)
    gate = tmp_path / "gate"
    stopped = gated("ray", 1, gate, STEPS + 7)
    train_to_the_gate(stopped, gate, stage="update")
    saved = through_files(stopped.state_dict())
    assert 0 < saved["training"]["source"]["collector"]["cursor"] < STEPS
    for placement in ("local", "ray"):
        resumed = gated(placement, 1, gate, wait_at=0)
        resumed.load_state_dict(saved)
        resumed.train(BUDGET)
        assert outcome(resumed) == outcome(whole), placement
        resumed.close()
    stopped.train(BUDGET)
    assert outcome(stopped) == outcome(whole)
    stopped.close()
    whole.close()


def a_killed_actor_is_started_again() -> None:
    trainer: Any = make("ray", 1, num_collectors=2, env=walk_of(Walk, step_seconds=0.002))
    workers = trainer.source.placement.workers
    first = workers[0].pid

    def kill(trainer: Any) -> None:
        if trainer.progress.iteration == 1:
            os.kill(first, signal.SIGKILL)

    trainer.events.add(After("update"), kill)
    trainer.train(8 * LANES * STEPS)
    assert trainer.progress.env_steps == 8 * LANES * STEPS
    assert workers[0].pid != first
    assert not is_alive(first)
    assert trainer.faults.restarts == 1
    # The same lanes go on, at a step of theirs that was not acted at before.
    state = trainer.state_dict()["training"]["source"]["collector"]["collectors"]
    assert [state[place]["env"]["episode"].min() > 0 for place in "01"] == [True, True]
    assert all(np.isfinite(value) for value in trainer.ret_window)
    trainer.close()
    wait_for(lambda: not is_alive(workers[0].pid))


def actors_are_forked(cluster: Any) -> None:
    trainer: Any = make("ray", num_collectors=2)
    pids = [worker.pid for worker in trainer.source.placement.workers]
    assert [_parent(pid) for pid in pids] == 2 * [cluster.head.forks.pid]
    # Ray kills the group of a worker that died; no other process may be in it.
    assert [os.getpgid(pid) for pid in pids] == pids
    trainer.close()


def agents_of_a_killed_actor_go_on() -> None:
    trainer: Any = make_agents("two behaviours", "ray", 1, 3000)
    workers = trainer.source.placement.workers
    first = workers[0].pid
    trainer.advance()
    os.kill(first, signal.SIGKILL)
    trainer.train()
    assert trainer.progress.env_steps >= 3000
    assert workers[0].pid != first
    assert trainer.faults.restarts == 1
    trainer.close()


def finished_fragments_survive_their_actor() -> None:
    trainer: Any = Trainer(
        "ppo", walk_of(Walk, step_seconds=0.002), num_lanes=4, num_collectors=2, batch_size=32, num_epochs=1, seed=4,
        writers=[], events=[], placement={"type": "ray", "num_readers": 1}, num_steps=8,
        **{"rollout.type": "fragments", "rollout.num_fragments": 24},
    )  # fmt: skip
    collector = trainer.source.remote.members[1].remote.collector
    first, take, known = collector.worker.pid, collector._take_data, {}

    def kill(data: Any) -> None:
        """Kills the actor inside its second block, of which it has finished fragments."""
        take(data)
        (block,) = collector.blocks["default"]
        if block.sequence == 2 and 4 <= block.num_fragments < 12 and not known:
            numbers = block.array(f.LANE)[0], block.array(f.FRAGMENT)[0]
            known.update(
                block=block, held=list(zip(*(each[: block.num_fragments].tolist() for each in numbers), strict=True))
            )
            os.kill(first, signal.SIGKILL)

    collector._take_data = kill
    learned: list[tuple[int, int]] = []
    update = trainer.algorithm.update

    def look(batch: Any, *more: Any, **named: Any) -> Any:
        for block in batch:
            assert np.isfinite(block.array(f.FINAL_VALUE)).all()
            learned.extend(zip(block.array(f.LANE)[0].tolist(), block.array(f.FRAGMENT)[0].tolist(), strict=True))
        return update(batch, *more, **named)

    trainer.algorithm.update = look
    trainer.train(4 * 24 * 8)
    assert collector.worker.pid != first
    assert trainer.faults.restarts == 1
    assert known["held"], "it was killed with finished fragments"
    assert set(known["held"]) <= set(learned), "finished fragments were lost with their actor"
    assert len(set(learned)) == len(learned), "a fragment came twice"
    # Every step is accounted for, also those that the dead actor had counted.
    saved = trainer.state_dict()["training"]["source"]["collector"]["collectors"]
    collected, _, discarded = np.sum([each["counts"] for each in saved.values()], axis=0)
    num_open = sum(each["num_open"] for each in saved.values())
    assert collected == trainer.progress.env_steps + trainer.store.num_waiting + num_open + discarded
    trainer.close()


def an_actor_that_dies_again_and_again_ends_the_run() -> None:
    trainer = make("ray", 1, env=walk_of(Wrong, how="kill", at=5), **{"placement.max_restarts": 1})
    with pytest.raises(CollectorDied, match=r"died, 2 times in a row.*quintain resume") as failed:
        trainer.train(BUDGET)
    assert (failed.value.code, failed.value.exit_code) == ("E0540", 5)
    trainer.close()


def errors_are_the_users_own() -> None:
    trainer = make("ray", env=walk_of(Wrong, how="nan"))
    with pytest.raises(NonFiniteError, match="lane 0, step 8 of the rollout: nan") as failed:
        trainer.train(BUDGET)
    assert failed.value.evidence["obs"].shape == (9, 3)
    assert "refuse_nonfinite" in "".join(traceback.format_exception(failed.value))
    with pytest.raises(QuintainError):
        trainer.state_dict()
    trainer.close()
    with pytest.raises(EnvError, match="cannot be created: RuntimeError: no licence") as unmade:
        make("ray", env=Unmade)
    assert unmade.value.code == "E0505"
    assert 'raise RuntimeError("no licence")' in "".join(traceback.format_exception(unmade.value))


def what_the_cluster_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(
        ResourceError, match=r"1 CPU, 2 lidar are needed for 1 rollout actor, .* 0 lidar on 1 node,"
    ) as refused:
        make("ray", **{"placement.resources_per_actor": {"lidar": 2.0}})
    assert refused.value.code == "E0545"


def gpus_that_the_cluster_does_not_have_are_refused_at_once(cluster: Any) -> None:
    """By what it really has, and where a node counts 2 GPUs: a rank never has parts of two."""
    from quintain.placements.settings import RaySettings

    def room(num_ranks: int, share: float) -> None:
        cluster.require_room(num_ranks, 0, RaySettings(num_gpus_per_rank=share, num_cpus_per_rank=0.1))

    with pytest.raises(ResourceError, match=r"1 GPU are needed for 2 ranks .* has \d+ CPU, 0 GPU on 1 node") as refused:
        room(2, 0.5)
    assert refused.value.code == "E0545"
    nodes, ray.nodes = ray.nodes, lambda: [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0}}]
    try:
        for num_ranks, share in ((2, 1.0), (4, 0.5), (2, 0.6)):
            room(num_ranks, share)
        for num_ranks, share in ((3, 1.0), (5, 0.5), (3, 0.6)):
            with pytest.raises(ResourceError, match=r"has 4 CPU, 2 GPU on 1 node"):
                room(num_ranks, share)
    finally:
        ray.nodes = nodes


def a_second_driver_of_a_run_is_refused() -> None:
    from quintain.placements.ray.mailbox import open_mailbox

    first, other = open_mailbox("/runs/walk"), open_mailbox("/other/walk")
    with pytest.raises(RunDirectoryError, match='run "walk" is being trained on this Ray cluster by another') as second:
        open_mailbox("/runs/walk")
    assert (second.value.code, second.value.exit_code) == ("E0301", 3)
    for mailbox in (first, other):
        ray.kill(mailbox)
    wait_for(lambda: not ray.util.list_named_actors(all_namespaces=True))
    ray.kill(open_mailbox("/runs/walk"))


def ranks_that_cannot_be_heard_end_the_run(cluster: Any) -> None:
    from quintain.placements.ray import api
    from quintain.placements.ray.learners import TrainedRanks
    from quintain.placements.ray.mailbox import open_mailbox

    learners = TrainedRanks.__new__(TrainedRanks)
    learners.cluster, learners.mailbox, learners._thread = cluster, open_mailbox("/runs/unheard"), threading.Thread()
    learners._thread.start()
    assert learners.take(0.0) == []
    api.kill(learners.mailbox)
    with pytest.raises(RankError, match="cannot be heard") as lost:
        learners.take(0.0)
    assert (lost.value.code, lost.value.exit_code) == ("E0530", 5)


def the_doctor_explains_the_cluster(runs_dir: Path) -> None:
    from quintain.placements.ray.examine import examine

    found = {about: (state, text) for about, state, text in examine(None, runs_dir)}
    assert list(found) == ["ray", "ray address", "ray nodes", "ray objects", "ray versions", "ray storage"]
    assert {state for state, _ in found.values()} == {"ok"}, found
    assert found["ray"][1] == ray.__version__
    assert found["ray nodes"][1].startswith("1; free: ")
    assert f"quintain {quintain_version()}" in found["ray versions"][1]
    assert str(runs_dir) in found["ray storage"][1]


def test_a_cluster_of_its_own_has_as_many_cpus_as_the_actors_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.placements.ray.cluster import Cluster

    asked = []

    def join(settings: Any, min_cpus: float = 0.0) -> Any:
        asked.append(min_cpus)
        raise ConnectionError

    monkeypatch.setattr(Cluster, "join", join)
    for more, num_actors in (({}, 4), ({"placement.num_actors": 2}, 2)):
        with pytest.raises(ConnectionError):
            make("ray", num_lanes=4, num_collectors=4, **more, **{"placement.num_cpus_per_actor": 1.5})
        assert asked.pop() == 1.5 * num_actors


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (
            {"placement.num_actors": 2, "num_collectors": 1},
            "num_actors.*more than experiment.env.num_collectors",
        ),
        ({"env": Walk()}, "an environment that exists already cannot be sent"),
        ({"device": "auto", "placement.num_ranks": 2}, "run.device.*auto needs a GPU for each of 2 ranks"),
    ],
)
def test_what_cannot_be_on_a_cluster_is_refused_before_one_is_started(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        make("ray", **settings)


def test_what_the_cluster_of_another_run_in_this_process_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quintain.placements.ray import cluster as module
    from quintain.placements.settings import RaySettings

    def head(num_cpus: int, *, prestarts: bool, has_ranks: bool) -> Any:
        return SimpleNamespace(has_server=has_ranks, close=lambda: None)

    monkeypatch.setattr(module, "LocalHead", head)
    shipping, begin = RaySettings(runtime_env={"env_vars": {"A": "b"}}), module.Cluster.begin
    first = begin(shipping)
    with pytest.raises(ServiceError, match=r"run.placement.num_ranks: .* for a run of one rank"):
        begin(shipping, has_ranks=True)
    with pytest.raises(ServiceError, match=r"run.placement.runtime_env: .* for another run"):
        begin(RaySettings(runtime_env={"env_vars": {"A": "c"}}))
    assert begin(shipping) is begin(RaySettings()) is first
    assert first.num_users == 3
    for _ in range(3):
        first.leave()
    assert begin(shipping, has_ranks=True) is not first
    begin(shipping, has_ranks=True).leave()
    module.Cluster._current.leave()
    assert module.Cluster._current is None


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nothing_listens_is_refused(scheme: str) -> None:
    """Ray itself would ask for minutes."""
    from quintain.placements.ray.cluster import Cluster
    from quintain.placements.settings import RaySettings

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServiceError, match=rf"at {address}: ConnectionRefusedError.* doctor --ray") as refused:
            Cluster.join(RaySettings(address=address))
    assert refused.value.code == "E0546"
    assert Cluster._current is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workin_dir": "."}, r"runtime_env.workin_dir: Ray knows no such setting; did you mean 'working_dir'\?"),
        ({"x": 1}, "runtime_env.x: Ray knows no such setting; expected one of: .*pip.*working_dir"),
        ({"working_dir": "nowhere"}, "runtime_env.working_dir: found 'nowhere', expected a folder that exists here"),
    ],
)
def test_what_ray_could_not_ship_is_named(given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain.placements.ray.api import require_runtime_env

    with pytest.raises(SettingsError, match=f"run.placement.{said}"):
        require_runtime_env(given)
    require_runtime_env({"working_dir": ".", "pip": ["numpy"], "env_vars": {"A": "b"}})
    require_runtime_env({"working_dir": "s3://bucket/code.zip", "nsight": "default"})
    monkeypatch.setenv("RAY_RUNTIME_ENV_PLUGINS", "[]")
    require_runtime_env({"workingdir": "."})


def test_ranks_are_not_started_through_a_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "ppo", "CartPole-v1", "num_lanes=4", "placement=ray", "placement.num_ranks=2"]
    assert main([*words, "placement.address=ray://127.0.0.1:1", "--runs-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "error[E0253]: run.placement.address: ranks are started by a driver on the cluster" in said
    assert "ray://127.0.0.1:1; start it there" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "num_collectors"), [({}, 4), ({"num_lanes": 6}, 3), ({"num_lanes": 1}, 1), ({"num_collectors": 8}, 8)]
)
def test_each_actor_has_a_collector_unless_the_run_says_how_many(more: dict[str, int], num_collectors: int) -> None:
    values = {
        "experiment": {"env": {"type": "gym", "id": "CartPole-v1", **more}, "behaviors": {"default": {}}},
        "run": {"placement": {"type": "ray", "num_actors": 4}},
    }
    env = with_algorithm_defaults(values)["experiment"]["env"]
    assert env.get("num_collectors", 1) == num_collectors


LOOPS = {"solo_agents.yaml", "expert_iteration.yaml"}
ON_RAY = ("placement=ray", "placement.num_actors=2")


def test_one_setting_brings_every_run_file_that_ships_to_ray() -> None:
    files = sorted((ROOT / "examples").glob("**/*.yaml"))
    assert len(files) > 20
    for file in files:
        if file.name in LOOPS:
            with pytest.raises(SettingsError, match=r"ray places lanes, and experiment.loop has none.*leave"):
                RunFile.load(file, *ON_RAY)
            continue
        run_file = RunFile.load(file, *ON_RAY)
        env: Any = run_file.experiment.env
        is_odd = env.num_lanes % 2 == 1
        assert env.num_collectors == (1 if is_odd else 2), file
        assert any("W0542" in note for note in run_file.notes) == is_odd, file
    readers = ("placement=ray", "placement.num_readers=2", "placement.address=ray://127.0.0.1:1")
    proxied = RunFile.from_names("ppo", "CartPole-v1", *readers)
    assert ["no readers through ray://127.0.0.1:1" in note for note in proxied.notes] == [True]
    few = RunFile.from_names("ppo", "CartPole-v1", "num_lanes=6", "placement=ray", "placement.num_actors=4")
    assert few.notes == [
        "warning[W0542]: run.placement.num_actors: 3 in place of 4, because more cannot share experiment.env.num_lanes "
        "= 6 equally"
    ]


def test_the_doctor_compares_nodes() -> None:
    from quintain.placements.ray.examine import about_nodes, about_storage

    here = {"python": "3.11.7", "quintain": "0.1.0", "ray": "2.60.0", "torch": "2.13.0", "numpy": "2.4.6"}
    same = {**here, "token": "yes", "storage": "yes"}
    old = {**here, "torch": "2.11.0", "token": "no", "storage": "no"}
    assert [line[1] for line in about_nodes({"a": same}, here, is_local=False)] == ["ok", "ok"]
    versions, authentication = about_nodes({"a": same, "b": old}, here, is_local=False)
    assert versions[1] == "note"
    assert versions[2].startswith("b has torch 2.11.0. Here: python 3.11.7")
    assert authentication[1] == "note"
    (failed,) = about_nodes({"c": {"failed": "ModuleNotFoundError: quintain"}}, here, is_local=True)
    assert failed[1] == "missing"
    assert "1 of 2 nodes" in about_storage({"a": same, "b": old}, Path(), is_local=False)[2]


def test_ray_is_imported_only_where_it_is_chosen() -> None:
    code = (
        "import sys; from quintain import Trainer; Trainer('ppo', 'CartPole-v1').close(); print('ray' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert found.stdout.split()[-1] == "False"


def _descendants(pid: int | None) -> set[int]:
    """Returns a process and all that descend from it."""
    found, new = set(), {pid or 0}
    while new:
        found |= new
        new = {
            int(child)
            for each in new
            for path in Path(f"/proc/{each}/task").glob("*/children")
            for child in path.read_text().split()
        } - found
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _strangers(pids: set[int]) -> list[str]:
    """Returns sockets on which these processes listen for more than this machine."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            place, state, inode = (line.split()[column] for column in (1, 3, 9))
            is_local = place.startswith(("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001"))
            if state == "0A" and f"socket:[{inode}]" in inodes and not is_local:
                found.append(place)
    return found
