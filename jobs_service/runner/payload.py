"""Converts a handler's arguments to JSON data and back, with a check in both directions.

A codec is built once, at its handler's registration. pydantic handles most annotations, in its strict JSON mode: "3" is
not an int, and "2026-01-01T00:00:00Z" is a datetime. msgspec handles msgspec.Struct, if the program has imported it.
Unknown fields are ignored, unless the annotation forbids them (extra="forbid" of pydantic, forbid_unknown_fields of
msgspec), because producers may be upgraded before their consumers.
"""

from __future__ import annotations

import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, Final, Protocol

import pydantic_core
import typing_extensions
from pydantic import TypeAdapter

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobsError, JobTooLarge, in_one_line, shown
from jobs_service.runner.payload_complaints import LONGEST_REASON, msgspec_complaint, path_text, pydantic_complaint
from jobs_service.runner.round_trip import difference, fields_of, in_order, is_declared

_SETS: Final = frozenset({set, frozenset})
_CONTAINERS: Final = frozenset({dict, list, tuple}) | _SETS
_CONTAINER_CLASSES: Final = (dict, list, tuple, set, frozenset)
_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Codec(Protocol):
    """Turns the arguments of one handler into JSON data and back."""

    def encode(self, args: Any) -> Any:
        """Return arguments as JSON data, from which `decode` makes an equal value.

        NaN and other values outside JSON may pass here: they are refused when the job is added.

        Raises:
            InvalidJob: the handler could not decode them, or would get other values; the message names the field.
            JobTooLarge: they exceed the limits of every store.
        """

    def decode(self, data: Any) -> Any:
        """Return the arguments in a job's data.

        Raises:
            InvalidJob: they do not fit the annotation; the message names the field by its path.
        """


def codec(annotation: Any, names: Mapping[str, Any] | None = None) -> Codec:
    """Return the codec of an annotation.

    Args:
        annotation: a dataclass, TypedDict, pydantic model or msgspec.Struct, a JSON type, Any, or a combination of
            these.
        names: names for forward references inside the annotation's classes, in addition to their modules' names.

    Raises:
        InvalidSettings: it is none of these, has a forward reference that cannot be resolved, or is an alias that holds
            itself.
    """
    for plain, kind in _PLAIN:
        if annotation == plain:
            return _Plain(kind)
    called = name_of(annotation)
    if (reference := _unresolved(annotation)) is not None:
        raise InvalidSettings(
            f"an alias that holds itself, as {shown(reference)} in it: make it one with "
            "typing_extensions.TypeAliasType, or the `type` statement of Python 3.12"
        )
    try:
        if _has_struct(annotation):
            return _of_msgspec(called, annotation)
        return _of_pydantic(called, annotation, names or {})
    except Exception as error:  # a class body's own code runs as well, and may raise whatever it likes
        why = in_one_line(str(error).partition("\n\n")[0], LONGEST_REASON)
        raise InvalidSettings(
            f"{called} is nothing that a job's data can be: {why}; allowed are dataclasses, TypedDict, pydantic "
            "models, msgspec.Struct, JSON types and Any"
        ) from None


def name_of(annotation: Any) -> str:
    """Return the name of an annotation in messages."""
    text = annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else None
    return in_one_line((text or shown(annotation, 80)).rpartition("<locals>.")[2], 80)


class _Plain:
    """JSON values as they are: only the class is checked here, the rest when the job is added."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def encode(self, args: Any) -> Any:
        """Return the arguments themselves: the check for JSON follows when the job is added."""
        return self.decode(args)

    def decode(self, data: Any) -> Any:
        """Return the data themselves."""
        if not isinstance(data, self._kind):
            raise InvalidJob(f"the data should be a {self._kind.__name__}; it is {shown(data)}")
        return data


_PLAIN: Final = (
    (Any, object),
    (object, object),
    (dict, dict),
    (dict[str, Any], dict),
    (list, list),
    (list[Any], list),
    (str, str),
)


class _Typed:
    """Values checked by a library, which dumps them to JSON values and loads them from JSON text."""

    __slots__ = ("_called", "_complaint", "_dump", "_load")

    def __init__(
        self,
        called: str,
        dump: Callable[[Any], Any],
        load: Callable[[bytes], Any],
        complaint: Callable[[Exception], str],
    ) -> None:
        self._called = called
        self._dump = dump
        self._load = load
        self._complaint = complaint

    def encode(self, args: Any) -> Any:
        """Dump the arguments, and load them again as a check.

        So the producer gets the error that the handler's process would meet, or an error if the handler would get other
        values.
        """
        has_sets = _check_count(args)
        try:
            data = self._dump(args)
            if has_sets:
                data = in_order(args, data)
            back = self._loaded(data)
        except JobsError:
            raise
        except Exception as error:  # validators and serializers are the user's code
            place = _no_text(args) if isinstance(error, UnicodeDecodeError) else None
            why = self._refused(error) if place is None else f"the data does not fit {self._called}: {place}"
            raise InvalidJob(why) from None
        found = difference(args, back)
        if found is not None:
            json_data.encode(data)  # for values that are no JSON at all, its error says more
            raise InvalidJob(f"the data does not fit {self._called}: {found}")
        return data

    def decode(self, data: Any) -> Any:
        """Load the data as text: in strict mode, a str in JSON may be a datetime, but one in Python may not."""
        try:
            return self._load(pydantic_core.to_json(data))
        except Exception as error:  # validators are the user's code
            raise InvalidJob(self._refused(error)) from None

    def _loaded(self, data: Any) -> Any:
        """Return the arguments as a handler would get them."""
        try:
            return self._load(pydantic_core.to_json(data))
        except Exception:
            json_data.encode(data)  # for values that are no JSON at all, its error says more
            raise

    def _refused(self, error: Exception) -> str:
        return f"the data does not fit {self._called}: {self._complaint(error)}"


def _check_count(args: Any) -> bool:
    """Refuse arguments with very many values.

    They may hold the same list many times over in little memory; dumping them, or describing an error in them, would
    take for ever.

    Returns:
        Whether they contain a set.
    """
    left = json_data.MAX_VALUES
    values = [args]
    has_sets = False
    while values:
        value = values.pop()
        kind = type(value)
        if kind in _CONTAINERS:
            found = value.values() if kind is dict else value
            has_sets = has_sets or kind in _SETS
        elif kind in _LEAVES:
            continue
        elif isinstance(value, _CONTAINER_CLASSES):
            found = value.values() if isinstance(value, dict) else value
            has_sets = has_sets or isinstance(value, set | frozenset)
        elif (fields := _fields(value)) is None:
            continue
        else:
            found = fields.values()
        left -= len(found)
        if left < 0:
            raise JobTooLarge(f"data of more than {json_data.MAX_VALUES} values; no store takes that much")
        values.extend(found)
    return has_sets


def _no_text(args: Any) -> str | None:
    """Return a complaint about bytes in the checked arguments that are not text; None without such bytes."""
    values: list[tuple[Any, tuple[int | str, ...]]] = [(args, ())]
    while values:
        value, path = values.pop()
        kind = type(value)
        if kind is bytes and not _is_text(value):
            where = f"field {path_text(path)}: " if path else ""
            return f"{where}the bytes are no UTF-8 text, which JSON needs; write them in base64, for instance"
        if kind is dict:
            values += [(each, (*path, str(key))) for key, each in value.items()]
        elif kind in _CONTAINERS:
            values += [(each, (*path, at)) for at, each in enumerate(value)]
        elif kind not in _LEAVES:
            values += [(each, (*path, name)) for name, each in (_fields(value) or {}).items()]
    return None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fields(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of an object whose class declares them."""
    if not is_declared(type(value)):
        return None
    try:
        attributes = getattr(value, "__dict__", None)
        return attributes if type(attributes) is dict else fields_of(value)
    except Exception:  # reading attributes runs the user's code
        return None


def _unresolved(annotation: Any) -> str | None:
    """Return a forward reference that is left in a resolved annotation: it refers to an alias that holds itself."""
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return next(filter(None, map(_unresolved, typing.get_args(annotation))), None)


def _of_pydantic(called: str, annotation: Any, names: Mapping[str, Any]) -> Codec:
    adapter: TypeAdapter[Any] = TypeAdapter(_for_pydantic(annotation, names, {}))
    adapter.rebuild(raise_errors=True, _types_namespace=names)
    # Dumped by name and not by alias, because an alias may be for one direction only.
    dump = partial(adapter.serializer.to_python, mode="json", warnings="error", by_alias=False, round_trip=True)
    load = partial(adapter.validator.validate_json, strict=True, by_alias=True, by_name=True)
    return _Typed(called, dump, load, pydantic_complaint)


def _for_pydantic(annotation: Any, names: Mapping[str, Any], known: dict[Any, Any]) -> Any:
    """Return an annotation with each typing.TypedDict replaced by an equal one of typing_extensions.

    Before Python 3.12 the standard library's class does not record its required fields, and pydantic refuses it.
    """
    if sys.version_info >= (3, 12):
        return annotation
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return known.get(annotation) or _typed_dict(annotation, names, known)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return annotation
    replaced = tuple(_for_pydantic(member, names, known) for member in members)
    if all(new is old for new, old in zip(replaced, members, strict=True)):
        return annotation
    if isinstance(annotation, types.UnionType):
        return reduce(operator.or_, replaced)
    return typing.Annotated[replaced] if origin is typing.Annotated else _with_members(annotation, origin, replaced)


def _with_members(annotation: Any, origin: Any, members: tuple[Any, ...]) -> Any:
    """Return a generic of typing, or of a class, with other members."""
    return annotation.copy_with(members) if hasattr(annotation, "copy_with") else origin[members]


def _typed_dict(annotation: Any, names: Mapping[str, Any], known: dict[Any, Any]) -> Any:
    required, optional = typing_extensions.Required, typing_extensions.NotRequired
    make: Any = typing_extensions.TypedDict
    made = known[annotation] = make(annotation.__name__, {})
    # Noted as known before its fields are read, because it may be one of them.
    for name, hint in typing.get_type_hints(annotation, localns=dict(names), include_extras=True).items():
        qualifier = required if name in annotation.__required_keys__ else optional
        made.__annotations__[name] = qualifier[_for_pydantic(hint, names, known)]
    if hasattr(annotation, "__pydantic_config__"):
        made.__pydantic_config__ = annotation.__pydantic_config__
    return made


def _has_struct(annotation: Any) -> bool:
    """Whether an annotation is or contains a msgspec.Struct: then the program has imported msgspec."""
    msgspec = sys.modules.get("msgspec")
    if msgspec is None:
        return False
    origin = typing.get_origin(annotation) or annotation
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        return True
    return any(map(_has_struct, typing.get_args(annotation)))


def _of_msgspec(called: str, annotation: Any) -> Codec:
    import msgspec

    dump = partial(msgspec.to_builtins, str_keys=True)
    load = msgspec.json.Decoder(annotation, strict=True).decode
    return _Typed(called, dump, load, msgspec_complaint)
