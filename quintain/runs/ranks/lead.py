"""The ranks of a run, as rank 0 leads them: how many there are, who starts them, and how the others hear what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.placements.torchrun import place_in_torchrun

if TYPE_CHECKING:
    from quintain.core.process_group import World
    from quintain.placements.rank_processes import RankProcesses
    from quintain.settings.tree import RunFile

NUM_RANKS = "run.placement.num_ranks"


class Ranks:
    """Leads the ranks of one run; for a run of one rank there is nobody to lead."""

    def __init__(self, run_file: RunFile, *, starts_processes: bool = True) -> None:
        self.size = num_ranks_of(run_file)
        self.is_in_torchrun = place_in_torchrun() is not None
        self.processes: RankProcesses | None = None
        if self.size > 1 and starts_processes and not self.is_in_torchrun:
            from quintain.placements.rank_processes import RankProcesses
            from quintain.runs.ranks.follow import run_rank

            self.processes = RankProcesses(self.size, run_rank)

    def meet(self) -> World:
        """Meets the others; imports torch."""
        from quintain.core.process_group import Alone, Gloo

        if self.size == 1:
            return Alone()
        return Gloo(0, self.size) if self.processes is None else self.processes.meet()

    def stop(self) -> None:
        """Asks the others to stop too; what torchrun started, it tells itself."""
        if self.processes is not None:
            self.processes.stop()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Names the cause when another rank is lost; ends the others when this one fails."""
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
        """Leaves no process behind."""
        if self.processes is not None:
            self.processes.close()


def num_ranks_of(run_file: RunFile) -> int:
    """Returns how many ranks the settings ask for."""
    return int(getattr(run_file.run.placement, "num_ranks", 1))


def with_ranks_of_torchrun(run_file: RunFile, *, is_new: bool) -> RunFile:
    """Returns the settings with as many ranks as torchrun started; refuses other numbers that were asked for."""
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
