"""Converts a handler's arguments and results to JSON data and back, with a check in both directions.

A codec is built once, at its handler's registration. pydantic handles most annotations, in its strict JSON mode: "3" is
not an int, and "2026-01-01T00:00:00Z" is a datetime. msgspec handles msgspec.Struct, if the program has imported it.
Unknown fields are ignored, unless the annotation forbids them (extra="forbid" of pydantic, forbid_unknown_fields of
msgspec), because producers may be upgraded before their consumers.

The module has more than 600 lines because arguments, keywords, results and complaints are about the same annotations.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import datetime
from functools import partial, reduce
from typing import Any, Final, NamedTuple, Protocol

import pydantic_core
import typing_extensions
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from jobs_service import json_data
from jobs_service.errors import (
    InvalidJob,
    InvalidSettings,
    JobsError,
    JobTooLarge,
    a_kind_of,
    in_one_line,
    kind_of,
    meant,
    shown,
)
from jobs_service.model import EndedJob, Job
from jobs_service.runner.functions import body, evaluated, refused, scope_of

_SETS: Final = frozenset({set, frozenset})
_CONTAINERS: Final = frozenset({dict, list, tuple}) | _SETS
_CONTAINER_CLASSES: Final = (dict, list, tuple, set, frozenset)
_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})

_PLAIN: Final = (
    (Any, object),
    (object, object),
    (dict, dict),
    (dict[str, Any], dict),
    (list, list),
    (list[Any], list),
    (str, str),
)

# Results
_JSON: Final = (dict, list, tuple, str, int, float, bool, type(None))
_AS_IT_IS: Final = frozenset({Any, object, dict, list, str, int, float, bool, None, type(None)})
"""Annotations of results that JSON carries unchanged."""
_LAZY: Final = frozenset({collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator})
"""Annotations for which pydantic makes iterators, which check their members later."""
_UNIONS: Final = (typing.Union, types.UnionType)
_DEEPEST: Final = 20
_ALIASES: Final = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType))
"""The classes of `type X = ...` and its backport: newer typing_extensions have their own class."""

# Complaints
LONGEST_REASON: Final = 160
"""Most characters of a library's reason that a message quotes."""

_MISSING: Final = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RAISED: Final = frozenset({"value_error", "assertion_error"})
_MSGSPEC_TEXT: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_MSGSPEC_FIELD: Final = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_UNEXPECTED: Final = re.compile(
    r"PydanticSerializationUnexpectedValue\(Expected (?P<expected>.*?) - serialized value may not be as expected "
    r"\[(?:field_name='(?P<field>[^']*)', )?input_value=(?P<value>.*), input_type=\w+\]\)",
    re.DOTALL,
)


# Arguments


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
    called = type_name(annotation)
    if (reference := _unresolved(annotation)) is not None:
        raise InvalidSettings(
            f"an alias that holds itself, as {shown(reference)} in it: make it one with "
            "typing_extensions.TypeAliasType, or the `type` statement of Python 3.12"
        )
    try:
        if _has_struct(annotation):
            return _of_msgspec(called, annotation)
        return _of_pydantic(called, annotation, names or {})
    except Exception as error:  # a class body's own code runs as well, and may raise anything
        why = in_one_line(str(error).partition("\n\n")[0], LONGEST_REASON)
        raise InvalidSettings(
            f"{called} is nothing that a job's data can be: {why}; allowed are dataclasses, TypedDict, pydantic "
            "models, msgspec.Struct, JSON types and Any"
        ) from None


def type_name(annotation: Any) -> str:
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


# Arguments by keyword: a JSON object with a value for each parameter


class Parameter(NamedTuple):
    """One keyword parameter of a handler.

    Attributes:
        codec: codec of its values.
        required: whether it has no default.
    """

    codec: Codec
    required: bool


class Keywords:
    """The codec of keyword arguments: every value is checked against its parameter's annotation.

    Missing arguments stay out of the data, so that the function's own defaults apply at the call.

    Args:
        parameters: the parameters by name.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    def encode(self, args: Any) -> dict[str, Any]:
        """Return the arguments as a JSON object, from which `decode` makes equal values.

        Raises:
            InvalidJob: they are not a mapping, or a name or a value does not fit.
            JobTooLarge: they exceed the limits of every store.
        """
        if not isinstance(args, Mapping):
            names = ", ".join(self._parameters)
            raise InvalidJob(f"arguments by keyword, or a dict of them, should be given ({names}); it is {shown(args)}")
        for name in args:
            if name not in self._parameters:
                raise InvalidJob(f"there is no parameter {shown(name)}{meant(name, self._parameters)}")
        return self._each(args, lambda codec, value: codec.encode(value))

    def decode(self, data: Any) -> dict[str, Any]:
        """Return the arguments in a job's data; names without a parameter are ignored.

        Raises:
            InvalidJob: they do not fit.
        """
        if not isinstance(data, dict):
            raise InvalidJob(f"the data should be a dict of arguments; it is {shown(data)}")
        return self._each(data, lambda codec, value: codec.decode(value))

    def _each(self, values: Mapping[str, Any], convert: Callable[[Codec, Any], Any]) -> dict[str, Any]:
        converted = {}
        for name, parameter in self._parameters.items():
            if name in values:
                try:
                    converted[name] = convert(parameter.codec, values[name])
                except InvalidJob as error:
                    raise InvalidJob(f"parameter {in_one_line(name, 80)}: {error}") from None
            elif parameter.required:
                raise InvalidJob(f"parameter {in_one_line(name, 80)} is missing")
        return converted


def are_keywords(positional: list[inspect.Parameter], keyword_only: list[inspect.Parameter]) -> bool:
    """Return whether arguments are given by keyword: for several parameters, or a required keyword-only one."""
    return len(positional) > 1 or any(parameter.default is parameter.empty for parameter in keyword_only)


# Results: only certain misfits are refused, not open annotations such as a Mapping, or a list that may be empty


class ResultCodec:
    """Converts the results of a handler to JSON data and back.

    Args:
        codec: codec of the annotation; None if JSON carries the results unchanged.
    """

    __slots__ = ("_codec",)

    def __init__(self, codec: Codec | None) -> None:
        self._codec = codec

    def encode(self, result: Any) -> Any:
        """Return a result as JSON data.

        A result that does not fit the annotation is kept unchanged if it is JSON: the work is done already.

        Raises:
            InvalidJob, JobTooLarge: it neither fits the annotation nor is JSON.
        """
        if self._codec is None or result is None:
            return result
        try:
            return self._codec.encode(result)
        except InvalidJob as refusal:
            try:
                json_data.encode(result)
            except InvalidJob:
                raise refusal from None
            return result

    def decode(self, data: Any) -> Any:
        """Return the encoded result; None for none.

        Raises:
            InvalidJob: it does not fit the annotation; the message names the field.
        """
        if self._codec is None:
            return data
        try:
            return self._codec.decode(data)
        except InvalidJob:
            if data is None:
                return None
            raise


def result_codec(function: Any) -> ResultCodec:
    """Return the codec for a function's results, by its annotation.

    Raises:
        InvalidSettings: no store can keep the annotated result: each of the function's jobs would fail.
    """
    code = body(function)
    if hasattr(code, "__wrapped__"):
        return ResultCodec(None)  # its annotations are those of the function that it wraps: it may convert the result
    try:
        scope = scope_of(code)
        annotation = evaluated("return", getattr(code, "__annotations__", {}).get("return", Any), scope)
        returned = _without_jobs(annotation)
        if _is_as_it_is(returned):
            return ResultCodec(None)
        try:
            if returned is not type and typing.get_origin(returned) is not type:
                return ResultCodec(codec(returned, scope.locals))
            unfit = returned
        except InvalidSettings:
            unfit = _unfit(returned, _DEEPEST)
    except Exception:  # a name that is imported for type checkers only, or user code that fails as it is evaluated
        return ResultCodec(None)
    if unfit is not None:
        raise refused(
            function,
            f"it returns {type_name(unfit)}, which cannot be kept as a job's result; allowed is what arguments may be",
        )
    return ResultCodec(None)


def _without_jobs(annotation: Any) -> Any:
    """Return the annotation of results without jobs: a handler may return a job, but it is no result."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is EndedJob:
        return members[0]
    if origin in _UNIONS:
        results = [_without_jobs(member) for member in members if not _is_job(member)]
        return functools.reduce(operator.or_, results) if results else Any
    return Any if _is_job(annotation) else annotation


def _is_job(annotation: Any) -> bool:
    return isinstance(annotation, type) and typing.get_origin(annotation) is None and issubclass(annotation, Job)


def _is_as_it_is(annotation: Any) -> bool:
    """Whether JSON carries the annotated values: encoding and decoding would change nothing."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return members[0] in (str, Any) and _is_as_it_is(members[1])
    if origin is list or origin in _UNIONS:
        return all(map(_is_as_it_is, members))
    if origin is None:
        return isinstance(annotation, collections.abc.Hashable) and annotation in _AS_IT_IS
    return origin in _LAZY


def _unfit(annotation: Any, depth: int) -> Any:
    if depth == 0 or annotation is Any or annotation is None:
        return None
    if isinstance(annotation, typing.NewType):
        return _unfit(annotation.__supertype__, depth - 1)
    if isinstance(annotation, _ALIASES):
        return _unfit(annotation.__value__, depth - 1)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _unfit(members[0], depth - 1)
    if origin in _UNIONS:
        return annotation if all(_unfit(member, depth - 1) is not None for member in members) else None
    if origin is tuple:
        unfit = [_unfit(member, depth - 1) for member in members if member is not ... and members[-1] is not ...]
        return next((each for each in unfit if each is not None), None)
    kind = annotation if origin is None else origin
    return annotation if isinstance(kind, type) and _has_no_json(kind) else None


def _has_no_json(kind: type) -> bool:
    """Whether no object of a class can be JSON: no JSON class and no known JSON subclass derives from it."""
    if issubclass(kind, Job) or typing.is_typeddict(kind):
        return False
    if inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
        return False
    try:
        return not (_is_json(kind) or any(issubclass(each, kind) for each in _JSON))
    except TypeError:  # a class with a __subclasscheck__ of its own
        return False


def _is_json(kind: type) -> bool:
    """Whether the objects of a class, or of one of its subclasses, are JSON."""
    subclasses: list[type] = type.__subclasses__(kind)
    return issubclass(kind, _JSON) or any(map(_is_json, subclasses))


# Complaints of validation libraries, in one line that names the field


def pydantic_complaint(error: Exception) -> str:
    """Return the complaint of pydantic, or of a validator called by it, about a value."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return _first_complaint(first["type"], path_text(first["loc"]), first["msg"], first["input"]) + more
    if isinstance(error, PydanticSerializationError) and (found := _UNEXPECTED.search(str(error))):
        expected, field, value = found.group("expected", "field", "value")
        where = f"field {in_one_line(field, 80)}: " if field else ""
        return f"{where}expected {in_one_line(expected, 60)}; it is {in_one_line(value, 60)}"
    return _foreign_complaint(error)


def msgspec_complaint(error: Exception) -> str:
    """Return the complaint of msgspec, or of a hook called by it, about a value."""
    import msgspec

    if not isinstance(error, msgspec.ValidationError):
        return _foreign_complaint(error)
    text = _MSGSPEC_TEXT.fullmatch(str(error))
    assert text is not None
    reason, path = text["reason"], text["path"] or ""
    if field := _MSGSPEC_FIELD.fullmatch(reason):
        within = f"{path}.{field['name']}".removeprefix(".")
        return f"field {in_one_line(within, 80)} is {'missing' if 'missing' in field['how'] else 'unknown'}"
    where = f"field {in_one_line(path, 80)}: " if path else ""
    return where + in_one_line(reason[:1].lower() + reason[1:], LONGEST_REASON)


def _first_complaint(kind: str, path: str, reason: str, value: Any) -> str:
    if kind in _MISSING:
        return f"field {path} is missing"
    if kind in _UNKNOWN:
        return f"field {path} is unknown"
    where = f"field {path}: " if path else ""
    if kind in _RAISED:
        reason = reason.partition(", ")[2] or reason  # pydantic puts the class of the exception before its message
    return f"{where}{in_one_line(reason[:1].lower() + reason[1:], LONGEST_REASON)}; it is {shown(value)}"


def _foreign_complaint(error: Exception) -> str:
    try:
        return f"{kind_of(error)}: {in_one_line(str(error), LONGEST_REASON)}"
    except Exception:  # __str__ of a user's exception is the user's code
        return kind_of(error)


def path_text(location: tuple[int | str, ...]) -> str:
    """Return a field's path in the form of messages: `items[3].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return in_one_line(text.removeprefix("."), 80)


# Whether arguments come back as they went in


_LOST: Final = object()
_DEEPEST_ARGUMENTS: Final = 200


def difference(given: Any, back: Any, path: str = "", depth: int = _DEEPEST_ARGUMENTS) -> str | None:
    """Return in a few words the first part of some arguments that would come back changed; None if they are equal.

    A tuple may come back as a list, as in all JSON.

    Args:
        given, back: the values before and after.
        path: of these within all arguments.
        depth: most levels that are compared part by part.
    """
    if back is _LOST:
        return f"field {path.removeprefix('.')} would be lost"
    if _equal(given, back):
        return None
    pairs = _pairs(given, back) if depth else None
    if pairs is not None:
        found = (difference(one, other, path + name, depth - 1) for name, one, other in pairs)
        return next(filter(None, found), None)
    where = f"field {path.removeprefix('.')}: " if path else ""
    if type(given) is not type(back):
        return f"{where}{a_kind_of(given)} would come back as {a_kind_of(back)}"
    before, after = shown(given), shown(back)
    if before == after:
        return f"{where}{a_kind_of(given)} would not come back as it is"
    return f"{where}{before} would come back as {after}"


def _equal(given: Any, back: Any) -> bool:
    try:
        # In the hour that a clock shows twice, equal times in two time zones compare unequal in Python.
        return bool(given == back) or (isinstance(given, datetime) and given.isoformat() == back.isoformat())
    except Exception:  # comparing runs the user's code
        return False


def _pairs(given: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the parts of two values side by side, each with its path; None if they have no comparable parts."""
    if isinstance(given, list | tuple) and isinstance(back, list | tuple) and len(given) == len(back):
        return [(f"[{place}]", *pair) for place, pair in enumerate(zip(given, back, strict=True))]
    if type(given) is type(back) and is_declared(type(given)):
        given, back = fields_of(given), fields_of(back)
    if isinstance(given, Mapping) and isinstance(back, Mapping) and len(given) == len(back):
        return [(f".{name}", value, back.get(name, _LOST)) for name, value in given.items()]
    return None


def is_declared(kind: type) -> bool:
    """Whether a class declares its fields: a dataclass, a pydantic model, a msgspec.Struct."""
    # Written out because this is called for every value that is enqueued: a generator takes three times as long.
    return (
        hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__pydantic_fields__")
        or hasattr(kind, "__struct_fields__")
    )


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an object whose class declares them; private attributes of a model are none of them."""
    kind = type(value)
    declared = ("__dataclass_fields__", "__pydantic_fields__", "__struct_fields__")
    names = next(filter(None, (getattr(kind, name, None) for name in declared)), ())
    return {name: getattr(value, name, None) for name in (*names, *(getattr(value, "__pydantic_extra__", None) or ()))}


def in_order(given: Any, data: Any) -> Any:
    """Return encoded arguments with the members of sets sorted by their JSON.

    The iteration order of a set differs from process to process.
    """
    kind = type(data)
    if kind is list:
        if len(data) != _length(given):
            return data
        members = [in_order(one, other) for one, other in zip(given, data, strict=True)]
        return sorted(members, key=repr) if isinstance(given, Set) else members
    if kind is dict:
        return {name: in_order(one, data[name]) for name, one in _members(given, data)}
    return data


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple | Set) else -1


def _members(given: Any, data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each name in the data with its original value; None if that is not known."""
    if isinstance(given, Mapping) and len(given) == len(data):
        yield from zip(data, given.values(), strict=True)
        return
    names = getattr(type(given), "__struct_fields__", None)
    own = {} if names is None else dict(zip(type(given).__struct_encode_fields__, names, strict=True))
    for name in data:
        yield name, getattr(given, own.get(name, name), None)
