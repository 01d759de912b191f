"""Rollout samples of tensor agents as conversations that people can read, for `quintain transcripts`.

The event `sample_conversations` plays conversations with the current policy, in an environment of its own, and writes
`rollouts/test-<iteration>.jsonl` of the run. Training does not notice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.experiments.protocols.base import ACCEPT, CONTINUE
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.rollouts.evaluate import Evaluator
from quintain.services.files import atomic
from quintain.text.archive import Conversation
from quintain.text.prompts import AgentTurn
from quintain.trainers.global_streams import GlobalStreams

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.services.events import When
    from quintain.trainers.base import Trainer
    from quintain.trainers.events import EventContext
    from quintain.trainers.settings import SampleConversationsSettings


class Scribe:
    """Writes down the first conversation of every row of an environment, step by step."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.talks: list[Conversation] = []
        self.is_over: list[bool] = []

    def __call__(self, env: ScenarioEnv, has_ended: bool) -> None:
        """Adds the round that was just played; the first call is before any."""
        if not self.talks:
            self.is_over = [False] * len(env.label)
            for row, label in enumerate(env.label):
                name, datum = f"conversation {row}", env.scenario.describe(env.data[row])
                self.talks.append(Conversation(self.iteration, "test", row, name, int(label), ACCEPT, datum, ""))
            return
        played = env.last_round
        names, channels = env.protocol.agent_names, env.protocol.message_channel_names
        verifiers = env.protocol.verifier_names
        for row, talk in enumerate(self.talks):
            if self.is_over[row]:
                continue
            number = len(talk.rewards)
            for agent, name in enumerate(names):
                said = {
                    channel: env.scenario.describe_message(int(played.chosen[row, agent, place]))
                    for place, channel in enumerate(channels)
                    if played.spoken[row, agent, place]
                }
                if not said:
                    continue
                decision = CONTINUE
                if name in verifiers:
                    # Of several the decision that counts is the first one's.
                    counts = name == verifiers[0]
                    decision = int(played.decision[row] if counts else played.chosen[row, agent, -1])
                text = ", ".join(said.values() if len(channels) == 1 else (f"{k}: {v}" for k, v in said.items()))
                if decision != CONTINUE:
                    text = "accept" if decision == ACCEPT else "reject"
                talk.turns.append(AgentTurn(name, number, (), text, said, decision))
            talk.rewards.append({name: float(played.reward[row, agent]) for agent, name in enumerate(names)})
            self.is_over[row] = bool(played.ended[row])

    def write(self, path: Path) -> None:
        """Writes the conversations that are over, one in a line."""
        over = [talk for talk, is_over in zip(self.talks, self.is_over, strict=True) if is_over]
        atomic.replace_file(path, "".join(f"{json.dumps(talk.to_json())}\n" for talk in over).encode())


class SampleConversations:
    """Plays a few conversations with the current policy now and then, and writes them down."""

    def __init__(self, settings: SampleConversationsSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()
        self.evaluator: Evaluator | None = None
        if context.world.rank == 0:
            rng = context.rng.child("sample_conversations")
            with GlobalStreams().untouched():
                env = context.make_env(1, rng.child("env"))
                if not isinstance(env, ScenarioEnv):
                    raise SettingsError(
                        f"event sample_conversations: found an environment {type(env).__name__}, expected one of type "
                        "scenario; remove the event",
                        code="E0280",
                    )
                lanes = settings.num_conversations * len(env.protocol.agent_names)
                env = context.make_env(lanes, rng.child("env"))
            self.evaluator = Evaluator(env, lanes, rng)

    def __call__(self, trainer: Trainer) -> bool:
        if self.evaluator is None:
            return True
        scribe = Scribe(trainer.progress.iteration)
        with trainer.global_streams.untouched():
            played = self.evaluator.play(
                {name: learner.policy for name, learner in trainer.loop.learners.items()},
                deterministic=False,
                should_stop=trainer.should_stop,
                on_step=scribe,
            )
        if played is None:
            return False
        scribe.write(trainer.session.folder("rollouts") / f"test-{scribe.iteration:06d}.jsonl")
        return True

    def close(self) -> None:
        if self.evaluator is not None:
            self.evaluator.close()
