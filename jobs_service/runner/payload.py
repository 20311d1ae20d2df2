"""How a handler's arguments become JSON data and back, checked on both ways. Floor: runner.

A codec is built once, when its handler is registered. Most annotations are pydantic's, in its strict JSON mode: "3" is
no int, and "2026-01-01T00:00:00Z" is a datetime. msgspec.Struct is msgspec's, which is used only where the program
has imported it. Fields that the annotation does not know are ignored, unless it forbids them itself (pydantic's
extra="forbid", msgspec's forbid_unknown_fields): producers may be upgraded before their consumers.
"""

from __future__ import annotations

import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, Final, Protocol

import pydantic_core
import typing_extensions
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobsError, JobTooLarge, in_one_line, kind_of, shown
from jobs_service.runner.round_trip import difference, fields_of, in_order, is_declared

_LONGEST: Final = 160
_MISSING: Final = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RAISED: Final = frozenset({"value_error", "assertion_error"})
_MSGSPEC_TEXT: Final = re.compile(r"(?P<said>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_MSGSPEC_FIELD: Final = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_UNEXPECTED: Final = re.compile(
    r"PydanticSerializationUnexpectedValue\(Expected (?P<expected>.*?) - serialized value may not be as expected "
    r"\[(?:field_name='(?P<field>[^']*)', )?input_value=(?P<value>.*), input_type=\w+\]\)",
    re.DOTALL,
)


_SETS: Final = frozenset({set, frozenset})
_CONTAINERS: Final = frozenset({dict, list, tuple}) | _SETS
_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Codec(Protocol):
    """Turns the arguments of one handler into JSON data and back."""

    def encode(self, args: Any) -> Any:
        """Return arguments as JSON data, of which `decode` makes an equal value.

        NaN and what else JSON cannot carry may be left to the check when the job is added.

        Raises:
            InvalidJob: the handler could not be given them, or not as they are; the message names the field.
            JobTooLarge: more than any store takes.
        """

    def decode(self, data: Any) -> Any:
        """Return the arguments in a job's data.

        Raises:
            InvalidJob: they do not fit the annotation; the message names the field by its path.
        """


def codec(annotation: Any, names: Mapping[str, Any] | None = None) -> Codec:
    """Return the codec of an annotation.

    Args:
        annotation: a dataclass, TypedDict, pydantic model or msgspec.Struct, a JSON type, Any, or made up of these.
        names: what forward references inside of the annotation's classes may mean beside their modules' names.

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
        why = in_one_line(str(error).partition("\n\n")[0], _LONGEST)
        raise InvalidSettings(
            f"{called} is nothing that a job's data can be: {why}; allowed are dataclasses, TypedDict, pydantic "
            "models, msgspec.Struct, JSON types and Any"
        ) from None


def name_of(annotation: Any) -> str:
    """Return how messages call an annotation."""
    text = annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else None
    return in_one_line((text or shown(annotation, 80)).rpartition("<locals>.")[2], 80)


class _Plain:
    """JSON values as they are: no more than their class is looked at, the store's check does the rest."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def encode(self, args: Any) -> Any:
        """Return the arguments themselves: whether they are JSON is checked when the job is added."""
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
    """What a library checks: dumped by it to JSON values, loaded by it from JSON text."""

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
        """Dump the arguments, and load them for a check: what the handler would refuse is refused to the producer.

        So is what the handler would be given as something else.
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
            json_data.encode(data)  # says better what is no JSON at all
            raise InvalidJob(f"the data does not fit {self._called}: {found}")
        return data

    def decode(self, data: Any) -> Any:
        """Load the data as text: strictness is not the same for a str in JSON and for one in Python."""
        try:
            return self._load(pydantic_core.to_json(data))
        except Exception as error:  # validators are the user's code
            raise InvalidJob(self._refused(error)) from None

    def _loaded(self, data: Any) -> Any:
        """Return what a handler would be given."""
        try:
            return self._load(pydantic_core.to_json(data))
        except Exception:
            json_data.encode(data)  # says better what is no JSON at all
            raise

    def _refused(self, error: Exception) -> str:
        return f"the data does not fit {self._called}: {self._complaint(error)}"


def _check_count(args: Any) -> bool:
    """Refuse what holds a value very many times over: to dump it, or to say what is wrong with it, takes for ever.

    Returns:
        Whether there is a set in it.
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
        elif kind in _LEAVES or (fields := _fields(value)) is None:
            continue
        else:
            found = fields.values()
        left -= len(found)
        if left < 0:
            raise JobTooLarge(f"data of more than {json_data.MAX_VALUES} values; no store takes that much")
        values.extend(found)
    return has_sets


def _no_text(args: Any) -> str | None:
    """Return which bytes in the arguments, whose number was checked, are no text; None where there are none."""
    values: list[tuple[Any, tuple[int | str, ...]]] = [(args, ())]
    while values:
        value, path = values.pop()
        kind = type(value)
        if kind is bytes and not _is_text(value):
            where = f"field {_path(path)}: " if path else ""
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
    """Return what an object holds whose class declares its fields."""
    if not is_declared(type(value)):
        return None
    try:
        attributes = getattr(value, "__dict__", None)
        return attributes if type(attributes) is dict else fields_of(value)
    except Exception:  # reading attributes runs the user's code
        return None


def _unresolved(annotation: Any) -> str | None:
    """Return what refers by name in an annotation whose names were resolved: back to an alias that holds itself."""
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    return next(filter(None, map(_unresolved, typing.get_args(annotation))), None)


def _of_pydantic(called: str, annotation: Any, names: Mapping[str, Any]) -> Codec:
    adapter: TypeAdapter[Any] = TypeAdapter(_for_pydantic(annotation, names, {}))
    adapter.rebuild(raise_errors=True, _types_namespace=names)
    # By name and not by alias: an alias may be for one direction only.
    dump = partial(adapter.serializer.to_python, mode="json", warnings="error", by_alias=False, round_trip=True)
    load = partial(adapter.validator.validate_json, strict=True, by_alias=True, by_name=True)
    return _Typed(called, dump, load, _pydantic_complaint)


def _for_pydantic(annotation: Any, names: Mapping[str, Any], known: dict[Any, Any]) -> Any:
    """Return an annotation with each typing.TypedDict replaced by an equal one of typing_extensions.

    Before Python 3.12 the standard library's does not say which fields are required, and pydantic refuses it.
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
    # Known before its fields are looked at: it may be one of them.
    for name, hint in typing.get_type_hints(annotation, localns=dict(names), include_extras=True).items():
        qualifier = required if name in annotation.__required_keys__ else optional
        made.__annotations__[name] = qualifier[_for_pydantic(hint, names, known)]
    if hasattr(annotation, "__pydantic_config__"):
        made.__pydantic_config__ = annotation.__pydantic_config__
    return made


def _has_struct(annotation: Any) -> bool:
    """Whether an annotation is a msgspec.Struct, or made of some: then the program has imported msgspec."""
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
    return _Typed(called, dump, load, _msgspec_complaint)


def _pydantic_complaint(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return _first_complaint(first["type"], _path(first["loc"]), first["msg"], first["input"]) + more
    if isinstance(error, PydanticSerializationError) and (found := _UNEXPECTED.search(str(error))):
        expected, field, value = found.group("expected", "field", "value")
        where = f"field {in_one_line(field, 80)}: " if field else ""
        return f"{where}expected {in_one_line(expected, 60)}; it is {in_one_line(value, 60)}"
    return _foreign_complaint(error)


def _first_complaint(kind: str, path: str, said: str, value: Any) -> str:
    if kind in _MISSING:
        return f"field {path} is missing"
    if kind in _UNKNOWN:
        return f"field {path} is unknown"
    where = f"field {path}: " if path else ""
    if kind in _RAISED:
        said = said.partition(", ")[2] or said  # what was raised says enough, pydantic names its class before that
    return f"{where}{in_one_line(said[:1].lower() + said[1:], _LONGEST)}; it is {shown(value)}"


def _msgspec_complaint(error: Exception) -> str:
    import msgspec

    if not isinstance(error, msgspec.ValidationError):
        return _foreign_complaint(error)
    text = _MSGSPEC_TEXT.fullmatch(str(error))
    assert text is not None
    said, path = text["said"], text["path"] or ""
    if field := _MSGSPEC_FIELD.fullmatch(said):
        within = f"{path}.{field['name']}".removeprefix(".")
        return f"field {in_one_line(within, 80)} is {'missing' if 'missing' in field['how'] else 'unknown'}"
    where = f"field {in_one_line(path, 80)}: " if path else ""
    return where + in_one_line(said[:1].lower() + said[1:], _LONGEST)


def _foreign_complaint(error: Exception) -> str:
    try:
        return f"{kind_of(error)}: {in_one_line(str(error), _LONGEST)}"
    except Exception:  # an error whose own text cannot be had
        return kind_of(error)


def _path(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return in_one_line(text.removeprefix("."), 80)
