"""A word that the glossary marks as a class is one, in the module it names."""

from __future__ import annotations

import importlib

import pytest

from tests.docs.pages import DOCS, table

CLASSES = [row for row in table(DOCS / "glossary.md", "# Glossary") if row[1]]


@pytest.mark.parametrize(("term", "module"), [(row[0], row[1]) for row in CLASSES])
def test_class_exists(term: str, module: str) -> None:
    assert isinstance(getattr(importlib.import_module(module), term), type)


FIELD = """action_mask, advantage, asynchronous, behaviour cloning, bootstrap, callback, continuous action, discount,
discrete action, entropy coefficient, epsilon-greedy, hidden state, minibatch, n-step return, off-policy, on-policy,
Polyak averaging, replay buffer, serialize, target network, teammate, truncated, value head, vectorized environment"""


def test_terms_of_the_field_are_there() -> None:
    assert set(FIELD.replace("\n", " ").split(", ")) <= {row[0] for row in table(DOCS / "glossary.md", "# Glossary")}


def test_terms_are_in_order() -> None:
    terms = [row[0].lower() for row in table(DOCS / "glossary.md", "# Glossary")]
    assert terms == sorted(set(terms))
