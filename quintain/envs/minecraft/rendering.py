"""Draws what a player sees: a sky, a chequered meadow, and animals and pillars as boxes.

One call draws all pixels at once; directions of pixels are computed once per size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from quintain.typing import Array

EYE_HEIGHT = 1.62
_HALF_VIEW = math.tan(math.radians(35.0))
"""Half of the field of view of 70 degrees, at distance 1."""
_GRASS = np.array([[86, 140, 62], [104, 162, 76]], np.uint8)
_SKY = np.array([[196, 220, 255], [112, 160, 240]], np.float32)
_SEEN_CELLS = 48.0


@dataclass
class Entity:
    """An animal or a pillar in the meadow."""

    kind: str
    x: float
    z: float
    health: float = 8.0
    hurt_until: int = -1
    """The tick until which it cannot be hit again."""

    @property
    def look(self) -> Appearance:
        return LOOKS[self.kind]


@dataclass(frozen=True)
class Appearance:
    """Size in blocks and colours of a kind of entity."""

    width: float
    height: float
    body: tuple[int, int, int]
    face: tuple[int, int, int]


LOOKS = {
    "sheep": Appearance(1.2, 1.3, (236, 236, 236), (222, 178, 160)),
    "cow": Appearance(1.2, 1.4, (92, 64, 48), (210, 206, 200)),
    "target": Appearance(1.0, 2.4, (214, 40, 40), (250, 250, 250)),
    "red": Appearance(1.4, 3.2, (208, 32, 32), (208, 32, 32)),
    "blue": Appearance(1.4, 3.2, (36, 64, 216), (36, 64, 216)),
}
"""Everything that can be summoned."""


@cache
def _directions(width: int, height: int) -> tuple[Array, Array]:
    """Offsets to the right [1, W] and upwards [H, 1] of the pixels' centres, at distance 1."""
    right = ((np.arange(width) + 0.5) / width * 2.0 - 1.0) * _HALF_VIEW
    up = (1.0 - (np.arange(height) + 0.5) / height * 2.0) * _HALF_VIEW * height / width
    return right.astype(np.float32)[None, :], up.astype(np.float32)[:, None]


def draw(
    width: int, height: int, place: tuple[float, float], yaw: float, pitch: float, entities: Sequence[Entity]
) -> Array:
    """Returns the view [H, W, 3] from a place (x, z); yaw turns right and pitch down, in degrees."""
    right, up = _directions(width, height)
    turn, tilt = math.radians(yaw), math.radians(pitch)
    cos, sin = math.cos(tilt), math.sin(tilt)
    # A row of pixels has one slope; its rays meet the ground at one distance along the view.
    rise, ahead = up * cos - sin, up * sin + cos
    with np.errstate(divide="ignore"):
        distance = np.where(rise < 0.0, EYE_HEIGHT / -rise, np.inf)
    near = distance[:, 0] * np.abs(ahead[:, 0]) < _SEEN_CELLS
    image: Array = np.empty((height, width, 3), np.uint8)
    shade = np.clip(rise, 0.0, 1.0)
    image[:] = (_SKY[0] + (_SKY[1] - _SKY[0]) * shade)[:, None, :]
    image[(rise[:, 0] < 0.0) & ~near] = (95, 150, 70)
    if near.any():
        reach, forth = distance[near], ahead[near]
        x = place[0] + reach * (math.cos(turn) * right + math.sin(turn) * forth)
        z = place[1] + reach * (math.cos(turn) * forth - math.sin(turn) * right)
        image[near] = _GRASS[(np.floor(x).astype(np.int32) + np.floor(z).astype(np.int32)) & 1]
    seen = sorted(((*_seen_from(place, turn, each), each) for each in entities), key=lambda found: -found[1])
    for side, depth, entity in seen:
        if depth > 0.2:
            _draw_entity(image, entity, side, depth, cos, sin)
    return image


def _seen_from(place: tuple[float, float], turn: float, entity: Entity) -> tuple[float, float]:
    """Returns how far to the right and how far ahead of the player an entity is."""
    dx, dz = entity.x - place[0], entity.z - place[1]
    return dx * math.cos(turn) - dz * math.sin(turn), dx * math.sin(turn) + dz * math.cos(turn)


def _draw_entity(image: Array, entity: Entity, side: float, depth: float, cos: float, sin: float) -> None:
    height, width = image.shape[:2]
    scale = width / 2.0 / _HALF_VIEW
    look = entity.look

    def box(left: float, low: float, wide: float, tall: float, colour: tuple[int, int, int]) -> None:
        """Fills a box that stands across the view, given in blocks from its middle and from the ground."""
        rows, columns = [], []
        for y in (low + tall - EYE_HEIGHT, low - EYE_HEIGHT):
            forth = depth * cos - y * sin
            if forth <= 0.1:
                return
            rows.append(round(height / 2.0 - scale * (y * cos + depth * sin) / forth))
            columns.append(scale / forth)
        size = sum(columns) / 2.0
        first, last = (round(width / 2.0 + size * (side + x)) for x in (left, left + wide))
        top, bottom = max(rows[0], 0), max(rows[1], 0)
        image[top : max(bottom, top + 1), max(first, 0) : max(last, 0)] = colour

    if entity.kind in ("sheep", "cow"):
        for leg in (-0.5, 0.3):
            box(leg * look.width, 0.0, 0.2 * look.width, 0.5, look.face)
        box(-look.width / 2, 0.4, look.width, look.height - 0.4, look.body)
        box(-look.width * 0.2, 0.65, look.width * 0.4, 0.4, look.face)
    else:
        box(-look.width / 2, 0.0, look.width, look.height, look.body)
        box(-look.width / 2, look.height * 0.4, look.width, look.height * 0.2, look.face)


def add_crosshair(image: Array) -> None:
    """Marks the middle, for people."""
    height, width = image.shape[:2]
    arm = max(width // 40, 1)
    row, column = height // 2, width // 2
    for cross in (np.s_[row, column - arm : column + arm + 1], np.s_[row - arm : row + arm + 1, column]):
        image[cross] = 255
