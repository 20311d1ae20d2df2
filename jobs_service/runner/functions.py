"""A handler's function as Python sees it: the code behind its wrappers, its name, and its evaluated annotations."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from jobs_service.errors import InvalidSettings, in_one_line, shown


def body(function: Any) -> Any:
    """Return the function whose code runs, behind functools.partial, objects with a __call__ and bound methods."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def unwrapped(function: Any) -> Any:
    """Return the function whose parameters count: the end of the chain of `__wrapped__`."""
    try:
        return inspect.unwrap(function)
    except ValueError:  # it wraps itself
        return function


def name_of(function: Any) -> str:
    """Return the name of a function in logs and errors: its module and name."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") and hasattr(function, "__module__") else type(function)
    return in_one_line(f"{named.__module__}.{named.__qualname__}".replace(".<locals>", ""), 120)


def refused(function: Any, why: str) -> InvalidSettings:
    """Return the error for a function that cannot be a handler."""
    return InvalidSettings(f"{name_of(function)} cannot be a handler: {why}")


class Scope(NamedTuple):
    """The names available to a function's annotations."""

    globals: dict[str, Any]
    locals: dict[str, Any]


def scope_of(function: Any) -> Scope:
    """Return the names of a function's module, and of its enclosing functions.

    The closure holds the latter only if the function's code uses them. Annotations put no name into the closure, so the
    frames of the enclosing functions are searched as well: they still run during decoration.
    """
    globals: dict[str, Any] = getattr(function, "__globals__", {})
    code = getattr(function, "__code__", None)
    locals: dict[str, Any] = {}
    for frame in _frames_around(function.__qualname__, globals) if code else ():
        locals = {**frame.f_locals, **locals}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=True):
        try:
            locals[name] = cell.cell_contents
        except ValueError:  # a name that is not assigned yet
            continue
    return Scope(globals, locals)


def _frames_around(qualname: str, globals: dict[str, Any]) -> Iterator[types.FrameType]:
    """Yield the running frames of a function's enclosing functions, the nearest first."""
    *parts, _ = qualname.split(".<locals>.")
    around = {".<locals>.".join(parts[: count + 1]) for count in range(len(parts))}
    frame = inspect.currentframe()
    while around and frame is not None:
        if frame.f_globals is globals and frame.f_code.co_qualname in around:
            around.remove(frame.f_code.co_qualname)
            yield frame
        frame = frame.f_back


def resolved(function: Any, parameter: inspect.Parameter, scope: Scope) -> Any:
    """Return a parameter's annotation with all strings in it evaluated.

    Raises:
        InvalidSettings: it cannot be evaluated.
    """
    if parameter.annotation is parameter.empty:
        return parameter.empty
    try:
        return evaluated(parameter.name, parameter.annotation, scope)
    except Exception as error:  # evaluating an annotation runs the user's code
        raise refused(
            function,
            f"the annotation {shown(parameter.annotation)} of parameter {parameter.name} cannot be resolved: "
            f"{in_one_line(str(error), 80)}",
        ) from None


def evaluated(name: str, annotation: Any, scope: Scope) -> Any:
    """Return an annotation with its strings evaluated; that runs the user's code, which may raise anything."""
    alone = types.SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(alone, scope.globals, scope.locals, include_extras=True)[name]
