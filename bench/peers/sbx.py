"""sbx, the JAX version of Stable-Baselines3: the same interface, the same environments."""

from __future__ import annotations

from workloads import Workload

from peers import Tick
from peers.sb3 import environments, learn, sac_settings, takes_envpool

KIT = "sbx"
PACKAGES = ("sbx-rl", "jax", "gymnasium", "numpy", "envpool")


def entries(work: Workload) -> tuple[str, ...]:
    if work.is_image or work.kind == "step_io" or work.ppo.memory_size:
        return ()
    return ("gymnasium", "envpool") if takes_envpool(work) else ("gymnasium",)


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import flax.linen
    from sbx import PPO

    hyper = work.ppo
    falling = (lambda remaining: remaining * hyper.learning_rate) if hyper.is_annealed else hyper.learning_rate
    model = PPO(
        "MlpPolicy",
        environments(work, entry, seed),
        learning_rate=falling,
        n_steps=hyper.num_steps,
        batch_size=work.minibatch_size,
        n_epochs=hyper.num_epochs,
        clip_range=hyper.clip_coef,
        ent_coef=hyper.entropy_coef,
        vf_coef=hyper.value_coef,
        max_grad_norm=hyper.max_grad_norm,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
        policy_kwargs={"net_arch": list(hyper.hidden_sizes), "activation_fn": flax.linen.tanh},
        seed=seed,
    )
    learn(model, work, tick)


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from sbx import SAC

    learn(SAC("MlpPolicy", work.env_id, seed=seed, **sac_settings(work.sac)), work, tick)
