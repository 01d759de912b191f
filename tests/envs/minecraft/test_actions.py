"""MineStudio's coding of buttons and camera, against indices and degrees worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.envs.minecraft import actions
from quintain.errors import SettingsError


def test_degrees_are_those_of_the_mu_law() -> None:
    # 10/10 * (11**(k/5) - 1) for k = 1..5.
    expected = [0.6154, 1.6095, 3.2154, 5.8095, 10.0]
    np.testing.assert_allclose(actions.DEGREES[6:], expected, atol=1e-4)
    np.testing.assert_allclose(actions.DEGREES, -actions.DEGREES[::-1], atol=1e-12)


@pytest.mark.parametrize(
    ("pressed", "index"),
    [
        ([], 0),
        (["camera"], 1),
        (["jump"], 2),
        (["attack"], 4),
        (["drop"], 8),
        (["use"], 16),
        (["sprint"], 32),
        (["sneak"], 64),
        (["left"], 96),  # 3 * 32
        (["right"], 192),
        (["forward"], 288),  # 3 * 96
        (["back"], 576),
        (["hotbar.1"], 864),  # 3 * 288
        (["hotbar.9", "back", "right", "sneak", "use", "drop", "attack", "jump", "camera"], 8639),
        (["inventory"], 8640),
    ],
)
def test_buttons_are_a_product_of_groups(pressed: list[str], index: int) -> None:
    assert actions.buttons_index(pressed) == index
    assert set(actions.pressed_buttons(index)) == set(pressed)


def test_the_camera_moves_only_with_its_switch() -> None:
    # Row 10 is the largest pitch, column 0 the smallest yaw.
    turned = actions.to_env_action(actions.buttons_index(["attack", "camera"]), 10 * 11)
    np.testing.assert_allclose(turned["camera"], [10.0, -10.0])
    assert turned["attack"] == 1
    still = actions.to_env_action(actions.buttons_index(["attack"]), 10 * 11)
    np.testing.assert_allclose(still["camera"], [0.0, 0.0])
    assert sorted(set(turned) - {"camera"}) == sorted(actions.ENV_BUTTONS)
    assert len(actions.ENV_BUTTONS) == 19


def test_an_action_of_the_engine_comes_back() -> None:
    coded = actions.to_agent_action({"camera": [0.6, -5.9], "forward": 1, "jump": 1})
    # 288 forward + 2 jump + 1 camera; bins 6 and 1.
    assert (coded["buttons"].tolist(), coded["camera"].tolist()) == ([291], [6 * 11 + 1])
    both = actions.to_agent_action({"camera": [0.0, 0.0], "forward": 1, "back": 1, "attack": 1})
    assert (both["buttons"].tolist(), both["camera"].tolist()) == ([4], [60])


def test_impossible_buttons_are_refused() -> None:
    with pytest.raises(SettingsError, match="forward and back exclude each other"):
        actions.buttons_index(["forward", "back"])
    with pytest.raises(SettingsError, match="unknown button 'fly'"):
        actions.buttons_index(["fly"])
    with pytest.raises(ValueError, match="8641"):
        actions.pressed_buttons(8641)
