"""The field table: the names of a rollout's fields, who writes each, and how parts declare fields of their own.

A policy, an algorithm, a reward signal or a trainer declares fields by `declare_fields()`; blocks are made from a spec
and what was declared. No torch.

Legend: N lanes, T steps, B minibatch. Public shapes are [N, T+1, ...]; memory is time-major [T+1, N, ...].
Slot T holds the observation after the last step and its value (the bootstrap); its other fields are padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from quintain.data.spec import BehaviorSpec, leaves
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.typing import JsonObject

Per: TypeAlias = Literal["step", "mate", "lane"]

OBS: Final = "obs"
"""[N, T+1, ...] what the policy sees; one field per leaf, `obs.<name>`, where it is structured. Collector."""
ACTION: Final = "action"
"""[N, T+1, ...] what the policy chose, before clipping or squashing for the environment; also by leaf. Policy, before
the env steps."""
ACTION_MASK: Final = "action_mask"
"""[N, T+1, choices] bool, which choices are allowed at obs; only where the environment has masks. Collector."""
LOG_PROB: Final = "sample_log_prob"
"""[N, T+1] log-probability of the action when it was chosen. Policy."""
COMPONENTS: Final = "component_log_prob"
"""[N, T+1, K] the same of each choice and each number of the action by itself; only where each is clipped by itself.
Policy."""
VALUE: Final = "value"
"""[N, T+1] the critic's value of obs; [N, T+1, S] where each of S reward streams has its own. Policy."""
REWARD: Final = "reward"
"""[N, T+1] reward of the step. Environment."""
TERMINATED: Final = "terminated"
"""[N, T+1] bool, the episode really ended: nothing follows, so nothing is bootstrapped. Environment."""
TRUNCATED: Final = "truncated"
"""[N, T+1] bool, the episode was cut (time limit): bootstrapped from final_obs. Environment."""
DONE: Final = "done"
"""[N, T+1] bool, terminated or truncated. Collector."""
FIRST: Final = "first"
"""[N, T+1] bool, obs is the first of an episode. Collector."""
VALID: Final = "valid"
"""[N, T+1] bool, False where the step only reset the environment (next-step autoreset). Collector."""
FINAL_INDEX: Final = "final_index"
"""[N, T+1] int, row of the episode's true last observation in Rollout.final, or -1. Collector."""
FINAL_VALUE: Final = "final_value"
"""[N, T+1] value of final_obs where truncated and not terminated, else 0; [N, T+1, S] with several reward streams, and
then after every end, because some streams do not end there. Collector."""
NOISE: Final = "noise"
"""[N, T+1, K] random numbers for the policy's heads; acting is a pure function of them. Collector."""
POLICY_STATE: Final = "policy_state"
"""[N, S] the policy's memory before slot 0; only for policies that have one. Collector."""
POLICY_VERSION: Final = "policy_version"
"""[N, T+1] int, the published version that acted. Collector."""
ADVANTAGE: Final = "advantage"
"""[N, T+1] the mean of all reward streams' where there are several. Algorithm."""
RETURN: Final = "return"
"""[N, T+1] what the critic should have said; [N, T+1, S] with several reward streams. Algorithm."""
BASELINE: Final = "baseline"
"""[N, T+1] the critic's value of what the agent's mates saw and did and of obs, whatever the agent did; [N, T+1, S]
with several reward streams. Algorithm."""
MATES: Final = "mates"
"""[N, T+1, M] bool, which of M places other members of the agent's group take; only where groups learn. Collector."""
MATE_OBS: Final = "mate_obs"
"""[N, T+1, M, ...] what each of them saw; also by leaf. Collector."""
MATE_ACTION: Final = "mate_action"
"""[N, T+1, M, ...] what each of them chose; also by leaf. Collector."""
ENTROPY: Final = "entropy"
"""[B] entropy of the policy's distribution, in what evaluate_actions returns."""
NEXT: Final = "next_"
"""Begins the name of what a transition led to: `next_obs`, `next_action_mask`, [B, ...]. Replay."""
DISCOUNT: Final = "discount"
"""[B] how much the value of next_obs counts: gamma to the number of rewards, 0 after a true end. Replay."""


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
    """`step` [N, T+1, ...]; `mate` [N, T+1, M, ...], as wide as groups of agents get; `lane` [N, ...], only the
    policy's hidden state."""


@dataclass(frozen=True)
class Like:
    """A field of the same shape and dtype as another one, leaf by leaf where that is structured."""

    name: str
    per: Per = "step"


Declared: TypeAlias = Mapping[str, Field | Like]
"""What a part declares, by field name."""


def like(name: str, per: Per = "step") -> Like:
    """Declares a field as another one: `{"expert_action": like("action")}`."""
    return Like(name, per)


class DeclaresFields(Protocol):
    """A part that declares fields: a policy, algorithm, reward signal or the class of a trainer."""

    def declare_fields(self) -> Declared: ...


MATE_FIELDS: Final[Declared] = {
    MATES: Field((), "bool", "mate"),
    MATE_OBS: like(OBS, "mate"),
    MATE_ACTION: like(ACTION, "mate"),
}
"""What is known of the other members of an agent's group."""
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
"""The fields of every block beside those of its spec; a policy declares the shapes of value, noise and policy_state."""
DTYPES: Final = frozenset({"float32", "uint8", "int32", "int64", "bool"})
"""What a field's values may be."""


def gather_fields(spec: BehaviorSpec, policy: DeclaresFields, *parts: DeclaresFields) -> dict[str, Field]:
    """Returns all fields of a behaviour's blocks by name: of its spec, of every block, and declared by its parts.

    Two parts may declare the same field if both mean the same by it; only the policy shapes standard ones.
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
    """Returns the fields of a block by name, one for each leaf: of its spec, the standard ones, and declared ones."""
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
    """Describes fields as JSON, for a process that makes the same blocks."""
    return {name: [list(field.shape), field.dtype, field.per] for name, field in fields.items()}


def fields_from_json(words: JsonObject) -> dict[str, Field]:
    """Reads back what `fields_to_json` wrote.

    Example:
        >>> fields_from_json(fields_to_json({"weight": Field((2,))}))
        {'weight': Field(shape=(2,), dtype='float32', per='step')}
    """
    return {name: Field(tuple(shape), dtype, per) for name, (shape, dtype, per) in words.items()}
