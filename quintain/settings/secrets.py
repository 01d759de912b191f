"""Finds secrets in settings, which are written to files, screens and tracking services."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quintain.settings.yaml_text import KeyPath

_SECRET_WORDS = r"(?:key|token|secret|password|passwd|credential)s?"
_NAMES_SECRET = re.compile(rf"(?:^|.*[_-]){_SECRET_WORDS}|.*(?:Key|Token|Secret|Password|Credential)s?", re.DOTALL)
_NAMES_PASSWORD = re.compile(r".*(?:password|passwd|secret)s?", re.IGNORECASE | re.DOTALL)
_REFERENCE = re.compile(r"(?:env|file):.+|\$\{?[A-Za-z_]\w*\}?")
# Letters and digits without a break, as no word or name has them: keys are made by machines.
_UNBROKEN = re.compile(r"[A-Za-z0-9]{16,}")
_ISSUED = re.compile(r"(?:sk|hf|gh[opsu]|github_pat|xox[abeprs])[-_]|AKIA|AIza")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_URL_PASSWORD = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def literal_secrets(values: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the paths of values that look like keys or passwords, by themselves or together with their names."""
    if isinstance(values, str):
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        if looks_secret(values, name):
            yield path
        return
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for step, value in items:
        yield from literal_secrets(value, (*path, step))


def looks_secret(text: str, name: str = "") -> bool:
    """Whether a text looks like a secret that must not be stored in a file.

    >>> looks_secret("0123456789abcdef", "api_key"), looks_secret("0123456789abcdef", "digest")
    (True, False)
    >>> looks_secret("pixels", "obs_key"), looks_secret("hunter2", "password"), looks_secret("env:DB", "password")
    (False, True, False)
    """
    if _PRIVATE_KEY.search(text) or _URL_PASSWORD.search(text):
        return True
    # Each unbroken part is looked at once: a pattern that asks for both kinds would begin anew at every character.
    has_random_part = any(not part.isalpha() and not part.isdigit() for part in _UNBROKEN.findall(text))
    if has_random_part and _ISSUED.match(text):
        return True
    if not _NAMES_SECRET.fullmatch(name) or _REFERENCE.fullmatch(text):
        return False
    return has_random_part or (bool(text) and _NAMES_PASSWORD.fullmatch(name) is not None)
