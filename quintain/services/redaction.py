"""Blanks what must not reach a file: the values of secrets, wherever a text may have picked them up."""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"\b(?:sk|hf|ghp|github_pat|xox[a-z])[-_][A-Za-z0-9_-]{12,}")
_MIN_SECRET_LENGTH = 8


def redact(text: str) -> str:
    """Blanks the values of secret-looking environment variables and what looks like an access key."""
    secrets = {
        value for name, value in os.environ.items() if len(value) >= _MIN_SECRET_LENGTH and _SECRET_NAME.search(name)
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "[redacted]")
    return _SECRET_TEXT.sub("[redacted]", text)
