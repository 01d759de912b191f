"""SAC's gradient steps without autograd: gradients that are written out, and Adam by a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from quintain.algorithms.sac import SAC
from quintain.compiled.adam import use_adam_kernel
from quintain.compiled.rules import NO_LEARNING_KERNELS, why_sac_is_plain
from quintain.compiled.second_thread import SecondThread
from quintain.compiled.soft_gradients import SoftGradients
from quintain.data import fields as f

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.algorithms.minibatches import Minibatch
    from quintain.algorithms.temperature import Temperature
    from quintain.algorithms.twin_critics import TwinCritics
    from quintain.policies.soft_actor import SoftActor


def accelerate_sac(algorithm: Algorithm) -> str:
    """Lets gradients be written out for SAC; returns why not where autograd stays."""
    if not isinstance(algorithm, SAC):
        return NO_LEARNING_KERNELS
    algorithm.accelerator = algorithm.optimizer.kernel = None
    if reason := why_sac_is_plain(algorithm, is_changed=type(algorithm) is not SAC):
        return reason
    use_adam_kernel(algorithm.optimizer)
    algorithm.accelerator = SoftLearning(algorithm.policy, algorithm.critics, algorithm.targets, algorithm.temperature)
    return ""


class SoftLearning:
    """Writes the gradients of minibatches of any size, in two threads where torch has two."""

    def __init__(self, policy: SoftActor, critics: TwinCritics, targets: TwinCritics, temperature: Temperature) -> None:
        self.policy, self.critics, self.targets, self.temperature = policy, critics, targets, temperature
        self.second_thread = SecondThread()
        self.gradients: SoftGradients | None = None

    def updating(self) -> AbstractContextManager[None]:
        """Shares torch's threads with a second one for an update."""
        return self.second_thread.helping()

    def write_gradient(self, minibatch: Minibatch) -> dict[str, float]:
        """Writes the gradient of every trained parameter to its `grad`, and returns the metrics to report."""
        num_rows = len(minibatch[f.REWARD])
        if self.gradients is None or self.gradients.num_rows != num_rows:
            self.gradients = SoftGradients(
                self.policy, self.critics, self.targets, self.temperature, num_rows, self.second_thread
            )
        return self.gradients.write(minibatch)
