"""rlox: its PPO and SAC over the Rust core, with the environments it brings."""

from __future__ import annotations

from workloads import Workload

from peers import Measured, Tick

KIT = "rlox"
PACKAGES = ("rlox", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind == "step_io" or work.is_image or work.meter != "rate":
        return ()
    return ("own",) if work.kind == "ppo" and work.is_discrete else ("gymnasium",)


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from rlox.algorithms.ppo import PPO
    from rlox.callbacks import Callback

    class StopWhenMeasured(Callback):
        done = 0

        def on_step(self, **about: object) -> bool:
            self.done += work.steps_per_iteration
            return not tick(self.done)

    hyper = work.ppo
    agent = PPO(
        work.env_id,
        n_envs=work.num_envs,
        seed=seed,
        callbacks=[StopWhenMeasured()],
        n_steps=hyper.num_steps,
        n_epochs=hyper.num_epochs,
        batch_size=work.minibatch_size,
        learning_rate=hyper.learning_rate,
        anneal_lr=hyper.is_annealed,
        clip_eps=hyper.clip_coef,
        clip_vloss=False,
        ent_coef=hyper.entropy_coef,
        vf_coef=hyper.value_coef,
        max_grad_norm=hyper.max_grad_norm,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
    )
    agent.train(work.total_steps)


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import gymnasium
    from rlox.algorithms.sac import SAC

    hyper = work.sac

    class Counted(gymnasium.Wrapper):
        done = 0

        def step(self, action: object) -> object:
            self.done += 1
            is_learning = self.done > hyper.learning_starts and self.done % hyper.tick_every == 0
            if is_learning and tick(self.done):
                raise Measured
            return self.env.step(action)

    agent = SAC(
        Counted(gymnasium.make(work.env_id)),
        learning_starts=hyper.learning_starts,
        batch_size=hyper.batch_size,
        hidden=hyper.hidden_sizes[0],
        buffer_size=hyper.buffer_size,
    )
    try:
        agent.train(work.total_steps)
    except Measured:
        return
