"""Which environment variables a child process may see: what programs need to run, and no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_NAMES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "DISPLAY", "HOME", "JAVA_HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME",
        "PATH", "PYOPENGL_PLATFORM", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "WAYLAND_DISPLAY",
        "XAUTHORITY",
    }
)  # fmt: skip
_PREFIXES = ("EGL_", "GLFW_", "LC_", "LIBGL_", "MESA_", "MKL_", "MUJOCO_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON",
             "SDL_", "XDG_", "__EGL_", "__GLX_")  # fmt: skip
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
# Several processes share the machine; a pool of threads in each would only slow all of them down.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def child_environment(also: Iterable[str] = ()) -> dict[str, str]:
    """Returns the variables of this process that a child gets; `also` names further ones the user wants passed on."""
    wanted = set(also)
    passed = {name: value for name, value in os.environ.items() if name in wanted or _is_harmless(name)}
    return {**_DEFAULTS, **passed}


def _is_harmless(name: str) -> bool:
    return (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
