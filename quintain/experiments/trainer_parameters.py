"""Parameters of trainers, protocols and data sets, with nip's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from quintain.experiments.parameters_base import SubParameters, register_parameter_class

Natural: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Fraction: TypeAlias = Annotated[float, Field(ge=0, le=1)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0)]

PpoLossType: TypeAlias = Literal["clip", "kl_penalty"]
SpgVariantType: TypeAlias = Literal["spg", "pspg", "lola", "pola", "sos", "psos"]
IhvpVariantType: TypeAlias = Literal["conj_grad", "neumann", "nystrom"]
GuessType: TypeAlias = Literal["zero", "one", "y"]
TestSchemeType: TypeAlias = Literal["none", "all", "last", "first_and_last"]
BaseRunType: TypeAlias = Literal["none", "parameters", "rerun_tests"]


@dataclass(frozen=True)
class BaseRunPreserve:
    """Marks a field that keeps its new value when a base run of this type brings the others."""

    base_run_type: str


@register_parameter_class
@dataclass
class RlTrainerParameters(SubParameters):
    """Parameters of every reinforcement-learning trainer (`rl`)."""

    frames_per_batch: Positive | None = 1000
    rollouts_per_iteration: Positive | None = None
    steps_per_env_per_iteration: Positive | None = None
    num_iterations: Positive = 1000
    num_epochs: Positive = 4
    minibatch_size: Positive = 64
    lr: NonNegative = 0.003
    anneal_lr: bool = False
    max_grad_norm: NonNegative = 1.0
    loss_critic_type: Literal["l1", "l2", "smooth_l1"] = "smooth_l1"
    clip_value: bool | float | None = False
    normalize_observations: bool = True
    num_normalization_steps: Positive = 1000
    gamma: Fraction = 0.9
    lmbda: Fraction = 0.95
    body_lr_factor: NonNegative | None = None
    use_shared_body: bool = True
    num_test_iterations: Annotated[Natural, BaseRunPreserve("rerun_tests")] = 10

    @classmethod
    def construct_test_params(cls) -> RlTrainerParameters:
        return cls(frames_per_batch=32, num_iterations=2, num_epochs=1, minibatch_size=16, num_test_iterations=1)


@register_parameter_class
@dataclass
class CommonPpoParameters(SubParameters):
    """Parameters of PPO (`ppo`)."""

    loss_type: PpoLossType = "clip"
    clip_epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    kl_target: NonNegative = 0.01
    kl_beta: NonNegative = 1.0
    kl_decrement: NonNegative = 0.5
    kl_increment: NonNegative = 2.0
    critic_coef: NonNegative = 1.0
    entropy_eps: NonNegative = 0.001
    normalize_advantage: bool = True


@register_parameter_class
@dataclass
class VanillaPpoParameters(SubParameters):
    """Parameters of `vanilla_ppo` alone: none."""


@register_parameter_class
@dataclass
class SpgParameters(SubParameters):
    """Parameters of Stackelberg policy gradient (`spg`)."""

    variant: SpgVariantType = "psos"
    stackelberg_sequence: tuple[tuple[str, ...], ...] | None = None
    additional_lola_term: bool = True
    sos_scaling_factor: float = 0.5
    sos_threshold_factor: float = 0.1
    ihvp_variant: IhvpVariantType = "nystrom"
    ihvp_num_iterations: Positive = 5
    ihvp_rank: Positive = 5
    ihvp_rho: float = 0.1


@register_parameter_class
@dataclass
class ReinforceParameters(SubParameters):
    """Parameters of `reinforce`."""

    use_advantage_and_critic: bool = False


@register_parameter_class
@dataclass
class SoloAgentParameters(SubParameters):
    """Parameters of supervised training of single agents (`solo_agent`)."""

    num_epochs: Positive = 100
    batch_size: Positive = 256
    learning_rate: NonNegative = 0.001
    body_lr_factor_override: bool = False


@register_parameter_class
@dataclass
class TextRlParameters(SubParameters):
    """Parameters of every trainer of text agents (`text_rl`)."""

    fine_tune_on_all_previous_rollouts: bool = False
    verifier_guess_replacement_proportion: Fraction = 0.0
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    verifier_guess_replacement_annealing_rate: Fraction = 0.1
    save_transcripts: bool = True
    transcript_format: Literal["yaml", "json"] = "yaml"
    test_scheme: Annotated[TestSchemeType, BaseRunPreserve("rerun_tests")] = "none"
    test_on_whole_dataset: Annotated[bool, BaseRunPreserve("rerun_tests")] = True


@register_parameter_class
@dataclass
class PureTextEiParameters(SubParameters):
    """Parameters of expert iteration (`pure_text_ei`)."""

    rollout_selection_method: Literal["threshold", "weighted_sampling"] = "threshold"
    reward_threshold: float = 0.9
    weighting_sample_size_factor: NonNegative = 0.5
    weighting_minimum: float | None = None
    weighting_use_replacement: bool = True
    weighting_epsilon: NonNegative = 0.01


@register_parameter_class
@dataclass
class PureTextMaltParameters(SubParameters):
    """Parameters of MALT (`pure_text_malt`)."""

    num_responses_per_timestep: Positive = 2


@register_parameter_class
@dataclass
class CommonProtocolParameters(SubParameters):
    """Parameters of every interaction protocol (`protocol_common`)."""

    verifier_first: bool = True
    randomize_prover_stance: bool = False
    prover_reward: float = 1.0
    verifier_reward: float = 1.0
    verifier_incorrect_penalty: float = -1.0
    verifier_terminated_penalty: float = -1.0
    verifier_no_guess_reward: float = 0.0
    shared_reward: bool = False
    force_guess: GuessType | None = None
    zero_knowledge: bool = False


@register_parameter_class
@dataclass
class NipProtocolParameters(SubParameters):
    """Parameters of the protocol `nip` (`nip_protocol`)."""

    max_message_rounds: Positive = 8
    min_message_rounds: Positive = 1


@register_parameter_class
@dataclass
class DebateProtocolParameters(SubParameters):
    """Parameters of the protocol `debate` (`debate_protocol`)."""

    max_message_rounds: Positive = 8
    min_message_rounds: Positive = 1
    sequential: bool = False
    prover0_first: bool = True
    randomize_channel_order: bool = True


@register_parameter_class
@dataclass
class MnipProtocolParameters(DebateProtocolParameters):
    """Parameters of the protocol `mnip` (`mnip_protocol`)."""


@register_parameter_class
@dataclass
class ZkProtocolParameters(SubParameters):
    """Parameters of zero-knowledge protocols (`zk_protocol`)."""

    simulator_reward_coefficient: float = 1.0
    aux_prover_reward_coefficient: float = 1.0


@register_parameter_class
@dataclass
class DatasetParameters(SubParameters):
    """Parameters of data sets (`dataset_options`)."""

    binarification_method: Literal["merge", "random", "select_two"] = "merge"
    selected_classes: tuple[int, int] | None = None
    binarification_seed: int | None = None
    make_balanced: bool = True
    max_train_size: Positive | None = None
    max_test_size: Positive | None = None
    reduce_shuffle_seed: int = 42


@register_parameter_class
@dataclass
class CodeValidationParameters(SubParameters):
    """Parameters of the scenario `code_validation`."""

    apps_difficulty: Literal["introductory", "interview", "competition"] = "interview"
    apps_solution_number: Natural = 0
    apps_exclude_flagged: bool = True


@register_parameter_class
@dataclass
class ImageClassificationParameters(SubParameters):
    """Parameters of the scenario `image_classification`."""

    num_block_groups: Positive = 1
    initial_num_channels: Positive = 16


@register_parameter_class
@dataclass
class MessageRegressionParameters(SubParameters):
    """Parameters of message regression (`message_regression`)."""

    enabled: bool = False
    agents: tuple[str, ...] | None = None
    regression_method: Literal["mlp"] = "mlp"
    test_size: Fraction = 0.2
    reset_on_fit: bool = True
    mlp_num_layers: Positive = 2
    mlp_hidden_size: Positive = 64
    mlp_activation: Literal["relu", "tanh"] = "relu"
    mlp_num_epochs: Positive = 10
    mlp_batch_size: Positive = 512
    mlp_learning_rate: NonNegative = 0.001


@register_parameter_class
@dataclass
class BaseRunParameters(SubParameters):
    """The run whose parameters are taken (`base_run`)."""

    base_run_type: BaseRunType = "none"
    run_id: str | None = None
    wandb_project: str | None = None
    wandb_entity: str | None = None
    rerun_tests_force_test_during_training_state: bool = True
