"""Hosts a training function of a user's own: it keeps its loop, and the run gets what it needs at each `tick`.

A hosted function makes its objects, hands them over with `keep`, and calls `tick` at the end of each iteration:

    def train(host):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        host.keep(model=model, optimizer=optimizer)
        for iteration in range(host.iteration, 1000):
            ...
            host.tick(env_steps=64, metrics={"loss": loss})

Everything that a run does between iterations happens inside `tick`: events, the row, the checkpoint. A process that is
killed anywhere goes on from the last tick that was committed.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

import numpy as np
import torch
from torch import nn

from quintain.core import registry
from quintain.core.state import Kept
from quintain.errors import CheckpointIncompatible, HostedError, QuintainError, SettingsError
from quintain.policies.optimizer_state import restore_optimizer, save_optimizer
from quintain.services.user_code import in_one_line, raised_at
from quintain.trainers.kept import restore_object, save_object
from quintain.trainers.learner import train_metrics
from quintain.trainers.loop import Loop
from quintain.trainers.settings import HostedSettings, HostedTrainerSettings

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.settings.base import PartSettings
    from quintain.typing import State

SHARED = (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
"""Objects that are equal on all ranks; generators and dataclasses are each rank's own."""


class Stop(BaseException):
    """Leaves a hosted function from within `tick`; no error, so that `except Exception` lets it pass."""

    def __init__(self, streams: State) -> None:
        super().__init__()
        self.streams = streams


class KeptParts:
    """The objects that a hosted function handed over, by name, and saved states that wait for theirs."""

    def __init__(self, given: Mapping[str, Kept]) -> None:
        self.given = dict(given)
        """Objects that exist before the function is called."""
        self.parts: dict[str, Kept] = {}
        self.waiting: State = {}
        self.shared: set[str] = set()
        """Names of parts that ranks have in common."""
        self.knows_position = False
        """Whether the function asked where it stands, or keeps a dataclass that counts."""
        self.add(self.given)

    def add(self, parts: Mapping[str, Kept]) -> None:
        """Takes objects over, and puts each back to the state that waits for it."""
        for name, part in parts.items():
            # At once, and not at the first checkpoint or resume: here the line is the user's own.
            is_frozen = is_dataclass(part) and type(part).__dataclass_params__.frozen  # type: ignore[union-attr]
            if is_frozen or isinstance(part, bool | int | float | str | list | tuple | dict | None):
                kind = "frozen dataclass" if is_frozen else type(part).__name__
                raise TypeError(f"{name} is a {kind}, which cannot be restored in place; put it into a dataclass that "
                                f"can change, or keep modules in it by names of their own")  # fmt: skip
            save_object(part, name)
            # A dataclass without a whole number is no position.
            names = [each.name for each in fields(part)] if is_dataclass(part) else []
            self.knows_position |= any(type(getattr(part, each)) is int for each in names)
        self.parts |= parts
        self.shared |= {name for name, part in parts.items() if isinstance(part, SHARED)}
        for name in parts:
            if name in self.waiting:
                self._restore(name, self.waiting.pop(name))

    def let_go(self) -> None:
        """Keeps the state and drops the objects when a call of the function ends; the next call makes its own."""
        if self.parts:
            self.waiting, self.parts = deepcopy(self.state_dict()["parts"]), {}

    def state_dict(self) -> State:
        saved = {
            name: save_optimizer(part, self._names_in(part))
            if isinstance(part, torch.optim.Optimizer)
            else save_object(part, name)
            for name, part in self.parts.items()
        }  # fmt: skip
        parts = {**self.waiting, **saved}
        return {"knows_position": self.knows_position, "parts": parts, "shared": sorted(self.shared & parts.keys())}

    def load_state_dict(self, state: State) -> None:
        self.knows_position = bool(state["knows_position"])
        self.waiting, self.parts = dict(state["parts"]), {}
        self.shared = {str(name) for name in state.get("shared", ())}

    def _restore(self, name: str, saved: State) -> None:
        part = self.parts[name]
        try:
            if isinstance(part, torch.optim.Optimizer):
                restore_optimizer(part, self._names_in(part), saved)
            elif restore_object(part, saved, name) is not part:
                raise ValueError("its shape is another")
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            found = " ".join(str(error).split())[:200]
            too = ", and keep its module with it or before" if isinstance(part, torch.optim.Optimizer) else ""
            raise CheckpointIncompatible(
                f"the checkpoint's {name} does not fit the one that is kept now ({found}). Make it as it was made when "
                f"the checkpoint was written{too}"
            ) from error

    def _names_in(self, optimizer: torch.optim.Optimizer) -> list[list[str]]:
        """Names the parameters in each group of an optimizer; one of no part that is kept is named by its place."""
        names = {id(part): name for name, part in self.parts.items() if isinstance(part, torch.Tensor)}
        for name, module in self.parts.items():
            if isinstance(module, nn.Module):
                names |= {id(each): f"{name}.{path}" for path, each in module.named_parameters()}
        return [
            [names.get(id(each), f"{number}.{place}") for place, each in enumerate(group["params"])]
            for number, group in enumerate(optimizer.param_groups)
        ]


class HostedLoop(Loop):
    """A loop whose iterations are those of a user's own function.

    The loop is also the host that the function is called with: `keep`, `tick`, `iteration`, `env_steps`, `fraction` and
    `rng` are for the function. Objects that exist before the call may be given by name as `keep`.
    """

    settings_class: ClassVar[type[PartSettings]] = HostedSettings
    stages: ClassVar[tuple[str, ...]] = ("iterate",)
    counts_cycles: ClassVar[bool] = False
    stops_after: ClassVar[str] = "this iteration"
    ends_with_budget: ClassVar[bool] = True
    """Whether the function is left at the tick that spends the budget; else it may return by itself."""
    training_parts: ClassVar[tuple[str, ...]] = ("progress", "events", "kept", "global_streams")

    def __init__(
        self,
        settings: HostedSettings | HostedTrainerSettings,
        rng: Rng,
        function: Callable[..., object] | None = None,
        keep: Mapping[str, Kept] | None = None,
    ) -> None:
        self.settings = settings
        self.rng = rng
        self.function = function or registry.import_part("function", settings.function)
        owner = getattr(self.function, "__self__", None)
        self.name = getattr(self.function if owner is None else type(owner), "__name__", settings.function)
        """What messages call the function; one that ships and calls a trainer of the user's has that one's name."""
        try:
            inspect.signature(self.function).bind(self, **settings.kwargs)
        except TypeError as error:
            raise SettingsError(
                f"{self.name} cannot be called with a host and experiment.loop.kwargs {sorted(settings.kwargs)}: "
                f"{error}",
                code="E0208",
            ) from error
        self.kept = KeptParts(keep or {})
        self._streams: State | None = None
        """Where the global generators stood at the checkpoint, until the function has set itself up."""
        self._is_set_up = False
        """Whether the call that is on has ended an iteration."""
        self.until_returns = isinstance(settings, HostedSettings) and settings.until_returns

    # -- for the function ------------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How many iterations are done; a resumed function goes on there."""
        self._at_position()
        return self.progress.iteration

    @property
    def env_steps(self) -> int:
        """How many environment steps all iterations so far reported."""
        self._at_position()
        return self.progress.env_steps

    @property
    def fraction(self) -> float:
        """The part of the budget that is spent, 0 to 1, for schedules."""
        self._at_position()
        return self.progress.fraction

    def keep(self, **parts: Kept) -> None:
        """Hands objects over by name; in a resumed run each is put back in place, and the global generators too.

        Call it once the function is set up, before its first iteration. Random draws before it are repeated by a
        resumed run, so that data drawn there is the same again.
        """
        if self.progress.iteration and not self._is_set_up and (new := parts.keys() - self.kept.waiting.keys()):
            raise CheckpointIncompatible(f"the checkpoint has no {', '.join(sorted(new))}, which {self.name} keeps")
        self.kept.add(parts)
        self._arrive()

    def tick(self, env_steps: int = 0, metrics: Mapping[str, float | torch.Tensor] | None = None) -> None:
        """Ends an iteration: counts its environment steps, and lets the run report and save.

        It does not return when the budget is spent or the run was asked to stop: the function is left as by an
        exception, with its `finally` blocks.
        """
        if self.kept.waiting:
            raise CheckpointIncompatible(
                f"the checkpoint has {', '.join(sorted(self.kept.waiting))}, which {self.name} did not keep before "
                f"its first tick"
            )
        if not isinstance(env_steps, int | np.integer) or env_steps < 0:
            raise HostedError(f"{self.name}: tick got env_steps={env_steps!r}, expected a whole number from 0")
        shown = {}
        for name, value in (metrics or {}).items():
            try:
                shown[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError):
                raise HostedError(f"{self.name}: tick got the metric {name} = {str(value)[:40]}, expected one number "
                                  f"for each name") from None  # fmt: skip
        self._is_set_up, self._streams = True, None
        if self.progress.iteration == 1 and not self.kept.knows_position:
            self.session.warn(self, "W0402", f"determinism L1: a resume is not exact; {self._counts_anew}")
        self.stats.add_all(train_metrics(self.joined(shown)))
        self.close_cycle(int(env_steps))
        self.progress.next_stage(len(self.stages))
        self._fire("after_iterate")
        self.progress.is_closing = True
        self._end_cycle()
        if (self.is_finished and self.ends_with_budget) or self._must_stop():
            self._leave()

    # -- the loop --------------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        if self.until_returns:
            return self.progress.is_between_cycles and self.records.goal_reached
        return super().is_finished

    def close_cycle(self, env_steps: int) -> None:
        """Counts an iteration that has ended."""
        self.progress.close_cycle(env_steps=env_steps, episodes=0)

    def _stage_iterate(self) -> bool:
        """Calls the function; each of its ticks closes a cycle, so that none is left to close afterwards."""
        self.kept.let_go()
        self._streams = self.global_streams.state_dict() if self.progress.iteration else None
        self._is_set_up = False
        self.global_streams.seed(self.rng.child("global"))
        if self.kept.given:
            self.keep(**self.kept.given)
        try:
            self._call()
        except Stop as left:
            self.global_streams.load_state_dict(left.streams)
            return False
        except (QuintainError, MemoryError):
            raise
        except Exception as error:
            self._raise_named(error)
        if self.progress.iteration == 0:
            raise HostedError(f"{self.name} returned without a tick; call host.tick(...) at the end of each iteration")
        # It has nothing left to do, whatever the budget. It may have changed its parts since its last tick.
        self.records.goal_reached |= self.until_returns or not self.progress.is_budget_spent
        self.session.after_stage(self)
        return False

    def _call(self) -> None:
        self.function(self, **self.settings.kwargs)

    def _leave(self) -> NoReturn:
        """Leaves the function; whatever a `finally` of it still changes, the state that is saved is that of now."""
        self.kept.let_go()
        raise Stop(self.global_streams.state_dict())

    @property
    def exactness(self) -> str:
        # Nothing is trained before the first tick: the whole function is repeated.
        if self.progress.iteration == 0 or self.kept.knows_position:
            return "exact"
        return self._counts_anew

    @property
    def _counts_anew(self) -> str:
        reads = "host.iteration, or self.state or self.num_updates of a trainer"
        return f"statistical: {self.name} never reads where it stands ({reads}), so a resumed run counts anew"

    def _at_position(self) -> None:
        self.kept.knows_position = True
        self._arrive()

    def _arrive(self) -> None:
        """Puts the global generators where the checkpoint stands, once every part is there."""
        if self._streams is not None and not self.kept.waiting:
            self.global_streams.load_state_dict(self._streams)
            self._streams = None

    def _raise_named(self, error: Exception) -> NoReturn:
        """Raises an error that names the innermost line of the function's own file, or of another of the user's."""
        frames = traceback.extract_tb(error.__traceback__)
        is_shipped = str(getattr(self.function, "__module__", "")).startswith("quintain.")
        # A function that ships calls one of the user's.
        own = None if is_shipped else getattr(getattr(self.function, "__code__", None), "co_filename", None)
        frame = next((each for each in reversed(frames) if each.filename == own), None)
        place = raised_at(error) if frame is None else f"{Path(frame.filename).name}:{frame.lineno}"
        raise HostedError(
            f"{self.name}: {in_one_line(error)}, raised in {place}. Mend it and resume the run"
        ) from error
