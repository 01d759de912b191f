"""The ranks of a run on rank 0: their number, their start, and the orders to the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.placements.torchrun import place_in_torchrun

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.placements.rank_processes import RankProcesses
    from quintain.runs.assemble import Slots
    from quintain.settings.tree import RunFile

NUM_RANKS = "run.placement.num_ranks"


class Ranks:
    """Leads the ranks of one run; a run of one rank has no others."""

    def __init__(self, run_file: RunFile, slots: Slots | None = None, *, starts_processes: bool = True) -> None:
        self.size = num_ranks_of(run_file)
        self.is_in_torchrun = place_in_torchrun() is not None
        self.processes: RankProcesses | None = None
        if self.size > 1 and starts_processes and not self.is_in_torchrun:
            if run_file.run.placement.type == "ray":
                raise SettingsError(
                    f"{NUM_RANKS} is {self.size}: ranks on Ray are started by `quintain train`, or by quintain.online; "
                    f"set it to 1, or run.placement to processes",
                    code="E0241",
                )
            from quintain.placements.rank_processes import RankProcesses
            from quintain.runs.ranks.follow import pack_script, run_rank

            self.processes = RankProcesses(self.size, run_rank, pack_script(run_file, slots))

    def meet(self) -> ProcessGroup:
        """Forms the process group; imports torch."""
        from quintain.core.process_group import GlooGroup, SingleProcess

        if self.size == 1:
            return SingleProcess()
        return GlooGroup(0, self.size) if self.processes is None else self.processes.meet()

    def stop(self) -> None:
        """Requests the other ranks to stop; torchrun signals its own processes itself."""
        if self.processes is not None:
            self.processes.stop()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Reports the cause when another rank is lost; ends the others when this one fails."""
        if self.processes is None:
            yield
            return
        try:
            with self.processes.explaining():
                yield
        except BaseException:
            self.processes.kill()
            raise

    def close(self) -> None:
        """Ends all processes."""
        if self.processes is not None:
            self.processes.close()


def num_ranks_of(run_file: RunFile) -> int:
    """Returns the number of ranks in the settings."""
    return int(getattr(run_file.run.placement, "num_ranks", 1))


def are_on_ray(run_file: RunFile) -> bool:
    """Whether the ranks of a run are workers of Ray Train that this process has to start."""
    is_ray = run_file.run.placement.type == "ray"
    return is_ray and num_ranks_of(run_file) > 1 and place_in_torchrun() is None


def with_ranks_of_torchrun(run_file: RunFile, *, is_new: bool) -> RunFile:
    """Returns the settings with as many ranks as torchrun started; refuses another number in the settings."""
    place = place_in_torchrun()
    if place is None or place[1] == num_ranks_of(run_file):
        return run_file
    if is_new and run_file.origins.get(NUM_RANKS, "default") == "default":
        return run_file.replace(NUM_RANKS, place[1])
    raise SettingsError(
        f"{NUM_RANKS} is {num_ranks_of(run_file)}, and torchrun started {place[1]} ranks. Repeat it as "
        f"num_ranks={place[1]} to accept",
        code="E0241",
    )
