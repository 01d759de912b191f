"""Settings of text trainers, their agents and providers. Fields have the names of nip's hyper-parameters. No torch."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Settings
from quintain.settings.choice import Choice
from quintain.text.providers.tiny_settings import TinySettings
from quintain.trainers.settings import LoopSettings
from quintain.typing import Keywords

Seconds = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Fault = Literal["rate_limit", "server_error", "lost_answer", "timeout", "refuse", "nonsense", "none"]


class ProviderSettings(PartSettings):
    """Settings of a custom provider that needs none of its own."""


class ScriptedSettings(ProviderSettings):
    """Answers by a rule without a model, for tests and for trying a run out."""

    latency_seconds: Seconds = 0.0
    """Seconds that every chat takes."""

    polls_until_done: Annotated[int, Field(ge=0)] = 1
    """How often the state of a job is read before the job is done."""

    faults: dict[Literal["chat", "create_job", "get_job", "upload", "list_jobs"], list[Fault]] = Field(default={})
    """Faults of the first calls, by the kind of call."""

    keeps_metadata: bool = True
    """Whether jobs keep the metadata of their creation; some servers do not."""

    job_ends: dict[str, Literal["succeeded", "failed", "cancelled", "hangs"]] = Field(default={})
    """The end of a job whose model suffix contains this text; any other succeeds."""


class OpenAiSettings(ProviderSettings):
    """OpenAI, or any server with its interface, through the SDK (extra text)."""

    base_url: str | None = None
    """Address of the server; null is that of the variable OPENAI_BASE_URL, or OpenAI's."""

    allow_host: str | None = None
    """Names the host of a base_url that is neither OpenAI's nor this machine's: prompts and the key go there."""

    api_key: Annotated[str, Field(pattern="(env|file):.+")] = "env:OPENAI_API_KEY"
    """Where the key is: env:NAME or file:PATH."""

    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Seconds after which a request has failed."""


class TextScenarioSettings(PartSettings):
    """Code validation: questions with solutions and labels, from JSON lines or built in."""

    train_file: str | None = None
    """JSON lines with question, solution, y (0 or 1), and perhaps id and prover_stance, or with question, solutions and
    buggy_solutions as the real data set has; null takes the data that is built in."""

    built_in: Literal["ten_questions", "small_programs"] = "ten_questions"
    """Data without a file: ten questions, or code validation in the small, whose programs are executed for labels."""

    apps_difficulty: str | None = None
    """Takes only questions of this difficulty from lines that have one."""

    test_file: str | None = None
    """The same for tests; null splits `test_size` off the training file."""

    test_size: Fraction = 0.2
    """Part of the training file that is used for tests if there is no other file."""

    max_train_size: Count | None = None
    """Takes at most so many data points for training; null takes all."""

    max_test_size: Count | None = None
    """Takes at most so many data points for tests; null takes all."""

    templates: str | None = None
    """Folder with a template for each agent, PROTOCOL/AGENT.txt; null takes those that ship."""


class ProtocolSettings(Settings):
    """The protocol of a conversation: who speaks when, and the rewards."""

    name: Literal["solo_verifier", "adp", "nip", "debate", "mnip"] = "nip"
    """Solo verifier, abstract decision problem, neural interactive proof, debate, or nip with two provers."""

    max_message_rounds: Count = 8
    """Rounds after which a conversation ends."""

    min_message_rounds: Count = 1
    """Rounds before which a decision does not count."""

    verifier_first: bool = True
    """Whether the verifier speaks first."""

    sequential: bool = False
    """Whether two provers speak one after the other."""

    prover0_first: bool = True
    """Which of two provers speaks first."""

    randomize_channel_order: bool = True
    """Whether the verifier hears two provers who spoke at once in an order that is drawn for each round."""

    randomize_prover_stance: bool = False
    """Whether the prover is paid for the stance of the data point instead of for acceptance."""

    shared_reward: bool = False
    """Whether provers are paid as the verifier is."""

    prover_reward: float = 1.0
    """Reward of a prover that convinces the verifier."""

    verifier_reward: float = 1.0
    """Reward of a correct decision."""

    verifier_incorrect_penalty: float = -1.0
    """Reward of a wrong decision."""

    verifier_terminated_penalty: float = -1.0
    """Reward at the end without a decision."""

    verifier_no_guess_reward: float = 0.0
    """Reward of the verifier's other turns."""


class TextAgentSettings(Settings):
    """The model of an agent."""

    model_provider: str = "tiny"
    """The provider: a name below `providers`, or a registered one (OpenAI, tiny, scripted)."""

    model_name: str = "tiny-base"
    """The model that the agent starts with."""

    use_dummy_api: bool = False
    """Takes the scripted provider instead."""

    shared_model_group: str | None = None
    """Agents of one group share a model and its fine-tune jobs; null is a group of its own."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Temperature of sampling; null is the provider's default."""

    top_p: Fraction | None = None
    """Nucleus sampling; null is the provider's default."""

    fine_tune_from_scratch: bool = True
    """Whether each job starts from the first model instead of the latest."""

    freeze_agent: bool = False
    """Whether the model is never fine-tuned."""

    max_response_words: Count = 150
    """The limit that the prompt names."""

    max_tokens_per_message: Count | None = None
    """The limit of a completion; null is 1.5 times the words."""

    num_invalid_generation_retries: Annotated[int, Field(ge=0)] = 20
    """How often an answer that cannot be used is asked for again."""


class TextRlSettings(Settings):
    """Fine-tuning and tests."""

    fine_tune_on_all_previous_rollouts: bool = False
    """Whether jobs see the rollouts of all iterations so far."""

    verifier_guess_replacement_proportion: Fraction = 0.0
    """Part of the verifier's rollouts whose decision is replaced by the correct one."""

    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    """How that part shrinks by iteration."""

    verifier_guess_replacement_annealing_rate: Fraction = 0.1
    """How fast it shrinks."""

    test_scheme: Literal["none", "all", "last", "first_and_last"] = "none"
    """In which iterations the test loop runs."""

    test_on_whole_dataset: bool = True
    """Whether a test covers the whole test set instead of as many conversations as an iteration has."""


class TextIterationSettings(Settings):
    """The size of an iteration; the number of iterations is `experiment.budget.updates`."""

    rollouts_per_iteration: Count = 32
    """Conversations in an iteration."""

    num_test_iterations: Count = 1
    """How often a test covers its data."""


class ExpertIterationSelectionSettings(Settings):
    """Which rollouts the jobs of expert iteration learn from."""

    rollout_selection_method: Literal["threshold", "weighted_sampling", "all"] = "threshold"
    """Reward of at least the threshold, a draw weighted by reward, or all (a control)."""

    reward_threshold: float = 0.9
    """The least reward of a selected rollout."""

    weighting_sample_size_factor: Annotated[float, Field(gt=0)] = 0.5
    """Number of drawn rollouts as a part of all."""

    weighting_minimum: float | None = None
    """The reward with weight 0; null is the smallest one."""

    weighting_use_replacement: bool = True
    """Whether a rollout may be drawn twice."""

    weighting_epsilon: Annotated[float, Field(ge=0)] = 0.01
    """Weight that all rollouts share equally beside their rewards."""


class JobSettings(Settings):
    """Hyper-parameters of fine-tune jobs; null is the provider's default."""

    n_epochs: Count | None = None
    """Passes over the examples."""

    batch_size: Count | None = None
    """Examples in a batch."""

    learning_rate_multiplier: Annotated[float, Field(gt=0)] | None = None
    """Factor on the provider's learning rate."""

    beta: Annotated[float, Field(gt=0)] | None = None
    """DPO's beta."""


class ApiSettings(Settings):
    """How carefully providers are called."""

    num_workers: Count = 8
    """Conversations at the same time."""

    max_wait_seconds: Seconds = 3600.0
    """Seconds that one call may wait in all for rate limits and failures that pass."""

    retry_seconds: Seconds = 1.0
    """The first wait after a failure; it doubles up to 60 times this."""

    settle_seconds: Seconds = 10.0
    """Seconds between two of the three looks for a job whose creation may have been lost."""

    poll_seconds: Seconds = 10.0
    """Seconds between two looks at a job that is running, at first; later a tenth of what was waited so far."""

    max_poll_seconds: Seconds = 300.0
    """At most so many seconds between two looks, unless `poll_seconds` is more."""

    job_deadline_seconds: Seconds | None = None
    """Seconds after which a job that does not end stops the run; null waits for ever."""

    on_failed_job: Literal["stop", "keep_model", "recreate"] = "stop"
    """What happens when a job fails or is cancelled; `recreate` pays again."""

    max_recreated_jobs: Annotated[int, Field(ge=0)] = 1
    """How often one job is created again."""

    max_jobs: Count | None = None
    """The run stops before it creates more jobs than these."""

    max_cost: Annotated[float, Field(gt=0)] | None = None
    """The run stops before the estimated cost of its jobs exceeds this: tokens of the examples in all epochs."""

    dry_run: bool = False
    """Says what the run would ask of its providers, and ends."""

    price_per_million_tokens: Annotated[float, Field(ge=0)] = 0.0
    """Price of a million training tokens, for the estimate; each epoch counts."""

    @model_validator(mode="after")
    def _a_limit_has_a_price(self) -> Self:
        if self.max_cost is not None and not self.price_per_million_tokens:
            raise PydanticCustomError(
                "limit_without_price",
                "max_cost is {cost} and price_per_million_tokens is 0, so that no job costs anything and nothing is "
                "limited; set the price, or limit max_jobs instead",
                {"cost": self.max_cost},
            )
        return self


class TextTrainerSettings(LoopSettings):
    """Trains text models behind an API: conversations, statistics, tests, fine-tune jobs, and the wait for them."""

    scenario: Annotated[PartSettings, Choice("text_scenario", default="code_validation")] = Field(
        default=TextScenarioSettings(type="code_validation")
    )
    """The questions: code validation, or an environment of one's own by module:Name."""

    protocol: ProtocolSettings = ProtocolSettings()
    """Who speaks when, and the rewards."""

    agents: dict[str, TextAgentSettings] = Field(default={})
    """The models of the agents by name; `_default` is for all others."""

    providers: dict[str, Annotated[PartSettings, Choice("provider", named_by_key=True)]] = Field(default={})
    """Providers by name; the name is the type unless one is given."""

    rl: TextIterationSettings = TextIterationSettings()
    """The size of an iteration."""

    text_rl: TextRlSettings = TextRlSettings()
    """Fine-tuning and tests."""

    jobs: JobSettings = JobSettings()
    """Hyper-parameters of jobs."""

    api: ApiSettings = ApiSettings()
    """How carefully providers are called."""

    hyper_params: Keywords = Field(default_factory=dict)
    """An experiment's hyper-parameters, as `HyperParameters.to_dict` writes them; then they decide the protocol."""

    @model_validator(mode="before")
    @classmethod
    def _names_providers(cls, given: object) -> object:
        if not isinstance(given, dict) or not isinstance(given.get("providers"), dict):
            return given
        choice = Choice("provider", named_by_key=True)
        return {**given, "providers": {key: choice.under(key).named(each) for key, each in given["providers"].items()}}

    def agent(self, name: str) -> TextAgentSettings:
        """Returns the settings of an agent."""
        return self.agents.get(name) or self.agents.get("_default") or TextAgentSettings()


class ExpertIterationSettings(TextTrainerSettings):
    """Expert iteration: fine-tunes each group on its own conversations with a high reward."""

    pure_text_ei: ExpertIterationSelectionSettings = ExpertIterationSelectionSettings()
    """Which rollouts are learned from."""


REGISTERED = (
    Registration("text_scenario", "code_validation", TextScenarioSettings, "quintain.text.scenario:TextScenario"),
    Registration("provider", "tiny", TinySettings, "quintain.text.providers.tiny:TinyProvider"),
    Registration("provider", "scripted", ScriptedSettings, "quintain.text.providers.scripted:ScriptedProvider"),
    Registration("provider", "openai", OpenAiSettings, "quintain.text.providers.openai:OpenAiProvider"),
    Registration("loop", "pure_text_ei", ExpertIterationSettings, "quintain.text.expert_iteration:PureTextEiTrainer"),
)
