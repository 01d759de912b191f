"""Detects secrets by name or by form, and redacts them in texts that are written to files."""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(
    r"KEY(?!BOARD|MAP)|TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?:^|_)(?:PASS|PAT)$|_PWD$",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"\b(?:sk|hf|gh[oprsu]|glpat|github_pat|xox[a-z])[-_][A-Za-z0-9_-]{12,}")
_LOGIN_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE")
MIN_SECRET_LENGTH = 8


# Keys that were read from files; like the environment, they are of the whole process.
_read_from_files: set[str] = set()


def remember_secret(value: str) -> None:
    """Redacts this text too, from now on: a key that is in no environment variable."""
    if len(value) >= MIN_SECRET_LENGTH:
        _read_from_files.add(value)


def redact(text: str) -> str:
    """Redacts the values of secret-looking environment variables and texts that look like access keys."""
    secrets = _read_from_files | {
        value for name, value in os.environ.items() if len(value) >= MIN_SECRET_LENGTH and is_secret_name(name)
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return _SECRET_TEXT.sub("[redacted]", text)


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable looks like a secret, by its name or its value."""
    # The whole value: a path may have a part that looks like an access key.
    return is_secret_name(name) or bool(_SECRET_TEXT.fullmatch(value) or _LOGIN_IN_URL.search(value))
