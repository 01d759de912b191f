"""Puts frames of videos below each other: `python docs/pictures/make_strip.py OUT.png BEFORE.webp AFTER.webp`."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image, ImageSequence

COLUMNS = 6
WIDTH, HEIGHT, GAP = 213, 120, 4


def main(out: str, *videos: str) -> None:
    strip = Image.new("RGB", (COLUMNS * (WIDTH + GAP) - GAP, len(videos) * (HEIGHT + GAP) - GAP), "white")
    for row, video in enumerate(videos):
        with Image.open(video) as opened:
            frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(opened)]
        # Evenly over the episode; a short one is shown whole.
        count = min(COLUMNS, len(frames))
        for column in range(count):
            frame = frames[round(column * (len(frames) - 1) / max(1, count - 1))]
            strip.paste(frame.resize((WIDTH, HEIGHT)), (column * (WIDTH + GAP), row * (HEIGHT + GAP)))
    strip.quantize(64).save(Path(out), optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
