"""The annotation of a handler's result: it decides the conversion to JSON and back, and is refused if no result fits.

Only certain misfits are refused, not open annotations such as a Mapping, or a list of anything, which may be empty.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
import types
import typing
from typing import Any, Final

import typing_extensions

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings
from jobs_service.model import EndedJob, Job
from jobs_service.runner.functions import body, evaluated, refused, scope_of
from jobs_service.runner.payload import Codec, codec, name_of

_JSON: Final = (dict, list, tuple, str, int, float, bool, type(None))
_AS_IT_IS: Final = frozenset({Any, object, dict, list, str, int, float, bool, None, type(None)})
"""Annotations of results that JSON carries unchanged."""
_LAZY: Final = frozenset({collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator})
"""Annotations for which pydantic makes iterators, which check their members later."""
_UNIONS: Final = (typing.Union, types.UnionType)
_DEEPEST: Final = 20
_ALIASES: Final = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType))
"""The classes of `type X = ...` and its backport: newer typing_extensions have their own class."""


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
            f"it returns {name_of(unfit)}, which cannot be kept as a job's result; allowed is what arguments may be",
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
