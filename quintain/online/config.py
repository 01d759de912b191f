"""Reads configurations: refuses what cannot be run, with both names, and finds keys that change nothing."""

from __future__ import annotations

from quintain.errors import SettingsError
from quintain.online.settings import WITHOUT_EFFECT, WITHOUT_EFFECT_ON_RAY, OnlineConfig
from quintain.typing import JsonObject, Saved


def online_config(given: OnlineConfig | JsonObject | object, *, is_hosted: bool = False) -> OnlineConfig:
    """Reads `online_dict`: a dict, an OmegaConf node, or a configuration that was read already.

    A trainer with a loop of its own (`is_hosted`) fetches as many fragments as it asks for.
    """
    if isinstance(given, OnlineConfig):
        return given
    found = OnlineConfig(**document_of(given))
    refuse_impossible(found, is_hosted=is_hosted)
    return found


def document_of(given: object) -> JsonObject:
    """Returns `online_dict`, or an OmegaConf node, as dicts; refuses anything else."""
    if not hasattr(given, "items"):
        raise SettingsError(
            f"the configuration is a {type(given).__name__}; expected the dict online_dict", code="E0261"
        )
    document: JsonObject = as_plain(given)
    return document


def as_plain(value: Saved) -> Saved:
    """Returns a nested mapping, of OmegaConf too, as dicts."""
    return {str(name): as_plain(each) for name, each in value.items()} if hasattr(value, "items") else value


def refuse_impossible(config: OnlineConfig, *, is_hosted: bool = False) -> None:
    """Refuses combinations of values that cannot be run, with both names."""
    refusals = [*_of_values(config), *_of_demonstrations(config), *_of_fragments(config)]
    for is_so, sentence in refusals if is_hosted else [*refusals, *_of_iterations(config)]:
        if is_so:
            raise SettingsError(sentence, code="E0262")


def _of_values(config: OnlineConfig) -> list[tuple[bool, str]]:
    """Returns refusals of the learner and of rollout workers."""
    rollout, train = config.rollout_config, config.train_config
    worker = rollout.worker_config
    return [
        (
            worker.batch_size > worker.num_envs,
            f"rollout_config.worker_config.batch_size is {worker.batch_size}, and num_envs is {worker.num_envs}: a "
            f"rollout worker would wait for ever; set batch_size to at most num_envs",
        ),
        (
            train.batches_per_iteration % train.gradient_accumulation != 0,
            f"train_config.gradient_accumulation is {train.gradient_accumulation} and does not divide "
            f"batches_per_iteration, {train.batches_per_iteration}; choose one that does",
        ),
        (
            train.keep_interval % train.save_interval != 0,
            f"train_config.keep_interval is {train.keep_interval} and no multiple of save_interval, "
            f"{train.save_interval}; what is never saved cannot be kept",
        ),
        (
            train.vf_warmup >= train.num_iterations,
            f"train_config.vf_warmup is {train.vf_warmup} and num_iterations is {train.num_iterations}: no policy "
            f"would be learned; lower vf_warmup",
        ),
        (
            train.enable_ref_update and train.kl_divergence_coef_rho == 0.0 and train.vf_warmup == 0,
            "train_config.enable_ref_update is true, and kl_divergence_coef_rho is 0, which keeps no reference policy; "
            "set kl_divergence_coef_rho, or enable_ref_update to false",
        ),
        (
            rollout.num_rollout_workers % train.num_workers != 0,
            f"rollout_config.num_rollout_workers is {rollout.num_rollout_workers} and no multiple of "
            f"train_config.num_workers, {train.num_workers}: each learner rank has rollout workers of its own",
        ),
        (
            rollout.num_gpus_per_worker > 0,
            f"rollout_config.num_gpus_per_worker is {rollout.num_gpus_per_worker:g}, and rollout workers act on the "
            f"CPU; set it to 0",
        ),
        (
            train.num_gpus_per_worker > 1,
            f"train_config.num_gpus_per_worker is {train.num_gpus_per_worker:g}, and a learner uses one GPU; set it to "
            f"1, and num_workers to the number of GPUs",
        ),
        (
            train.use_amp,
            "train_config.use_amp is true, and mixed precision is not supported; set it to false",
        ),
    ]


def _of_demonstrations(config: OnlineConfig) -> list[tuple[bool, str]]:
    """Returns refusals of behaviour cloning."""
    train, clones = config.train_config, config.train_config.bc_coef > 0.0
    return [
        (
            clones and config.trainer_name == "PPOTrainer",
            f"train_config.bc_coef is {train.bc_coef:g}, and trainer_name is PPOTrainer; set trainer_name to "
            f"PPOBCTrainer, which clones demonstrations",
        ),
        (
            clones and train.mine_data is None,
            f"train_config.bc_coef is {train.bc_coef:g}, and mine_data names no demonstrations; set mine_data to a "
            f"folder of rollouts that the event collect_data wrote",
        ),
        (
            config.trainer_name == "PPOBCTrainer" and not clones,
            "trainer_name is PPOBCTrainer, and train_config.bc_coef is 0: nothing would be cloned; set bc_coef, or "
            "trainer_name to PPOTrainer",
        ),
    ]


def _of_fragments(config: OnlineConfig) -> list[tuple[bool, str]]:
    """Returns refusals of fragments and their store."""
    rollout, buffer = config.rollout_config, config.rollout_config.replay_buffer_config
    return [
        (
            buffer.fragments_per_chunk > 1,
            f"rollout_config.replay_buffer_config.fragments_per_chunk is {buffer.fragments_per_chunk}; set it to 1 and "
            f"fragment_length to {rollout.fragment_length * buffer.fragments_per_chunk}",
        ),
        (
            rollout.is_synchronous and buffer.max_reuse > 1,
            f"rollout_config.replay_buffer_config.max_staleness is 0 and max_reuse is {buffer.max_reuse}: fragments "
            f"that are used again are old; set max_reuse to 1",
        ),
    ]


def _of_iterations(config: OnlineConfig) -> list[tuple[bool, str]]:
    """Returns refusals of the fragments that an iteration of a trainer that ships takes."""
    rollout, wanted, lanes = (
        config.rollout_config,
        config.train_config.fragments_per_iteration,
        config.rollout_config.num_lanes,
    )
    max_chunks = rollout.replay_buffer_config.max_chunks
    per_iteration = "num_workers * batch_size_per_gpu * batches_per_iteration of train_config"
    return [
        (
            wanted > max_chunks,
            f"an iteration takes {wanted} fragments ({per_iteration}), and "
            f"rollout_config.replay_buffer_config.max_chunks is {max_chunks}; raise max_chunks",
        ),
        (
            rollout.is_synchronous and wanted % lanes != 0,
            f"an iteration takes {wanted} fragments ({per_iteration}), and with max_staleness 0 they are a multiple of "
            f"the {lanes} environments (num_rollout_workers * num_envs of rollout_config)",
        ),
    ]


def refuse_missing_gpus(config: OnlineConfig, num_gpus: int) -> None:
    """Refuses GPUs for learners of this machine that are not there, before anything waits for them."""
    each, num_workers = config.train_config.num_gpus_per_worker, config.train_config.num_workers
    if each * num_workers > num_gpus:
        for_all = f" for each of {num_workers} workers" if num_workers > 1 else ""
        raise SettingsError(
            f"train_config.num_gpus_per_worker is {each:g}{for_all}, and this machine has {num_gpus or 'no'} "
            f"{'GPU' if num_gpus == 1 else 'GPUs'}; set it to 0{' or to a fraction' if num_gpus else ''}",
            code="E0263",
        )


def idle_keys(given: object, prefix: str = "", *, on_ray: bool = False) -> list[str]:
    """Returns the keys that a user has set and that change nothing on processes, or on Ray, in their order.

    Example:
        >>> idle_keys({"train_config": {"num_readers": 4, "discount": 0.9}})
        ['train_config.num_readers']
    """
    found = []
    for name, value in document_of(given).items():
        path = f"{prefix}{name}"
        if hasattr(value, "items"):
            found += idle_keys(value, f"{path}.", on_ray=on_ray)
        elif path in (WITHOUT_EFFECT_ON_RAY if on_ray else WITHOUT_EFFECT):
            found.append(path)
    return found
