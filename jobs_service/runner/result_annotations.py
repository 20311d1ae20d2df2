"""Whether the annotation of a handler's result says that no result can ever be stored.

Only certain cases are refused: not an annotation that leaves open what is returned, such as a Mapping, or a list of
anything, which may be empty.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any, Final

import typing_extensions

from jobs_service.model import EndedJob, Job

_JSON: Final = (dict, list, tuple, str, int, float, bool, type(None))
_DEEPEST: Final = 20
_ALIASES: Final = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", typing_extensions.TypeAliasType))
"""The class of `type X = ...`, and its backport: newer versions of typing_extensions keep a class of their own."""


def unfit_result(annotation: Any) -> Any:
    """Return the part of a result's annotation of which no value can be stored; None if there is none.

    Args:
        annotation: with its forward references resolved.
    """
    return _unfit(annotation, _DEEPEST)


def _unfit(annotation: Any, depth: int) -> Any:
    if depth == 0 or annotation is Any or annotation is None:
        return None
    if isinstance(annotation, typing.NewType):
        return _unfit(annotation.__supertype__, depth - 1)
    if isinstance(annotation, _ALIASES):
        return _unfit(annotation.__value__, depth - 1)
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated or origin is EndedJob:
        return _unfit(members[0], depth - 1)
    if origin is typing.Union or origin is types.UnionType:
        return annotation if all(_unfit(member, depth - 1) is not None for member in members) else None
    if origin is tuple:
        unfit = [_unfit(member, depth - 1) for member in members if member is not ... and members[-1] is not ...]
        return next((each for each in unfit if each is not None), None)
    kind = annotation if origin is None else origin
    return annotation if isinstance(kind, type) and _has_no_json(kind) else None


def _has_no_json(kind: type) -> bool:
    """Whether no object of a class can be JSON: neither do JSON's classes derive from it, nor do known subclasses."""
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
