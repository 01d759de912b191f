"""The calls of Ray that this placement makes, with two errors of its own in place of Ray's many.

The only module besides the cluster's that imports Ray, and only when it is called.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from quintain.errors import SettingsError
from quintain.typing import JsonObject, Saved

Reference: TypeAlias = Saved
"""An object in the object store, or the result of a call."""
Handle: TypeAlias = Saved
"""A rollout actor."""
CALL_SECONDS = 30.0
CONNECT_SECONDS = 10.0
CONTROL = "control"
"""The concurrency group of methods that are called while a command is executed; the actor's class names it too."""


class RayFailure(Exception):
    """A call failed, and not by an error of quintain's."""


class Lost(RayFailure):
    """An actor died, or an object went with its node."""

    @property
    def cause(self) -> str:
        """The line of Ray's long message that says what happened."""
        lines = [line.strip() for line in str(self).splitlines() if line.strip()]
        detail = next((line for line in lines if "Worker exit detail" in line), lines[0] if lines else "it is gone")
        return detail.partition("Some common causes")[0].strip().rstrip(".")[:300]


def require_listener(address: str) -> None:
    """Raises `OSError` where nothing listens at a cluster's address, which Ray itself would ask for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    place = urlsplit(address if "://" in address else f"//{canonicalize_bootstrap_address(address)}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), CONNECT_SECONDS).close()


def require_runtime_env(given: JsonObject) -> None:
    """Refuses names that Ray would ignore with a line in its log, and folders that it cannot ship."""
    from ray.runtime_env import RuntimeEnv

    known = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
    for name in given:
        if name not in RuntimeEnv.known_fields:
            near = get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(known)}"
            raise SettingsError(f"run.placement.runtime_env.{name}: Ray knows no such setting; {advice}", code="E0203")
    folder = str(given.get("working_dir") or ".")
    if "://" not in folder and not Path(folder).exists():
        raise SettingsError(
            f"run.placement.runtime_env.working_dir: found {folder!r}, expected a folder that exists here, or a URI",
            code="E0205",
        )


def put(value: object) -> Reference:
    """Puts a value into the object store."""
    import ray

    return ray.put(value)


def get(reference: Reference, seconds: float = CALL_SECONDS) -> Saved:
    """Returns a value of the object store, arrays without a copy; raises `Lost`, or `RayFailure`."""
    import ray
    from ray.exceptions import ObjectLostError, RayActorError, RayError

    try:
        return ray.get(reference, timeout=seconds)
    except (RayActorError, ObjectLostError) as error:
        raise Lost(str(error)) from error
    except RayError as error:
        raise RayFailure(str(error)) from error


def next_of(reference: Reference) -> Reference:
    """Returns the next result of a call that yields several, which `is_ready` has found; else the reference itself."""
    import ray

    if not isinstance(reference, ray.ObjectRefGenerator):
        return reference
    try:
        return next(reference)
    except StopIteration:
        raise Lost("it ended before its reply was whole") from None


def is_ready(reference: Reference, seconds: float = 0.0) -> bool:
    """Whether a call has its next result within this time, or an error."""
    return bool(ready_of([reference], seconds))


def ready_of(references: Sequence[Reference], seconds: float) -> list[Reference]:
    """Returns the calls that have a result within this time, which is brought to this node if it is their only one."""
    import ray
    from ray.exceptions import RayError

    try:
        found: list[Reference] = ray.wait(list(references), timeout=seconds)[0]
    except RayError as error:
        raise RayFailure(str(error)) from error
    return found


def start_actor(cls: type, options: JsonObject, words: JsonObject, groups: Sequence[str] = ()) -> Handle:
    """Starts an actor that is never started again by Ray itself, on another node than the last where there are several.

    Each of the concurrency groups has a thread of its own. Ray alone would fill the node of the learner first, which
    needs its cores.
    """
    import ray

    threads = dict.fromkeys((CONTROL, *groups), 1)
    fixed = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": threads}
    return ray.remote(**options, **fixed, scheduling_strategy="SPREAD")(cls).remote(words)


def has_authentication() -> bool:
    """Whether this process shows the cluster a token; a cluster that wants none asks no other process for one."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    return bool(is_token_auth_enabled())


def is_client() -> bool:
    """Whether the cluster is reached through a proxy (`ray://`), which has no calls that yield several results."""
    import ray

    return bool(ray.util.client.ray.is_connected())


def kill(handle: Handle) -> None:
    """Ends an actor at once, if there still is a cluster."""
    import ray

    if ray.is_initialized():
        ray.kill(handle)
