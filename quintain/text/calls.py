"""Calls of providers: waits as told, retries what may pass, and ends at once when the run is asked to stop."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar, cast

from quintain.errors import ServiceError
from quintain.services.reporting.printable import escape_control_characters
from quintain.services.reporting.redaction import redact
from quintain.text.providers.base import ProviderError, RateLimited, Refused, Unavailable
from quintain.text.settings import ApiSettings

Result = TypeVar("Result")
MAX_WAIT_SECONDS = 600.0
"""The longest single wait, whatever the provider asks for."""
MAX_BACKOFF = 60
MAX_JITTER = 0.1
"""The part by which a wait may be longer."""
_SLICE_SECONDS = 0.02


class Stopped(Exception):
    """The run was asked to stop while a call waited."""


class Calls:
    """Carries out calls with patience; shared by all threads of a trainer."""

    def __init__(self, settings: ApiSettings) -> None:
        self.settings = settings
        self.should_stop: Callable[[], bool] = bool
        self.warn: Callable[[str, str], None] = lambda code, text: None
        self.keep_body: Callable[[str], None] = lambda body: None
        """Keeps the beginning of an answer that could not be read; the text is redacted."""
        self._lock = threading.Lock()
        self.num_waits = 0
        """Waits because of rate limits and failures that passed."""

    def serve(
        self, should_stop: Callable[[], bool], warn: Callable[[str, str], None], keep_body: Callable[[str], None]
    ) -> None:
        """Asks a trainer whether to stop, and warns and reports by its run, from now on."""
        self.should_stop, self.warn, self.keep_body = should_stop, warn, keep_body

    def read(self, call: Callable[[], Result], about: str) -> Result:
        """Calls until there is an answer: for calls that may be repeated."""
        waited, failures = 0.0, 0
        while True:
            try:
                return self.once(call)
            except RateLimited as error:
                failures += 1
                wanted = self._backoff(failures) if error.retry_after is None else error.retry_after
                waited = self._wait_after(error, min(wanted, MAX_WAIT_SECONDS), waited, about, "W0711")
            except Unavailable as error:
                failures += 1
                waited = self._wait_after(error, self._backoff(failures), waited, about, "W0712")
            except Refused as error:
                raise refused(error, about) from error

    def once(self, call: Callable[[], Result]) -> Result:
        """Calls, and raises `Stopped` when the run is asked to stop meanwhile: a request may hang for minutes.

        The main thread lets another one call; what that was about to create is found by its key later.
        """
        if threading.current_thread() is not threading.main_thread():
            return call()
        answers: queue.Queue[tuple[Result | None, BaseException | None]] = queue.Queue(maxsize=1)

        def work() -> None:
            try:
                answers.put((call(), None))
            except BaseException as error:  # the main thread raises it
                answers.put((None, error))

        threading.Thread(target=work, daemon=True).start()
        while True:
            try:
                answer, error = answers.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                if self.should_stop():
                    raise Stopped from None
                continue
            if error is not None:
                raise error
            return cast("Result", answer)

    def pause(self, seconds: float) -> None:
        """Waits so long; raises `Stopped` at once when the run is asked to stop."""
        end = time.monotonic() + seconds
        while True:
            if self.should_stop():
                raise Stopped
            rest = end - time.monotonic()
            if rest <= 0:
                return
            time.sleep(min(rest, _SLICE_SECONDS))

    def _backoff(self, failures: int) -> float:
        return self.settings.retry_seconds * float(min(2 ** min(failures - 1, 16), MAX_BACKOFF))

    def _wait_after(self, error: ProviderError, seconds: float, waited: float, about: str, code: str) -> float:
        limit = self.settings.max_wait_seconds
        # Threads that were refused at the same moment do not all come back at the same moment.
        seconds *= 1.0 + MAX_JITTER * int.from_bytes(os.urandom(1)) / 255
        if error.body:
            self.keep_body(redact(error.body))
        if waited + seconds > limit:
            raise ServiceError(
                f"{about}: {in_one_line(error)}; waited {waited:.0f} s, at most {limit:.0f} s "
                f"(experiment.loop.api.max_wait_seconds). Continue with: quintain resume",
                code="E0701",
            ) from error
        with self._lock:
            self.num_waits += 1
            is_shown = self.num_waits.bit_count() == 1  # 1, 2, 4, 8 ...: many threads wait for the same reason
        if is_shown:
            self.warn(
                code, f"{about}: {in_one_line(error)}, next try in {seconds:.0f} s (total {waited + seconds:.0f} s)"
            )
        self.pause(seconds)
        return waited + seconds


def refused(error: ProviderError, about: str) -> ServiceError:
    """Returns the error of a call that is never sent again."""
    return ServiceError(f"{about} was refused: {in_one_line(error)}. Correct it and continue with: quintain resume",
                        code="E0702")  # fmt: skip


def in_one_line(error: Exception | str) -> str:
    """Returns a provider's message without secrets and control characters, shortened."""
    return escape_control_characters(redact(" ".join(str(error).split())))[:300]
