"""sb3-contrib's RecurrentPPO as its documentation says, in Stable-Baselines3's environments, on the CPU.

Its LSTM is shared by actor and critic, as ours is, so that both sides have as many weights; its default has two.
"""

from __future__ import annotations

from workloads import Workload

from peers import Tick
from peers.sb3 import learn, ppo_settings

KIT = "sb3_contrib"
PACKAGES = ("sb3-contrib", "stable-baselines3", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    return ("gymnasium",) if work.kind == "ppo" and work.ppo.memory_size else ()


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    settings = ppo_settings(work.ppo, work.num_envs)
    settings["policy_kwargs"] |= {
        "lstm_hidden_size": work.ppo.memory_size,
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }
    environments = make_vec_env(work.env_id, n_envs=work.num_envs, seed=seed)
    learn(RecurrentPPO("MlpLstmPolicy", environments, device="cpu", seed=seed, **settings), work, tick)
