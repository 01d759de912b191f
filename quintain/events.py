"""Names for writing events: `from quintain.events import Every, register`."""

from __future__ import annotations

from quintain.core.lazy import registrar
from quintain.services.events import After, EventManager, Every, On

register = registrar("event")
register_env_event = registrar("env_event")

__all__ = ["After", "EventManager", "Every", "On", "register", "register_env_event"]
