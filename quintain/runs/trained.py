"""Trained policies in Python: loaded from a run, which is only read, and evaluated in any environment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.core.trust import ending_limits
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.base import Policy
from quintain.rollouts.episode_results import EpisodeResults
from quintain.rollouts.evaluate import MAX_EPISODE_STEPS, Evaluator
from quintain.runs import results
from quintain.runs.env_maker import env_maker
from quintain.runs.env_slots import EnvSlot, env_settings, is_instance
from quintain.runs.infer import policy_for
from quintain.runs.parts import resolve_device
from quintain.runs.restore import policies_of
from quintain.services.checkpoints.catalog import load
from quintain.settings.base import PartSettings, read_count
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer
from quintain.trainers.events import MAX_EVAL_LANES
from quintain.trainers.global_streams import GlobalStreams


@ending_limits()
def load_policy(
    run: str | Path,
    *,
    behavior: str | None = None,
    runs_dir: str | Path = "runs",
    allow: Sequence[str] = (),
    device: str = "cpu",
) -> Policy:
    """Loads the policy of a run, for `policy.predict(obs)`; the run is only read.

    `run` is an id, a unique prefix, `latest`, or a path; RUN@best, RUN@latest, RUN@8192 or the folder of a checkpoint
    names the checkpoint, otherwise it is the best one. With several behaviours, name one. A run of another origin
    imports only code that `allow` lists.
    """
    directory, run_file, checkpoint = results.stored_run(Path(runs_dir), str(run), allow)
    with GlobalStreams().untouched():
        policies = policies_of(load(checkpoint.path), partial(policy_for, run_file))
    policy = policies[_only(policies, behavior, f"run {directory.run_id}")]
    accelerate(policy.to(resolve_device(device)))
    return policy.eval()


def evaluate(
    policy: Policy | Trainer | str | Path,
    env: EnvSlot = None,
    episodes: int = 10,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    max_episode_steps: int | None = MAX_EPISODE_STEPS,
    behavior: str | None = None,
    runs_dir: str | Path = "runs",
    allow: Sequence[str] = (),
) -> EpisodeResults:
    """Plays whole episodes with a policy, a trainer's policy or a run's, and returns their returns and lengths.

    `env` is what a trainer's slot takes: an id, settings, a class, a factory or an environment; a run that is named is
    played in its own environment by default. The same seed gives the same episodes. Nothing is written, and training is
    not disturbed.
    """
    num_episodes = read_count(episodes, f"evaluate(episodes={episodes!r})")
    if isinstance(policy, str | Path):
        if env is None:
            played = results.evaluate(
                Path(runs_dir),
                str(policy),
                num_episodes=num_episodes,
                deterministic=deterministic,
                seed=seed,
                allow=allow,
                max_episode_steps=max_episode_steps or 0,
            ).results
            return played[_only(played, behavior, str(policy))]
        policy = load_policy(policy, behavior=behavior, runs_dir=runs_dir, allow=allow)
    if isinstance(policy, Trainer):
        env = vars(policy).get("env_slot") if env is None else env
        policy = policy.learners[_only(policy.learners, behavior, "this trainer")].policy
    if not isinstance(policy, Policy):
        raise SettingsError(f"evaluate() got a {type(policy).__name__}; pass a policy, a trainer, or the name of a run")
    if env is None:
        raise SettingsError("evaluate() needs an environment for a policy by itself: pass its id, a class or a factory")
    experiment = {"env": env_settings(env), "behaviors": {"default": {"algorithm": {"type": "a2c"}}}}
    slot = None if isinstance(env, str | PartSettings) else env
    make_env = env_maker(RunFile.from_mapping({"experiment": experiment}), slot)
    rng = Rng(0 if seed is None else int(seed)).child("eval_command")
    with GlobalStreams().untouched():
        lanes = make_env(min(num_episodes, MAX_EVAL_LANES), rng.child("env"))
        # An environment that was passed is its owner's.
        with nullcontext() if is_instance(env) else closing(lanes):
            if lanes.spec != policy.spec:
                raise SpecMismatch(f"the policy takes {policy.spec}, and the environment has {lanes.spec}")
            evaluator = Evaluator(lanes, num_episodes, rng, max_episode_steps=max_episode_steps)
            found = evaluator.play({"default": policy}, deterministic=deterministic, should_stop=lambda: False)
    assert found is not None, "it was never asked to stop"
    return found["default"]


def _only(behaviors: Collection[str], chosen: str | None, owner: str) -> str:
    """Returns the behaviour that is meant: the chosen one, or the only one."""
    if chosen in behaviors or (chosen is None and len(behaviors) == 1):
        return chosen or str(next(iter(behaviors)))
    found = "has several behaviours" if chosen is None else f'has no behaviour "{chosen}"'
    raise SettingsError(f"{owner} {found}; pass behavior= one of: {', '.join(behaviors)}", code="E0227")
