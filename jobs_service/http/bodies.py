"""Reads request bodies, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from jobs_service import json_types
from jobs_service.errors import shown
from jobs_service.http.problems import Refusal
from jobs_service.http.state import ServerLimits

JSON = "application/json"
NDJSON = "application/x-ndjson"
_MOST_COMPLAINTS = 10


async def chunks(request: Request, limits: ServerLimits) -> AsyncIterator[bytes]:
    """Yield the parts of a body as they come.

    Raises:
        Refusal: nothing came for too long.
        ClientDisconnect: the client has gone.
    """
    parts = request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_time):
                part = await anext(parts, None)
        except TimeoutError:
            raise Refusal("too-slow", f"nothing of the body came for {limits.body_time:g} s") from None
        if part is None:
            return
        if part:
            yield part


async def whole(request: Request, limits: ServerLimits) -> bytes:
    """Return the body of a request.

    Raises:
        Refusal: it is too large, or does not come in time.
    """
    size = request.headers.get("content-length", "")
    if size.isdecimal() and (len(size) > 15 or int(size) > limits.body):
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.whole_body_time):  # a body that comes byte by byte must end as well
            async for part in chunks(request, limits):
                body += part
                if len(body) > limits.body:
                    raise _too_large(limits)
    except TimeoutError:
        raise Refusal("too-slow", f"the body took more than {limits.whole_body_time:g} s") from None
    return bytes(body)


async def lines(request: Request, limits: ServerLimits, most: int) -> AsyncIterator[list[bytes]]:
    """Yield the non-empty lines of a body as they come, up to so many at once.

    Raises:
        Refusal: a line is too large, or nothing came for too long.
    """
    rest = b""
    async for part in chunks(request, limits):
        found = (rest + part).split(b"\n")
        rest = found.pop()
        full = [_fitting(line, limits) for line in found if line.strip()]
        for start in range(0, len(full), most):
            yield full[start : start + most]
        _fitting(rest, limits)
    if rest.strip():
        yield [rest]


def _fitting(line: bytes, limits: ServerLimits) -> bytes:
    if len(line) > limits.body:
        raise Refusal("body-too-large", f"a line of more than {limits.body} bytes")
    return line


def kind_of(request: Request) -> str:
    """Return the media type of a body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def decoded(raw: bytes, what: str) -> Any:
    """Return the decoded JSON; `what` names it in the message: the body, the line.

    Raises:
        Refusal: the bytes are not JSON.
    """
    try:
        return json_types.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal("bad-request", f"{what} is {str(error)[:200]}") from None


def checked(model: type[BaseModel], value: Any, what: str) -> Any:
    """Return a part of a request, validated by a model.

    Args:
        model: of the endpoint.
        value: as decoded.
        what: name of the part in messages: the body, the query.

    Raises:
        Refusal: the value does not fit the model.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        complaints = error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_COMPLAINTS]
        found = [{"at": [*each["loc"]], "what": _what(model, each)} for each in complaints]
        where = ".".join(map(str, found[0]["at"]))
        within = f"{what}: {shown(where)[1:-1]}" if where else what
        raise Refusal("invalid-request", f"{within}: {found[0]['what']}", errors=_plain(found)) from None
    except RecursionError:
        raise Refusal("invalid-request", f"{what}: nested too deeply") from None


def _what(model: type[BaseModel], complaint: ErrorDetails) -> str:
    """Return the message of a validation error; for an unknown field with the allowed ones."""
    if complaint["type"] == "extra_forbidden":
        return f"unknown; allowed are {', '.join(_within(model, complaint['loc'][:-1]).model_fields)}"
    if complaint["type"] == "model_type":
        return "Input should be an object"  # pydantic's message would name our class
    return complaint["msg"].removeprefix("Value error, ")


def _within(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel]:
    """Return the model of a nested part; numbers are indexes of lists."""
    for name in place:
        if isinstance(name, str):
            model = next(_models(model.model_fields[name].annotation))
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation such as `list[Model] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _plain(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"at": [str(part)[:100] for part in each["at"]], "what": str(each["what"])[:300]} for each in found]


def _too_large(limits: ServerLimits) -> Refusal:
    return Refusal("body-too-large", f"a body of more than {limits.body} bytes; NDJSON has no limit as a whole")
