"""Writes settings as YAML in which every value carries its origin as a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quintain.settings.yaml_text import Raw, write_flow

_COMMENT_COLUMN = 44


def annotated_yaml(tree: Mapping[str, Raw], origins: Mapping[str, str]) -> str:
    """Writes the tree; the comments are aligned in one column."""
    return "".join(f"{line}\n" for line in _mapping(tree, origins, "", ""))


def origins_behind(origins: Mapping[str, str], source: str, text: str) -> dict[str, str]:
    """Replaces each origin that is a line of an annotated file by the origin in that line's comment."""
    comments = [line.rpartition(" # ")[2] if " # " in line else "" for line in text.splitlines()]
    behind = {f"{source}:{number}": comment for number, comment in enumerate(comments, start=1) if comment}
    return {path: behind.get(origin, origin) for path, origin in origins.items()}


def _mapping(tree: Mapping[str, Raw], origins: Mapping[str, str], path: str, indent: str) -> Iterator[str]:
    for key, value in tree.items():
        below = f"{path}.{key}" if path else key
        name = f"{indent}{write_flow(key)}:"
        if isinstance(value, Mapping) and value:
            yield name
            yield from _mapping(value, origins, below, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield name
            yield from _list(value, origins, below, indent)
        else:
            line, origin = f"{name} {write_flow(value)}", origins.get(below)
            # A file name may hold anything; a line break in it must not end the comment.
            yield f"{line:<{_COMMENT_COLUMN}} # {origin.encode('unicode_escape').decode()}" if origin else line


def _list(items: list[Raw], origins: Mapping[str, str], path: str, indent: str) -> Iterator[str]:
    for index, item in enumerate(items):
        lines = list(_mapping(item, origins, f"{path}.{index}", indent + "    "))
        yield f"{indent}  - {lines[0].lstrip()}"
        yield from lines[1:]
