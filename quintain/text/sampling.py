"""Carries out conversations in threads; results are independent of their order."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quintain.data.nested_arrays import NestedArrayDict, string_array
from quintain.errors import RunDirectoryError
from quintain.experiments.protocols.base import CONTINUE, ProtocolHandler
from quintain.services.reporting.printable import escape_control_characters
from quintain.text.archive import Archive, Conversation, Split
from quintain.text.calls import Calls, Stopped
from quintain.text.model_groups import SharedModelGroups, prompt_json
from quintain.text.prompts import AgentTurn, Prompts
from quintain.text.protocols import speakers
from quintain.text.providers.base import ChatAnswer, ChatRequest
from quintain.text.scenario import DataPoint

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.text.settings import TextAgentSettings, TextTrainerSettings
    from quintain.typing import Array

TELL_EVERY_SECONDS = 10.0
MAX_ANSWER_CHARACTERS = 100_000


@dataclass
class TextEnvironment:
    """The conversations of one split: which data point an index has, and how a conversation goes."""

    split: Split
    points: Sequence[DataPoint]
    num_envs: int
    """Conversations in an iteration."""
    protocol: ProtocolHandler
    prompts: Prompts
    groups: SharedModelGroups
    settings: TextTrainerSettings
    calls: Calls
    rng: Rng
    _last_order: tuple[int, Array] = (-1, np.zeros(0, dtype=np.int64))
    """The order of the epoch that was asked for last; threads may compute it twice."""

    def point_at(self, iteration: int, index: int) -> DataPoint:
        """Returns the data point of an index: every epoch covers the data once, in an order by (seed, epoch)."""
        if self.split == "test":
            return self.points[index % len(self.points)]
        epoch, place = divmod(iteration * self.num_envs + index, len(self.points))
        known, order = self._last_order
        if known != epoch:
            order = self.rng.generator("order", epoch).permutation(len(self.points))
            self._last_order = epoch, order
        return self.points[int(order[place])]

    @property
    def longest_answer(self) -> int:
        """The most tokens that any agent may answer with."""
        return max(_max_tokens(self.settings.agent(name)) for name in self.protocol.agent_names)

    def require_own(self, talk: Conversation) -> None:
        """Refuses a stored conversation that this environment cannot have had."""
        seed = self.rng.child(self.split).seed_for("conversation", talk.iteration, talk.index)
        names, rounds = self.protocol.agent_names, self.protocol.max_message_rounds
        if (
            talk.seed != seed
            or not 0 < len(talk.rewards) <= rounds
            or any(turn.agent not in names or turn.round >= rounds for turn in talk.turns)
        ):
            raise RunDirectoryError(
                f"rollouts/: {talk.split} conversation {talk.index} of iteration {talk.iteration} is not of this run. "
                f"Remove its line; it is sampled again",
                code="E0308",
            )

    def converse(self, iteration: int, index: int) -> Conversation:
        """Carries out one conversation; it depends on (seed, iteration, split, index) and the models alone."""
        point, protocol = self.point_at(iteration, index), self.protocol
        seeds = self.rng.child(self.split)
        talk = Conversation(
            iteration,
            self.split,
            index,
            point.id,
            point.y,
            point.prover_stance,
            point.question,
            point.solution,
            seed=seeds.seed_for("conversation", iteration, index),
        )
        for number in range(protocol.max_message_rounds):
            # All agents of a round hear only earlier rounds, so that their order does not matter.
            turns = [self._turn(agent, number, point, talk, seeds) for agent in speakers(protocol, number, talk.seed)]
            talk.turns += turns
            decision = next((turn.decision for turn in turns if turn.decision != CONTINUE), CONTINUE)
            outcome = protocol.step(number, decision, point.y, seed=talk.seed, stance=point.prover_stance)
            talk.rewards.append(dict(outcome.rewards))
            for turn in turns:
                turn.decision = outcome.decision if turn.decision != CONTINUE else CONTINUE
            if outcome.is_terminated:
                break
        return talk

    def _turn(self, agent: str, number: int, point: DataPoint, talk: Conversation, seeds: Rng) -> AgentTurn:
        settings, group = self.settings.agent(agent), self.groups.of_agent(agent)
        prompt = self.prompts.build(agent, number, talk.seed, point, talk.turns)
        limit = _max_tokens(settings)
        turn = AgentTurn(agent, number, prompt, "")
        for attempt in range(settings.num_invalid_generation_retries + 1):
            turn.retries = attempt
            request = ChatRequest(
                group.model_name,
                prompt,
                seed=seeds.child(agent).seed_for("chat", talk.iteration, talk.index, number, attempt),
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_tokens=limit,
                tag=f"{talk.iteration}/{talk.split}/{talk.index}/{number}/{agent}",
            )
            answer: ChatAnswer = self.calls.read(
                lambda request=request: group.provider.chat(request),  # type: ignore[misc]
                f"a chat of {agent}",
            )
            if self.calls.should_stop():
                raise Stopped
            if answer.text is None or answer.finish == "content_filter" or len(answer.text) > MAX_ANSWER_CHARACTERS:
                continue
            # Models' texts end on terminals and in files that people read; line breaks are harmless.
            raw = "\n".join(escape_control_characters(line) for line in answer.text.split("\n"))
            parsed = self.prompts.parse(agent, number, talk.seed, raw)
            turn.raw, turn.is_cut = raw, answer.finish == "length"
            if parsed is not None:
                turn.messages, turn.decision = parsed
                return turn
        return turn

    def rollouts(self, conversations: Sequence[Conversation]) -> NestedArrayDict:
        """Returns conversations as arrays of shape (conversations, rounds), padded to the longest possible one."""
        names, rounds = list(self.protocol.agent_names), self.protocol.max_message_rounds
        shape, inner = (len(conversations), rounds), (len(conversations), rounds, len(names))
        texts = {name: np.full(inner, None, dtype=object) for name in ("raw_message", "prompt")}
        decision, retries = np.full(inner, CONTINUE), np.zeros(inner, dtype=np.int64)
        is_cut, reward = np.zeros(inner, dtype=bool), np.zeros(inner)
        padding, done = np.ones(shape, dtype=bool), np.zeros(shape, dtype=bool)
        for row, talk in enumerate(conversations):
            for turn in talk.turns:
                place = row, turn.round, names.index(turn.agent)
                texts["raw_message"][place] = turn.raw
                texts["prompt"][place] = prompt_json(turn.prompt)
                decision[place], retries[place], is_cut[place] = turn.decision, turn.retries, turn.is_cut
            for number, rewards in enumerate(talk.rewards):
                padding[row, number] = False
                reward[row, number] = [rewards.get(name, 0.0) for name in names]
            done[row, len(talk.rewards) - 1] = True

        def each_round(values: list[object]) -> Array:
            return np.repeat(np.array(values, dtype=object)[:, None], rounds, axis=1)

        whole = NestedArrayDict(batch_size=shape)
        for name in ("iteration", "index", "y", "prover_stance", "seed"):
            whole[name] = each_round([getattr(talk, name) for talk in conversations]).astype(np.int64)
        for name, field in (("datapoint_id", "point_id"), ("question", "question"), ("solution", "solution")):
            whole[name] = string_array(each_round([getattr(talk, field) for talk in conversations]))
        whole["round"] = np.broadcast_to(np.arange(rounds), shape).copy()
        whole["padding"] = padding
        whole["agents"] = {
            "raw_message": string_array(texts["raw_message"]),
            "prompt": string_array(texts["prompt"]),
            "decision": decision,
            "retry_count": retries,
            "token_limit": is_cut,
        }
        whole["next"] = {"done": done, "agents": {"reward": reward}}
        return whole


def _max_tokens(settings: TextAgentSettings) -> int:
    return settings.max_tokens_per_message or int(1.5 * settings.max_response_words)


def sample(
    environment: TextEnvironment, archive: Archive, iteration: int, count: int, tell: Callable[[str], None]
) -> list[Conversation]:
    """Carries out the conversations that the archive lacks; raises `Stopped` as soon as the run is asked to stop."""
    known = archive.conversations(iteration, environment.split)
    for each in known.values():
        environment.require_own(each)
    missing = [index for index in range(count) if index not in known]
    if missing:
        _fill(environment, archive, iteration, missing, tell)
    found = archive.conversations(iteration, environment.split)
    archive.complete(iteration, environment.split)
    return [found[index] for index in range(count)]


def _fill(
    environment: TextEnvironment, archive: Archive, iteration: int, missing: list[int], tell: Callable[[str], None]
) -> None:
    calls, todo, lock = environment.calls, iter(missing), threading.Lock()
    results: queue.Queue[Conversation | BaseException] = queue.Queue(maxsize=len(missing) + calls.settings.num_workers)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set() and not calls.should_stop():
            with lock:
                index = next(todo, None)
            if index is None:
                return
            try:
                results.put(environment.converse(iteration, index))
            except BaseException as error:  # the main thread raises it
                results.put(error)
                return

    # Daemons: a request that hangs must not keep a stopped run from ending.
    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(calls.settings.num_workers, len(missing)))]
    for worker in workers:
        worker.start()
    started = told = time.monotonic()
    finished = 0
    try:
        while finished < len(missing):
            try:
                result = results.get(timeout=0.02)
            except queue.Empty:
                if calls.should_stop():
                    raise Stopped from None
                continue
            # Those that finished meanwhile are made durable together.
            together = [result, *(results.get_nowait() for _ in range(results.qsize()))]
            done = [each for each in together if isinstance(each, Conversation)]
            archive.append(*done)
            finished += len(done)
            for each in together:
                if isinstance(each, BaseException):
                    raise each
            now = time.monotonic()
            if now - told >= TELL_EVERY_SECONDS:
                told = now
                left = (now - started) / finished * (len(missing) - finished)
                tell(
                    f"iteration {iteration}: {finished} of {len(missing)} {environment.split} conversations, "
                    f"about {left:.0f} s left"
                )
    finally:
        is_over.set()
        # Conversations that finished meanwhile are paid for.
        late = [results.get_nowait() for _ in range(results.qsize())]
        archive.append(*(each for each in late if isinstance(each, Conversation)))


def transcript(talk: Conversation) -> list[str]:
    """Returns a conversation as lines for people."""
    shown = ["reject", "accept", "no decision"][talk.decision]
    rewards = {name: talk.total_reward(name) for name in sorted({name for each in talk.rewards for name in each})}
    lines = [
        f"== iteration {talk.iteration}, {talk.split} {talk.index}: {talk.point_id}, label {talk.y}, {shown}, rewards "
        f"{json.dumps(rewards)}",
        *(f"   {line}" for text in (talk.question, talk.solution) for line in text.splitlines()),
    ]
    for turn in talk.turns:
        lines += [f"{turn.agent}: {line}" for line in turn.raw.split("\n")]
    return [escape_control_characters(line) for line in lines]
