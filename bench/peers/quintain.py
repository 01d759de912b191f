"""quintain through its public interface: no events, no writers, no run directory."""

from __future__ import annotations

from typing import Any

from workloads import PPO, SAC, Workload

from peers import Tick

KIT = "quintain"
PACKAGES = ("quintain", "torch", "gymnasium", "numpy", "numba", "envpool")

BESIDE = ("threads", "processes")
"""Placements that act and learn at the same time, with experience that is one version old."""


def entries(work: Workload) -> tuple[str, ...]:
    """Returns what this checkout can do: parts that are not there yet are left out."""
    if work.kind == "sac":
        return ("gymnasium",) if _has("algorithm", "sac") else ()
    if work.kind == "step_io" or work.vectors == "gymnasium":
        return ("gymnasium",)
    vectors = ["gymnasium"]
    if work.env_id == "CartPole-v1" and _has("env", "native"):
        vectors = ["native"] if work.name.startswith("growth") else ["native", "gymnasium"]
    if work.env_id == "HalfCheetah-v5":
        vectors.append("envpool")
    if max(work.threads) == 1:
        return tuple(vectors)
    # What is compiled leaves the interpreter to the learner's thread, so that a second process only costs its memory.
    beside = [(vector, place) for vector in vectors for place in BESIDE if vector == "gymnasium" or place == "threads"]
    return (*vectors, *(f"{vector}+{place}" for vector, place in beside if _has("placement", place)))


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    network = {"image_features": 512} if work.is_image else {}
    _train("ppo", work, entry, tick, seed=seed, threads=threads, **ppo_settings(work.ppo, work.num_envs), **network)


def ppo_settings(hyper: PPO, num_envs: int) -> dict[str, Any]:
    memory = {"memory": {"cell": "lstm", "size": hyper.memory_size}} if hyper.memory_size else {}
    falling = {"end": 0.0} if hyper.is_annealed else {}
    return {
        "num_lanes": num_envs,
        "num_steps": hyper.num_steps,
        "num_epochs": hyper.num_epochs,
        "batch_size": hyper.minibatch_size(num_envs),
        "hidden_sizes": list(hyper.hidden_sizes),
        "learning_rate": {"start": hyper.learning_rate, **falling},
        "clip_coef": {"start": hyper.clip_coef, **falling},
        "entropy_coef": hyper.entropy_coef,
        "value_coef": hyper.value_coef,
        "max_grad_norm": hyper.max_grad_norm,
        "gamma": hyper.gamma,
        "gae_lambda": hyper.gae_lambda,
        "noise_hold": 1,
        **memory,
    }


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    _train("sac", work, entry, tick, seed=seed, threads=threads, **sac_settings(work.sac))


def sac_settings(hyper: SAC) -> dict[str, Any]:
    return {
        "num_lanes": 1,
        "batch_size": hyper.batch_size,
        "hidden_sizes": list(hyper.hidden_sizes),
        "learning_rate": hyper.learning_rate,
        "buffer_size": hyper.buffer_size,
        "learning_starts": hyper.learning_starts,
    }


def _train(algorithm: str, work: Workload, entry: str, tick: Tick, **settings: Any) -> None:
    from quintain import Every, Trainer
    from quintain.core import registry

    vector, _, place = entry.partition("+")
    env: Any = work.env_id
    if vector != "gymnasium":
        env = registry.get("env", vector).settings_class(type=vector, id=work.env_id)
    if place:
        settings.update(placement=place, max_staleness=1)
    trainer = Trainer(algorithm, env, events=[], writers=[], **settings)

    first_tick = work.sac.learning_starts if algorithm == "sac" else 0

    def after_cycle(trainer: Trainer) -> None:
        if trainer.global_step <= first_tick:
            return
        newest = list(trainer.ret_window)[-20:] if work.goal is not None else []
        if tick(trainer.global_step, sum(newest) / 20 if len(newest) == 20 else None):
            trainer.stop("measured")

    when = Every(env_steps=work.sac.tick_every) if algorithm == "sac" else Every(updates=1)
    trainer.events.add(when, after_cycle)
    trainer.train(work.total_steps)
    trainer.close()


def step_io(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    """Writes a step's fields into a rollout as the collector does, and reads them back as the policy does."""
    import numpy as np

    from quintain.data import fields as f
    from quintain.data.rollout import Rollout
    from quintain.data.spec import BehaviorSpec, box, discrete

    rng, lanes, steps = np.random.default_rng(seed), work.num_envs, work.ppo.num_steps
    rollout = Rollout(BehaviorSpec(box(4), discrete(2)), {f.NOISE: f.Field((2,))}, num_lanes=lanes, num_steps=steps)
    given = {
        f.OBS: rng.random((lanes, 4), np.float32),
        f.ACTION: rng.integers(0, 2, lanes),
        f.LOG_PROB: rng.random(lanes, np.float32),
        f.VALUE: rng.random(lanes, np.float32),
        f.REWARD: rng.random(lanes, np.float32),
        f.DONE: rng.random(lanes) < 0.1,
    }
    count, is_over = 0, False
    while not is_over:
        for _ in range(100):
            for t in range(steps):
                for name, rows in given.items():
                    rollout.write(name, t, rows)
                slot = rollout.slots[t]
                assert slot.obs is not None
                assert slot.action is not None
        count += 100 * steps
        is_over = tick(count)


def _has(kind: str, name: str) -> bool:
    from quintain.core import registry

    return name in registry.names(kind)
