"""The `quintain doctor` command: what this installation and machine have, and what to do about what is missing."""

from __future__ import annotations

import importlib.metadata
import json as json_text
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

from quintain.compiled.runtime.cache import cache_note
from quintain.compiled.runtime.kernel import why_unavailable
from quintain.core.extras import install_command
from quintain.core.versions import numba_settings, quintain_version
from quintain.errors import ResourceError
from quintain.services.reporting.printable import escape_control_characters

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
NOT_FOR_USERS = frozenset({"dev"})


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report."""

    about: str
    state: str
    """ok, note (works, worth knowing), or missing (training cannot work until it is mended)."""
    text: str


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print a list of {about, state, text}.")] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Connect to a Ray cluster, or start one, and explain it.")] = False,
    address: Annotated[
        str | None, typer.Option(help="The cluster of --ray, which it implies; else RAY_ADDRESS, or a local one.")
    ] = None,
) -> None:
    """Explains Python, torch, devices, threads, compiled code and extras of this installation, and a Ray cluster."""
    installed = [*about_python(), *about_torch(), about_threads(), about_kernels(), *about_extras()]
    width, findings = max(len(finding.about) for finding in installed), []
    # Line by line: a cluster takes seconds to start or to answer.
    for finding in chain(installed, about_ray(address) if ray or address is not None else ()):
        findings.append(finding)
        if not json:
            told = f"{finding.state:<8} {finding.about:<{width}}  {finding.text}"
            typer.echo(escape_control_characters(told))
    if json:
        typer.echo(json_text.dumps([asdict(finding) for finding in findings], indent=2))
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(ResourceError.exit_code)


def about_python() -> list[Diagnosis]:
    version = platform.python_version()
    is_new_enough = sys.version_info >= (3, 11)
    told = f"{version} at {sys.executable}"
    python = (
        Diagnosis("python", "ok", told) if is_new_enough else Diagnosis("python", "missing", f"{told}; 3.11 is needed")
    )
    return [Diagnosis("quintain", "ok", quintain_version()), python]


def about_torch() -> list[Diagnosis]:
    if find_spec("torch") is None:
        return [Diagnosis("torch", "missing", 'not installed. Install it with: pip install "torch>=2.11,<2.14"')]
    import torch

    findings = [Diagnosis("torch", "ok", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")]
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        findings.append(Diagnosis("devices", "ok", f"cpu, cuda ({names}); run.device=cuda uses it"))
    elif torch.version.cuda is not None:
        findings.append(
            Diagnosis("devices", "note", "cpu; torch has CUDA, and finds no device of it: is there a driver?")
        )
    else:
        findings.append(Diagnosis("devices", "ok", "cpu; this build of torch has no CUDA"))
    return findings


def about_threads() -> Diagnosis:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = [f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if name in os.environ]
    text = f"{cores} cores for this process; a run has one thread of torch, run.threads sets more"
    return Diagnosis("threads", "note" if told else "ok", "; ".join([text, *told]))


def about_kernels() -> Diagnosis:
    if reason := why_unavailable():
        return Diagnosis("kernels", "note", f"policies act and learn by torch's own operations: {reason}")
    if note := cache_note():
        return Diagnosis("kernels", "note", note.removeprefix("note: "))
    changed = f"; changed by {', '.join(numba_settings())}" if numba_settings() else ""
    return Diagnosis("kernels", "ok", f"small policies act and learn by compiled code, which is kept{changed}")


def about_extras() -> list[Diagnosis]:
    """Returns a line for each extra: installed, or the command that installs it."""
    findings = []
    for extra in sorted(importlib.metadata.metadata("quintain").get_all("Provides-Extra") or ()):
        if extra in NOT_FOR_USERS:
            continue
        versions = {name: _version(name) for name in packages_of("quintain", extra)}
        if all(versions.values()):
            told = ", ".join(f"{name} {version}" for name, version in versions.items())
            findings.append(Diagnosis(f"[{extra}]", "ok", told))
        else:
            absent = ", ".join(name for name, version in versions.items() if not version)
            findings.append(Diagnosis(f"[{extra}]", "note", f"without {absent}; {install_command(extra)}"))
    return findings


def about_ray(address: str | None) -> Iterator[Diagnosis]:
    """Yields what is known of a Ray cluster, as soon as it is; imports Ray."""
    if find_spec("ray") is None:
        yield Diagnosis("ray", "missing", f"not installed. Install it with: {install_command('ray')}")
        return
    for line in import_module("quintain.placements.ray.examine").examine(address, Path("runs")):
        yield Diagnosis(*line)


def packages_of(package: str, extra: str) -> list[str]:
    """Returns the packages that an extra asks for here, each with those of the extras that it names in turn."""
    found: list[str] = []
    for line in importlib.metadata.requires(package) or ():
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate({"extra": ""}) or not asked.marker.evaluate({"extra": extra}):
            continue
        found.append(asked.name)
        if asked.extras and _version(asked.name):
            found += [each for inner in sorted(asked.extras) for each in packages_of(asked.name, inner)]
    return list(dict.fromkeys(found))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
