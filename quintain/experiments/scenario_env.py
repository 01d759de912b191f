"""The environment of all scenarios of tensors: rows of conversations, a lane for every agent of every row.

A scenario brings data and views; the protocol brings turns, rewards and ends, as tables. Lane `row * A + agent` is one
agent of one row, so a field [T, rows * A] is seen as [T, rows, A] without a copy. All lanes of a row end together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.envs.base import EPISODE, Env, StepResult
from quintain.envs.settings import ScenarioSettings
from quintain.errors import SettingsError
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.protocols.base import CONTINUE, DECISIONS, ProtocolHandler
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
            "speaks",
            "can_decide",
            "mask_of",
            "reward_of",
            "ends_of",
            "decides_of",
            "last_round",
            "whose",
            "drawn",
            "drawn_block",
        }
    )

    def __init__(self, settings: ScenarioSettings, num_lanes: int, rng: Rng, first_lane: int = 0) -> None:
        self.settings = settings
        hyper_params = HyperParameters.from_dict(settings.hyper_params)
        self.protocol = protocol = build_protocol_handler(hyper_params)
        made = shipped_scenario(hyper_params.scenario).load()
        self.scenario: TensorScenario = made(hyper_params, protocol)
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
        turns, outcomes = protocol.turn_table(), protocol.outcome_table()
        self.speaks = np.array(turns)
        """[rounds, 2, A, C]"""
        verifiers = [name in protocol.verifier_names for name in protocol.agent_names]
        may = [[protocol.can_decide(number, parity) for parity in (0, 1)] for number in range(len(turns))]
        self.can_decide = np.array(may)[:, :, None] & np.array(verifiers) & self.speaks.any(-1)
        """[rounds, 2, A]"""
        messages = np.repeat(self.speaks[..., None], options, axis=4)
        messages[..., 0] = True
        decisions = np.repeat(self.can_decide[..., None], len(DECISIONS), axis=3)
        decisions[..., CONTINUE] = True
        self.mask_of = np.concatenate((messages.reshape(*decisions.shape[:3], -1), decisions), axis=3)
        """[rounds, 2, A, options]"""

        def table(read: object) -> Array:
            return np.array([[[[read(each) for each in d] for d in p] for p in r] for r in outcomes])  # type: ignore[operator]

        self.reward_of = table(lambda each: [each.rewards[name] for name in protocol.agent_names]).astype(np.float32)
        """[rounds, 2, decisions, labels, A]"""
        self.ends_of = table(lambda each: each.is_terminated)
        self.decides_of = table(lambda each: each.decision)
        rows = num_lanes // agents
        self.episode: Array = np.full(rows, -1, np.int64)
        self.round: Array = np.zeros(rows, np.int64)
        self.data: Array = np.zeros((rows, self.scenario.datum_size), np.float32)
        self.label: Array = np.zeros(rows, np.int64)
        self.parity: Array = np.zeros(rows, np.int64)
        self.messages: Array = np.full((rows, channels), NO_MESSAGE, np.int64)
        self.earned: Array = np.zeros((rows, agents))
        self.passed_on: Array = np.zeros((agents, channels), np.int64)
        """With `shuffle_messages`, the last message of each agent in each channel, for the next row."""
        self.last_round: Round | None = None
        self.whose: Array = np.tile(np.arange(agents), rows)
        # A function of row, episode and seed alone, so no state: drawn for several episodes, which saves time.
        self.drawn: Array = np.zeros((rows, DRAWN_AT_ONCE, 1 + self.scenario.num_draws), np.float32)
        self.drawn_block: Array = np.full(rows, -1, np.int64)

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        agents = len(self.protocol.agent_names)
        chosen: Array = np.ones(len(self.round), np.bool_)
        if lanes is not None:
            chosen[:] = np.asarray(lanes, dtype=np.bool_).reshape(-1, agents).any(axis=1)
        self._begin(np.flatnonzero(chosen))
        return self._observe()

    def _begin(self, rows: Array) -> None:
        if not len(rows):
            return
        first_row = self.first_lane // len(self.protocol.agent_names)
        self.episode[rows] += 1
        self.round[rows] = 0
        self.messages[rows] = NO_MESSAGE
        self.earned[rows] = 0.0
        block, place = np.divmod(self.episode[rows], DRAWN_AT_ONCE)
        if len(late := rows[self.drawn_block[rows] != block]):
            steps = DRAWN_AT_ONCE * (self.episode[late] // DRAWN_AT_ONCE)[:, None] + np.arange(DRAWN_AT_ONCE)
            lanes = np.repeat(first_row + late, DRAWN_AT_ONCE)
            drawn = self.rng.uniforms_at("data", steps.reshape(-1), lanes, self.drawn.shape[2])
            self.drawn[late] = drawn.reshape(len(late), DRAWN_AT_ONCE, -1)
            self.drawn_block[late] = self.episode[late] // DRAWN_AT_ONCE
        uniforms = self.drawn[rows, place]
        self.parity[rows] = (uniforms[:, 0] * 2).astype(np.int64)
        self.data[rows], self.label[rows] = self.scenario.draw(uniforms[:, 1:])

    def _hear(self, agent: int, said: Array, chosen: Array) -> None:
        """Writes an agent's messages [rows, channels] where it spoke; shuffled, each to the next such row."""
        if not self.settings.shuffle_messages:
            self.messages[said] = chosen[said]
            return
        for channel in range(said.shape[1]):
            rows = np.flatnonzero(said[:, channel])
            if len(rows):
                in_line = np.concatenate((self.passed_on[agent, channel, None], chosen[rows, channel]))
                self.messages[rows, channel], self.passed_on[agent, channel] = in_line[:-1], in_line[-1]

    def step(self, action: Action) -> StepResult:
        rows, (agents, channels) = len(self.round), self.speaks.shape[2:]
        chosen = np.asarray(action).reshape(rows, agents, channels + 1)
        spoken = self.speaks[self.round, self.parity]
        for agent in range(agents):
            self._hear(agent, spoken[:, agent], chosen[:, agent, :channels])
        deciding = self.can_decide[self.round, self.parity]
        decision = np.where(deciding, chosen[:, :, channels], CONTINUE).min(axis=1)
        key = (self.round, self.parity, decision, self.label)
        reward, ended, counted = self.reward_of[key], self.ends_of[key], self.decides_of[key]
        self.earned += reward
        self.last_round = Round(spoken, chosen, counted, reward, ended)
        self.round += 1
        final_obs = self._observe()
        obs, info = final_obs, {}
        ends = np.repeat(ended, agents)
        if ended.any():
            said = {"accuracy": counted == self.label, "rounds": self.round}
            said |= {f"reward_{name}": self.earned[:, number] for number, name in enumerate(self.protocol.agent_names)}
            info[EPISODE] = {
                name: np.repeat(np.where(ended, value.astype(np.float64), np.nan), agents)
                for name, value in said.items()
            }
            self._begin(np.flatnonzero(ended))
            obs = self._observe()
        return StepResult(
            obs,
            reward.reshape(-1),
            ends,
            np.zeros_like(ends),
            final_obs,
            info=info,
            action_mask=self.action_mask(),
        )

    def action_mask(self) -> Array:
        """Returns the allowed options; an agent that does not speak or decide has one option of each component."""
        number = np.minimum(self.round, len(self.speaks) - 1)
        allowed: Array = self.mask_of[number, self.parity].reshape(self.num_lanes, -1)
        return allowed

    def _observe(self) -> Observation:
        rows, agents = len(self.round), len(self.protocol.agent_names)
        seen = self.scenario.view(self.data, self.messages, self.round)
        return {"agent": self.whose, "seen": seen.reshape(rows * agents, -1).astype(np.float32, copy=False)}
