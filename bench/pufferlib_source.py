"""Builds PufferLib from its source archive, with CartPole as the only native environment.

The archive is the only release, and its setup fetches graphics libraries for environments that are not measured here;
with their folders in place, empty, it builds without a network. Needs a C++ compiler.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from environments import CannotInstall

RELEASE = "pufferlib==3.0.0"
_NOT_NEEDED = ("raylib-5.5_webassembly", "box2d-web", "box2d-linux-amd64")
_MINUTES = 15


def build(python: Path, place: Path) -> None:
    """Makes `import pufferlib` work in a kit's environment."""
    source = _unpack(python, place / "source")
    for name in _NOT_NEEDED:
        (source / name).mkdir(exist_ok=True)
    for binding in (source / "pufferlib" / "ocean").glob("**/binding.c"):
        if binding.parent.name != "cartpole":
            binding.unlink()
    setup = source / "setup.py"
    # Where it finds a CUDA compiler it wants CUDA itself, which no other kit has either.
    setup.write_text(setup.read_text().replace('shutil.which("nvcc")', "False"))
    command = [str(python), "setup.py", "build_ext", "--inplace"]
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=source,
        env={**os.environ, "PATH": path, "MAX_JOBS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * _MINUTES,
    )
    if done.returncode:
        raise CannotInstall((done.stderr.strip().splitlines() or ["its extensions do not compile"])[-1])
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "pufferlib_source.pth").write_text(f"{source}\n")


def _unpack(python: Path, place: Path) -> Path:
    """Lets pip fetch and unpack the archive; that pip then fails to read its setup is expected without a network."""
    place.mkdir(exist_ok=True)
    command = [str(python), "-m", "pip", "download", "--quiet", "--no-clean", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--no-binary", ":all:", "--dest", str(place), RELEASE],
        env={**os.environ, "TMPDIR": str(place)},
        capture_output=True,
        check=False,
        timeout=60 * _MINUTES,
    )
    for setup in place.glob("*/*/setup.py"):
        return setup.parent
    raise CannotInstall("its source archive could not be fetched")
