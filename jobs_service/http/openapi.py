"""The description of the interface as OpenAPI 3.1, generated from the endpoints and their models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from jobs_service.http import answer_forms
from jobs_service.http.endpoint import Endpoint
from jobs_service.http.problems import MEDIA_TYPE
from jobs_service.http.roles import Role

_REFERENCE: Final = "#/components/schemas/{model}"
_NAMES: Final = {
    "type": "A type in its text form: email, json:7",
    "id": "An id in its text form: welcome-42",
    "process": "The id of a process, as /v1/processes has it",
    "problem": "The last part of a problem's type",
}


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


_Mode = Literal["validation", "serialization"]
_Schemas = dict[tuple[Any, _Mode], dict[str, Any]]


class _Generator(GenerateJsonSchema):
    """Names the fields of records that answers always have, although a record has defaults for them."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        always = field["type"] == "dataclass-field" and self.mode == "serialization"
        return always or super().field_is_required(field, total)


def _schemas(endpoints: list[Endpoint]) -> tuple[_Schemas, dict[str, Any]]:
    """Return the schemas of all types that endpoints take or answer, and their definitions."""
    wanted: dict[tuple[Any, _Mode], None] = {(answer_forms.ProblemForm, "serialization"): None}
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
    problem = {MEDIA_TYPE: {"schema": schemas[answer_forms.ProblemForm, "serialization"]}}
    found["default"] = {"description": "A problem (RFC 9457)", "content": problem}
    return found


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _NAMES[name],
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
