"""The ranks of a run under Ray Train's `TorchTrainer`, as the driver sees them: started, heard, told to stop, and gone.

`fit` runs in a second thread: it would replace the driver's handler of SIGINT, and knows nothing of SIGTERM. Ray Train
restarts nothing: which errors are losses, and how many may follow each other, is the same with and without Ray.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.placements.ray import api
from quintain.placements.ray.cluster import Cluster, code_paths_for
from quintain.placements.ray.mailbox import Desk, open_mailbox
from quintain.placements.settings import RaySettings
from quintain.services.processes.child_environment import add_code_paths
from quintain.services.processes.signals import SignalRelay

if TYPE_CHECKING:
    from quintain.typing import JsonObject, Saved

_TRAIN = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths of settings are the driver's
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    # There was room a moment ago; a node that died since then may not be known yet, and ranks are counted again.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20",
}


@dataclass(frozen=True)
class RankTask:
    """What every rank gets: a function's module:name, plain words for it, and objects of the user's script."""

    entry: str
    words: JsonObject
    objects: Saved = None


class TrainedRanks:
    """One attempt to run all ranks of a run to their end."""

    def __init__(self, cluster: Cluster, settings: RaySettings, num_ranks: int, task: RankTask, directory: Path):
        """Starts the ranks; `directory` is that of the run, whose name the mailbox has."""
        self.cluster = cluster
        self.mailbox = open_mailbox(str(directory))
        # Ray Train's own files: where all nodes reach them, or with the local cluster, which takes them along.
        self.storage = directory.with_name(f".ray-train-{directory.name}")
        if cluster.head is not None:
            self.storage = cluster.head.directory / "train"
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, args=(settings, num_ranks, task), daemon=True)
        self._thread.start()

    def take(self, seconds: float) -> list[JsonObject]:
        """Returns messages of ranks, after waiting a moment for their end."""
        self._thread.join(timeout=seconds)
        self.cluster.require_alive()
        messages: list[JsonObject] = api.get(self.mailbox.take.remote())
        return messages

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def lost(self) -> dict[int, str]:
        """The ranks that failed, each with the first line of what Ray Train says."""
        failures: Mapping[int, Exception] = getattr(self.error, "worker_failures", {})
        return {rank: (str(error).splitlines() or [""])[0] for rank, error in sorted(failures.items())}

    def stop(self, word: str) -> None:
        """Tells all ranks to stop, by the name of a signal."""
        self.mailbox.stop.remote(word)

    def close(self) -> None:
        """Removes what the attempt has left behind."""
        api.kill(self.mailbox)
        shutil.rmtree(self.storage, ignore_errors=True)

    def _fit(self, settings: RaySettings, num_ranks: int, task: RankTask) -> None:
        try:
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchConfig, TorchTrainer

            config = {"task": task, "mailbox": self.mailbox, "paths": code_paths_for(settings)}
            with _environment(_TRAIN):
                trainer = TorchTrainer(
                    run_rank,
                    train_loop_config=config,
                    # Ranks with GPUs would get NCCL, which needs a whole GPU for each; gradients go through gloo.
                    torch_config=TorchConfig(backend="gloo"),
                    scaling_config=ScalingConfig(num_workers=num_ranks, **reserved_for(settings)),
                    run_config=RunConfig(
                        name=f"ranks-{uuid.uuid4().hex[:12]}",
                        storage_path=str(self.storage),
                        failure_config=FailureConfig(
                            max_failures=0, max_preemption_failures=0, controller_failure_limit=0
                        ),
                    ),
                )
                trainer.fit()
        except BaseException as error:
            self.error = error


def reserved_for(settings: RaySettings) -> JsonObject:
    """Returns what Ray Train reserves for each rank, as arguments of its `ScalingConfig`."""
    resources = {"CPU": settings.cpus_of_rank}
    if not settings.num_gpus_per_rank:
        return {"resources_per_worker": resources}
    return {"use_gpu": True, "resources_per_worker": {**resources, "GPU": settings.num_gpus_per_rank}}


def run_rank(config: Mapping[str, Saved]) -> None:
    """The function that `TorchTrainer` runs on every rank, in a thread of its worker."""
    add_code_paths(config["paths"])
    task: RankTask = config["task"]
    relay = SignalRelay()
    desk = Desk(config["mailbox"], int(os.environ["RANK"]), relay.deliver)
    module, _, name = task.entry.partition(":")
    try:
        with relay.current():
            getattr(import_module(module), name)(task.words, task.objects, desk)
    finally:
        desk.leave()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that Ray Train reads in the driver, unless the user has."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
