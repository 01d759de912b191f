"""The schema of `online_dict`, MineStudio's configuration, with a default for every key. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from quintain.settings.base import Count, Settings

Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, strict=False)]
"""A number of devices; parts of one are for Ray."""
Rate = Annotated[float, Field(ge=0.0, strict=False)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=False)]


class WorkerConfig(Settings):
    """The environments of one rollout worker."""

    num_envs: Count = 2
    """Environments of each rollout worker, one process each."""

    batch_size: Count = 1
    """Environments that are waited for before the policy acts; it acts for all that are ready, and never waits long."""

    restart_interval: Annotated[float, Field(ge=0.0, strict=False)] | None = 3600.0
    """Seconds after which an environment is made again, between episodes; null or 0 for never."""

    video_fps: Count = 20
    """Frames per second of videos."""

    video_output_dir: str | None = None
    """Videos are in the run's directory, below videos/."""

    moving_stat_duration: Rate = 300.0
    """Seconds of MineStudio's moving averages."""

    log_interval: Rate | None = None
    """Seconds between MineStudio's tables of the pipeline."""

    max_fast_reset: Count = 10_000
    """Unused in MineStudio, too."""


class DatabaseConfig(Settings):
    """Where MineStudio keeps fragments on disk; here they are in memory, and in checkpoints."""

    path: str = "output/replay_buffer_cache"
    """Folder of the disk cache."""

    num_shards: Count = 8
    """Parts of the disk cache."""


class ReplayBufferConfig(Settings):
    """Which fragments may be learned from, and how often."""

    max_chunks: Count = 4800
    """Fragments in the store, beyond which the oldest are dropped."""

    max_reuse: Count = 2
    """How often a fragment may be learned from."""

    max_staleness: Whole = 2
    """Maximum age of a fragment's first step in versions; 0 is synchronous: acting and learning in turns, exactly."""

    fragments_per_chunk: Count = 1
    """Fragments that are drawn together; a longer fragment_length takes its place."""

    fragments_per_report: Count | None = 40
    """Fragments between two reports of MineStudio's buffer; here every row reports it."""

    database_config: DatabaseConfig = DatabaseConfig()
    """MineStudio's disk cache."""


class EpisodeStatisticsConfig(Settings):
    """Has no keys: the discount is that of train_config."""


class RolloutConfig(Settings):
    """Rollout workers: who acts, with how many environments, and which fragments are kept."""

    num_rollout_workers: Count = 1
    """Processes that act, each with environments of its own."""

    num_gpus_per_worker: Share = 0.0
    """GPUs of each rollout worker; acting is on the CPU, so 0."""

    num_cpus_per_worker: Share = 1.0
    """CPUs that Ray reserves for each rollout worker."""

    fragment_length: Count = 256
    """Steps of one environment in a fragment."""

    to_send_queue_size: Count = 8
    """Fragments that wait in MineStudio's rollout workers; here they wait while a block of new fragments is full."""

    worker_config: WorkerConfig = WorkerConfig()
    """Environments of each rollout worker."""

    replay_buffer_config: ReplayBufferConfig = ReplayBufferConfig()
    """The store of fragments."""

    episode_statistics_config: EpisodeStatisticsConfig = EpisodeStatisticsConfig()
    """Statistics of episodes."""

    @property
    def num_lanes(self) -> int:
        """Environments of all rollout workers."""
        return self.num_rollout_workers * self.worker_config.num_envs

    @property
    def is_synchronous(self) -> bool:
        """Whether acting and learning take turns, so that runs repeat and resume exactly."""
        return self.replay_buffer_config.max_staleness == 0


class LearnerConfig(Settings):
    """The parameters of `BaseTrainer` that are values, with defaults."""

    num_workers: Count = 1
    """Learner ranks, which share environments and gradients."""

    num_readers: Whole = 4
    """On Ray, threads of each learner that bring fragments to its node while it learns; elsewhere without effect."""

    num_cpus_per_reader: Share = 0.1
    """CPUs that Ray reserves for each reader."""

    num_gpus_per_worker: Share = 0.0
    """GPU of each learner: 0 learns on the CPU, 1 on a GPU, a fraction on one that several share."""

    prefetch_batches: Whole = 2
    """Batches of an update that readers may bring ahead."""

    discount: Fraction = 0.999
    """Discount factor of rewards."""

    gae_lambda: Fraction = 0.95
    """Lambda of generalized advantage estimation (GAE)."""

    context_length: Count = 64
    """Steps of truncated backpropagation through time, inside a fragment."""

    use_normalized_vf: bool = True
    """Whether value targets are normalized by moving averages."""

    inference_batch_size_per_gpu: Count | None = None
    """Fragments in one forward pass of the advantage estimation; null is batch_size_per_gpu."""

    use_amp: bool = False
    """Mixed precision, which is not there on the CPU."""

    resume: str | None = None
    """A run, RUN@CHECKPOINT or the folder of a checkpoint to go on from."""

    resume_optimizer: bool = True
    """Go on with counters and optimizer (the same run); false starts a new run with the checkpoint's weights."""

    num_iterations: Count = 4000
    """Iterations, each of a fetch, an update and a broadcast."""

    save_interval: Count = 10
    """Iterations between two checkpoints; a `train` of your own is saved at each broadcast unless it is set."""

    keep_interval: Count = 40
    """Checkpoints of multiples of it are kept for ever."""

    save_path: str | None = None
    """Folder in which runs are; null is runs/."""

    record_video_interval: Whole = 0
    """Iterations between two videos of an episode; 0 is off."""


class TrainConfig(LearnerConfig):
    """The learner: PPO with MineStudio's objective."""

    vf_warmup: Whole = 0
    """Iterations that train the value function only, and publish no version."""

    learning_rate: Rate = 2e-5
    """AdamW's learning rate."""

    anneal_lr_linearly: bool = False
    """Whether the learning rate falls linearly to 0 over num_iterations."""

    weight_decay: Rate = 0.04
    """AdamW's decoupled weight decay."""

    adam_eps: Rate = 1e-8
    """AdamW's epsilon."""

    batch_size_per_gpu: Count = 1
    """Fragments in one micro-batch of a learner rank."""

    batches_per_iteration: Count = 200
    """Micro-batches of each learner rank in an iteration."""

    gradient_accumulation: Count = 10
    """Micro-batches in one optimizer step."""

    epochs_per_iteration: Count = 1
    """Passes over the fragments of an iteration."""

    ppo_clip: Rate = 0.2
    """Clipping range of the policy ratio."""

    clip_vloss: bool = False
    """Whether the value loss is clipped, too."""

    max_grad_norm: Rate = 5.0
    """Maximum norm of the gradient."""

    zero_initial_vf: bool = True
    """Whether the value head and the statistics of its normaliser begin at zero."""

    ppo_policy_coef: Rate = 1.0
    """Weight of the policy loss."""

    ppo_vf_coef: Rate = 0.5
    """Weight of the value loss."""

    kl_divergence_coef_rho: Rate = 0.0
    """Weight rho of the KL divergence to the reference policy."""

    coef_rho_decay: Annotated[float, Field(gt=0.0, le=1.0, strict=False)] = 0.9995
    """Factor of rho per iteration."""

    kl_direction: Literal["to_reference", "from_reference"] = "to_reference"
    """KL(policy || reference), or from_reference KL(reference || policy), as in MineStudio 1.0.6 and PPOBCTrainer."""

    entropy_bonus_coef: Rate = 0.0
    """Weight of the entropy bonus."""

    log_ratio_range: Rate = 50.0
    """Upper bound of the logarithm of the policy ratio."""

    normalize_advantage_full_batch: bool = True
    """Whether advantages are normalized, over all fragments of an iteration and all ranks."""

    enable_ref_update: bool = False
    """Whether the policy becomes the reference at each record of an iteration's reward."""

    bc_coef: Rate = 0.0
    """Weight of the behaviour-cloning loss of `PPOBCTrainer`."""

    mine_data: str | None = None
    """Demonstrations of `PPOBCTrainer`: a folder of rollouts that the event collect_data wrote, or one file."""

    @property
    def fragments_per_iteration(self) -> int:
        """Fragments that all ranks learn from in an iteration."""
        return self.num_workers * self.batch_size_per_gpu * self.batches_per_iteration

    @property
    def fragments_per_step(self) -> int:
        """Fragments that all ranks learn from in a step of the optimizer."""
        return self.num_workers * self.batch_size_per_gpu * self.gradient_accumulation


class LoggerConfig(Settings):
    """Weights & Biases; without a project nothing is sent."""

    project: str | None = None
    """Project of the run; without WANDB_API_KEY it is stored for `wandb sync`."""

    name: str | None = None
    """Name of the run."""


class OnlineConfig(Settings):
    """The configuration of an online run: `online_dict`."""

    told_as: ClassVar[str] = "online_dict"

    trainer_name: str = "PPOTrainer"
    """PPOTrainer, PPOBCTrainer, a trainer class of the configuration's module, or module:Name."""

    detach_rollout_manager: bool = True
    """Whether rollout workers outlive the trainer on Ray; processes end with their run."""

    seed: Whole = 0
    """Seed of all random streams; MineStudio draws without one."""

    rollout_config: RolloutConfig = RolloutConfig()
    """Rollout workers."""

    train_config: TrainConfig = TrainConfig()
    """The learner."""

    logger_config: LoggerConfig = LoggerConfig()
    """Weights & Biases."""


WITHOUT_EFFECT = {
    "detach_rollout_manager": "rollout processes end with their run",
    "rollout_config.num_cpus_per_worker": "the operating system shares the cores",
    "rollout_config.to_send_queue_size": "rollout workers wait while a block of new fragments is full",
    "rollout_config.worker_config.batch_size": "the policy acts for all environments that are ready",
    "rollout_config.worker_config.video_output_dir": "videos are in the run's directory",
    "rollout_config.worker_config.moving_stat_duration": "rows have means since the last row",
    "rollout_config.worker_config.log_interval": "rows have rollout/idle and the times of acting and stepping",
    "rollout_config.worker_config.max_fast_reset": "environments reset as they do",
    "rollout_config.replay_buffer_config.fragments_per_report": "every row reports the store",
    "rollout_config.replay_buffer_config.database_config.path": "fragments are in memory",
    "rollout_config.replay_buffer_config.database_config.num_shards": "fragments are in memory",
    "train_config.num_readers": "fragments are read from memory",
    "train_config.num_cpus_per_reader": "fragments are read from memory",
    "train_config.prefetch_batches": "fragments are read from memory",
}
"""Keys that change nothing where rollout workers are processes, each with the reason."""

_ON_RAY = ("rollout_config.num_cpus_per_worker", "train_config.num_readers", "train_config.num_cpus_per_reader",
           "train_config.prefetch_batches")  # fmt: skip
WITHOUT_EFFECT_ON_RAY = {
    **{key: why for key, why in WITHOUT_EFFECT.items() if key not in _ON_RAY},
    "detach_rollout_manager": "rollout actors end with their run",
}
"""Keys that change nothing where rollout workers are actors of a Ray cluster."""
