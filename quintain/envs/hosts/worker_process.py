"""A worker process: hosts the environments of its lanes, driven by short commands; data goes through shared memory.

Messages are bytes and JSON in both directions. Nothing that a worker sends is unpickled, so a broken or hostile
simulator can send wrong values, but no code.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from quintain.core.rng import Rng
from quintain.data.spec import spec_from_dict
from quintain.envs.hosts.faults import LaneFault
from quintain.envs.hosts.lane_host import HostOptions, LaneHost
from quintain.envs.hosts.lane_rows import LaneRows
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.parameters import LaneParameters
from quintain.errors import QuintainError
from quintain.services.processes.child_environment import take_code_paths
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, receive, send_text

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Array, JsonObject

STEP = b"s"
"""The step command: all lanes of the worker, with autoreset."""
DONE = b"k"
"""The last message of every answer."""
_MAX_TEXT = 4_000


def serve(descriptor: int) -> None:
    """Executes commands until the connection is closed."""
    channel = socket.socket(fileno=descriptor)
    assembler = Assembler()
    order, _ = receive(channel, assembler)
    worker = Worker(channel, json.loads(order))
    while not worker.is_attached and (received := receive(channel, assembler))[0]:
        command, descriptors = received
        worker.obey(json.loads(command), descriptors)
    # No more descriptors follow, and looking for them at every step would take as long as a cheap environment.
    while message := channel.recv(MAX_MESSAGE_BYTES):
        if message == STEP:
            worker.answer(worker.host.step(worker.lanes))
        elif text := assembler.add(message):
            worker.obey(json.loads(text))
    # Whoever closed the socket does not wait long for environments that close slowly.
    worker.host.close()


class Worker:
    """Holds the environments of some lanes and the socket to the learner."""

    def __init__(self, channel: socket.socket, order: JsonObject) -> None:
        self.channel = channel
        self.is_attached = False
        self.lanes: list[int] = order["lanes"]
        take_code_paths(order)
        rng = Rng(*order["rng"])
        # All workers are forks of one process; without this they would all draw the same "random" numbers.
        random.seed(rng.seed_for("worker", *self.lanes))
        np.random.seed(rng.seed_for("worker", *self.lanes))  # noqa: NPY002  # the generator that careless code uses
        recipe = Recipe.from_json(order["recipe"])

        def make() -> GymEnv:
            # Only now: importing the user's module may fail, and that is the environment's failure.
            return recipe.factory()()

        self.host = LaneHost(order["name"], dict.fromkeys(self.lanes, make), rng, HostOptions(*order["options"]))

    def obey(self, command: JsonObject, descriptors: Sequence[int] = ()) -> None:
        host, call = self.host, command["call"]
        if call == "describe":
            self._describe(command)
        elif call == "attach":
            self._attach(command, descriptors[0])
        elif call == "step":
            self.answer(host.step(command["lanes"], autoreset=command["autoreset"]))
        elif call == "reset":
            self.answer(host.reset(command["lanes"]))
        elif call == "restart":
            self.answer(host.restart(command["lanes"], _by_lane(command["parameters"])))
        elif call in {"set_parameters", "put_parameters_back"}:
            self._tell_failure(lambda: getattr(host, call)(_by_lane(command["parameters"])))
        elif call == "require_parameters":
            self._tell_failure(lambda: host.require_parameters(command["names"]))
        elif call == "render":
            self._tell_failure(lambda: self._send(frame_words(*host.render())))
        elif call == "forget":
            host.forget_first_reset()
            self.answer([])

    def answer(self, faults: Sequence[LaneFault]) -> None:
        for fault in faults:
            words = {
                "lanes": fault.lanes,
                "call": fault.call,
                "what": fault.what[:_MAX_TEXT],
                "error": fault.error[:_MAX_TEXT],
                "trace": fault.trace,
                "code": fault.code,
            }
            self._send(words)
        with suppress(ConnectionError):
            self.channel.send(DONE)

    def _send(self, words: JsonObject) -> None:
        with suppress(ConnectionError):
            send_text(self.channel, json.dumps(words).encode())

    def _describe(self, command: JsonObject) -> None:
        def look() -> None:
            self.host.create()
            spec = self.host.describe() if command["finds_mask"] else None
            about = {"mask_source": self.host.mask_source, "notes": self.host.notes}
            self._send({"spec": spec.to_dict() if spec is not None else None, **about})

        self._tell_failure(look)

    def _tell_failure(self, work: Callable[[], object]) -> None:
        """Executes a call that may fail for a reason that the user should read, and answers either way."""
        try:
            work()
        except QuintainError as error:
            about = {"code": error.code, "exit_code": error.exit_code, "notes": error.notes}
            self._send({"failed": error.message[:_MAX_TEXT], **about})
        self.answer([])

    def _attach(self, command: JsonObject, descriptor: int) -> None:
        spec = spec_from_dict(command["spec"])
        memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        self.host.attach(
            spec,
            LaneRows(spec, command["num_lanes"], memory, num_metrics=len(self.host.options.metric_names)),
            command["mask_source"],
        )
        self.host.is_watched = self.is_attached = True
        found = self.host.describe(self.host.mask_source) if self.host.envs else spec
        if found != spec:
            what = f"env {self.host.name!r} has {found} on lane {self.lanes[0]}, but {spec} on lane 0"
            self._send({"failed": what, "code": "E0513", "exit_code": 2})
        self.answer([])


def frame_words(frame: Array | None, frames_per_second: float) -> JsonObject:
    """Returns a frame as JSON; None, and what is no picture, has no pixels."""
    words: JsonObject = {"frames_per_second": frames_per_second, "shape": None}
    if frame is not None and frame.dtype == np.uint8:
        pixels = base64.b64encode(np.ascontiguousarray(frame).tobytes()).decode()
        words |= {"shape": list(frame.shape), "pixels": pixels}
    return words


def frame_from(words: JsonObject) -> tuple[Array | None, float]:
    """Returns the frame of a worker's words; raises ValueError if they are none."""
    shape = words["shape"]
    if shape is None:
        return None, float(words["frames_per_second"])
    pixels = np.frombuffer(base64.b64decode(words["pixels"], validate=True), np.uint8)
    return pixels.reshape([int(size) for size in shape]), float(words["frames_per_second"])


def _by_lane(values: dict[str, dict[str, float]]) -> LaneParameters:
    # The keys of JSON objects are strings.
    return {int(lane): mine for lane, mine in values.items()}
