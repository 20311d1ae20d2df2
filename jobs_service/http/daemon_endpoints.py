"""Endpoints of the server itself: documentation, health, the caller's rights, supervisor tree, metrics, processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from html import escape
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from starlette.responses import Response

from jobs_service import __version__, json_types
from jobs_service.errors import JobsError
from jobs_service.http import gate, problems, wire
from jobs_service.http.endpoint import ENDPOINTS, Call, Endpoint, answer, endpoint, long_answer
from jobs_service.http.problems import KINDS, MEDIA_TYPE, Refusal
from jobs_service.http.tokens import Identity, Role
from jobs_service.model import ProcessAction, ProcessInfo

_REFERENCE: Final = "#/components/schemas/{model}"
_NAMES_IN_PATHS: Final = {
    "type": "A type in its text form: email, json:7",
    "id": "An id in its text form: welcome-42",
    "process": "The id of a process, as /v1/processes has it",
    "problem": "The last part of a problem's type",
    "schedule": "The name of a schedule",
}

_Mode = Literal["validation", "serialization"]
_Schemas = dict[tuple[Any, _Mode], dict[str, Any]]

_PROMETHEUS = "text/plain"
_READY_WITHIN = 1.0
"""Seconds in which the store must answer."""


# Endpoints


@endpoint("GET /openapi.json", Role.NOBODY, "This interface as OpenAPI 3.1", media={"application/json": "The document"})
async def openapi_document(call: Call) -> Response:
    found = document(ENDPOINTS, __version__)
    found["servers"] = [{"url": call.request.scope.get("root_path") or "/"}]
    return Response(json_types.dumps(found), media_type="application/json")


@endpoint("GET /problems/{problem}", Role.NOBODY, "What a problem means", media={"text/html": "A page"})
async def problem(call: Call) -> Response:
    name = call.names["problem"]
    if name in KINDS:
        status, title, _ = KINDS[name]
    elif name in problems.ERRORS:
        kind = problems.ERRORS[name]
        status, title = kind.http_status, problems.title_of(kind)
    else:
        raise Refusal("not-found", "there is no such problem")
    return _page(name, f"<p>{escape(title)}</p><p>Status {status}.</p>")


def _page(title: str, body: str) -> Response:
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – jobs_service</title>'
    head += '<meta name="viewport" content="width=device-width"></head>'
    text = f"{head}<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    return Response(text, media_type="text/html")


@endpoint("GET /livez", Role.NOBODY, "Whether the process answers", wire.HealthForm, is_health=True)
async def livez(call: Call) -> Response:
    return answer({"status": "alive"})


@endpoint(
    "GET /readyz",
    Role.NOBODY,
    "Whether the store answers",
    {200: wire.HealthForm, 503: wire.HealthForm},
    is_health=True,
)
async def readyz(call: Call) -> Response:
    try:
        async with asyncio.timeout(_READY_WITHIN):
            await call.service.last_ticks()
    except (JobsError, TimeoutError):
        return answer({"status": "not ready"}, 503)
    return answer({"status": "closing" if call.state.closing.is_set() else "ready"})


@endpoint("GET /v1/me", Role.NOBODY, "Who asks, and what may be done here", wire.MeForm)
async def me(call: Call) -> Response:
    scope = call.request.scope
    who = await gate.identify(call.state, scope, gate.Headers(scope)) or Identity("", Role.NOBODY)
    options = call.state.options
    return answer(
        {
            "name": who.name,
            "role": who.role.label,
            "read_only": options.read_only,
            "commands": options.commands and who.role is Role.ADMIN and who.proven,
        }
    )


@endpoint("GET /v1/supervision", Role.READ, "The supervisor tree", wire.TreeForm)
async def supervision(call: Call) -> Response:
    return answer(call.service.supervision())


@endpoint("GET /metrics", Role.READ, "Metrics for Prometheus", media={_PROMETHEUS: "Prometheus' text format"})
async def metrics(call: Call) -> Response:
    try:
        from jobs_service.metrics import CONTENT_TYPE, text
    except JobsError as error:  # the extra is not installed
        raise Refusal("not-found", str(error)) from None
    return Response(await text(call.service), media_type=CONTENT_TYPE)


@endpoint("GET /v1/processes", Role.READ, "List the processes", wire.ProcessesForm)
async def processes(call: Call) -> Response:
    return await long_answer("processes", map(ProcessInfo.to_dict, await call.service.processes()))


@endpoint("POST /v1/processes/{process}/quiet", Role.ADMIN, "Have a process take no more jobs", ProcessInfo)
async def quiet_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.QUIET)


@endpoint("POST /v1/processes/{process}/resume", Role.ADMIN, "Have a process take jobs again", ProcessInfo)
async def resume_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.RESUME)


@endpoint("POST /v1/processes/{process}/stop", Role.ADMIN, "Have a process end, as on SIGTERM", ProcessInfo)
async def stop_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.STOP)


async def _asked(call: Call, action: ProcessAction) -> Response:
    return answer((await call.changes.ask_process(call.names["process"], action)).to_dict())


# The OpenAPI document


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of some endpoints.

    Args:
        endpoints: of the interface.
        version: of the package.
    """
    every = [*endpoints]
    schemas, definitions = _schemas(every)
    paths: dict[str, dict[str, Any]] = {}
    for each in every:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jobs_service", "version": version, "summary": "Durable background jobs"},
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _schemas(endpoints: list[Endpoint]) -> tuple[_Schemas, dict[str, Any]]:
    """Return the schemas of all types that endpoints take or answer, and their definitions."""
    wanted: dict[tuple[Any, _Mode], None] = {(wire.ProblemForm, "serialization"): None}
    for each in endpoints:
        if each.takes is not None:
            wanted[each.takes, "validation"] = None
        for kind in each.answers.values():
            if kind is not None:
                wanted[kind, "serialization"] = None
    found: Any
    adapters = [(kind, mode, TypeAdapter(kind)) for kind, mode in wanted]
    found, definitions = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE, schema_generator=_Generator)
    return found, definitions


class _Generator(GenerateJsonSchema):
    """Names the fields of records that answers always have, although a record has defaults for them."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        always = field["type"] == "dataclass-field" and self.mode == "serialization"
        return always or super().field_is_required(field, total)


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    """Return the operation of one endpoint."""
    found: dict[str, Any] = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "tags": [_tag(endpoint.path)],
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint)],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.role is Role.NOBODY:
        found["security"] = []
    else:
        found["description"] = f"Needs the role {endpoint.role.label}."
    if endpoint.takes is not None and endpoint.method != "GET":
        required = any(field.is_required() for field in endpoint.takes.model_fields.values())
        content = {"application/json": {"schema": schemas[endpoint.takes, "validation"]}}
        found["requestBody"] = {"required": required, "content": content}
    return found


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, model in endpoint.answers.items():
        content = {} if model is None else {"application/json": {"schema": schemas[model, "serialization"]}}
        found[str(status)] = {"description": endpoint.summary, **({"content": content} if content else {})}
    for media, what in endpoint.media.items():
        ok = found.setdefault("200", {"description": endpoint.summary})
        kind = "object" if media == "application/json" else "string"
        ok.setdefault("content", {})[media] = {"schema": {"type": kind, "description": what}}
    problem = {MEDIA_TYPE: {"schema": schemas[wire.ProblemForm, "serialization"]}}
    found["default"] = {"description": "A problem (RFC 9457)", "content": problem}
    return found


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _NAMES_IN_PATHS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in names
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    schema = endpoint.query.model_json_schema()
    found = []
    for name, each in schema["properties"].items():
        each = {key: value for key, value in each.items() if key != "title"}
        # An optional parameter of a query is absent, never null.
        choices = [choice for choice in each.pop("anyOf", []) if choice.get("type") != "null"]
        if len(choices) == 1:
            each = {**choices[0], **each}
        elif choices:
            each["anyOf"] = choices
        if each.get("default", 0) is None:
            del each["default"]
        required = name in schema.get("required", [])
        found.append({"name": name, "in": "query", "required": required, "schema": each})
    return found


def _tag(path: str) -> str:
    parts = path.split("/")
    if path.endswith("/events"):
        return "events"
    if "processes" in parts:
        return "processes"
    return "jobs" if "jobs" in parts else "types" if "types" in parts or parts[1] == "v1" else "daemon"
