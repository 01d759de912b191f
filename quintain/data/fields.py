"""The field table: the names of a rollout's fields, who writes each, and how parts declare their own.

A policy, an algorithm, a reward signal or a trainer declares fields by `declare_fields()`; blocks are made from a spec
and the declared fields. No torch.

Legend: N lanes, T steps, B minibatch. Public shapes are [N, T+1, ...]; memory is time-major [T+1, N, ...]. Time step T
holds the observation after the last step and its value (the bootstrap); its other fields are padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from quintain.data.spec import BehaviorSpec, leaves
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.typing import JsonObject

Per: TypeAlias = Literal["step", "teammate", "lane"]

OBS: Final = "obs"
"""[N, T+1, ...] observation; one field per leaf, `obs.<name>`, where it is structured. Collector."""
ACTION: Final = "action"
"""[N, T+1, ...] sampled action, before clipping or squashing for the environment; also by leaf. Policy, before the env
steps."""
ACTION_MASK: Final = "action_mask"
"""[N, T+1, options] bool, the allowed discrete actions at obs; only where the environment has masks. Collector."""
LOG_PROB: Final = "sample_log_prob"
"""[N, T+1] log-probability of the action when it was sampled. Policy."""
COMPONENTS: Final = "component_log_prob"
"""[N, T+1, K] log-probability of each discrete and continuous component; only where components are clipped
independently. Policy."""
PROXIMAL: Final = "proximal_log_prob"
"""[N, T+1] log-probability of the action by the policy at the start of the update; only with decoupled PPO. Algorithm.
"""
PROXIMAL_COMPONENTS: Final = "proximal_component_log_prob"
"""[N, T+1, K] the same of each component; only where components are clipped independently too. Algorithm."""
BEHAVIOR_WEIGHT: Final = "behavior_weight"
"""[N, T+1] probability of the action at the start of the update, relative to that when it was sampled, up to a cap;
only with decoupled PPO. Algorithm."""
VALUE: Final = "value"
"""[N, T+1] the critic's value of obs; [N, T+1, S] with one value head per reward signal. Policy."""
REWARD: Final = "reward"
"""[N, T+1] reward of the step. Environment."""
TERMINATED: Final = "terminated"
"""[N, T+1] bool, the episode terminated: the next value is 0, without a bootstrap. Environment."""
TRUNCATED: Final = "truncated"
"""[N, T+1] bool, the episode was truncated (time limit): bootstrapped from final_obs. Environment."""
DONE: Final = "done"
"""[N, T+1] bool, terminated or truncated. Collector."""
FIRST: Final = "first"
"""[N, T+1] bool, obs is the first of an episode. Collector."""
VALID: Final = "valid"
"""[N, T+1] bool, False where the step only reset the environment (next-step autoreset). Collector."""
FINAL_INDEX: Final = "final_index"
"""[N, T+1] int, row of the episode's true last observation in Rollout.final, or -1. Collector."""
FINAL_VALUE: Final = "final_value"
"""[N, T+1] value of final_obs where truncated and not terminated, else 0; [N, T+1, S] with one value head per reward
signal, and then after every end, because some signals continue across episodes. Collector."""
ENDS: Final = "ends"
"""[N, T+1, 0] holds nothing; declared where the true last observation of every trajectory of an agent is kept in
Rollout.final, also after it terminated. Nothing writes it."""
NOISE: Final = "noise"
"""[N, T+1, K] random noise for sampling actions; acting is a pure function of it. Collector."""
POLICY_STATE: Final = "policy_state"
"""[N, S] the hidden state of a recurrent policy before time step 0. Collector."""
POLICY_VERSION: Final = "policy_version"
"""[N, T+1] int, the published version that acted. Collector."""
LANE: Final = "lane"
"""[N, T+1] int, the lane of a fragment; only in blocks of fragments, as are the next three. Collector."""
FRAGMENT: Final = "fragment"
"""[N, T+1] int, the number of a fragment in its lane, from 1; 0 where a column is empty. Collector."""
FOLLOWS: Final = "follows"
"""[N, T+1] bool, whether a fragment follows the one before it in its lane without a gap. Collector."""
SESSION: Final = "session"
"""[N, T+1] int, the session of the learner whose weights acted. Collector."""
ADVANTAGE: Final = "advantage"
"""[N, T+1] advantage; with several reward signals the mean over them. Algorithm."""
RETURN: Final = "return"
"""[N, T+1] target of the value function; [N, T+1, S] with one value head per reward signal. Algorithm."""
BASELINE: Final = "baseline"
"""[N, T+1] counterfactual baseline: the critic's value of obs and of the teammates' observations and actions; [N, T+1,
S] with one value head per reward signal. Algorithm."""
TEAMMATES: Final = "mates"
"""[N, T+1, M] bool, which of M places hold a teammate; only for algorithms that learn from groups. Collector."""
TEAMMATE_OBS: Final = "mate_obs"
"""[N, T+1, M, ...] observation of each teammate; also by leaf. Collector."""
TEAMMATE_ACTION: Final = "mate_action"
"""[N, T+1, M, ...] action of each teammate; also by leaf. Collector."""
ENTROPY: Final = "entropy"
"""[B] entropy of the policy's distribution, as returned by evaluate_actions."""
NEXT: Final = "next_"
"""Prefix of a transition's successor: `next_obs`, `next_action_mask`, [B, ...]. Replay."""
DISCOUNT: Final = "discount"
"""[B] factor on the bootstrap value of next_obs: gamma to the number of rewards, 0 after termination. Replay."""


@dataclass(frozen=True)
class Field:
    """The shape and dtype of one field, without its leading dimensions.

    Example:
        >>> Field((3,), "float32")
        Field(shape=(3,), dtype='float32', per='step')
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    per: Per = "step"
    """`step` [N, T+1, ...]; `teammate` [N, T+1, M, ...], as wide as the largest group; `lane` [N, ...], only the
    policy's hidden state."""


@dataclass(frozen=True)
class Like:
    """A field of the same shape and dtype as another one, leaf by leaf where that is structured."""

    name: str
    per: Per = "step"


Declared: TypeAlias = Mapping[str, Field | Like]
"""Fields that a part declares, by name."""


def like(name: str, per: Per = "step") -> Like:
    """Declares a field like another one: `{"expert_action": like("action")}`."""
    return Like(name, per)


class DeclaresFields(Protocol):
    """A part that declares fields: a policy, algorithm, reward signal or the class of a trainer."""

    def declare_fields(self) -> Declared: ...


TEAMMATE_FIELDS: Final[Declared] = {
    TEAMMATES: Field((), "bool", "teammate"),
    TEAMMATE_OBS: like(OBS, "teammate"),
    TEAMMATE_ACTION: like(ACTION, "teammate"),
}
"""The fields of an agent's teammates."""
ALL_ENDS: Final[Mapping[str, Field]] = {ENDS: Field((0,))}
"""Lets agents' blocks keep the true last observation of every trajectory; those of lanes always do."""
STANDARD: Final[Declared] = {
    LOG_PROB: Field(),
    VALUE: Field(),
    REWARD: Field(),
    TERMINATED: Field((), "bool"),
    TRUNCATED: Field((), "bool"),
    DONE: Field((), "bool"),
    FIRST: Field((), "bool"),
    VALID: Field((), "bool"),
    FINAL_INDEX: Field((), "int32"),
    FINAL_VALUE: like(VALUE),
    NOISE: Field((0,)),
    POLICY_VERSION: Field((), "int64"),
    ADVANTAGE: Field(),
    RETURN: like(VALUE),
    POLICY_STATE: Field((0,), "float32", "lane"),
}
"""Fields of every block in addition to its spec's; a policy declares the shapes of value, noise and policy_state."""
DTYPES: Final = frozenset({"float32", "uint8", "int32", "int64", "bool"})
"""Allowed dtypes of fields."""


def gather_fields(spec: BehaviorSpec, policy: DeclaresFields, *parts: DeclaresFields) -> dict[str, Field]:
    """Returns all fields of a behaviour's blocks by name: of its spec, the standard ones, and those its parts declare.

    Two parts may declare the same field if the declarations are equal; only the policy shapes standard ones.
    """
    fields = resolve_fields(spec, policy.declare_fields())
    for part in parts:
        more = resolve_fields(spec, {**fields, **part.declare_fields()})
        for name, field in more.items():
            if fields.get(name, field) != field:
                who = part.__name__ if isinstance(part, type) else type(part).__name__
                raise SettingsError(
                    f"{who} declares the field {name!r} as {field}, and it is {fields[name]} already; give it another "
                    f"name",
                    code="E0224",
                )
        fields = more
    return fields


def resolve_fields(spec: BehaviorSpec, declared: Declared | None = None) -> dict[str, Field]:
    """Returns the fields of a block by name, one per leaf: of its spec, the standard ones, and declared ones."""
    structured = {**leaves(spec.obs, OBS), **leaves(spec.action, ACTION)}
    fields = {name: Field(leaf.shape, leaf.dtype) for name, leaf in structured.items()}
    if spec.mask_size:
        fields[ACTION_MASK] = Field((spec.mask_size,), "bool")
    for name, each in {**STANDARD, **(declared or {})}.items():
        if isinstance(each, Like):
            found = [each.name] if each.name in fields else names_of(each.name, fields)
            if not found:
                raise SettingsError(
                    f"the field {name!r} is declared like {each.name!r}, which is no field that was declared before it",
                    code="E0224",
                )
            for path in found:
                own = fields[path]
                # Blocks of one step are made for every prediction.
                fields[name + path[len(each.name) :]] = own if own.per == each.per else replace(own, per=each.per)
        elif each.dtype not in DTYPES or (each.per == "lane") != (name == POLICY_STATE):
            raise SettingsError(
                f"the field {name!r} is declared as {each}; its dtype may be {', '.join(sorted(DTYPES))}, and only "
                f"{POLICY_STATE} is one of lanes",
                code="E0224",
            )
        else:
            fields[name] = each
    return fields


def names_of(name: str, known: Iterable[str]) -> list[str]:
    """Returns the known fields that a name stands for: itself, or its leaves.

    Example:
        >>> names_of("obs", ["obs.a", "obs.b", "observed"])
        ['obs.a', 'obs.b']
    """
    prefix = f"{name}."
    return [path for path in known if path == name or path.startswith(prefix)]


def fields_to_json(fields: Mapping[str, Field]) -> JsonObject:
    """Serializes fields, for a process that makes the same blocks."""
    return {name: [list(field.shape), field.dtype, field.per] for name, field in fields.items()}


def fields_from_json(words: JsonObject) -> dict[str, Field]:
    """Deserializes fields.

    Example:
        >>> fields_from_json(fields_to_json({"weight": Field((2,))}))
        {'weight': Field(shape=(2,), dtype='float32', per='step')}
    """
    return {name: Field(tuple(shape), dtype, per) for name, (shape, dtype, per) in words.items()}
