"""The learner's side of one rollout actor: start, replies, and a new start within a budget after a death.

What an actor has finished is an object of the learner's in the object store of the actor's node, so that it can be read
after the actor's death. Only commands that were not finished are sent again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from quintain.errors import CollectorDied, NonFiniteError, QuintainError
from quintain.placements.ray import api
from quintain.placements.ray.cluster import ACTOR_MODULE, Cluster
from quintain.placements.remote_errors import RemoteTraceback, error_from_json
from quintain.placements.settings import RaySettings
from quintain.services.checkpoints.packed_state import unpack_value

if TYPE_CHECKING:
    from quintain.placements.ray.collector import RayCollector
    from quintain.typing import JsonObject, Saved

START_SECONDS = 300.0
"""Timeout for an actor to be scheduled, to import everything and to make its environments."""
_CLASS = (ACTOR_MODULE, "RolloutActor")
_END_SECONDS = 2.0
_LOOK_SECONDS = 0.25


def group_of(collector: int) -> str:
    """Returns the concurrency group of a collector that acts beside others of its actor."""
    return f"collector_{collector}"


class RolloutWorker:
    """One rollout actor, which may be started several times, and the collectors it hosts."""

    def __init__(self, cluster: Cluster, plan: JsonObject, collectors: Sequence[int], settings: RaySettings):
        """Begins to start the actor of these collectors."""
        self.cluster = cluster
        self.plan = {**plan, "collectors": list(collectors)}
        # Set by Ray when the process starts: libraries read variables while they are imported.
        self.environment: dict[str, str] = self.plan.pop("environment")
        self.collectors = collectors
        self.settings = settings
        self.members: list[RayCollector] = []
        self.failure: QuintainError | None = None
        self.num_deaths = 0
        """Deaths since the last full block."""
        self.built: JsonObject | None = None
        self.pid = 0
        self._launch()

    def _launch(self) -> None:
        module, name = _CLASS
        options: JsonObject = {
            "num_cpus": self.settings.num_cpus_per_actor,
            "resources": self.settings.resources_per_actor or None,
        }
        if self.environment:
            options["runtime_env"] = {"env_vars": self.environment}
        groups = [group_of(number) for number in self.collectors]
        self.handle = api.start_actor(getattr(import_module(module), name), options, self.plan, groups)
        self._started = self.handle.start.remote()

    def describe_envs(self) -> list[JsonObject]:
        """Waits for the environments; returns their descriptions."""
        words = self._reply_at_start(self._started)
        self.pid = words["pid"]
        found: list[JsonObject] = words["envs"]
        return found

    def build(self, words: JsonObject) -> None:
        """Makes the collectors."""
        self.built = words
        self._reply_at_start(self.handle.build.remote(words))

    def control(self, method: str, *arguments: object) -> api.Reference:
        """Calls a method beside the command that is executed; returns a reference to its result."""
        return getattr(self.handle, method).remote(*arguments)

    def reply(self, reference: api.Reference) -> tuple[JsonObject, Saved]:
        """Returns a finished reply; raises the actor's error, or `Lost`."""
        try:
            words, data = api.get(reference, START_SECONDS)
        except api.Lost:
            raise
        except api.RayFailure as error:
            first = str(error).strip().rpartition("\n")[2]
            self.failure = QuintainError(f"the rollout actor failed: {first}", code="E0102")
            self.failure.__cause__ = RemoteTraceback(str(error))
            raise self.failure from self.failure.__cause__
        if "failed" in words:
            self.failure = error_from_json(words["failed"])
            if isinstance(self.failure, NonFiniteError):
                self.failure.evidence = dict(unpack_value(data))
            raise self.failure
        return words, data

    def _reply_at_start(self, reference: api.Reference) -> JsonObject:
        try:
            return self._await(reference)
        except api.Lost as error:
            raise self._death(error) from RemoteTraceback(str(error))

    def _await(self, reference: api.Reference) -> JsonObject:
        deadline = time.monotonic() + START_SECONDS
        while not api.is_ready(reference, _LOOK_SECONDS):
            self.cluster.require_alive()
            if time.monotonic() > deadline:
                raise CollectorDied(f"the rollout actor was not ready after {START_SECONDS:g} s", code="E0541")
        return self.reply(reference)[0]

    def start_again(self, error: api.Lost) -> None:
        """Starts a dead actor anew: the same lanes, new episodes, and the commands that were not finished."""
        cause = error.cause
        while True:
            self.cluster.require_alive()
            self.num_deaths += 1
            if self.num_deaths > self.settings.max_restarts:
                self.failure = self._death(error)
                raise self.failure from RemoteTraceback(str(error))
            # One that only could not be reached would go on, and keep its resources.
            api.kill(self.handle)
            self.cluster.require_free(1, self.settings)
            try:
                self._start_once(cause)
                return
            except api.Lost as again:
                # Also one that dies while it is made, or with a node that is found dead only now.
                error = again

    def _start_once(self, cause: str) -> None:
        assert self.built is not None, "actors that die before there are collectors end the run"
        self._launch()
        self.pid = self._await(self._started)["pid"]
        self._await(self.handle.build.remote(self.built))
        for member in self.members:
            member.send_again(cause)

    def _death(self, error: api.Lost) -> CollectorDied:
        again = f", {self.num_deaths} times in a row (run.placement.max_restarts)" if self.num_deaths > 1 else ""
        return CollectorDied(
            f"the rollout actor of collectors {', '.join(map(str, self.collectors))} died{again}, and where its lanes "
            f"were went with it: {error.cause}. Continue from the last checkpoint with: quintain resume",
            code="E0540",
        )

    def give_up(self, seconds: float) -> CollectorDied:
        """Kills an actor that hangs; returns the error that later calls raise, with where it stood."""
        trace = ""
        with suppress(api.RayFailure):
            trace = api.get(self.control("stack"), _END_SECONDS)
        self.failure = CollectorDied(
            f"the rollout actor did nothing for {seconds:g} s, and was ended. Continue from the last checkpoint with: "
            f"quintain resume",
            code="E0542",
        )
        self.failure.__cause__ = RemoteTraceback(trace) if trace else None
        api.kill(self.handle)
        return self.failure

    def close(self) -> None:
        """Closes the environments, if they answer, and ends the actor."""
        if self.failure is None and self.cluster.is_open:
            api.is_ready(self.handle.close.remote(), _END_SECONDS)
        api.kill(self.handle)
