"""Runs one experiment, which may be held after a row of its metrics until it is killed.

python -m tests.experiments.killed_run TRAINER RUN_ID RUNS_DIR [HELD_ROW FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import TRAINER_REGISTRY, register_trainer
from quintain.experiments.run import run_experiment
from quintain.experiments.trainer import IterationContext, TensorDictTrainer, attach_progress_bar
from quintain.services.reporting.metrics_file import MetricsFile

RL = {"frames_per_batch": 16, "minibatch_size": 8, "num_iterations": 6, "num_epochs": 1, "num_test_iterations": 1}

if "own_clip" not in TRAINER_REGISTRY:
    import tests.experiments.test_tensordict_rl  # noqa: F401  # it registers the trainer


@register_trainer("own_train")
class OwnTrain(TensorDictTrainer):
    """A user's own train(): global generators, an optimizer with moments, an environment, and a loop by step()."""

    trainer_type = "solo_agent"

    def train(self) -> None:
        self.network = torch.nn.Sequential(*self.scenario_instance.agents["verifier"].parts().values())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.01)
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()  # type: ignore[call-arg]

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        env = self.scenario_instance.train_environment
        assert env is not None
        for iteration in range(iteration_context.first, iteration_context.num_iterations):
            seen = torch.from_numpy(env.reset()["seen"][0 :: self.num_agents].copy())
            noisy = self.network(seen + 0.1 * torch.randn(seen.shape))
            loss = torch.nn.functional.cross_entropy(noisy, torch.from_numpy(env.label))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.settings.stat_logger.log({"loss": loss.item()}, step=iteration)
            iteration_context.step()


@register_trainer("own_logged")
class OwnLogged(TensorDictTrainer):
    """A user's own train() without phases: statistics with a step end its iterations."""

    trainer_type = "solo_agent"

    def train(self) -> None:
        network = self.network = torch.nn.Sequential(*self.scenario_instance.agents["verifier"].parts().values())
        optimizer = self.optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        size = network[0][0][0].in_features  # type: ignore[index]
        data = torch.randn(8, size)
        for iteration in range(self.state.iteration, self.hyper_params.rl.num_iterations):
            loss = torch.nn.functional.cross_entropy(network(data + torch.randn(8, size)), torch.randint(2, (8,)))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.settings.stat_logger.log({"loss": loss.item()}, step=iteration)


def main(trainer: str, run_id: str, runs_dir: str, row: str = "0", held: str = "") -> None:
    append = MetricsFile.append

    def append_and_hold(self: MetricsFile, step: int, values: Mapping[str, float]) -> None:
        append(self, step, values)
        if held and self._path.read_bytes().count(b"\n") == int(row):
            Path(held).touch()
            while True:
                time.sleep(1)

    MetricsFile.append = append_and_hold  # type: ignore[method-assign]
    params = HyperParameters("find_the_plus", trainer, "generated", "debate", rl=RL)
    run_experiment(params, run_id=run_id, output_dir=runs_dir, checkpoint_period=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
