"""The slots of a Trainer in Python: names, settings, factories and objects, in any mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from quintain.algorithms.base import Algorithm
from quintain.algorithms.settings import AlgorithmSettings, PPOSettings
from quintain.core import registry
from quintain.core.process_group import GlooGroup, ProcessGroup, SingleProcess
from quintain.envs.gym.factories import factory_of
from quintain.envs.settings import GymSettings, own_wrappers
from quintain.errors import RunDirectoryError, SettingsError
from quintain.placements.torchrun import place_in_torchrun
from quintain.policies.base import Policy
from quintain.runs.assemble import Slots, assemble_parts
from quintain.runs.continuing import continue_later
from quintain.runs.env_slots import EnvSlot, env_settings, is_instance, lanes_of, maker_of_more, name_wrappers
from quintain.runs.launch import tuned_advice, with_weights
from quintain.runs.output import make_writers, needs_directory
from quintain.runs.policy_slots import PolicySlot, network_settings, policy_settings
from quintain.runs.ranks.follow import Follower
from quintain.runs.ranks.lead import NUM_RANKS, num_ranks_of, with_ranks_of_torchrun
from quintain.runs.restore import change_of_lanes, restore_policies, restore_rank, stored_settings
from quintain.runs.run import Run
from quintain.services.checkpoints.catalog import CheckpointCatalog
from quintain.services.checkpoints.catalog import load as load_checkpoint
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import resolve_run, split_checkpoint_suffix
from quintain.services.reporting.queued_writer import QueuedWriter
from quintain.services.reporting.tensorboard_writer import SummaryRows
from quintain.services.reporting.writers import Writer, WriterGroup
from quintain.settings import embodichain as embodichain_names
from quintain.settings.base import PartSettings
from quintain.settings.fingerprint import changed_keys
from quintain.settings.sources import PYTHON
from quintain.settings.spellings import BY_SPACES
from quintain.settings.tree import RunFile
from quintain.settings.tuned import Tuned, tuned_settings
from quintain.trainers.base import Parts
from quintain.trainers.base import Trainer as RolloutTrainer

AlgorithmSlot: TypeAlias = Any
"""An algorithm's name or settings, or the algorithm itself."""

_STEPS_PER_BATCH = 1024
_EVENTS = "experiment.behaviors.default.events"


class Trainer(RolloutTrainer):
    """Repeats a cycle over its parts until the budget is spent.

    `Trainer("ppo", "CartPole-v1").train(100_000)`: any slot takes a name, a settings object or a ready object;
    further keywords are settings, as on the command line. With a `run_id` or a `runs_dir` it has a run directory, as a
    run of the command line has. `Trainer(policy, env, algorithm, buffer_size, batch_size, writer, ...)` is the same
    with the names and the order of EmbodiChain; see `quintain.settings.embodichain`.
    """

    def __init__(
        self,
        trained: AlgorithmSlot | PolicySlot = None,
        /,
        env: EnvSlot = None,
        algorithm: AlgorithmSlot = None,
        buffer_size: int | None = None,
        batch_size: int | None = None,
        writer: Any = None,
        *more: Any,
        policy: PolicySlot = None,
        run_id: str | None = None,
        runs_dir: str | Path | None = None,
        tuned: bool = False,
        **settings: Any,
    ) -> None:
        """Makes one; the first argument is the algorithm, or the policy where `algorithm` is given by itself."""
        policy, algorithm = _told_apart(trained, policy, algorithm)
        if env is None:
            raise SettingsError("Trainer needs an environment: its id, its class, a factory, or an environment")
        translation = embodichain_names.translate((buffer_size, batch_size, writer, *more), settings)
        translation.place(run_id, runs_dir)
        below = None
        if tuned:
            if not isinstance(algorithm, str) or not isinstance(env, str):
                raise SettingsError('tuned=True goes with two names: Trainer("ppo", "LunarLander-v3", tuned=True)')
            below = tuned_settings(algorithm, env)
        super().__init__(parts_from_slots(policy, env, algorithm, translation, below, trainer_class=type(self)))
        self.env_slot = env
        self.share()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "save":
                raise AttributeError("save_checkpoint() saves the run, Trainer.load and load_policy read it", name=name)
            return self.__getattribute__(name)  # raises as without this method, also what a property raised

    @classmethod
    def load(
        cls,
        run: str | Path,
        env: EnvSlot = None,
        *,
        policy: PolicySlot = None,
        runs_dir: str | Path = "runs",
        allow: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """Makes the trainer of a run with the whole state of its newest checkpoint, or of RUN@which.

        Nothing is written until it trains or saves. It then continues the run in its directory as `quintain resume`
        does: exactly, and if the checkpoint is not the newest, in place of what came after it. Keywords change
        settings. `env` and `policy` are for objects that settings cannot name, as the run was made with.
        """
        if isinstance(env, str | PartSettings):
            raise SettingsError(
                "Trainer.load has the environment of the run; pass changes as settings, such as num_lanes=8"
            )
        if policy is not None:
            policy_settings(policy, [])
        name, which = split_checkpoint_suffix(str(run))
        directory = RunDirectory.open_existing(resolve_run(Path(runs_dir), name))
        name_wrappers(settings)
        stored = run_file = stored_settings(directory, allow=allow)
        for key, value in settings.items():
            run_file = run_file.replace(key, value)
        checkpoint = CheckpointCatalog(directory.checkpoints).find(which or "latest", lambda text: None)
        world = _join_torchrun()
        _refuse_disagreement(run_file, world)
        if world.size > 1:
            raise SettingsError(
                "Trainer.load continues a run of one rank; use quintain resume for several", code="E0241"
            )
        slots = Slots(
            env=env,
            evaluation_env=_evaluation_env(env, None),
            policy=policy if isinstance(policy, Policy) else None,
            trainer_class=cls,
        )
        has_objects = env is not None or _has_local_parts(run_file)
        session = Run(run_file, make_writers(run_file), runs_dir=directory.path.parent, has_objects=has_objects)
        session.writer.wait_for_header()
        trainer = cls.__new__(cls)
        RolloutTrainer.__init__(trainer, assemble_parts(run_file, session, session.writer, slots, world))
        trainer.env_slot = env
        loaded = load_checkpoint(checkpoint.path)
        trainer.require_fit(loaded.manifest.about)
        changes = changed_keys(stored, run_file)
        restore_rank(trainer, loaded.state, anew=bool(change_of_lanes(changes)))
        trainer.set_budget(run_file.budget)
        continue_later(session, trainer, directory, checkpoint, changes)
        return trainer

    def close(self) -> None:
        """Ends the environments and releases the run, so that it can be loaded again."""
        super().close()
        if isinstance(self.session, Run):
            self.session.close()


def _told_apart(
    trained: AlgorithmSlot | PolicySlot, policy: PolicySlot, algorithm: AlgorithmSlot
) -> tuple[PolicySlot, AlgorithmSlot]:
    """Returns policy and algorithm: of one slot, it is the algorithm; of two, the first is the one that has no name."""
    given = [slot for slot in (trained, policy, algorithm) if slot is not None]
    if not given or len(given) > 2:
        found = "neither an algorithm nor a policy" if not given else "a policy and an algorithm, and another one"
        raise SettingsError(f'Trainer got {found}; write Trainer("ppo", env), or Trainer("ppo", env, policy=...)')
    if len(given) == 1:
        if isinstance(given[0], str) and given[0] in BY_SPACES:
            raise SettingsError(f'the first argument is the algorithm, as in Trainer("ppo", env), and not {given[0]}')
        return None, given[0]
    return (policy, trained) if algorithm is None else (given[0], algorithm)


def parts_from_slots(
    policy: PolicySlot,
    env: EnvSlot,
    algorithm: AlgorithmSlot,
    translation: embodichain_names.Translation,
    tuned: Tuned | None = None,
    *,
    trainer_class: type[RolloutTrainer] | None = None,
) -> Parts:
    """Builds the parts of a trainer from its slots; without a policy the settings make one."""
    _require_mappings(translation.given)
    # Names stand for networks and wrappers that are classes, functions or objects.
    settings = translation.settings
    if "network" in settings:
        settings["network"] = network_settings(settings["network"], translation.notes)
    name_wrappers(settings)
    if isinstance(policy, Policy) and isinstance(algorithm, Algorithm) and algorithm.policy is not policy:
        raise SettingsError("the algorithm given trains another policy than the one given; leave the policy out")
    behavior: dict[str, Any] = {"algorithm": _settings("algorithm", algorithm)}
    ready = policy if isinstance(policy, Policy) else _policy_of(algorithm)
    if ready is None and policy is not None:
        behavior["policy"] = policy_settings(policy, translation.notes)
    elif isinstance(made_from := getattr(ready, "settings", None), PartSettings):
        behavior["policy"] = made_from
    if is_instance(env) and not _needs_replay(_settings_class(behavior["algorithm"])):
        behavior["rollout"] = {"num_steps": _steps_of_lanes(_settings_class(behavior["algorithm"]), lanes_of(env))}
    world = _join_torchrun()
    experiment = {"env": env_settings(env, world.size), "behaviors": {"default": behavior}}
    changes = _without_idle(behavior["algorithm"], translation)
    run_file = RunFile.from_mapping({"experiment": experiment}, origin=PYTHON, changes=changes, tuned=tuned)
    run_file = with_ranks_of_torchrun(embodichain_names.apply(run_file, translation), is_new=True)
    _refuse_disagreement(run_file, world)
    evaluation_env = _evaluation_env(env, translation.given.get("eval_env"))
    if is_instance(env) and evaluation_env is None:
        run_file, note = _without_evaluation(run_file)
        translation.notes += [note] if note else []
    slots = Slots(
        env=None if isinstance(env, str | PartSettings) else env,
        evaluation_env=evaluation_env,
        policy=ready,
        make_algorithm=partial(_ready, algorithm) if isinstance(algorithm, Algorithm) else None,
        trainer_class=trainer_class,
        env_events=translation.given.get("event_cfg", {}),
        evaluation_env_events=translation.given.get("eval_event_cfg", {}),
        writer=translation.given.get("writer"),
    )
    return _assembled(run_file, slots, translation, world)


def _assembled(
    run_file: RunFile, slots: Slots, translation: embodichain_names.Translation, world: ProcessGroup
) -> Parts:
    """Builds the parts on this rank; with `experiment.initialize_from`, they start with the policies of another run."""
    run_file, weights = with_weights(run_file, translation.runs_dir, None)
    if world.rank:
        parts = assemble_parts(run_file, Follower(run_file), WriterGroup([]), slots, world)
    else:
        writers = [*make_writers(run_file), *_own_writers(slots.writer)]
        is_kept = translation.is_kept or needs_directory(run_file)
        if is_kept and run_file.run.id is not None:
            _require_free(translation.runs_dir, run_file.run.id)
        run = Run(
            run_file,
            writers,
            runs_dir=translation.runs_dir,
            is_kept=is_kept,
            has_objects=slots.env is not None or _has_local_parts(run_file),
        )
        run.writer.wait_for_header()
        parts = assemble_parts(run_file, run, run.writer, slots, world)
        for note in (*translation.notes, tuned_advice(run_file, "tuned=True")):
            if note:
                run.writer.note(note)
    if weights is not None:
        restore_policies(parts.learners, load_checkpoint(weights))
        for learner in parts.learners.values():
            learner.begin_from_policy()
    return parts


def _require_free(runs_dir: Path, run_id: str) -> None:
    """Refuses the name of a run that exists before anything is built."""
    directory = RunDirectory(runs_dir / run_id)
    if directory.path.exists():
        status = directory.read_status()
        found = "no status" if status is None else f"step {status.step}, {status.state}"
        raise RunDirectoryError(
            f'run "{run_id}" exists ({found}). Continue by Trainer.load("{directory.shown}"), or give another run_id',
            code="E0302",
        )


def _has_local_parts(run_file: RunFile) -> bool:
    """Whether settings name a part that only this process knows."""
    if own_wrappers(run_file.experiment.env):
        return True
    for behavior in run_file.experiment.behaviors.values():
        network = dict(behavior.policy).get("network")
        chosen = {"policy": behavior.policy.type, "algorithm": behavior.algorithm.type}
        if network is not None:
            chosen["network"] = network.type
        if any(registry.is_local(kind, name) for kind, name in chosen.items()):
            return True
    return False


def _ready(algorithm: Algorithm, settings: Any, *_: Any) -> Algorithm:
    """Returns an existing algorithm, with the one setting that a trainer may change on it."""
    ours = algorithm.settings
    before, after = dict(ours), dict(settings)
    changed = [name for name, value in before.items() if name != "type" and after[name] != value]
    if fixed := [name for name in changed if name != "batch_size"]:
        raise SettingsError(
            f"{', '.join(fixed)} cannot be changed on an algorithm that is ready; make it with the settings you want"
        )
    algorithm.settings = settings
    return algorithm


def _without_idle(algorithm: Any, translation: embodichain_names.Translation) -> dict[str, Any]:
    """Returns the settings without a minibatch size for an algorithm without minibatches."""
    settings = dict(translation.settings)
    if "batch_size" in settings and "batch_size" not in _settings_class(algorithm).model_fields:
        del settings["batch_size"]
        translation.notes.append("note: batch_size has no effect; this algorithm learns from each batch as a whole")
    return settings


def _settings_class(algorithm: Any) -> type[PartSettings]:
    """Returns the class of an algorithm's settings, given as an object or as a mapping with a type."""
    name = algorithm["type"] if isinstance(algorithm, dict) else algorithm.type
    return registry.get("algorithm", name).settings_class if name else type(algorithm)


def _steps_of_lanes(algorithm: type[PartSettings], num_lanes: int) -> int:
    """Returns the steps of each lane: a ready environment may have few, and more steps make up for it."""
    wanted = algorithm.steps_per_update if issubclass(algorithm, PPOSettings) else _STEPS_PER_BATCH
    return max(128, wanted // num_lanes)


def _needs_replay(chosen: type[PartSettings]) -> bool:
    return issubclass(chosen, AlgorithmSettings) and chosen.needs_replay


def _evaluation_env(env: EnvSlot, eval_env: EnvSlot) -> EnvSlot:
    """Returns the factory of evaluation environments, if it is not in the settings."""
    if eval_env is None:
        return maker_of_more(env) if is_instance(env) else None
    if eval_env is env:
        raise SettingsError("eval_env is the training environment itself; evaluating would disturb it. Pass another")
    if isinstance(eval_env, str):
        return factory_of(GymSettings(id=eval_env))
    return eval_env


def _require_mappings(given: Mapping[str, Any]) -> None:
    for name in ("event_cfg", "eval_event_cfg"):
        if not isinstance(given.get(name, {}), Mapping):
            raise SettingsError(
                f"{name} is a {type(given[name]).__name__}; give a mapping of names to events", code="E0233"
            )


def _own_writers(slot: Any) -> list[Writer]:
    """Returns the user's writer: one of ours unchanged, a SummaryWriter behind a queue."""
    if slot is None:
        return []
    if hasattr(slot, "add_scalar"):
        return [QueuedWriter(SummaryRows(slot), type(slot).__name__)]
    if all(callable(getattr(slot, name, None)) for name in ("open", "write", "note", "close")):
        return [slot]
    raise SettingsError(
        f"writer slot got a {type(slot).__name__}; pass a SummaryWriter, or an object with open, write, note and close"
    )


def _join_torchrun() -> ProcessGroup:
    place = place_in_torchrun()
    return SingleProcess() if place is None else GlooGroup(*place)


def _refuse_disagreement(run_file: RunFile, world: ProcessGroup) -> None:
    """Refuses ranks that were not started, and ranks with different settings."""
    if num_ranks_of(run_file) != world.size:
        raise SettingsError(
            f"{NUM_RANKS} is {num_ranks_of(run_file)}: from Python, start the script once for each rank with "
            f"torchrun --nproc-per-node {num_ranks_of(run_file)} SCRIPT",
            code="E0241",
        )
    marks = [int(run_file.fingerprint()[:12], 16)]
    if any(others != marks for others in world.gather(marks)):
        raise SettingsError("the ranks of this run were given different settings; give all the same", code="E0241")


def _policy_of(algorithm: Any) -> Policy | None:
    return algorithm.policy if isinstance(algorithm, Algorithm) else None


def _settings(kind: str, slot: Any) -> Any:
    if isinstance(slot, Algorithm):
        return slot.settings
    if isinstance(slot, str):
        registry.get(kind, slot)
        return {"type": slot}
    if isinstance(slot, PartSettings):
        return slot
    found = type(slot).__name__
    raise SettingsError(f"{kind} slot got a {found}; pass a registered name, its settings, or a ready object")


def _without_evaluation(run_file: RunFile) -> tuple[RunFile, str]:
    """Removes evaluation: it would disturb the training environment, and there is no other."""
    events = next(iter(run_file.experiment.behaviors.values())).events
    kept = [event for event in events if event.type != "evaluate"]
    if len(kept) == len(events):
        return run_file, ""
    return run_file.replace(_EVENTS, kept), (
        "note: no evaluation, because the environment given cannot be made a second time. Pass its Gymnasium id, its "
        "class or a factory to have it"
    )
