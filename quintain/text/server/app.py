"""The application of `quintain serve-text`: chat completions, files and fine-tuning jobs, with a plan of faults.

Jobs and files are those of the provider, which keeps them on disk: a server that is killed goes on with them.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quintain.services.files.line_file import LineFile, read_lines
from quintain.text.providers.base import (
    ChatRequest,
    Job,
    JobRequest,
    Message,
    OutcomeUnknown,
    Provider,
    RateLimited,
    Refused,
    Role,
    Unavailable,
)
from quintain.typing import JsonObject

Result = TypeVar("Result")
MAX_BODY_BYTES = 100_000_000
_CHAT_FIELDS = frozenset(
    {"model", "messages", "seed", "temperature", "top_p", "max_tokens", "max_completion_tokens", "n", "stream", "user"}
)
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_METADATA = re.compile(r"metadata\[(.{1,64})\]")


class LostAnswer(Response):
    """Ends the connection in the middle of an answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise ConnectionResetError("scripted: the answer is lost")


class Faults:
    """Faults of the first calls of each kind; the count survives a kill of the server."""

    def __init__(self, plan: Mapping[str, Sequence[str]], path: Path) -> None:
        self.plan = plan
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        for _, line in read_lines(path):
            name = str(json.loads(line))
            self._counts[name] = self._counts.get(name, 0) + 1
        self._file = LineFile(path)

    def next(self, kind: str) -> str:
        if kind not in self.plan:
            return "none"
        with self._lock:
            number = self._counts.get(kind, 0)
            self._counts[kind] = number + 1
            self._file.append(json.dumps(kind).encode())
        return self.plan[kind][number] if number < len(self.plan[kind]) else "none"


class TextServer:
    """Answers requests by a provider."""

    def __init__(self, provider: Provider, token: str, faults: Faults, latency: float = 0.0) -> None:
        self.provider = provider
        self.token = token
        self.faults = faults
        self.latency = latency
        self.threads = ThreadPoolExecutor(128)

    def app(self) -> Starlette:
        jobs = "/v1/fine_tuning/jobs"
        return Starlette(
            exception_handlers={404: _not_served, 405: _not_served},
            routes=[
                Route("/v1/models", self._guarded("models", self.models), methods=["GET"]),
                Route("/v1/chat/completions", self._guarded("chat", self.chat), methods=["POST"]),
                Route("/v1/files", self._guarded("upload", self.upload), methods=["POST"]),
                Route(jobs, self._guarded("create_job", self.create), methods=["POST"]),
                Route(jobs, self._guarded("list_jobs", self.list_jobs), methods=["GET"]),
                Route(f"{jobs}/{{id}}", self._guarded("get_job", self.get), methods=["GET"]),
                Route(f"{jobs}/{{id}}/events", self._guarded("events", self.events), methods=["GET"]),
                Route(f"{jobs}/{{id}}/cancel", self._guarded("cancel_job", self.cancel), methods=["POST"]),
                Route(f"{jobs}/{{id}}/pause", self._guarded("pause_job", self.pause), methods=["POST"]),
                Route(f"{jobs}/{{id}}/resume", self._guarded("resume_job", self.resume), methods=["POST"]),
            ],
        )

    def _guarded(
        self, kind: str, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Checks host and token, carries out the plan of faults, and answers errors in OpenAI's form."""

        async def guarded(request: Request) -> Response:
            host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if host not in _HOSTS:
                return _error(403, f"host {host} is not served")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _error(401, "the token is wrong")
            length = request.headers.get("content-length", "0" if request.method == "GET" else "")
            if not length.isdigit():
                return _error(411, "the request has no content-length")
            if int(length) > MAX_BODY_BYTES:
                return _error(413, f"the request has {length} bytes, expected at most {MAX_BODY_BYTES}")
            fault = self.faults.next(kind)
            if self.latency:
                await asyncio.sleep(self.latency)
            if fault == "rate_limit":
                return _error(429, "too many requests", {"retry-after": "0.01"})
            if fault == "server_error":
                return _error(500, "scripted fault")
            if fault == "refuse":
                return _error(401, "scripted fault")
            try:
                answer = await handle(request)
            except RateLimited as error:
                return _error(429, str(error), {"retry-after": str(error.retry_after or 1)})
            except Refused as error:
                return _error(400, str(error))
            except (Unavailable, OutcomeUnknown) as error:
                return _error(503, str(error))
            except KeyError as error:
                return _error(400, f"{error.args[0]} is missing")
            except json.JSONDecodeError as error:
                return _error(400, f"the body is no JSON: {error}")
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
                return _error(400, f"{type(error).__name__}: {error}")
            if fault == "lost_answer":
                return LostAnswer()
            if fault == "timeout":
                await asyncio.sleep(3600)
            if fault == "nonsense":
                return Response("<html>bad gateway</html>", media_type="text/html")
            return answer

        return guarded

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    async def chat(self, request: Request) -> Response:
        asked = _chat_request(await request.json())
        answer = await self._call(self.provider.chat, asked)
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        usage = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
        return JSONResponse(
            {
                "id": "chatcmpl-local",
                "object": "chat.completion",
                "created": 0,
                "model": asked.model,
                "choices": [{"index": 0, "message": message, "finish_reason": answer.finish, "logprobs": None}],
                "usage": {**usage, "total_tokens": sum(usage.values())},
            }
        )

    async def models(self, request: Request) -> Response:
        found = await self._call(self.provider.models)
        shown = [{"id": each, "object": "model", "created": 0, "owned_by": "local"} for each in found]
        return JSONResponse({"object": "list", "data": shown})

    async def upload(self, request: Request) -> Response:
        form = await request.form(max_files=1, max_fields=10)
        file = form["file"]
        if isinstance(file, str):
            raise TypeError("file is no file")
        data = await file.read()
        found = await self._call(self.provider.upload, str(file.filename), data)
        return JSONResponse(
            {
                "id": found,
                "object": "file",
                "bytes": len(data),
                "created_at": 0,
                "filename": str(file.filename),
                "purpose": "fine-tune",
                "status": "processed",
            }
        )

    async def create(self, request: Request) -> Response:
        body = await request.json()
        method = body.get("method") or {"type": "supervised"}
        asked = JobRequest(
            model=str(body["model"]),
            training_file=str(body["training_file"]),
            method=method["type"],
            suffix=body.get("suffix"),
            seed=int(body.get("seed") or 0),
            metadata={str(name): str(value) for name, value in (body.get("metadata") or {}).items()},
            hyperparameters=(method.get(method["type"]) or {}).get("hyperparameters") or {},
        )
        if asked.method not in ("supervised", "dpo"):
            raise ValueError(f"method is {asked.method!r}, expected supervised or dpo")
        if len(asked.suffix or "") > 64 or len(asked.metadata) > 16:
            raise ValueError("suffix has at most 64 characters, metadata at most 16 pairs")
        return JSONResponse(_shown(await self._call(self.provider.create_job, asked)))

    async def list_jobs(self, request: Request) -> Response:
        wanted = {
            match[1]: value for name, value in request.query_params.items() if (match := _METADATA.fullmatch(name))
        }
        found = await self._call(self.provider.list_jobs, wanted)
        return _page(request, [_shown(job) for job in reversed(found)])

    async def get(self, request: Request) -> Response:
        return JSONResponse(_shown(await self._call(self.provider.get_job, request.path_params["id"])))

    async def events(self, request: Request) -> Response:
        found = await self._call(self.provider.events, request.path_params["id"])
        shown = [
            {
                "object": "fine_tuning.job.event",
                "id": each.id,
                "created_at": number,
                "level": each.level,
                "message": each.message,
                "type": "metrics" if each.data else "message",
                "data": dict(each.data),
            }
            for number, each in enumerate(found)
        ]
        return _page(request, shown[::-1])

    async def cancel(self, request: Request) -> Response:
        return JSONResponse(_shown(await self._call(self.provider.cancel_job, request.path_params["id"])))

    async def pause(self, request: Request) -> Response:
        return JSONResponse(_shown(await self._call(self.provider.set_paused, request.path_params["id"], True)))

    async def resume(self, request: Request) -> Response:
        return JSONResponse(_shown(await self._call(self.provider.set_paused, request.path_params["id"], False)))


def _shown(job: Job) -> JsonObject:
    """Returns a job in OpenAI's form."""
    return {
        "id": job.id,
        "object": "fine_tuning.job",
        "status": job.status,
        "model": job.model,
        "fine_tuned_model": job.fine_tuned_model,
        "created_at": job.created_at,
        "finished_at": None,
        "metadata": dict(job.metadata),
        "error": None if job.error is None else {"code": "job_failed", "message": job.error, "param": None},
        "hyperparameters": {},
        "organization_id": "local",
        "result_files": [],
        "seed": 0,
        "trained_tokens": job.trained_tokens,
        "training_file": job.training_file,
        "validation_file": None,
    }


def _page(request: Request, items: Sequence[JsonObject]) -> Response:
    """Answers with a part of a list, newest first: at most `limit` items that follow the one named by `after`."""
    names = [each["id"] for each in items]
    start = names.index(after) + 1 if (after := request.query_params.get("after")) else 0
    end = start + int(request.query_params.get("limit", 20))
    return JSONResponse({"object": "list", "data": items[start:end], "has_more": end < len(items)})


def _chat_request(body: JsonObject) -> ChatRequest:
    """Reads the body of a chat; refuses whatever would be ignored."""
    if unknown := sorted(name for name, value in body.items() if value is not None and name not in _CHAT_FIELDS):
        raise ValueError(f"{', '.join(unknown)} is not served here; leave it out")
    if body.get("n") not in (None, 1) or body.get("stream"):
        raise ValueError("one answer is served, as a whole: n=1, stream=false")
    messages = tuple(map(_message, body["messages"]))
    if not messages:
        raise ValueError("messages is empty")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    for name, value, high in (
        ("temperature", body.get("temperature"), 2.0),
        ("top_p", body.get("top_p"), 1.0),
        ("max_completion_tokens", limit, 1e9),
    ):
        if value is not None and (type(value) not in (int, float) or not 0.0 <= value <= high):
            raise ValueError(f"{name} is {value!r}, expected a number from 0 to {high:g}")
    return ChatRequest(
        str(body["model"]),
        messages,
        seed=int(body.get("seed") or 0),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        max_tokens=None if limit is None else int(limit),
    )


def _message(given: JsonObject) -> Message:
    """Reads one message, whose text may come in parts."""
    role, content = given["role"], given["content"]
    if role not in get_args(Role):
        raise ValueError(f"role is {role!r}, expected one of {', '.join(get_args(Role))}")
    if isinstance(content, list) and all(each.get("type") == "text" for each in content):
        content = "".join(each["text"] for each in content)
    if not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}, expected text")
    return Message(role, content, given.get("name"))


async def _not_served(request: Request, error: Exception) -> Response:
    """Answers a call of an address or a method that is not served, without a look at its token."""
    what = f"{request.method} {request.url.path}"
    return _error(404, f"{what} is not served here; chat completions, files, fine-tuning jobs and models are")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))
