"""MineStudio's coding of actions: one index for all buttons, one for the camera, and what they mean in the game.

The 8640 button indices are the product of nine groups, the last of which varies fastest; index 8640 opens the
inventory. The camera has 11 x 11 bins of a mu-law; it moves only if the last group, the camera switch, is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.typing import Action, Array

GROUPS: tuple[tuple[str, ...], ...] = (
    ("", *(f"hotbar.{slot}" for slot in range(1, 10))),
    ("", "forward", "back"),
    ("", "left", "right"),
    ("", "sprint", "sneak"),
    ("", "use"),
    ("", "drop"),
    ("", "attack"),
    ("", "jump"),
    ("", "camera"),
)
"""Buttons that exclude each other; the first choice of each group presses none of them."""
NUM_BUTTONS = 8641
INVENTORY = 8640
NUM_BINS = 11
NUM_CAMERA = NUM_BINS * NUM_BINS
CENTER = NUM_CAMERA // 2
MAX_DEGREES = 10.0
MU = 10.0

ENV_BUTTONS = (
    "attack", "back", "forward", "jump", "left", "right", "sneak", "sprint", "use",
    *(f"hotbar.{slot}" for slot in range(1, 10)), "inventory",
)  # fmt: skip
"""The 19 buttons of an action of the engine; `drop` is not among them."""


def _mu_law() -> Array:
    """Degrees of the bins of one axis: 0, +-0.6154, +-1.6095, +-3.2154, +-5.8095, +-10."""
    place = np.linspace(-1.0, 1.0, NUM_BINS)
    return np.sign(place) * MAX_DEGREES / MU * ((1.0 + MU) ** np.abs(place) - 1.0)


DEGREES = _mu_law()


def buttons_index(pressed: Sequence[str]) -> int:
    """Returns the index of a set of buttons; `camera` is the switch that lets the camera move.

    >>> buttons_index([]), buttons_index(["camera"]), buttons_index(["attack", "jump"]), buttons_index(["inventory"])
    (0, 1, 6, 8640)
    """
    if "inventory" in pressed:
        return INVENTORY
    index, left = 0, set(pressed)
    for group in GROUPS:
        chosen = [place for place, name in enumerate(group) if name and name in left]
        if len(chosen) > 1:
            names = " and ".join(group[place] for place in chosen)
            raise SettingsError(f"buttons {names} exclude each other; press one of them")
        left -= set(group)
        index = index * len(group) + (chosen[0] if chosen else 0)
    if left:
        known = ", ".join(name for group in GROUPS for name in group if name)
        raise SettingsError(f"unknown button {sorted(left)[0]!r}; there are {known}, inventory")
    return index


def pressed_buttons(index: int) -> tuple[str, ...]:
    """Returns the buttons of an index.

    >>> pressed_buttons(7), pressed_buttons(8640)
    (('attack', 'jump', 'camera'), ('inventory',))
    """
    if not 0 <= index < NUM_BUTTONS:
        raise ValueError(f"buttons {index} is not below {NUM_BUTTONS}")
    if index == INVENTORY:
        return ("inventory",)
    names = []
    for group in reversed(GROUPS):
        index, place = divmod(index, len(group))
        names.append(group[place])
    return tuple(name for name in reversed(names) if name)


def camera_index(pitch: float, yaw: float) -> int:
    """Returns the index of the bins nearest to a turn in degrees.

    >>> camera_index(0.0, 0.0), camera_index(-10.0, 10.0)
    (60, 10)
    """
    return int(np.abs(DEGREES - pitch).argmin()) * NUM_BINS + int(np.abs(DEGREES - yaw).argmin())


def to_env_action(buttons: int, camera: int) -> dict[str, Action]:
    """Decodes an action of an agent into one of the engine; without the camera switch the camera stays."""
    if not 0 <= camera < NUM_CAMERA:
        raise ValueError(f"camera {camera} is not below {NUM_CAMERA}")
    pressed = pressed_buttons(buttons)
    action: dict[str, Action] = {name: int(name in pressed) for name in ENV_BUTTONS}
    turns = divmod(camera if "camera" in pressed else CENTER, NUM_BINS)
    action["camera"] = DEGREES[list(turns)]
    return action


def to_agent_action(action: Mapping[str, Action]) -> dict[str, Array]:
    """Encodes an action of the engine; of buttons that exclude each other none is pressed, as in MineStudio."""
    pitch, yaw = (float(turn) for turn in np.asarray(action["camera"], np.float64))
    pressed = [name for name in ENV_BUTTONS if int(action.get(name, 0))]
    for group in GROUPS:
        both = [name for name in group if name in pressed]
        if len(both) > 1:
            pressed = [name for name in pressed if name not in both]
    camera = camera_index(pitch, yaw)
    if camera != CENTER:
        pressed.append("camera")
    return {"buttons": np.array([buttons_index(pressed)]), "camera": np.array([camera])}
