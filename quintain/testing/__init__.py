"""Doubles and assertions for testing custom parts: a scripted environment, and two checks of saved state."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Episode": "quintain.testing.scripted_env",
        "ScriptedEnv": "quintain.testing.scripted_env",
        "assert_all_state_saved": "quintain.testing.saved_state",
        "assert_resumes_exactly": "quintain.runs.exact_resume",
        "check_env": "quintain.envs.check.checks",
        "differences": "quintain.data.differences",
    },
)
