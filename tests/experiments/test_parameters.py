"""Hyper-parameters: checked when made, equal after a round trip, never changing their input."""

from __future__ import annotations

import copy
import dataclasses
import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, get_args, get_origin

import pytest

from quintain.errors import SettingsError
from quintain.experiments import agents_parameters, hyper_parameters, trainer_parameters
from quintain.experiments.agents_parameters import (
    AgentParameters,
    AgentsParameters,
    AlternatingPeriodicUpdateSchedule,
    ConstantUpdateSchedule,
    ContiguousPeriodicUpdateSchedule,
    LrFactors,
    PureTextAgentParameters,
    RandomAgentParameters,
)
from quintain.experiments.names import InteractionProtocolType, ScenarioType, TrainerType
from quintain.experiments.parameters_base import (
    BaseHyperParameters,
    SubParameters,
    parameter_class,
    register_parameter_class,
    registered_classes,
)
from quintain.experiments.registry import build_protocol_handler, register_trainer
from quintain.experiments.rows import num_rows

HyperParameters: Any = hyper_parameters.HyperParameters
GI: dict[str, Any] = {"scenario": "graph_isomorphism", "trainer": "vanilla_ppo", "dataset": "eru10000"}


@register_parameter_class
@dataclass
class CounterTrainerParameters(SubParameters):
    step: int = 1
    shape: tuple[int, ...] = (1, 2)
    factors: LrFactors | dict[str, Any] | None = None


def random_value(annotation: Any, random: Random) -> Any:
    """Draws a value that fits an annotation, read from the annotation alone."""
    inner = parameter_class(annotation)
    if inner is not None:
        return random_instance(inner, random)
    if annotation is agents_parameters.AgentUpdateSchedule:
        return random.choice(
            [
                ConstantUpdateSchedule(),
                ContiguousPeriodicUpdateSchedule(7, random.randrange(3), random.randrange(3, 8)),
                AlternatingPeriodicUpdateSchedule(5, random.randrange(1, 5), random.random() < 0.5),
            ]
        )
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return random.choice(options)
    if hasattr(annotation, "__metadata__"):
        bounds = {
            name: getattr(each, name)
            for m in annotation.__metadata__
            for each in getattr(m, "metadata", [])
            for name in ("ge", "gt", "le", "lt")
            if hasattr(each, name)
        }
        low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        if low is None:
            return random_value(annotation.__origin__, random)
        is_int = annotation.__origin__ is int
        return random.randrange(low, low + 50) if is_int else random.uniform(low, 3.0 if high is None else high)
    if origin is tuple and options[-1] is Ellipsis:
        return tuple(random_value(options[0], random) for _ in range(random.randrange(4)))
    if origin is tuple:
        return tuple(random_value(each, random) for each in options)
    if options:
        return random_value(random.choice(options), random)
    simple: dict[Any, Any] = {
        int: lambda: random.randrange(100),
        float: lambda: random.choice([random.uniform(-3, 3), 1.0, 1e-7, 1e22]),
        bool: lambda: random.random() < 0.5,
        str: lambda: random.choice(["a", "null", "1.0", "yes", "two words: and # signs"]),
        type(None): lambda: None,
    }
    return simple[annotation]()


def random_instance(cls: type[BaseHyperParameters], random: Random) -> Any:
    values = {name: random_value(annotation, random) for name, annotation in cls.annotations_of().items()}
    # A run to take something from has a name, and its tests are not repeated.
    values |= {name: values[name] or "a run" for name in ("run_id", "checkpoint_run_id") if name in values}
    if values.get("base_run_type") == "rerun_tests":
        values["base_run_type"] = "parameters"
    return cls(**values)


def same(one: Any, other: Any) -> bool:
    """Compares values and types at every depth, independently of `to_dict`."""
    if type(one) is not type(other):
        return False
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(dict.get(one, k), dict.get(other, k)) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


NAMES_OF = {
    **dict.fromkeys(("nip", "adp"), ("prover", "verifier")),
    **dict.fromkeys(("debate", "mnip", "merlin_arthur"), ("prover0", "prover1", "verifier")),
    "solo_verifier": ("verifier",),
    "multi_channel_test": ("prover0", "prover1", "prover2", "verifier"),
}
SCENARIOS: dict[str, tuple[tuple[str, ...], type[AgentParameters]]] = {
    "graph_isomorphism": (
        ("vanilla_ppo", "solo_agent", "spg", "reinforce"),
        agents_parameters.GraphIsomorphismAgentParameters,
    ),
    "image_classification": (("vanilla_ppo", "solo_agent"), agents_parameters.ImageClassificationAgentParameters),
    "find_the_plus": (("vanilla_ppo", "reinforce"), agents_parameters.FindThePlusAgentParameters),
    "code_validation": (("pure_text_ei", "pure_text_malt"), agents_parameters.CodeValidationAgentParameters),
}


def random_experiment(random: Random) -> Any:
    """Draws hyper-parameters of any scenario, trainer and protocol, with every block and every simple value."""
    scenario, protocol = random.choice(list(SCENARIOS)), random.choice(list(NAMES_OF))
    trainers, agent_class = SCENARIOS[scenario]
    annotations = HyperParameters.annotations_of().items()
    values = {name: random_value(annotation, random) for name, annotation in annotations if name != "agents"}
    names = list(NAMES_OF[protocol])
    if values["protocol_common"].zero_knowledge:
        names += ["adversarial_verifier", "simulator"]
    classes = [agent_class, RandomAgentParameters]
    agents = {name: random_instance(random.choice(classes), random) for name in names}
    if random.random() < 0.5:
        del agents[random.choice(names)]
        agents["_default"] = random_instance(agent_class, random)
    for block in ("nip_protocol", "debate_protocol", "mnip_protocol"):
        least, most = values[block].min_message_rounds, values[block].max_message_rounds
        values[block].min_message_rounds, values[block].max_message_rounds = min(least, most), max(least, most)
    steps = values["rl"].steps_per_env_per_iteration = random.randrange(1, 9)
    values["rl"].frames_per_batch = random.choice([None, 1000, steps * random.randrange(1, 30)])
    chosen = {"scenario": scenario, "trainer": random.choice(trainers), "interaction_protocol": protocol}
    return HyperParameters(**{**values, **chosen, "agents": agents})


@pytest.mark.parametrize("name", registered_classes())
def test_random_instances_survive_json_and_yaml(name: str) -> None:
    random = Random(name)
    cls = registered_classes()[name]
    for number in range(200):
        made = random_experiment(random) if name == "HyperParameters" else random_instance(cls, random)  # type: ignore[arg-type]
        plain = made.to_dict()
        before = copy.deepcopy(plain)
        assert same(cls.from_dict(json.loads(json.dumps(plain))), made)  # type: ignore[attr-defined]
        assert same(cls.from_dict(plain), made)  # type: ignore[attr-defined]
        assert plain == before
        again = type(made).from_json(made.to_json())
        assert same(again, made)
        assert again == made
        if number % 8 == 0:
            assert same(type(made).from_yaml(made.to_yaml()), made)


def test_building_twice_from_one_mapping_gives_the_same_agents() -> None:
    agents = {"prover": {"is_random": True}, "verifier": {"agent_lr_factor": {"actor": 0.5}}}
    before = copy.deepcopy(agents)
    first, second = HyperParameters(**GI, agents=agents), HyperParameters(**GI, agents=agents)
    assert agents == before
    assert isinstance(second.agents["prover"], RandomAgentParameters)
    assert first == second
    assert second.agents["verifier"].agent_lr_factor == LrFactors(0.5, 1.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rl": {"lrr": 1.0}}, 'RlTrainerParameters: lrr: unknown setting; did you mean "lr"?'),
        ({"sed": 1}, 'HyperParameters: sed: unknown setting; did you mean "seed"?'),
        ({"trainer": "vanila_ppo"}, 'unknown trainer "vanila_ppo"; did you mean "vanilla_ppo"?'),
        ({"scenario": "graph_isomorphsm"}, 'did you mean "graph_isomorphism"?'),
        ({"interaction_protocol": "debat"}, 'did you mean "debate"?'),
        ({"rl": {"lr": "fast"}}, 'RlTrainerParameters.lr: found "fast", expected a number'),
        ({"rl": {"gamma": 1.5}}, "RlTrainerParameters.gamma: found 1.5, expected at most 1"),
        ({"ppo": {"loss_type": "cli"}}, "CommonPpoParameters.loss_type"),
        ({"trainer": "pure_text_ei"}, "works on text"),
        ({"nip_protocol": {"min_message_rounds": 9}}, "expected at most max_message_rounds (8)"),
        ({"agents": {"provr": {}, "_default": {}}}, 'the protocol has no agent "provr"; did you mean "prover"?'),
        ({"agents": {"judge": {}, "_default": {}}}, 'has no agent "judge"; expected some of: prover, verifier'),
        ({"agents": {"prover": {}}}, 'found no parameters of "verifier"; add them, or _default'),
        (
            {"agents": {"_default": PureTextAgentParameters()}},
            "agents._default: found PureTextAgentParameters, and agents of this scenario have Graph",
        ),
        (
            {"agents": {"_default": {"_type": "FindThePlusAgentParameters"}}},
            "agents._default: found FindThePlusAgentParameters",
        ),
        (
            {"agents": {"_default": {"update_schedule": {"_type": "AlternatingPeriodicUpdateSchedul"}}}},
            'update_schedule: unknown _type "AlternatingPeriodicUpdateSchedul"; did you mean "Alternating',
        ),
        ({"rl": {"frames_per_batch": 100}}, "found 100, expected a multiple of the 8 steps of a row"),
        ({"rl": 3}, "expected RlTrainerParameters or a mapping"),
    ],
)
def test_a_mistake_is_refused_when_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        HyperParameters(**{**GI, **given})
    assert message in str(caught.value)


def test_a_missing_value_is_named() -> None:
    with pytest.raises(SettingsError, match="HyperParameters: dataset: not set"):
        HyperParameters("graph_isomorphism", "vanilla_ppo")


def test_numbers_are_of_the_annotated_type() -> None:
    made = HyperParameters(**GI, rl={"lr": 1}, spg={"stackelberg_sequence": [["verifier"], ["prover"]]})
    assert type(made.get("rl.lr")) is float
    assert made.get("spg.stackelberg_sequence") == (("verifier",), ("prover",))
    assert HyperParameters(**GI, rl={"clip_value": 1.0}).get("rl.clip_value") == 1.0
    assert type(HyperParameters(**GI, rl={"clip_value": 1.0}).get("rl.clip_value")) is float


def test_get_reads_every_depth_and_raises_where_there_is_nothing() -> None:
    made = HyperParameters(**GI, agents={"_default": {"body_lr_factor": {"critic": 0.25}}})
    assert made.get("rl") is made.rl
    assert made.get("rl.lr") == 0.003
    assert made.get("agents.prover.body_lr_factor.critic") == 0.25
    for address in ("rl.lr.foo", "rl.nothing", "nothing", "agents.prover.x"):
        with pytest.raises(KeyError):
            made.get(address)


def test_the_default_agent_stands_for_every_name() -> None:
    made = HyperParameters(**GI)
    assert "prover" in made.agents
    assert made.agents["prover"] is made.agents["verifier"]
    some = AgentsParameters(prover=AgentParameters())
    assert "verifier" not in some
    assert some.get("verifier") is None
    text = HyperParameters("code_validation", "pure_text_ei", "lrhammond/buggy-apps")
    assert type(text.agents["verifier"]).__name__ == "CodeValidationAgentParameters"
    assert isinstance(text.agents["verifier"], PureTextAgentParameters)


def test_rows_are_frames_over_steps_or_rollouts_or_the_training_set() -> None:
    def rows(protocol: str = "nip", max_train_size: int | None = None, **rl: Any) -> int:
        options = {"max_train_size": max_train_size}
        made = HyperParameters(**GI, interaction_protocol=protocol, rl=rl, dataset_options=options)
        return num_rows(made, build_protocol_handler(made))

    # Eight rounds by default; two of adp. The default of 1000 frames is rounded down.
    assert (rows(), rows("adp"), rows(steps_per_env_per_iteration=3)) == (125, 500, 333)
    assert rows(frames_per_batch=None, rollouts_per_iteration=7) == 7
    assert rows(rollouts_per_iteration=7) == 7
    assert rows(frames_per_batch=None) == 2048
    assert rows(frames_per_batch=None, max_train_size=50) == 50


def test_schedules_update_when_they_say() -> None:
    first, second = AlternatingPeriodicUpdateSchedule(5, 2), AlternatingPeriodicUpdateSchedule(5, 2, first_agent=False)
    assert [first.is_updated(i) for i in range(6)] == [True, True, False, False, False, True]
    assert [second.is_updated(i) for i in range(6)] == [False, False, True, True, True, False]
    agents = AgentsParameters(
        verifier=AgentParameters(update_schedule=second), prover=AgentParameters(update_schedule=first)
    )
    assert agents.agents_update_repr == "Alternating(5, 2, prover, verifier)"
    with pytest.raises(SettingsError, match="0 <= start < stop <= period"):
        ContiguousPeriodicUpdateSchedule(4, 3, 2)


def test_registering_adds_names_and_fields() -> None:
    assert "counter" not in TrainerType

    @register_trainer("counter")
    class Counter:
        pass

    assert "counter" in TrainerType
    assert {"nip", "debate"} <= set(InteractionProtocolType)
    assert "graph_isomorphism" in ScenarioType
    made = HyperParameters("graph_isomorphism", "counter", "x", counter_trainer={"step": 3, "factors": {"actor": 0}})
    assert made.counter_trainer == CounterTrainerParameters(3, (1, 2), LrFactors(0.0, 1.0))
    assert made.get("counter_trainer.factors.actor") == 0.0
    assert HyperParameters.from_json(made.to_json()) == made
    assert HyperParameters(**GI).counter_trainer == CounterTrainerParameters()
    assert HyperParameters(**GI) != made


def test_a_foreign_type_is_refused() -> None:
    with pytest.raises(SettingsError, match='found _type "LrFactors", expected RlTrainerParameters'):
        trainer_parameters.RlTrainerParameters.from_dict({"_type": "LrFactors"})
    extra = {"lr": 0.5, "later": 1}
    assert trainer_parameters.RlTrainerParameters.from_dict(extra, ignore_extra_keys=True).lr == 0.5
