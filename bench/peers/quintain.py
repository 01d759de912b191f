"""quintain through its public interface: no events, no writers, no run directory."""

from __future__ import annotations

from collections.abc import Callable

from workloads import PPOWorkload

REQUIREMENTS: tuple[str, ...] = ()
PACKAGES = ("quintain", "torch", "gymnasium", "numpy")


def train(workload: PPOWorkload, seed: int, tick: Callable[[int], bool]) -> None:
    from quintain import Every, Trainer

    trainer = Trainer(
        "ppo",
        workload.env_id,
        seed=seed,
        num_lanes=workload.num_envs,
        num_steps=workload.num_steps,
        num_epochs=workload.num_epochs,
        batch_size=workload.minibatch_size,
        hidden_sizes=list(workload.hidden_sizes),
        learning_rate=workload.learning_rate,
        entropy_coef=workload.entropy_coef,
        value_coef=workload.value_coef,
        max_grad_norm=workload.max_grad_norm,
        clip_coef=workload.clip_coef,
        gamma=workload.gamma,
        gae_lambda=workload.gae_lambda,
        events=[],
        writers=[],
    )

    def after_cycle(trainer: Trainer) -> None:
        if tick(trainer.global_step):
            trainer.stop("measured")

    trainer.events.add(Every(updates=1), after_cycle)
    trainer.train(10**9)
    trainer.close()
