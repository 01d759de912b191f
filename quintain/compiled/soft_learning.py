"""SAC's gradient steps without autograd: hand-written gradients, and Adam by a kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from quintain.compiled.second_thread import SecondThread
from quintain.compiled.soft_gradients import SoftGradients
from quintain.data import fields as f

if TYPE_CHECKING:
    from quintain.algorithms.minibatches import Minibatch
    from quintain.algorithms.temperature import Temperature
    from quintain.algorithms.twin_critics import TwinCritics
    from quintain.policies.soft_actor import SoftActor


class SoftLearning:
    """Writes the gradients of minibatches of any size, in two threads if torch has two."""

    def __init__(self, policy: SoftActor, critics: TwinCritics, targets: TwinCritics, temperature: Temperature) -> None:
        self.policy, self.critics, self.targets, self.temperature = policy, critics, targets, temperature
        self.second_thread = SecondThread()
        self.gradients: SoftGradients | None = None

    def updating(self) -> AbstractContextManager[None]:
        """Splits torch's threads with a second one for an update."""
        return self.second_thread.helping()

    def write_gradient(self, minibatch: Minibatch, optimizer: str = "main") -> dict[str, float]:
        """Writes the gradient of every trained parameter to its `grad`, and returns metrics."""
        num_rows = len(minibatch[f.REWARD])
        if self.gradients is None or self.gradients.num_rows != num_rows:
            self.gradients = SoftGradients(
                self.policy, self.critics, self.targets, self.temperature, num_rows, self.second_thread
            )
        return self.gradients.write(minibatch)
