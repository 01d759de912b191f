"""Trainers of experiments: a subclass writes `train()`, and the run seeds, logs, saves and resumes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from quintain.errors import CheckpointIncompatible, CheckpointNotFound
from quintain.experiments.experiment_settings import ExperimentSettings, StatLogger
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.protocols.base import ProtocolHandler
from quintain.experiments.scenario_names import DataKind
from quintain.runs.parts import resolve_device
from quintain.trainers.kept import restore_object, save_object

if TYPE_CHECKING:
    from quintain.core.state import Kept
    from quintain.experiments.scenario_env import ScenarioEnv
    from quintain.policies.team import TeamPolicy
    from quintain.trainers.hosted import HostedLoop
    from quintain.typing import State as SavedState

Loop: TypeAlias = Callable[..., object]
Made = TypeVar("Made", bound=Loop)
CheckPointNotFoundError = CheckpointNotFound
TRAIN_LOOP, TEST_LOOP = "_run_train_loop", "_run_test_loop"


@dataclass
class Agent:
    """The parts of one agent; those that the trainer's type does not need are None."""

    name: str
    body: nn.Module | None = None
    policy_head: nn.Module | None = None
    value_head: nn.Module | None = None
    solo_head: nn.Module | None = None
    is_random: bool = False

    def parts(self) -> dict[str, nn.Module]:
        """Returns the parts that exist, by name."""
        found = {name: getattr(self, name) for name in ("body", "policy_head", "value_head", "solo_head")}
        return {name: part for name, part in found.items() if part is not None}

    def train(self, mode: bool = True) -> None:
        """Switches all parts to training."""
        for part in self.parts().values():
            part.train(mode)

    def eval(self) -> None:
        """Switches all parts to evaluation."""
        self.train(False)


@dataclass
class ScenarioInstance:
    """All components of an experiment."""

    protocol_handler: ProtocolHandler
    agents: dict[str, Agent] = field(default_factory=dict)
    train_environment: ScenarioEnv | None = None
    test_environment: ScenarioEnv | None = None
    loaded_policy: TeamPolicy | None = None
    """All agents as one policy, if weights of some were loaded from other runs."""


class RunStatLogger(StatLogger):
    """Keeps statistics for the row of the current iteration, in metrics.jsonl of the run; `also` gets them at once."""

    def __init__(self, also: StatLogger | None = None) -> None:
        self.waiting: dict[str, float] = {}
        self.also = also
        self.on_step: Callable[[int], None] | None = None
        """Called with the step of a log; a trainer whose loop has no phases ends its iterations there."""

    def log(self, stats: dict[str, float], step: int | None = None) -> None:
        """Takes the statistics of one iteration."""
        if self.also is not None:
            self.also.log(stats, step)
        self.waiting |= stats
        if step is not None and self.on_step is not None:
            self.on_step(step)

    def take(self) -> dict[str, float]:
        """Returns the statistics since the last call; nip's `test_` and `agent.test_` become `test/`, `test/agent.`."""
        taken, self.waiting = self.waiting, {}
        parted = {name: name.rpartition(".") for name in taken}
        return {
            f"test/{agent}{dot}{own.removeprefix('test_')}" if own.startswith("test_") else name: taken[name]
            for name, (agent, dot, own) in parted.items()
        }


class KeptObjects:
    """Objects of a trainer that are saved together, and restored in place."""

    def __init__(self, parts: Mapping[str, Kept]) -> None:
        self.parts = dict(parts)

    def state_dict(self) -> SavedState:
        return {name: save_object(part, name) for name, part in self.parts.items()}

    def load_state_dict(self, state: SavedState) -> None:
        for name, part in self.parts.items():
            restore_object(part, state[name], name)


class Bar(Protocol):
    """A progress bar, as tqdm's are."""

    def set_description(self, text: str) -> None: ...
    def update(self, count: int) -> object: ...
    def close(self) -> None: ...


class IterationContext:
    """The progress of one phase, such as training or testing."""

    def __init__(self, trainer: Trainer, phase: str, num_iterations: int) -> None:
        self.trainer, self.phase, self.num_iterations = trainer, phase, num_iterations
        self.description = ""
        if phase == TRAIN_LOOP and self.first < num_iterations and TEST_LOOP in trainer.state.phases:
            # A run that is trained for longer is tested anew.
            trainer.state.phases[TEST_LOOP] = 0
        make = trainer.settings.tqdm_func
        self.progress_bar: Bar | None = None if make is None else make(total=num_iterations, initial=self.first)

    @property
    def first(self) -> int:
        """The first iteration that is not done; above 0 in a run that was resumed."""
        return self.trainer.state.phases.get(self.phase, 0)

    def __iter__(self) -> Iterator[int]:
        """Yields the iterations that are not done, and ends each by `step`."""
        for iteration in range(self.first, self.num_iterations):
            yield iteration
            self.step()

    def set_description(self, text: str) -> None:
        """Says what is being done, on the progress bar if there is one."""
        self.description = text
        if self.progress_bar is not None:
            self.progress_bar.set_description(text)

    def step(self) -> None:
        """Ends an iteration: bars advance, its statistics are written, and the run may be saved."""
        if self.progress_bar is not None:
            self.progress_bar.update(1)
        settings = self.trainer.settings
        if settings.global_tqdm_step_fn is not None:
            settings.global_tqdm_step_fn()
        if settings.profiler is not None:
            settings.profiler.step()
        state = self.trainer.state
        state.phases[self.phase] = self.first + 1
        if self.phase == TRAIN_LOOP:
            state.iteration = state.phases[self.phase]
        self.trainer.end_iteration()


def attach_progress_bar(num_iterations: Callable[..., int]) -> Callable[[Made], Made]:
    """Returns the decorator of a phase: the function says how many iterations a trainer will take in it."""

    def decorate(method: Made) -> Made:
        @wraps(method)
        def phase(self: Trainer, *args: object, **kwargs: object) -> object:
            self.keep_parts()
            context = IterationContext(self, method.__name__, num_iterations(self))
            self.is_in_phase = True
            try:
                return method(self, *args, iteration_context=context, **kwargs)
            finally:
                self.is_in_phase = False
                if context.progress_bar is not None:
                    context.progress_bar.close()

        phase._num_iterations_func = num_iterations  # type: ignore[attr-defined]  # nip's name
        return phase  # type: ignore[return-value]

    return decorate


class Trainer(ABC):
    """The base of all trainers. `run_experiment` calls `train` inside a hosted loop, `self.host`."""

    data_kind: ClassVar[DataKind | None] = None
    """The kind of data that scenarios must have; None for any."""
    trainer_type: ClassVar[str] = ""
    """Which parts of agents are built; see `register_trainer_type`."""

    @dataclass
    class State:
        """The position of a trainer; a subclass may add fields of numbers, text, arrays, lists and dicts."""

        iteration: int = 0
        agents: dict[str, object] = field(default_factory=dict)
        phases: dict[str, int] = field(default_factory=dict)
        """Iterations that are done, by the name of the phase's method."""

    def __init__(
        self, hyper_params: HyperParameters, scenario_instance: ScenarioInstance, settings: ExperimentSettings
    ) -> None:
        self.hyper_params, self.scenario_instance, self.settings = hyper_params, scenario_instance, settings
        self._state = self.State(phases=dict.fromkeys(self._phases(), 0))
        self.host: HostedLoop | None = None
        self.is_in_phase = False
        """Whether a decorated method is on, whose `iteration_context` ends the iterations."""
        self._kept: set[str] = set()
        self._logged_step = -1

    @abstractmethod
    def train(self) -> None:
        """Trains, tests, and logs the results."""

    @property
    def state(self) -> State:
        """Where the trainer stands. Reading it hands over all parts made so far; those of a resumed run are restored.

        A loop without phases begins at `self.state.iteration`, read once modules and optimizers are made.
        """
        if self.host is not None:
            self.keep_parts()
            assert self.host.iteration >= 0, "asking for it puts the global generators where the checkpoint stands"
        return self._state

    @property
    def protocol_handler(self) -> ProtocolHandler:
        return self.scenario_instance.protocol_handler

    @property
    def device(self) -> torch.device:
        return resolve_device(self.settings.device)

    @property
    def agent_names(self) -> list[str]:
        return list(self.protocol_handler.agent_names)

    @property
    def num_agents(self) -> int:
        return len(self.agent_names)

    @property
    def max_message_rounds(self) -> int:
        return self.protocol_handler.max_message_rounds

    def get_total_num_iterations(self) -> int:
        """Returns the iterations of all phases, known as soon as the trainer is made."""
        return sum(count(self) for count in self._phases().values())

    def _phases(self) -> dict[str, Callable[..., int]]:
        """Returns the decorated methods by name, each with the function that counts its iterations."""
        methods = {name: getattr(type(self), name, None) for name in dir(type(self))}
        counts = {name: getattr(method, "_num_iterations_func", None) for name, method in methods.items()}
        return {name: count for name, count in counts.items() if count is not None}

    def keep_parts(self) -> None:
        """Hands the state, modules, optimizers and generators of the trainer, its agents and environments to the run.

        Each is handed over once.
        """
        if self.host is None:
            return
        kinds = (nn.Module, torch.optim.Optimizer, torch.Generator)
        # Not the dataclass itself: that the state is kept does not show that the loop reads where it stands.
        parts: dict[str, object] = {"state": KeptObjects({"state": self._state})}
        for agent in self.scenario_instance.agents.values():
            parts |= {f"{agent.name}_{name}": part for name, part in agent.parts().items()}
        instance = self.scenario_instance
        envs = {"train_environment": instance.train_environment, "test_environment": instance.test_environment}
        parts |= {name: env for name, env in envs.items() if env is not None}
        parts |= {name: value for name, value in vars(self).items() if isinstance(value, kinds)}
        new = {name: part for name, part in parts.items() if name not in self._kept}
        if new:
            self._kept |= new.keys()
            self.host.keep(**new)

    def end_iteration(self) -> None:
        """Ends an iteration of the run; a checkpoint may be taken here."""
        if self.host is not None:
            logger = self.settings.stat_logger
            # The run does not see the steps that a loop of a user's own takes: its steps are iterations.
            self.host.tick(env_steps=1, metrics=logger.take() if isinstance(logger, RunStatLogger) else {})

    def end_logged_step(self, step: int) -> None:
        """Ends the iteration whose statistics were logged with its number, from 0, in a loop without phases."""
        if self.host is None or self.is_in_phase or step <= self._logged_step:
            return
        self._logged_step, own = step, self._state.iteration
        # Saved is the iteration that follows, also where the loop has not counted this one yet, or never counts.
        self.count_logged_steps()
        if late := self.host.kept.waiting.keys() - {"state"}:
            raise CheckpointIncompatible(
                f"{type(self).__name__} made {', '.join(sorted(late))} after it read self.state, or never read it, so "
                "that they could not be restored; begin the loop at self.state.iteration, read once they are made"
            )
        self.keep_parts()
        self.end_iteration()
        self._state.iteration = own

    def count_logged_steps(self) -> None:
        """Lets the state stand after the last iteration whose statistics were logged with their number."""
        self._state.iteration = max(self._state.iteration, self._logged_step + 1)

    def save_checkpoint(self) -> None:
        """Ends an iteration, and saves the run now; without it a run is saved every `checkpoint_period` iterations."""
        if self.host is not None:
            self.keep_parts()
            self.end_iteration()
            self.host.save_checkpoint()

    def load_and_set_state_from_checkpoint(self) -> None:
        """Puts all parts made so far where the run's checkpoint stands, as reading `self.state` does."""
        if self.host is None or self.host.progress.iteration == 0:
            raise CheckPointNotFoundError("this run has no checkpoint to go on from; it begins")
        assert self.state is self._state


class TensorDictTrainer(Trainer):
    """The base of trainers of tensor agents with a training loop of their own."""

    data_kind: ClassVar[DataKind | None] = "tensors"
    trainer_type: ClassVar[str] = "rl"

    def _build_train_context(self, stack: ExitStack) -> list[object]:
        """Enters the contexts of training: attention by the math kernel, the only exact one on a CPU.

        On other devices cuDNN and flash attention too, and efficient attention with `enable_efficient_attention`.
        """
        kernels = [SDPBackend.MATH]
        if self.device.type != "cpu":
            kernels += [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
            kernels += [SDPBackend.EFFICIENT_ATTENTION] if self.settings.enable_efficient_attention else []
        return [stack.enter_context(sdpa_kernel(kernels))]

    def _build_test_context(self, stack: ExitStack) -> list[object]:
        """Enters the contexts of testing: no gradients, and any kernel of attention that the device has.

        Kernels that only training must leave out, because their gradients are not exact, are allowed here.
        """
        kernels = [SDPBackend.MATH]
        if self.device.type != "cpu":
            kernels += [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        return [stack.enter_context(sdpa_kernel(kernels)), stack.enter_context(torch.no_grad())]
