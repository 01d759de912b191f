"""Sample Factory: its PPO made synchronous (`serial`), or as it is meant to run, with two rollout workers (`async`)."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

from workloads import Workload

from peers import Measured, Tick

KIT = "sample_factory"
PACKAGES = ("sample-factory", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind != "ppo" or work.is_image or work.meter != "rate":
        return ()
    return ("serial",) if work.vectors == "gymnasium" else ("serial", "async")


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sample_factory.utils.utils import log

    log.setLevel(logging.ERROR)
    register_env(work.env_id, make_env)
    words = _words(work, entry, seed)
    parser, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    status = runner.init()
    assert status == ExperimentStatus.SUCCESS, status
    process, done = runner._process_msg, 0

    def measured_process(*arguments: Any, **keywords: Any) -> Any:
        nonlocal done
        answer = process(*arguments, **keywords)
        env_steps = runner.env_steps
        env_steps = sum(env_steps.values()) if isinstance(env_steps, dict) else env_steps
        if env_steps > done:
            done = env_steps
            if tick(done):
                raise Measured
        return answer

    runner._process_msg = measured_process
    try:
        runner.run()
    except Measured:
        return


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: Any = None) -> Any:
    """Makes one environment; its worker processes find this function by its name."""
    import gymnasium

    return gymnasium.make(name)


def _words(work: Workload, entry: str, seed: int) -> list[str]:
    hyper, is_async = work.ppo, entry == "async"
    num_workers = 2 if is_async else 1
    options = {
        "env": work.env_id,
        "experiment": "bench",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "seed": seed,
        "serial_mode": not is_async,
        "async_rl": is_async,
        "num_workers": num_workers,
        "num_envs_per_worker": work.num_envs // num_workers,
        "worker_num_splits": num_workers,
        "policy_workers_per_policy": 1,
        "use_rnn": False,
        "recurrence": 1,
        "rollout": hyper.num_steps,
        "batch_size": work.minibatch_size,
        "num_batches_per_epoch": hyper.num_minibatches,
        "num_epochs": hyper.num_epochs,
        "learning_rate": hyper.learning_rate,
        "exploration_loss_coeff": hyper.entropy_coef,
        "value_loss_coeff": hyper.value_coef,
        "max_grad_norm": hyper.max_grad_norm,
        "gamma": hyper.gamma,
        "gae_lambda": hyper.gae_lambda,
        "with_vtrace": False,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "normalize_input": False,
        "normalize_returns": False,
        "train_for_env_steps": work.total_steps,
        "save_every_sec": 100_000,
        "save_best_every_sec": 100_000,
        "experiment_summaries_interval": 1000,
        "heartbeat_reporting_interval": 100_000,
    }
    sizes = [str(size) for size in hyper.hidden_sizes]
    return [*(f"--{name}={value}" for name, value in options.items()), "--encoder_mlp_layers", *sizes]
