"""A small decoder-only transformer over words, with a key-value cache, and its vocabulary and file.

A chat becomes one row of tokens: each message is a token for its role, its words, and `<end>`. Words that the
vocabulary lacks are left out. Each message is decoded on its own: no other conversation is in its matrices, so that it
cannot depend on a batch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch
from torch import nn
from torch.nn import functional

from quintain.core.rng import Rng
from quintain.services import plain_files
from quintain.services.files import atomic

if TYPE_CHECKING:
    from quintain.typing import JsonObject

PAD, END, SYSTEM, USER, ASSISTANT = range(5)
SPECIAL = ("<pad>", "<end>", "<system>", "<user>", "<assistant>")
ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
MAX_FILE_BYTES = 64_000_000
MAX_WORDS = 20_000
_MAX_SIZES = {"width": 512, "num_layers": 12, "num_heads": 16, "context": 2048}
_WORD = re.compile(r"[A-Za-z_]+:?|\d+|[=<>!/*]{2}|\S")


def words_of(text: str) -> list[str]:
    """Splits a text into words.

    >>> words_of("Decision: accept x+10 == y")
    ['Decision:', 'accept', 'x', '+', '10', '==', 'y']
    """
    return _WORD.findall(text)


class Vocabulary:
    """The words that a model can read and write."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIAL, *words)
        self._numbers = {word: number for number, word in enumerate(self.words) if number >= len(SPECIAL)}

    def __len__(self) -> int:
        return len(self.words)

    def message(self, role: str, content: str) -> list[int]:
        """Returns the tokens of a whole message."""
        known = (self._numbers.get(word) for word in words_of(content))
        return [ROLES[role], *(number for number in known if number is not None), END]

    def prompt(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        """Returns the tokens of (role, content) pairs and of the beginning of an answer."""
        return [*(token for role, content in messages for token in self.message(role, content)), ASSISTANT]

    def text(self, tokens: Iterable[int]) -> str:
        return " ".join(self.words[token] for token in tokens if token >= len(SPECIAL))


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    width: int = 64
    num_layers: int = 2
    num_heads: int = 4
    context: int = 160
    """The longest row of tokens."""


class DecoderBlock(nn.Module):
    """Self-attention and a perceptron, each behind a layer norm and added to its input."""

    def __init__(self, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        width = shape.width
        self.num_heads = shape.num_heads
        self.attention_norm, self.perceptron_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        depth = math.sqrt(2 * shape.num_layers)
        for layer, scale in (
            (self.query_key_value, 1.0),
            (self.attention_out, depth),
            (self.up, 1.0),
            (self.down, depth),
        ):
            nn.init.normal_(layer.weight, std=1 / (scale * math.sqrt(layer.in_features)), generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, inputs: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        rows, length, width = inputs.shape
        heads = self.query_key_value(self.attention_norm(inputs)).view(rows, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = cache.extend(self, key, value)
        # One new token sees the whole cache; a prompt has no cache yet.
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        inputs = inputs + self.attention_out(seen.transpose(1, 2).reshape(rows, length, width))
        change: torch.Tensor = self.down(functional.gelu(self.up(self.perceptron_norm(inputs))))
        return inputs + change


class Cache:
    """The keys and values of the tokens of one conversation so far."""

    def __init__(self) -> None:
        self.length = 0
        self._blocks: dict[DecoderBlock, tuple[torch.Tensor, torch.Tensor]] = {}

    def extend(self, block: DecoderBlock, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds new tokens [1, heads, tokens, size] and returns all."""
        if block in self._blocks:
            old_key, old_value = self._blocks[block]
            key, value = torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2)
        self._blocks[block] = key, value
        return key, value


class Decoder(nn.Module):
    """The transformer: tokens [rows, length] to logits [rows, length, words]."""

    def __init__(self, vocabulary: Vocabulary, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.vocabulary, self.shape = vocabulary, shape
        generator = torch.Generator().manual_seed(seed)
        self.token = nn.Embedding(len(vocabulary), shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02, generator=generator)
        self.blocks = nn.ModuleList(DecoderBlock(shape, generator) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        first = 0 if cache is None else cache.length
        hidden = self.token(tokens) + self.position.weight[first : first + tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
            hidden = hidden[:, -1:]
        return functional.linear(self.norm(hidden), self.token.weight)

    @torch.inference_mode()
    def answer(
        self, prompt: Sequence[int], seed: int, max_tokens: int, temperature: float = 1.0, top_p: float = 1.0
    ) -> tuple[list[int], bool]:
        """Decodes an answer; returns its tokens, and whether it ended by itself. Depends on the arguments alone."""
        room = min(max_tokens, self.shape.context // 2)
        # The oldest tokens are forgotten where a conversation is longer than the context.
        tokens = list(prompt[-(self.shape.context - room) :])
        draws = Rng(seed).generator("decode").random(room)
        cache = Cache()
        answer: list[int] = []
        logits = self(torch.tensor([tokens]), cache)
        for draw in draws:
            chosen = choose(logits[0, -1].numpy(), float(draw), temperature, top_p)
            if chosen == END:
                return answer, True
            answer.append(chosen)
            logits = self(torch.tensor([[chosen]]), cache)
        return answer, False


def choose(logits: np.ndarray[tuple[int], np.dtype[np.float32]], draw: float, temperature: float, top_p: float) -> int:
    """Returns the token that a uniform number in [0, 1) draws: words and `<end>`, never a role."""
    scores = logits.astype(np.float64)
    scores[[PAD, SYSTEM, USER, ASSISTANT]] = -np.inf
    if temperature == 0.0:
        return int(scores.argmax())
    weights = np.exp((scores - scores.max()) / temperature)
    if top_p < 1.0:
        order = np.argsort(-weights, kind="stable")
        # The smallest set of likeliest tokens that has this much probability.
        size = 1 + int(np.searchsorted(np.cumsum(weights[order]), top_p * weights.sum()))
        weights[order[size:]] = 0.0
    total = np.cumsum(weights)
    return int(np.searchsorted(total, draw * total[-1], side="right"))


def save(decoder: Decoder, folder: Path) -> None:
    """Writes a model durably; `model.safetensors` comes last, so that a model with this file is whole."""
    facts = {"format": 1, "shape": asdict(decoder.shape), "words": decoder.vocabulary.words[len(SPECIAL) :]}
    plain_files.make_folder(folder)
    atomic.replace_file(folder / "model.json", json.dumps(facts).encode())
    tensors = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    atomic.replace_file(folder / "model.safetensors", safetensors_torch.save(tensors))


def load(folder: Path) -> Decoder:
    """Reads a model; raises ValueError for files that are no such model."""
    try:
        facts: JsonObject = json.loads(plain_files.read(folder / "model.json", MAX_FILE_BYTES))
        words, sizes = facts["words"], facts["shape"]
        if len(words) > MAX_WORDS or not all(isinstance(word, str) and word for word in words):
            raise ValueError(f"model.json has {len(words)} words, expected texts, at most {MAX_WORDS}")
        # Before memory is allocated by them.
        if not all(type(size) is int and 0 < size <= _MAX_SIZES[name] for name, size in sizes.items()):
            raise ValueError(f"model.json has sizes beyond {_MAX_SIZES}")
        if sizes["width"] % sizes["num_heads"]:
            raise ValueError("model.json: num_heads does not divide width")
        decoder = Decoder(Vocabulary(words), Shape(**sizes))
        tensors = safetensors_torch.load(plain_files.read(folder / "model.safetensors", MAX_FILE_BYTES))
        _require_alike(decoder.state_dict(), tensors)
        decoder.load_state_dict(tensors)
    except (KeyError, TypeError, AttributeError, RecursionError, SafetensorError, RuntimeError) as error:
        raise ValueError(f"{folder}: no model of this provider ({type(error).__name__}: {error})") from error
    return decoder.eval()


def _require_alike(own: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in own.items():
        if name not in found or found[name].shape != tensor.shape or found[name].dtype != tensor.dtype:
            raise ValueError(f"model.safetensors: {name} is missing or has another shape than {list(tensor.shape)}")
        if not torch.isfinite(found[name]).all():
            raise ValueError(f"model.safetensors: {name} is not finite")
