"""DAgger as a user writes it: short, of public names, better than at its start, and exact on resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from examples.extending.dagger import DAgger, expert
from quintain.services.events import After
from tests.resume.outcome import digest_of

IMITATION = "examples.extending.dagger:Imitation"


def make() -> DAgger:
    return DAgger(IMITATION, "CartPole-v1", num_lanes=4, num_steps=32, events=[], writers=[], seed=1)


def test_it_imitates_the_expert_and_resumes_exactly(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = make()
    obs = torch.from_numpy(np.random.default_rng(0).normal(scale=0.3, size=(1000, 4)).astype(np.float32))

    def agreement() -> float:
        action, _ = whole.predict(obs.numpy(), deterministic=True)
        return float((torch.from_numpy(action) == expert(obs)).float().mean())

    before = agreement()
    whole.train(1024)
    assert agreement() > max(0.8, before + 0.1)
    assert len(whole.algorithm.dataset["obs"]) == 1024
    # Stopped between the expert's labels and the update that learns from them.
    stopped = make()
    stopped.events.add(After("label"), lambda trainer: trainer.progress.updates == 3 and trainer.stop("now"))
    stopped.train(1024)
    path = stopped.save_checkpoint()
    assert (stopped.progress.updates, stopped.progress.stage) == (3, 2)
    stopped.session.close()
    resumed = make()
    resumed.load_checkpoint(path)
    resumed.train(1024)
    whole.save_checkpoint()
    digests = {digest_of(trainer.session.directory.path) for trainer in (whole, resumed)}
    assert len(digests) == 1
