"""The first hour: train, load, evaluate, wrap, tuned settings, fork, resume, stop, an own network, an id of a package.

Run it in a folder of your own; it writes to `runs/`.
"""

import signal

import gymnasium
from torch import nn

from quintain import Every, Trainer, evaluate, load_policy
from quintain.cli.app import main as quintain

SMALL = {"num_envs": 2, "n_steps": 64, "batch_size": 64, "n_epochs": 2}

trainer = Trainer("PPO", "CartPole-v1", run_id="first", **SMALL)  # train; names of Stable-Baselines3 are understood
trainer.train("1k")
trainer.close()

policy = load_policy("first@latest")  # load; the run is only read
obs, _ = gymnasium.make("CartPole-v1").reset(seed=0)
action, _ = policy.predict(obs, deterministic=True)
assert policy.action_space.contains(action)

results = evaluate(policy, "CartPole-v1", episodes=10)  # evaluate
print(results.mean_return, results.interval())


def short():
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 50)


assert evaluate(policy, short, episodes=10).lengths.max() <= 50  # wrap
Trainer("ppo", short, **SMALL).train(256)
limit = {"type": "TimeLimit", "kwargs": {"max_episode_steps": 50}}
Trainer("ppo", "CartPole-v1", wrappers=[limit], frame_stack=2, **SMALL).train(256)  # the same by settings
Trainer("ppo", gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), num_steps=64).train(256)

Trainer("ppo", "CartPole-v1", tuned=True, total_timesteps=2048).train()  # tuned settings that ship
assert quintain(["train", "ppo", "CartPole-v1", "--tuned", "total_timesteps=2048", "-q"]) == 0

assert quintain(["train", "--initialize-from", "first@best", "seed=1", "total_timesteps=256", "--run-id", "fork"]) == 0
assert quintain(["resume", "first", "total_timesteps=1280", "-q"]) == 0  # resume, on the command line or in Python
Trainer.load("first").train(1536)

stopped = Trainer("ppo", "CartPole-v1", run_id="stopped", **SMALL)
stopped.events.add(Every(updates=2), lambda _: signal.raise_signal(signal.SIGINT))
try:
    stopped.train("100k")
except KeyboardInterrupt:  # stop: Ctrl-C saves, and ends a loop over seeds
    stopped.close()
assert Trainer.load("stopped").progress.env_steps == 256

network = nn.Sequential(nn.Linear(4, 32), nn.ReLU())  # a network of one's own
Trainer("ppo", "CartPole-v1", policy=network, writers=["none"], **SMALL).train(256)

Trainer("ppo", "minigrid:MiniGrid-Empty-5x5-v0", events=[], **SMALL).train(256)  # an id of a package
