"""Public names: listed in order, importable, and the same for readers, editors and star imports."""

from __future__ import annotations

import importlib

import pytest

from tests.architecture.source import modules

EXPORTING = [name for name in modules() if hasattr(importlib.import_module(name), "__all__")]


def test_the_packages_that_users_import_from_declare_their_names() -> None:
    assert {"quintain", "quintain.envs", "quintain.algorithms", "quintain.events", "quintain.settings"} <= {*EXPORTING}


@pytest.mark.parametrize("name", EXPORTING)
def test_names_are_sorted_unique_and_importable(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(module.__all__)
    assert exported == sorted(set(exported)), f"{name}.__all__ should be {sorted(set(exported))}"
    for attribute in exported:
        # A module of the same name would take the name's place as soon as anyone imports it.
        assert f"{name}.{attribute}" not in modules(), f"{name}.{attribute} is both a name and a module"
        assert getattr(module, attribute) is not None, f"{name}.{attribute}"


@pytest.mark.parametrize("name", EXPORTING)
def test_dir_shows_every_name(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error_that_names_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'quintain' has no attribute 'Trainr'"):
        importlib.import_module("quintain").Trainr  # noqa: B018  # reading it is the test
