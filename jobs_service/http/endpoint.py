"""Endpoints with their input and roles, their answers as bytes, their paths, and the changes that they make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_type_hints
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from jobs_service import JobTransaction, json_types, names
from jobs_service.http import gate
from jobs_service.http.problems import Refusal
from jobs_service.http.state import ServerState
from jobs_service.http.tokens import Identity, Role
from jobs_service.model import UNSET, Job, JobId, JobType, ProcessAction, ProcessInfo, Removal
from jobs_service.service import bulk_actions
from jobs_service.service.bulk_actions import Seen
from jobs_service.service.remote import Remote

if TYPE_CHECKING:
    from jobs_service.http.state import ServerState
    from jobs_service.http.tokens import Identity

Handle = Callable[..., Awaitable[Response]]
HandleT = TypeVar("HandleT", bound=Handle)

ENDPOINTS: Final[list[Endpoint]] = []
"""All endpoints, in the order of the documentation."""

_PIECE: Final = 1 << 15
"""Bytes of a long list that are encoded before other tasks get a turn: a millisecond or less."""
_MOST_KEPT: Final = 3
"""Pieces from which on an answer is streamed; a shorter one is sent as a whole, with its length."""


# Endpoints and calls


class Form(BaseModel):
    """The body of a request: unknown fields are refused, and types are strict."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    def get(self, name: str) -> Any:
        """Return a field; UNSET if the request lacks it."""
        return getattr(self, name) if name in self.model_fields_set else UNSET


class Query(BaseModel):
    """The query of an address, as text."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one address.

    Attributes:
        method, path: of the request; `{type}` and `{id}` are one segment each.
        role: the required role.
        handle: the function that answers.
        summary: its purpose, in one line.
        takes: model of the JSON body; None for none.
        query: model of the query; None for none.
        answers: classes of the answers' JSON by status; None for an answer without a body.
        media: descriptions of its other answers, or bodies, by media type.
        changes: whether it changes something, so that read-only servers refuse it.
        is_long: whether it has its own limit of open requests.
        is_health: whether it is a health check, to be answered under any load.
    """

    method: str
    path: str
    role: Role
    handle: Handle
    summary: str
    takes: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    answers: Mapping[int, Any] = field(default_factory=dict)
    media: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    is_long: bool = False
    is_health: bool = False

    def answer(self, call: Call) -> Awaitable[Response]:
        """Have the function answer a call."""
        return self.handle(call) if self.takes is None and self.query is None else self.handle(call, call.given)


class Call:
    """One request to an endpoint.

    Attributes:
        state: of the server.
        request: Starlette's request.
        who: the caller.
        client: address of the client.
        is_secure: whether the client's connection is encrypted.
        names: types and ids in the path, by the name of their segment.
        given: the query or the body, as the endpoint's model; None for a body that the endpoint reads itself.
        raw: the body as it came.
        changes: the changes that the caller may ask for.
        check_may_run, changed: `check_may_run` and `noted` of these.
    """

    def __init__(self, state: ServerState, request: Request, who: Identity, client: str, is_secure: bool) -> None:
        self.state = state
        self.request = request
        self.who = who
        self.client = client
        self.is_secure = is_secure
        self.names: dict[str, Any] = {}
        self.given: Any = None
        self.raw = b""
        self.changes = Changes(state, who, client)
        self.check_may_run = self.changes.check_may_run
        self.changed = self.changes.noted

    @property
    def service(self) -> Any:
        """The service."""
        return self.state.service

    @property
    def remote(self) -> Remote:
        """The service's operations for programs elsewhere."""
        return self.state.service.remote

    @property
    def type(self) -> JobType:
        """The type in the path."""
        found: JobType = self.names["type"]
        return found

    @property
    def id(self) -> JobId:
        """The id in the path."""
        found: JobId = self.names["id"]
        return found


def endpoint(
    route: str,
    role: Role,
    summary: str,
    answers: Any = None,
    *,
    media: Mapping[str, str] | None = None,
    changes: bool | None = None,
    is_long: bool = False,
    is_health: bool = False,
) -> Callable[[HandleT], HandleT]:
    """Make a function an endpoint; see Endpoint.

    Its parameter `form` is the JSON body, its parameter `query` the query: their annotations are the models.

    Args:
        route: method and path, as in "GET /v1/types".
        answers: class of the JSON of 200, or classes by status.
        changes: by default, each method but GET changes something.
    """
    method, path = route.split(" ")

    def register(handle: HandleT) -> HandleT:
        given = get_type_hints(handle)
        by_status = answers if isinstance(answers, Mapping) else {} if answers is None else {200: answers}
        alters = method != "GET" if changes is None else changes
        taken = given.get("form"), given.get("query")
        ENDPOINTS.append(
            Endpoint(method, path, role, handle, summary, *taken, by_status, media or {}, alters, is_long, is_health)
        )
        return handle

    return register


# Answers


class Flowing(Response):
    """An answer that is made while its source still reads the request: nothing else may receive its messages.

    Args:
        source: yields the parts of the answer.
        media_type: of the answer.
    """

    def __init__(self, source: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts as they come."""
        async with aclosing(self._source) as source:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for part in source:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def pieces(name: str, forms: Iterable[Any], more: Mapping[str, Any] | None = None) -> AsyncGenerator[bytes]:
    """Yield a JSON object piece by piece, so that a long list does not block the loop.

    Args:
        name: of the list's member.
        forms: the items of the list, each taken at its turn.
        more: the other members.
    """
    begin = b"{%s:[" % json_types.dumps(name)
    encoded = map(json_types.dumps, forms)
    while piece := _piece(encoded):
        yield begin + b",".join(piece)
        begin = b","
        await asyncio.sleep(0)
    rest = json_types.dumps(more or {})[1:]
    yield (b"]" if begin == b"," else begin + b"]") + (b"," + rest if more else rest)


def _piece(encoded: Iterator[bytes]) -> list[bytes]:
    """Take some encoded items; none at the end."""
    taken: list[bytes] = []
    size = 0
    for each in encoded:
        taken.append(each)
        size += len(each)
        if size >= _PIECE:
            break
    return taken


async def long_answer(
    name: str,
    forms: Iterable[Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """Return a JSON answer with a list: see `pieces`. A long one is sent while it is encoded."""
    source = pieces(name, forms, more)
    begun: list[bytes] = []
    async for piece in source:
        begun.append(piece)
        if len(begun) == _MOST_KEPT:
            return StreamingResponse(_together(begun, source), status, headers, media_type="application/json")
    return Response(b"".join(begun), status, headers, media_type="application/json")


async def _together(begun: Sequence[bytes], rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    for piece in begun:
        yield piece
    async for piece in rest:
        yield piece


def answer(form: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(json_types.dumps(form), status, headers, media_type="application/json")


# Paths


_SHORT: Final = {"type": ("type",), "job": ("type", "id")}
"""Names that `/v1/type` and `/v1/job` take from the query instead of the path."""


class RoutedPath(NamedTuple):
    """The target of a path.

    Attributes:
        methods: the endpoints by method.
        names: the types and ids in the path.
        used: parameters of the query that stand for segments of the path.
    """

    methods: Mapping[str, Endpoint]
    names: dict[str, Any]
    used: tuple[str, ...]


class Routes:
    """The endpoints by the shape of their paths."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root: dict[str, Any] = {}
        for each in endpoints:
            node = self._root
            for segment in each.path.split("/")[1:]:
                node = node.setdefault(segment, {})
            node.setdefault("", {})[each.method] = each

    def find(self, path: bytes, query: Mapping[str, str]) -> RoutedPath | None:
        """Return the target of a path; None for none.

        Args:
            path: as it was sent, without the mount point of the application.
            query: of the request.

        Raises:
            Refusal: a segment, or a parameter that stands for one, is no valid name.
        """
        segments = path.split(b"/")[1:]
        used: tuple[str, ...] = ()
        given: list[str] = []
        if len(segments) >= 2 and segments[0] == b"v1" and (short := segments[1].decode("latin-1")) in _SHORT:
            used = _SHORT[short]
            missing = [name for name in used if name not in query]
            if missing:
                raise Refusal("bad-request", f"the query lacks {' and '.join(missing)}: /v1/{short}?type=..., as texts")
            given = [query[name] for name in used]
            head = [b"v1", b"types", b"{type}"] + ([b"jobs", b"{id}"] if short == "job" else [])
            segments = head + segments[2:]
        found: dict[str, Any] = {}
        node = self._root
        for segment in segments:
            literal = segment.decode("latin-1")
            if literal in node and not literal.startswith("{") and literal:
                node = node[literal]
                continue
            name = next((key for key in node if key.startswith("{")), None)
            if name is None or not segment:
                return None
            text = given.pop(0) if given and literal.startswith("{") else _decoded(segment)
            found[name[1:-1]] = text if name == "{problem}" else _name(text)
            node = node[name]
        methods = node.get("")
        return None if methods is None else RoutedPath(methods, found, used)


def path_of(scope: Mapping[str, Any]) -> bytes:
    """Return the path of a request as it was sent, without the mount point of the application."""
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or quote(scope["path"], safe="/:@!$&'()*+,;=~%").encode()
    raw = raw.partition(b"?")[0]
    # A proxy may have stripped its part of the path: then the path begins with the application's mount point.
    below = root.removeprefix(scope.get("app_root_path", ""))
    for mounted in (each for path in (root, below) for each in (path.encode("utf-8"), quote(path).encode())):
        if mounted and (raw == mounted or raw.startswith(mounted + b"/")):
            return raw[len(mounted) :] or b"/"
    return raw


def query_of(scope: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the query of a request.

    Raises:
        Refusal: it is not UTF-8, or has very many parts.
    """
    try:
        text = scope.get("query_string", b"").decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=2000)
    except ValueError:  # of UTF-8 as well
        raise Refusal("bad-request", "the query is not UTF-8, percent-encoded, or has more than 2000 parts") from None


def _decoded(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Refusal("bad-request", "a segment of the path is not UTF-8, percent-encoded") from None


def _name(text: str) -> Any:
    try:
        return names.parsed(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("bad-request", f"a segment of the path is no name: {error}") from None


# Changes, for an endpoint and for a form of the dashboard


_RETENTION = ("keep", "keep_failed")


class Changes:
    """The changes of one request. The methods raise as those of JobsService and of `service.bulk_actions`.

    Args:
        state: of the server.
        who: the caller; None for a stranger.
        client: address of the client.
    """

    def __init__(self, state: ServerState, who: Identity | None, client: str) -> None:
        self._state = state
        self._service = state.service
        self._who = who
        self._name = "" if who is None else who.name
        self._client = client

    def check_may_run(self, type: JobType) -> None:
        """Check that the caller may control the runs of a type; see `gate.check_may_run`."""
        gate.check_may_run(self._state, self._who, type)

    def noted(self, action: str, type: Any = None, id: Any = None, jobs: int = 1, **what: Any) -> None:
        """Note a change in the audit log; `what` has no job contents."""
        self._state.audit.changed(self._name, self._client, action, type, id, jobs, what)

    # Jobs

    async def resubmit(
        self, type: JobType, id: JobId, seen: Seen | None, changes: Mapping[str, Any], what: Mapping[str, Any]
    ) -> Job:
        """Have a job run again.

        Args:
            type, id, seen, changes: as for `bulk_actions.resubmit`.
            what: to note.
        """
        self.check_may_run(type)
        job = await bulk_actions.resubmit(self._service, type, id, seen, **changes)
        self.noted("resubmit", type, id, **what)
        return job

    async def run_now(self, type: JobType, id: JobId, seen: Seen | None) -> bool:
        """Make a pending job due now; return whether it was pending."""
        self.check_may_run(type)
        if is_done := await bulk_actions.run_now(self._service, type, id, seen):
            self.noted("now", type, id)
        return is_done

    async def cancel(self, type: JobType, id: JobId, seen: Seen | None, action: str = "cancel") -> Removal | None:
        """Ask a running job to end, remove a waiting one; None if it has ended already."""
        removal = await bulk_actions.cancel(self._service, type, id, seen)
        said = "unchanged" if removal is None else removal.value
        self.noted(action, type, id, 0 if removal is None else 1, removal=said)
        return removal

    async def remove(self, type: JobType, id: JobId, seen: Seen | None, *, force: bool = False) -> Removal:
        """Remove a job; one that runs is asked to end."""
        removal = await bulk_actions.remove(self._service, type, id, seen, force=force)
        self.noted("remove", type, id, removal=removal.value, force=force)
        return removal

    # Types

    async def set_type(self, type: JobType, settings: Mapping[str, Any]) -> None:
        """Set the timeout and the retention of a type.

        Args:
            type: of the jobs.
            settings: `timeout`, unless it is None, and `keep` and `keep_failed` if either is given; seconds.
        """

        async def change(tx: JobTransaction) -> None:
            if settings.get("timeout") is not None:
                await tx.set_type_timeout(type, settings["timeout"])
            if any(name in settings for name in _RETENTION):
                await tx.set_retention(type, **{name: settings.get(name) for name in _RETENTION})

        await self._service.transact(change)
        self.noted("set_type", type, jobs=0, **settings)

    async def pause(self, type: JobType) -> None:
        """Have nobody accept a type's jobs."""
        await self._service.pause(type)
        self.noted("pause", type, jobs=0)

    async def resume(self, type: JobType) -> None:
        """Have a type's jobs accepted again."""
        await self._service.resume(type)
        self.noted("resume", type, jobs=0)

    # Schedules

    async def change_schedule(self, name: str, action: Literal["pause", "resume", "remove"]) -> None:
        """Pause, resume or remove a schedule in the store."""
        schedules = self._service.schedules
        found = await schedules.get(name)
        self.check_may_run(found.type)
        await getattr(schedules, action)(name)
        self.noted(f"{action}_schedule", found.type, jobs=0, schedule=name)

    # Processes

    async def ask_process(self, id: str, action: ProcessAction) -> ProcessInfo:
        """Ask a process to take no more jobs, to take them again, or to end."""
        before = await self._service.ask_process(id, action, self._name or self._client)
        self.noted(f"{action.value}_process", id=id, jobs=0)
        return before
