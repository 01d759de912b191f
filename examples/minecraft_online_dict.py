"""MineStudio's names on the stand-in: learns to turn to a post in 20,480 steps.

quintain train examples/minecraft_online_dict.py --run-id post
quintain eval post --video
"""

from quintain.envs.minecraft.tasks import look
from quintain.policies import RecurrentImagePolicy


def env_generator():
    return look()


def policy_generator():
    env = look()
    return RecurrentImagePolicy(env.observation_space, env.action_space, image_features=32)


online_dict = {
    "trainer_name": "PPOTrainer",
    "rollout_config": {
        "num_rollout_workers": 1,
        "fragment_length": 64,
        "worker_config": {"num_envs": 8, "video_fps": 5},
        "replay_buffer_config": {"max_staleness": 0, "max_reuse": 1},
    },
    "train_config": {
        "num_iterations": 10,
        "batches_per_iteration": 32,
        "gradient_accumulation": 8,
        "epochs_per_iteration": 4,
        "learning_rate": 2e-3,
        "entropy_bonus_coef": 0.01,
        "discount": 0.95,
    },
}
