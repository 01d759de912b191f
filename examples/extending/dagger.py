"""DAgger (Ross et al. 2011). Run it here: quintain train dagger:Imitation CartPole-v1 trainer=dagger:DAgger."""

import torch

from quintain.algorithms import Algorithm, AlgorithmSettings, Loss
from quintain.trainers import Trainer


def expert(obs):
    """Balances CartPole: pushes the cart to the side to which the pole is falling."""
    return (obs[..., 2] + 0.5 * obs[..., 3] > 0).long()


class Imitation(Algorithm):
    """Minimises -log pi(a*|o) over all states that were visited so far; a* is the expert's action."""

    settings_class = AlgorithmSettings

    def __init__(self, *parts):
        super().__init__(*parts)
        self.dataset = {"obs": torch.empty(0, 4), "action": torch.empty(0, dtype=torch.long)}

    def estimate(self, batch): ...

    def loss(self, minibatch, fraction):
        loss = -self.policy.evaluate_actions(minibatch)["sample_log_prob"].mean()
        return Loss(loss, {"train/imitation_loss": loss.detach()})

    def update(self, batch, progress):
        for step in range(20):
            rows = self.rng.generator("rows", progress.updates, step).integers(len(self.dataset["obs"]), size=64)
            parts = self.gradient_step({name: each[rows] for name, each in self.dataset.items()}, 0.0, 1e-3)
        return self.report(parts, 1, progress)


class DAgger(Trainer):
    """Asks the expert between collecting and learning."""

    stages = ("collect", "label", "update", "publish")

    def _stage_label(self):
        obs = self.batch.rollout.flat("obs")[self.batch.valid_rows]
        for name, rows in (("obs", obs), ("action", expert(obs))):
            self.algorithm.dataset[name] = torch.cat((self.algorithm.dataset[name], rows))
        return True
