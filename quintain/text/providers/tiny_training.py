"""Training of tiny models: on whole texts, on the answers of chats, and on preferred answers (DPO).

Runs in a child process with one thread. A job is a function of its order alone: the files it names, their contents and
the seed. One that is killed is begun again, with the same weights at its end.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.settings import ParameterGroup
from quintain.core.rng import Rng
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.files.line_file import LineFile
from quintain.services.processes.messages import Assembler, receive
from quintain.text.providers import tiny_model
from quintain.text.providers.base import MIN_EXAMPLES
from quintain.text.providers.tiny_model import ASSISTANT, PAD, ROLES, Decoder, Shape, Vocabulary, words_of

if TYPE_CHECKING:
    from quintain.typing import Json, JsonObject

MAX_TRAINING_BYTES = 256_000_000
WARM_UP_STEPS = 50
WEIGHT_DECAY = 0.1
EVENT_EVERY = 50
DEFAULTS = {
    "pretrain": {"n_epochs": 1, "batch_size": 64, "learning_rate": 2e-3},
    "supervised": {"n_epochs": 20, "batch_size": 32, "learning_rate": 1e-3},
    "dpo": {"n_epochs": 10, "batch_size": 32, "learning_rate": 3e-4, "beta": 0.1},
}
"""Hyper-parameters of each method where a request says nothing or "auto"."""
_LIMITS = {
    "n_epochs": (1, 1_000_000),
    "batch_size": (1, 4096),
    "learning_rate_multiplier": (1e-4, 1e3),
    "beta": (1e-6, 1e3),
}

Row = tuple[list[int], list[bool]]
"""Tokens, and which of them are learned."""


class InvalidFile(ValueError):
    """A training file or a hyper-parameter that a job cannot use."""


def work(descriptor: int) -> None:
    """Carries out the order that the provider sends: the main function of a child process."""
    torch.set_num_threads(1)
    with socket.socket(fileno=descriptor) as channel:
        channel.settimeout(60.0)
        text, _ = receive(channel, Assembler())
        order: JsonObject = json.loads(text)
    carry_out(order)


def carry_out(order: JsonObject) -> None:
    """Trains a model and writes it, then the result; a file that cannot be used is a result too."""
    folder, target = Path(order["folder"]), Path(order["target"])
    # A job that is begun again says everything again.
    (folder / "events.jsonl").unlink(missing_ok=True)
    events = LineFile(folder / "events.jsonl")

    def tell(message: str, **data: Json) -> None:
        events.append(json.dumps({"message": message, "data": data}).encode())

    result: JsonObject
    try:
        decoder, tokens = _trained(order, tell)
        tiny_model.save(decoder, target)
        result = {"status": "succeeded", "trained_tokens": tokens, "sha256": weights_sha256(decoder)}
        tell("the job is done")
    except InvalidFile as error:
        result = {"status": "failed", "error": f"invalid_training_file: {error}"}
    events.close()
    atomic.replace_file(folder / "result.json", json.dumps(result).encode())


def weights_sha256(decoder: Decoder) -> str:
    """Returns a hash of all weights."""
    total = hashlib.sha256()
    for name, tensor in sorted(decoder.state_dict().items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def _trained(order: JsonObject, tell: Callable[..., None]) -> tuple[Decoder, int]:
    method: str = order["method"]
    lines = _lines(Path(order["training_file"]))
    if method == "pretrain":
        chats = [_chat(record.get("messages"), number, needs_answer=False) for number, record in lines]
        words = sorted({word for chat in chats for _, content in chat for word in words_of(content)})
        decoder = Decoder(Vocabulary(words), Shape(**order["shape"]), seed=order["seed"])
    else:
        if len(lines) < MIN_EXAMPLES:
            raise InvalidFile(f"{len(lines)} examples, expected at least {MIN_EXAMPLES}")
        decoder = tiny_model.load(Path(order["start"]))
    batches = _Batches(order, len(lines))
    if method == "dpo":
        pairs = [_pair(record, number, decoder) for number, record in lines]
        reference = copy.deepcopy(decoder).requires_grad_(False)
        beta = batches.number("beta")

        def loss_of(places: Sequence[int]) -> torch.Tensor:
            good, bad = ([pairs[place][side] for place in places] for side in (0, 1))
            margins = [_log_likelihood(each, good) - _log_likelihood(each, bad) for each in (decoder, reference)]
            return -functional.logsigmoid(beta * (margins[0] - margins[1])).mean()

        rows = [row for pair in pairs for row in pair]
    else:
        if method == "supervised":
            chats = [_chat(record.get("messages"), number) for number, record in lines]
        rows = [_row(decoder, chat, learns_all=method == "pretrain") for chat in chats]

        def loss_of(places: Sequence[int]) -> torch.Tensor:
            tokens, learned = _stacked([rows[place] for place in places])
            logits = decoder(tokens[:, :-1])
            return functional.cross_entropy(logits[learned[:, 1:]], tokens[:, 1:][learned[:, 1:]])

    _descend(decoder, loss_of, batches, tell)
    return decoder.eval(), sum(len(tokens) for tokens, _ in rows) * batches.num_epochs


class _Batches:
    """The batches of a job: every epoch is a permutation of the examples by (seed, epoch)."""

    def __init__(self, order: JsonObject, num_examples: int) -> None:
        self._given: JsonObject = order["hyperparameters"]
        self._defaults = DEFAULTS[order["method"]]
        self.num_examples = num_examples
        self.num_epochs, self.batch_size = int(self.number("n_epochs")), int(self.number("batch_size"))
        self.learning_rate = self._defaults["learning_rate"] * self.number("learning_rate_multiplier")
        self.num_steps = self.num_epochs * math.ceil(num_examples / self.batch_size)
        self._rng = Rng(order["seed"])

    def number(self, name: str) -> float:
        value = self._given.get(name, "auto")
        low, high = _LIMITS[name]
        if value == "auto":
            return self._defaults.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidFile(f"{name} is {value!r}, expected a number from {low} to {high}")
        return value

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in range(self.num_epochs):
            order = self._rng.generator("batches", epoch).permutation(self.num_examples).tolist()
            for start in range(0, self.num_examples, self.batch_size):
                yield order[start : start + self.batch_size]


def _descend(
    decoder: Decoder, loss_of: Callable[[Sequence[int]], torch.Tensor], batches: _Batches, tell: Callable[..., None]
) -> None:
    decoder.train()
    decay = {"all": ParameterGroup(parameters="*", weight_decay=WEIGHT_DECAY)}
    optimizer = Optimizer(decoder.named_parameters(), max_grad_norm=1.0, groups=decay)
    warm_up = min(WARM_UP_STEPS, math.ceil(batches.num_steps / 5))
    for step, places in enumerate(batches):
        rise, fall = (step + 1) / warm_up, 2 * (1 - step / batches.num_steps)
        loss = loss_of(places)
        optimizer.step(loss, batches.learning_rate * min(1.0, rise, fall))
        if (step + 1) % EVENT_EVERY == 0 or step + 1 == batches.num_steps:
            tell(
                f"step {step + 1}/{batches.num_steps}: training loss {loss.item():.4f}",
                step=step + 1,
                total_steps=batches.num_steps,
                train_loss=loss.item(),
            )


def _log_likelihood(decoder: Decoder, rows: Sequence[Row]) -> torch.Tensor:
    """Returns the log-probability of the learned tokens of each row."""
    tokens, learned = _stacked(rows)
    scores: torch.Tensor = decoder(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return (scores * learned[:, 1:]).sum(1)


def _stacked(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(tokens) for tokens, _ in rows)
    tokens = torch.tensor([row + [PAD] * (length - len(row)) for row, _ in rows])
    return tokens, torch.tensor([row + [False] * (length - len(row)) for _, row in rows])


def _row(
    decoder: Decoder, chat: Sequence[tuple[str, str]], *, learns_all: bool = False, only_last: bool = False
) -> Row:
    """Returns a chat as tokens; learned are all of them, the answers, or the last answer."""
    tokens, learned = [], []
    for number, (role, content) in enumerate(chat):
        message = decoder.vocabulary.message(role, content)
        is_learned = ROLES[role] == ASSISTANT and (not only_last or number == len(chat) - 1)
        tokens += message
        # The token of the role is given, not predicted, when an answer is decoded.
        learned += [learns_all, *[learns_all or is_learned] * (len(message) - 1)]
    context = decoder.shape.context
    return tokens[-context:], learned[-context:]


def _pair(record: JsonObject, number: int, decoder: Decoder) -> tuple[Row, Row]:
    given = record.get("input")
    prompt = _chat(given.get("messages") if isinstance(given, dict) else None, number, needs_answer=False)
    sides = (_chat(record.get(name), number) for name in ("preferred_output", "non_preferred_output"))
    good, bad = (_row(decoder, [*prompt, *side], only_last=True) for side in sides)
    return good, bad


def _lines(path: Path) -> list[tuple[int, JsonObject]]:
    try:
        text = plain_files.read(path, MAX_TRAINING_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"cannot be read ({error})") from error
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidFile(f"line {number} is no JSON ({error})") from error
        if not isinstance(record, dict):
            raise InvalidFile(f"line {number} is no object")
        found.append((number, record))
    return found


def _chat(messages: object, number: int, *, needs_answer: bool = True) -> list[tuple[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise InvalidFile(f"line {number} has no messages")
    chat = []
    for each in messages:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if not isinstance(role, str) or role not in ROLES or not isinstance(content, str):
            raise InvalidFile(f"line {number} has a message that is no role with a text")
        chat.append((role, content))
    if needs_answer and chat[-1][0] != "assistant":
        raise InvalidFile(f"line {number}: the last message is of {chat[-1][0]}, expected assistant")
    return chat
