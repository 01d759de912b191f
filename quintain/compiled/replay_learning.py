"""Gradient steps on replay without autograd: gradients that are written out, and Adam by a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from quintain.algorithms.dqn import DQN
from quintain.algorithms.sac import SAC
from quintain.algorithms.td3 import TD3
from quintain.compiled.adam import use_adam_kernel
from quintain.compiled.q_gradients import QGradients
from quintain.compiled.rules import NO_LEARNING_KERNELS, why_replay_is_plain
from quintain.compiled.soft_learning import SoftLearning
from quintain.compiled.twin_gradients import TwinGradients
from quintain.data import fields as f

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.algorithms.minibatches import Minibatch


def accelerate_replay(algorithm: Algorithm) -> str:
    """Lets gradients be written out for SAC, TD3 or DQN; returns why not where autograd stays."""
    if not isinstance(algorithm, SAC | TD3 | DQN):
        return NO_LEARNING_KERNELS
    algorithm.accelerator = None
    for optimizer in algorithm.optimizers.values():
        optimizer.kernel = None
    if reason := why_replay_is_plain(algorithm, is_changed=type(algorithm) not in (SAC, TD3, DQN)):
        return reason
    for optimizer in algorithm.optimizers.values():
        use_adam_kernel(optimizer)
    if isinstance(algorithm, SAC):
        parts = algorithm.policy, algorithm.critics, algorithm.targets, algorithm.temperature
        algorithm.accelerator = SoftLearning(*parts)
    else:
        algorithm.accelerator = QLearning(algorithm)
    return ""


class QLearning:
    """Writes the gradients of DQN and TD3 for minibatches of any size."""

    def __init__(self, algorithm: DQN | TD3) -> None:
        self.algorithm = algorithm
        self.gradients: QGradients | TwinGradients | None = None

    def updating(self) -> AbstractContextManager[None]:
        """Does nothing around an update."""
        return nullcontext()

    def write_gradient(self, minibatch: Minibatch, optimizer: str = "main") -> dict[str, float]:
        """Writes the gradient of each parameter of an optimizer to its `grad`, and returns the metrics to report.

        The actor's is that of the minibatch whose critics' gradient was written last.
        """
        num_rows = len(minibatch[f.REWARD])
        if self.gradients is None or self.gradients.num_rows != num_rows:
            algorithm = self.algorithm
            if isinstance(algorithm, TD3):
                self.gradients = TwinGradients(algorithm, num_rows)
            else:
                self.gradients = QGradients(algorithm, num_rows)
        if optimizer == "actor" and isinstance(self.gradients, TwinGradients):
            return self.gradients.write_policy(minibatch)
        return self.gradients.write(minibatch)
