"""The environment of all scenarios of tensors: rows of conversations, a lane for every agent of every row.

A scenario brings data and views; the protocol brings turns, rewards and ends, as tables. Lane `row * A + agent` is one
agent of one row, so a field [T, rows * A] is seen as [T, rows, A] without a copy. All lanes of a row end together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.envs.base import EPISODE, Env, StepResult
from quintain.envs.settings import ScenarioSettings
from quintain.errors import QuintainError, SettingsError
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.kernels.converse import Results, Rules, Talks, bound, converse
from quintain.experiments.protocols.base import CONTINUE, DECISIONS, Outcome, ProtocolHandler
from quintain.experiments.registry import build_protocol_handler
from quintain.experiments.scenario_names import shipped_scenario

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.typing import Action, Array, LaneMask, Observation

NO_MESSAGE = -1
DRAWN_AT_ONCE = 16
"""Episodes of a row whose random draws are made together."""


class TensorScenario(ABC):
    """Data of a scenario of tensors, and what each agent sees of a datum and of the messages so far."""

    def __init__(self, hyper_params: HyperParameters, protocol: ProtocolHandler) -> None:
        self.hyper_params = hyper_params
        self.protocol = protocol

    num_options: int
    """Number of messages that an agent may choose from, in each channel."""
    datum_size: int
    """Number of values of a datum."""
    view_size: int
    """Number of values that an agent sees."""
    num_draws: int
    """Number of uniform draws that make a datum."""
    hand_written: Mapping[str, str] = MappingProxyType({})
    """Hand-written agents, for `use_manual_architecture`: module:function for "prover" and "verifier". A function maps
    what an agent sees [B, view_size] and the number of logits to logits."""

    @abstractmethod
    def draw(self, uniforms: Array) -> tuple[Array, Array]:
        """Draws data [rows, datum_size] and labels [rows] from uniform draws in [0, 1), [rows, num_draws]."""

    @abstractmethod
    def view(self, data: Array, messages: Array, rounds: Array) -> Array:
        """Returns what the agents see, [rows, A, view_size], of data [rows, datum_size] and the last message in each
        channel [rows, C], -1 where there was none."""

    def bind_view(self, data: Array, messages: Array, rounds: Array, chosen: Array, seen: Array) -> Callable[[], None]:
        """Returns the call that writes what agents see in the rows that are `chosen` now to `seen [rows, A, size]`.

        Arrays are read anew at each call. A scenario overrides this where a kernel is faster than `view`.
        """

        def look() -> None:
            rows = np.flatnonzero(chosen)
            seen[rows] = self.view(data[rows], messages[rows], rounds[rows])

        return look

    def describe(self, datum: Array) -> str:
        """Describes a datum in one line, for transcripts."""
        return str(datum.tolist())

    def describe_message(self, message: int) -> str:
        """Describes a message in a few words, for transcripts."""
        return str(message)


class Round(NamedTuple):
    """The last round of all rows, for transcripts."""

    spoken: Array
    """[rows, A, C]: whether an agent spoke in a channel."""
    chosen: Array
    """[rows, A, C + 1]: the messages, and the decision."""
    decision: Array
    """[rows]: the decision that counts."""
    reward: Array
    """[rows, A]"""
    ended: Array
    """[rows]"""


class ScenarioEnv(Env):
    """Steps conversations of a scenario under a protocol."""

    not_state: ClassVar[frozenset[str]] = frozenset(
        {
            "scenario",
            "protocol",
            "num_lanes",
            "first_lane",
            "rules",
            "mask_of",
            "action",
            "results",
            "converse",
            "look",
            "chosen",
            "seen",
            "final_seen",
            "mask",
            "truncated",
            "whose",
            "drawn",
            "drawn_from",
        }
    )

    def __init__(self, settings: ScenarioSettings, num_lanes: int, rng: Rng, first_lane: int = 0) -> None:
        self.settings = settings
        hyper_params = HyperParameters.from_dict(settings.hyper_params)
        self.protocol = protocol = build_protocol_handler(hyper_params)
        self.scenario: TensorScenario = shipped_scenario(hyper_params.scenario).load()(hyper_params, protocol)
        agents, channels = len(protocol.agent_names), len(protocol.message_channel_names)
        if settings.num_lanes % agents or first_lane % agents:
            raise SettingsError(
                f"env.num_lanes: found {settings.num_lanes} for {agents} agents; expected a multiple of {agents} on "
                "every rank and in every collector: a lane is one agent of one conversation",
                code="E0205",
            )
        # An evaluation asks for some number of lanes, and gets whole conversations.
        num_lanes += -num_lanes % agents
        self.num_lanes, self.first_lane, self.rng = num_lanes, first_lane, rng
        options = self.scenario.num_options
        action = multi_discrete(*[options] * channels, len(DECISIONS))
        obs = DictSpec((("agent", discrete(agents)), ("seen", box(self.scenario.view_size))))
        self.spec = BehaviorSpec(obs, action, mask_size=channels * options + len(DECISIONS))
        self.rules = rules = _rules_of(protocol, options, settings.shuffle_messages)
        messages = np.repeat(rules.speaks[..., None], options, axis=4)
        messages[..., 0] = True
        decisions = np.repeat(rules.can_decide[..., None], len(DECISIONS), axis=3)
        decisions[..., CONTINUE] = True
        allowed = np.concatenate((messages.reshape(*decisions.shape[:3], -1), decisions), axis=3)
        self.mask_of: Array = np.ascontiguousarray(allowed.reshape(allowed.shape[0] * allowed.shape[1], -1))
        """[rounds * variants, A * options]"""
        rows = num_lanes // agents
        self.episode: Array = np.full(rows, -1, np.int64)
        self.round: Array = np.zeros(rows, np.int64)
        self.data: Array = np.zeros((rows, self.scenario.datum_size), np.float32)
        self.label: Array = np.zeros(rows, np.int64)
        self.parity: Array = np.zeros(rows, np.int64)
        self.phase: Array = np.zeros(rows, np.int64)
        self.messages: Array = np.full((rows, channels), NO_MESSAGE, np.int64)
        self.earned: Array = np.zeros((rows, agents))
        self.passed_on: Array = np.zeros((agents, channels), np.int64)
        """With `shuffle_messages`, the last message of each agent in each channel, for the next row."""
        self.whose: Array = np.tile(np.arange(agents), rows)
        # A function of row, episode and seed alone, so no state: drawn for several episodes, which saves time.
        self.drawn: Array = np.zeros((rows, DRAWN_AT_ONCE, 1 + self.scenario.num_draws), np.float32)
        self.drawn_from: Array = np.full(rows, -DRAWN_AT_ONCE, np.int64)
        """The first episode of each row's draws."""
        # Written anew at each step.
        self.action: Array = np.zeros((num_lanes, channels + 1), np.int64)
        self.results = Results(
            np.zeros((rows, agents, channels), np.bool_),
            np.zeros((rows, agents), np.float32),
            np.zeros((rows, agents), np.bool_),
            np.zeros(rows, np.int64),
        )
        self.seen: Array = np.zeros((rows, agents, self.scenario.view_size), np.float32)
        self.final_seen: Array = np.zeros_like(self.seen)
        self.mask: Array = np.zeros((rows, self.mask_of.shape[1]), np.bool_)
        self.truncated: Array = np.zeros(num_lanes, np.bool_)
        talks = Talks(self.round, self.parity, self.phase, self.label, self.messages, self.earned, self.passed_on)
        self.converse = bound(converse, rules, talks, self.action, self.results)
        self.chosen: Array = np.ones(rows, np.bool_)
        """Rows whose agents look anew."""
        self.look = self.scenario.bind_view(self.data, self.messages, self.round, self.chosen, self.seen)

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        agents = len(self.protocol.agent_names)
        begun = slice(None) if lanes is None else np.asarray(lanes, dtype=np.bool_).reshape(-1, agents).any(axis=1)
        self._begin(np.arange(len(self.round))[begun])
        self.chosen.fill(True)
        self.look()
        return self._obs(self.seen)

    def _begin(self, rows: Array) -> None:
        if not len(rows):
            return
        first_row = self.first_lane // len(self.protocol.agent_names)
        self.episode[rows] += 1
        self.round[rows] = 0
        self.phase[rows] = 0
        self.messages[rows] = NO_MESSAGE
        self.earned[rows] = 0.0
        place = self.episode[rows] - self.drawn_from[rows]
        if not ((place >= 0) & (place < DRAWN_AT_ONCE)).all():
            # All rows at once, also those with draws left: many calls for a few rows each would take longer.
            np.copyto(self.drawn_from, self.episode)
            steps = self.episode[:, None] + np.arange(DRAWN_AT_ONCE)
            lanes = np.repeat(first_row + np.arange(len(self.episode)), DRAWN_AT_ONCE)
            drawn = self.rng.uniforms_at("data", steps.reshape(-1), lanes, self.drawn.shape[2])
            np.copyto(self.drawn, drawn.reshape(self.drawn.shape))
            place = np.zeros_like(rows)
        uniforms = self.drawn[rows, place]
        self.parity[rows] = (uniforms[:, 0] * 2).astype(np.int64)
        self.data[rows], self.label[rows] = self.scenario.draw(uniforms[:, 1:])

    def step(self, action: Action) -> StepResult:
        np.copyto(self.action, np.asarray(action))
        num_ended = self.converse()
        if num_ended < 0:
            lane = -1 - num_ended
            found = self.action[lane].tolist()
            raise QuintainError(f"the policy chose action {found} for lane {lane}, of {self.spec.action}", code="E0101")
        self.chosen.fill(True)
        self.look()
        _, reward, ends, decision = self.results
        final_seen, info = self.seen, {}
        if num_ended:
            np.copyto(self.final_seen, self.seen)
            final_seen = self.final_seen
            np.copyto(self.chosen, ends[:, 0])
            said = {"accuracy": decision == self.label, "rounds": self.round}
            said |= {f"reward_{name}": self.earned[:, number] for number, name in enumerate(self.protocol.agent_names)}
            info[EPISODE] = {
                name: np.repeat(np.where(self.chosen, value, np.nan), ends.shape[1]) for name, value in said.items()
            }
            self._begin(np.flatnonzero(self.chosen))
            self.look()
        return StepResult(
            self._obs(self.seen),
            reward.reshape(-1),
            ends.reshape(-1),
            self.truncated,
            self._obs(final_seen),
            info=info,
            action_mask=self.action_mask(),
        )

    @property
    def last_round(self) -> Round:
        """The last round of all rows, for transcripts; valid until the next step."""
        spoken, reward, ends, decision = self.results
        return Round(spoken, self.action.reshape(*ends.shape, -1), decision, reward, ends[:, 0])

    def action_mask(self) -> Array:
        """Returns the allowed options; an agent that does not speak or decide has one option of each component."""
        rounds, variants = self.rules.speaks.shape[:2]
        place = variants * np.minimum(self.round, rounds - 1) + self.parity
        if self.protocol.num_phases > 1:
            place += 2 * self.phase
        np.take(self.mask_of, place, axis=0, out=self.mask, mode="clip")
        return self.mask.reshape(self.num_lanes, -1)

    def _obs(self, seen: Array) -> Observation:
        return {"agent": self.whose, "seen": seen.reshape(self.num_lanes, -1)}


def _rules_of(protocol: ProtocolHandler, num_options: int, shuffles: bool) -> Rules:
    """Returns a protocol as tables."""
    names, outcomes = protocol.agent_names, protocol.outcome_table()
    speaks = np.array(protocol.turn_table())
    is_deciding = np.array([name in protocol.deciding_names for name in names])
    may = [[protocol.can_decide(number, parity) for parity in (0, 1)] for number in range(len(speaks))]
    can_decide = np.tile(may, protocol.num_phases)[:, :, None] & is_deciding & speaks.any(-1)
    verifiers = protocol.verifier_names
    values = {name: len(DECISIONS) ** power for power, name in enumerate(reversed(verifiers))}
    place = np.array([values.get(name, 0) for name in names])

    def table(read: Callable[[Outcome], object], dtype: type) -> Array:
        return np.array([[[[read(each) for each in d] for d in p] for p in r] for r in outcomes], dtype)

    rewards = table(lambda each: [each.rewards[name] for name in names], np.float32)
    ends, decides = table(lambda each: each.is_terminated, np.bool_), table(lambda each: each.decision, np.int64)
    phases = table(lambda each: each.next_phase, np.int64)
    return Rules(speaks, can_decide, place, rewards, ends, decides, phases, num_options, shuffles)
