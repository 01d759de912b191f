"""Random network distillation (Burda et al. 2018). Run it in this folder: quintain train ppo MountainCar-v0
reward_streams=averaged "reward_signals={extrinsic: {}, rnd: {type: rnd:RND}}"."""

from quintain.algorithms import Optimizer
from quintain.policies import ObsNormalizer, mlp
from quintain.rewards import RewardSignal, RewardSignalSettings, flat_size, register, transitions


@register("rnd", RewardSignalSettings)
class RND(RewardSignal):
    """Rewards the error of a predictor of a fixed random network; needs `reward_streams: averaged`."""

    ignores_ends = True

    def build(self):
        size, draw = flat_size(self.spec.obs), self.rng.torch_generator
        self.target, self.predictor = (mlp(size, (64,), 32, generator=draw(name)) for name in ("target", "predictor"))
        self.obs_scale, self.error_scale = ObsNormalizer(size, clip=5.0), ObsNormalizer(1, clip=5.0)
        self.optimizer = Optimizer(self.predictor.named_parameters(), eps=1e-8, max_grad_norm=None)

    def error(self, next_obs):
        scaled = self.obs_scale(next_obs)
        return (self.predictor(scaled) - self.target(scaled).detach()).square().mean(dim=-1)

    def evaluate(self, rollout):
        return (self.error(transitions(rollout).next_obs) * self.error_scale.scale).detach().numpy()

    def update(self, batch, progress):
        error = self.error(next_obs := transitions(batch.rollout).rows().next_obs)
        self.optimizer.step(error.mean(), 1e-3, weight=len(error))
        self.obs_scale.update(next_obs.numpy())
        self.error_scale.update(error.detach().unsqueeze(1).numpy())
        return {"loss": error.mean().item()}
