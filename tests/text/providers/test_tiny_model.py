"""The decoder of `tiny`: its cache, its draws, its independence of other conversations, and its files."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.text.providers import tiny_model
from quintain.text.providers.tiny_model import ASSISTANT, END, SYSTEM, USER, Cache, Decoder, Shape, Vocabulary, choose

WORDS = ["accept", "Decision:", "plus", "reject", "x"]


def decoder(seed: int = 0) -> Decoder:
    made = Decoder(Vocabulary(WORDS), Shape(width=16, num_layers=2, num_heads=2, context=32), seed)
    for parameter in made.parameters():
        parameter.data *= 3  # far from uniform, so that draws differ
    return made.eval()


def attention_by_hand(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """The last logits, with every token, head and product written out in float64."""
    model = Decoder(model.vocabulary, model.shape).double()
    model.load_state_dict({name: each.double() for name, each in decoder().state_dict().items()})
    hidden = [model.token.weight[token] + model.position.weight[place] for place, token in enumerate(tokens)]
    for block in model.blocks:
        normed = [block.attention_norm(each) for each in hidden]
        mixed = []
        for place in range(len(tokens)):
            heads = []
            for head in range(2):
                rows = [slice(part * 16 + head * 8, part * 16 + head * 8 + 8) for part in range(3)]
                weight = block.query_key_value.weight
                query = weight[rows[0]] @ normed[place]
                scores = [query @ (weight[rows[1]] @ normed[each]) / math.sqrt(8) for each in range(place + 1)]
                shares = torch.stack(scores).softmax(0)
                heads.append(sum(shares[each] * (weight[rows[2]] @ normed[each]) for each in range(place + 1)))
            mixed.append(hidden[place] + block.attention_out.weight @ torch.cat(heads))
        hidden = [each + block.down(torch.nn.functional.gelu(block.up(block.perceptron_norm(each)))) for each in mixed]
    return model.token.weight @ model.norm(hidden[-1])


def test_logits_are_those_of_attention_written_out_with_and_without_a_cache() -> None:
    model, tokens = decoder(), [SYSTEM, 7, 9, END, USER, 8, END, ASSISTANT]
    expected = attention_by_hand(model, tokens).float()
    whole = model(torch.tensor([tokens]))[0, -1]
    cache = Cache()
    model(torch.tensor([tokens[:5]]), cache)
    for token in tokens[5:]:
        last = model(torch.tensor([[token]]), cache)[0, -1]
    assert torch.allclose(whole, expected, atol=1e-4)
    assert torch.allclose(last, expected, atol=1e-4)


def test_words_that_are_not_known_are_left_out() -> None:
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.prompt([("system", "add x plus <end> y"), ("user", "Decision:accept")]) == [
        SYSTEM, 9, 7, END, USER, 6, 5, END, ASSISTANT,
    ]  # fmt: skip
    assert vocabulary.text([6, 5]) == "Decision: accept"


@pytest.mark.parametrize(
    ("draw", "temperature", "top_p", "chosen"),
    [
        # The probabilities of END and of tokens 5, 6, 7 are 1/2, 1/4, 1/8, 1/8.
        (0.49, 1.0, 1.0, END),
        (0.51, 1.0, 1.0, 5),
        (0.76, 1.0, 1.0, 6),
        (0.99, 1.0, 1.0, 7),
        (0.99, 0.0, 1.0, END),
        # Only END and 5 remain: 2/3 and 1/3.
        (0.66, 1.0, 0.7, END),
        (0.67, 1.0, 0.7, 5),
        # At temperature 1/2 the weights are squared: 16, 4, 1, 1 of 22.
        (0.72, 0.5, 1.0, END),
        (0.73, 0.5, 1.0, 5),
    ],
)
def test_a_draw_is_the_inverse_of_the_cumulative_probability(
    draw: float, temperature: float, top_p: float, chosen: int
) -> None:
    logits = np.log(np.array([100.0, 4.0, 100.0, 100.0, 100.0, 2.0, 1.0, 1.0], dtype=np.float32))
    assert choose(logits, draw, temperature, top_p) == chosen


def test_an_answer_is_the_same_alone_among_threads_and_with_another_number_of_threads() -> None:
    model = decoder()
    prompts = [
        [SYSTEM, *[5 + (number * place) % 5 for place in range(1 + number % 9)], END, ASSISTANT] for number in range(64)
    ]
    alone = [model.answer(prompt, seed=number, max_tokens=12) for number, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: model.answer(prompts[number], number, 12), reversed(range(64))))
    assert together[::-1] == alone
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        assert [model.answer(prompt, number, 12) for number, prompt in enumerate(prompts)] == alone
    finally:
        torch.set_num_threads(before)
    assert len({json.dumps(each) for each in alone}) > 32


def test_an_answer_depends_on_its_seed_and_ends_at_the_limit() -> None:
    model = decoder()
    answers = [model.answer([SYSTEM, 5, END, ASSISTANT], seed, 10) for seed in range(30)]
    assert len({str(each) for each in answers}) > 10
    assert all(len(tokens) <= 10 and (has_ended or len(tokens) == 10) for tokens, has_ended in answers)
    long = [SYSTEM, *[5] * 100, END, ASSISTANT]
    assert len(model.answer(long, 0, 100, temperature=0.0)[0]) <= 16


def test_a_model_survives_its_files(tmp_path: Path) -> None:
    model = decoder(seed=3)
    tiny_model.save(model, tmp_path / "m")
    loaded = tiny_model.load(tmp_path / "m")
    assert loaded.vocabulary.words == model.vocabulary.words
    assert all(torch.equal(each, loaded.state_dict()[name]) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": {"width": 10**9, "num_layers": 2, "num_heads": 2, "context": 32}}, "sizes beyond"),
        # 4096 blocks of width 4096 would take 3 TB.
        ({"shape": {"width": 4096, "num_layers": 4096, "num_heads": 2, "context": 32}}, "sizes beyond"),
        ({"shape": {"width": 16, "num_layers": 2, "num_heads": 3, "context": 32}}, "does not divide"),
        ({"shape": {"width": 32, "num_layers": 2, "num_heads": 2, "context": 32}}, "another shape"),
        ({"words": ["a"] * 30_000}, "30000 words"),
        ({"words": [1, 2]}, "expected texts"),
        ({"shape": 3}, "no model of this provider"),
    ],
)
def test_files_that_are_no_model_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    tiny_model.save(decoder(), tmp_path / "m")
    facts = json.loads((tmp_path / "m/model.json").read_text())
    (tmp_path / "m/model.json").write_text(json.dumps({**facts, **change}))
    with pytest.raises(ValueError, match=message):
        tiny_model.load(tmp_path / "m")


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = decoder()
    model.norm.weight.data[0] = math.nan
    tiny_model.save(model, tmp_path / "m")
    with pytest.raises(ValueError, match=r"norm.weight is not finite"):
        tiny_model.load(tmp_path / "m")
