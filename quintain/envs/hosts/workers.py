"""Lanes in worker processes: distributed by index, stepped in parallel, each process replaceable.

Data goes through one anonymous shared memory, which the kernel frees with its last user; commands are short messages
over a socket. A worker that dies or hangs takes only its own lanes down, and is restarted together with them.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from quintain.data.spec import BehaviorSpec, spec_from_dict
from quintain.envs.base import StepResult
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.masks import MaskSource, offered
from quintain.envs.hosts.faults import FaultKeeper, LaneFault
from quintain.envs.hosts.hosting import WorkerTeam
from quintain.envs.hosts.lane_host import HostOptions
from quintain.envs.hosts.lane_rows import LaneRows, num_bytes
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.worker_handle import WorkerHandle
from quintain.envs.hosts.worker_process import frame_from
from quintain.envs.hosts.worker_watch import WorkerWatch
from quintain.envs.parameters import LaneParameters
from quintain.errors import EnvError, QuintainError
from quintain.services.processes import unnamed_memory
from quintain.services.processes.child_environment import code_paths, withheld, withheld_note

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.typing import Action, Array, Json, JsonObject, Mirror

ENTRY = "quintain.envs.hosts.worker_process:serve"


class WorkerEnv(LaneEnv):
    """Steps lanes in worker processes; results equal those of the same lanes in this process."""

    crew: WorkerCrew

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        num_lanes: int,
        rng: Rng,
        team: WorkerTeam,
        *,
        group_size: int = 1,
        encode_text: bool = False,
        first_lane: int = 0,
        use_masks: bool = True,
        info_metrics: Sequence[str] = (),
        faults: FaultKeeper | None = None,
    ) -> None:
        options = HostOptions(group_size, encode_text, first_lane, use_masks, tuple(info_metrics))
        order = {
            "name": name,
            "recipe": recipe.to_json(),
            "rng": [rng.seed, rng.path],
            "options": list(astuple(options)),
        }
        self.recipe = recipe
        label = rng.path.strip("/").replace("/", "-") or "env"
        crew = WorkerCrew(name, order, num_lanes, team, label=label, options=options)
        self._install(name, crew, rng, options, faults)

    def begin_step(self, action: Action) -> None:
        """Starts a step of all lanes in the workers; `finish_step` must be called next and returns the result."""
        self.crew.begin_step(self._choose(action))

    def finish_step(self) -> StepResult:
        return self._conclude(self.crew.finish_step())

    def be_watched(self) -> None:
        """Does nothing: workers are always watched."""

    @property
    def mirror(self) -> Mirror | None:
        # A function of observations and actions; the one environment it belongs to is never stepped.
        found: Mirror | None = offered(self.recipe.factory()(), "mirror")
        return found


class WorkerCrew:
    """Hosts lanes in processes; implements `Crew`."""

    def __init__(
        self, name: str, order: JsonObject, num_lanes: int, team: WorkerTeam, *, label: str, options: HostOptions
    ) -> None:
        assert team.settings.num_workers is not None
        num_workers = min(team.settings.num_workers, num_lanes)
        self.name = name
        self.order = order
        self.settings = team.settings
        self.supervisor = team.supervisor
        shares = np.array_split(np.arange(num_lanes), num_workers)
        self.workers = [
            WorkerHandle(f"{label}-{i}", share.tolist(), options.first_lane)
            for i, share in enumerate(shares, team.first_number)
        ]
        self.home = {lane: worker for worker in self.workers for lane in worker.lanes}
        self.stepping: list[WorkerHandle] = []
        """Workers that are stepping."""
        self.resources = ExitStack()
        # Until the shared memory is there, workers have no place in which to note down what they do.
        self.watch = WorkerWatch(name, team, np.zeros(num_lanes, np.int64))
        try:
            self.spec, self.mask_source, self.notes = self._open()
            num_metrics = len(options.metric_names)
            self.memory = unnamed_memory.allocate(num_bytes(self.spec, num_lanes, num_metrics))
            self.resources.callback(os.close, self.memory)
            self.rows = LaneRows(self.spec, num_lanes, mmap.mmap(self.memory, 0), num_metrics=num_metrics)
            self.watch.marks = self.rows.marks
            for worker in self.workers:
                self._attach(worker)
            self._require(self.watch.gather(self.workers))
        except BaseException:
            self.close()
            raise

    def reset(self, lanes: Sequence[int]) -> list[LaneFault]:
        return self._call("reset", lanes)

    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> list[LaneFault]:
        return self.watch.gather(self.ask_restart(lanes, parameters))

    def ask_restart(self, lanes: Sequence[int], parameters: LaneParameters) -> list[WorkerHandle]:
        """Starts workers that are gone, tells them and others to make these lanes again, and returns them."""
        for worker in dict.fromkeys(self.home[lane] for lane in lanes):
            if worker.child is None:
                self._start(worker)
                self._attach(worker)
        return self.ask("restart", lanes, parameters=parameters)

    def step(self, lanes: Sequence[int], *, autoreset: bool = True) -> list[LaneFault]:
        if not autoreset:
            return self._call("step", lanes, autoreset=False)
        self.begin_step(lanes)
        return self.finish_step()

    def begin_step(self, lanes: Sequence[int]) -> None:
        """Sends the step command without waiting."""
        if len(lanes) == len(self.home):
            for worker in self.workers:
                worker.send_step()
            self.stepping = self.workers
        else:
            self.stepping = self.ask("step", lanes, autoreset=True)

    def finish_step(self) -> list[LaneFault]:
        """Waits for all workers that are stepping."""
        # All must answer, so it does not matter who is waited for first: no poll, and one wake-up for several answers.
        faults: list[LaneFault] = []
        for place, worker in enumerate(self.stepping):
            if not worker.read(faults, waits=True):
                faults.append(self.watch.lose(worker))
            elif worker.num_owed:
                return self.watch.gather(self.stepping[place:], faults)
        return faults

    def set_parameters(self, values: LaneParameters) -> list[LaneFault]:
        faults = self._call("set_parameters", list(values), parameters=values)
        self._refuse_what_failed()
        return faults

    def require_parameters(self, names: Sequence[str]) -> list[LaneFault]:
        faults = self._call("require_parameters", [0], names=list(names))
        self._refuse_what_failed()
        return faults

    def put_parameters_back(self, values: LaneParameters) -> list[LaneFault]:
        faults = self._call("put_parameters_back", list(values), parameters=values)
        self._refuse_what_failed()
        return faults

    def forget_first_reset(self) -> None:
        # Only the process with lane 0 looked, and only while it has not been started anew.
        self._call("forget", [0] if self.workers[0].child is not None else [])

    def render(self) -> tuple[Array | None, float]:
        worker = self.workers[0]
        if worker.child is None:
            raise EnvError(f"env {self.name!r} cannot draw itself: its worker is gone", code="E0522")
        worker.inbox.clear()
        self._require(self._call("render", [0]))
        try:
            [words] = worker.inbox
            return frame_from(words)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise EnvError(f"env {self.name!r}: its worker sent no picture ({error})", code="E0522") from error

    def close(self) -> None:
        children = [worker.child for worker in self.workers if worker.child is not None]
        for worker in self.workers:
            if worker.child is not None:
                # The end of the conversation is the request to close environments and leave.
                worker.child.hang_up()
                worker.child = None
        self.supervisor.stop(children, first=None)
        self.resources.close()

    def _call(
        self, call: str, lanes: Sequence[int], *, parameters: LaneParameters | None = None, **words: Json
    ) -> list[LaneFault]:
        return self.watch.gather(asked) if (asked := self.ask(call, lanes, parameters=parameters, **words)) else []

    def ask(
        self, call: str, lanes: Sequence[int], *, parameters: LaneParameters | None = None, **words: Json
    ) -> list[WorkerHandle]:
        """Sends a command for some lanes to their workers, and returns these workers."""
        asked = list(dict.fromkeys(self.home[lane] for lane in lanes))
        for worker in asked:
            mine = [lane for lane in lanes if self.home[lane] is worker]
            if parameters is not None:
                words["parameters"] = {str(lane): dict(parameters[lane]) for lane in mine}
            worker.send({"call": call, "lanes": mine, **words})
        return asked

    def _open(self) -> tuple[BehaviorSpec, MaskSource, tuple[str, ...]]:
        """Starts every worker; the one with lane 0 returns the spec."""
        for worker in self.workers:
            self._start(worker)
            worker.send({"call": "describe", "finds_mask": worker is self.workers[0]})
        self._require(self.watch.gather(self.workers))
        try:
            [about] = self.workers[0].inbox
            spec = spec_from_dict(about["spec"])
            LaneRows(spec, 1)
            return spec, about["mask_source"], tuple(map(str, about["notes"]))
        except (
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            RuntimeError,
            MemoryError,
        ) as error:
            raise EnvError(f"env {self.name!r}: its worker did not say what its spaces are ({error})") from error

    def _start(self, worker: WorkerHandle) -> None:
        worker.inbox.clear()
        worker.num_owed = 0
        worker.child = self.supervisor.start(worker.label, ENTRY)
        worker.child.send({**self.order, **code_paths(), "lanes": worker.lanes})

    def _attach(self, worker: WorkerHandle) -> None:
        words = {"spec": self.spec.to_dict(), "num_lanes": len(self.home), "mask_source": self.mask_source}
        worker.send({"call": "attach", **words}, [self.memory])

    def _require(self, faults: Sequence[LaneFault]) -> None:
        """Raises for faults at the start: an environment that cannot be made once is not tried again."""
        self._refuse_what_failed()
        for fault in faults:
            raise self._with_withheld(fault.as_error())

    def _refuse_what_failed(self) -> None:
        for worker in self.workers:
            if (failure := worker.take_failure()) is not None:
                raise self._with_withheld(failure)

    def _with_withheld(self, failure: QuintainError) -> QuintainError:
        """Adds a note on environment variables that workers do not get, first of all one that the error names."""
        also = self.settings.pass_environment
        named = sorted(withheld(also).intersection(re.findall(r"[A-Za-z_]\w{3,}", failure.message)))
        hint = [f"help: workers do not see {named[0]}; add env_workers.pass_environment=[{named[0]}]"] if named else []
        failure.notes = (*failure.notes, *(hint or withheld_note(also)))
        return failure
