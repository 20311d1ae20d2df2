"""The surroundings of a runner's handlers: middleware around each run, and the resources that handlers name.

Middleware is called in the order of its registration, the first one outermost. Resources are opened when the runner
starts, in the order in which they were provided, and closed in reverse order when its last handler has ended.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from jobs_service.actors.context import log
from jobs_service.errors import InvalidSettings, JobsError, a_kind_of, shown
from jobs_service.model import Job, RunningJob
from jobs_service.runner.functions import body, name_of, place_of, resolved, scope_of, unwrapped
from jobs_service.runner.handler import Handler
from jobs_service.runner.payload import type_name
from jobs_service.runner.run import brief, describe

CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the handler, with the middleware that is nearer to it; returns its result, or raises its exception."""

Middleware: TypeAlias = Callable[[RunningJob, CallNext], Awaitable[Any]]
"""An async function around each run; the job's result is what it returns."""

_PLAIN: Final = (str, bytes, int, float, bool, dict, list, tuple, set, frozenset, object, type(None))
"""Classes that every handler may have for its arguments."""

_MOST_OF_A_REASON: Final = 200


def check_middleware(function: Any) -> None:
    """Raise InvalidSettings for a value that cannot be middleware."""
    if not callable(function):
        raise InvalidSettings(f"middleware {shown(function)}: {a_kind_of(function)} cannot be called")
    if not inspect.iscoroutinefunction(body(function)):
        raise InvalidSettings(f"{name_of(function)} cannot be middleware: make it `async def`")
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        why = "it is called with the job and call_next, and must take these two"
        raise InvalidSettings(f"{name_of(function)} cannot be middleware: {why}") from None


# Resources


class Provider(NamedTuple):
    """A function that opens a resource.

    Attributes:
        kind: the class by which handlers name the resource.
        factory: as the application gave it.
        needs: the classes of its parameters, which are resources as well, by name.
    """

    kind: type[Any]
    factory: Callable[..., Any]
    needs: Mapping[str, type[Any]]

    @property
    def place(self) -> str:
        """The name of the factory, with its file and line, for messages."""
        return place_of(self.factory)


def provider(kind: Any, factory: Any, known: Mapping[type[Any], Provider]) -> Provider:
    """Return the provider of a class, checked.

    Args:
        kind, factory: see Handlers.provide.
        known: the providers before it, which its own parameters may name.

    Raises:
        InvalidSettings: no such class can be provided, or not by this factory.
    """
    if not isinstance(kind, type) or kind in _PLAIN or issubclass(kind, Job):
        raise InvalidSettings(f"{shown(kind)} cannot be provided: allowed is a class of your own, or of a library")
    if not callable(factory):
        raise InvalidSettings(f"what provides {type_name(kind)} is {a_kind_of(factory)}; allowed is a function")
    needs: dict[str, type[Any]] = {}
    scope = scope_of(unwrapped(body(factory)))
    for parameter in _parameters(factory):
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        annotation = resolved(factory, parameter, scope, "provide anything")
        if annotation not in known:
            raise InvalidSettings(
                f"{name_of(factory)} cannot provide {type_name(kind)}: nothing provides its parameter "
                f"{parameter.name}; provide what it needs before, or give it a default"
            )
        needs[parameter.name] = annotation
    return Provider(kind, factory, MappingProxyType(needs))


def _parameters(factory: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return [*inspect.signature(factory).parameters.values()]
    except (TypeError, ValueError):  # a class of C, for instance
        return []


class Surroundings:
    """The middleware and the resources of the handlers of one runner.

    Args:
        middleware: of each handler by its packed type, the outermost first.
        providers: by the classes that they provide.
    """

    def __init__(
        self, middleware: Mapping[bytes, tuple[Middleware, ...]], providers: Mapping[type[Any], Provider]
    ) -> None:
        self._middleware = middleware
        self._providers = providers
        self._opened: dict[type[Any], Any] = {}

    def of(self, handler: Handler[Any, Any]) -> Around | None:
        """Return the surroundings of the runs of a handler; None for none."""
        middleware = self._middleware.get(handler.packed, ())
        return Around(middleware, handler.resources, self._opened) if middleware or handler.resources else None

    @contextlib.asynccontextmanager
    async def open(self, handlers: Iterable[Handler[Any, Any]]) -> AsyncIterator[None]:
        """Have the resources of handlers open as long as the block runs.

        Raises:
            JobsError: a resource cannot be opened; those that were open are closed.
        """
        wanted = self._needed({kind for handler in handlers for kind in handler.resources.values()})
        async with contextlib.AsyncExitStack() as stack:
            for each in self._providers.values():
                if each.kind in wanted:
                    try:
                        self._opened[each.kind] = await self._open(each, stack)
                    except Exception as error:
                        why = brief(describe(error), _MOST_OF_A_REASON)
                        raise JobsError(f"{each.place} could not open {type_name(each.kind)}: {why}") from error
            try:
                yield
            finally:
                self._opened.clear()

    def _needed(self, kinds: Iterable[type[Any]]) -> set[type[Any]]:
        """Return these classes, and those that their factories need."""
        found: set[type[Any]] = set()
        for kind in kinds:
            found |= {kind, *self._needed(self._providers[kind].needs.values())}
        return found

    async def _open(self, provider: Provider, stack: contextlib.AsyncExitStack) -> Any:
        factory = provider.factory
        code = body(factory)
        if inspect.isasyncgenfunction(code):
            factory = contextlib.asynccontextmanager(factory)
        elif inspect.isgeneratorfunction(code):
            factory = contextlib.contextmanager(factory)
        made = factory(**{name: self._opened[kind] for name, kind in provider.needs.items()})
        if hasattr(made, "__aenter__"):
            value = await made.__aenter__()
            stack.push_async_callback(_close, provider, partial(made.__aexit__, None, None, None))
            return value
        if hasattr(made, "__enter__"):
            value = made.__enter__()
            stack.push_async_callback(_close, provider, partial(made.__exit__, None, None, None))
            return value
        return await made if inspect.isawaitable(made) else made


async def _close(provider: Provider, leave: Callable[[], Any]) -> None:
    """Close a resource; if that fails, the others are closed all the same, and the log says so."""
    try:
        left = leave()
        if inspect.isawaitable(left):
            await left
    except Exception as error:
        log.error("resource_not_closed", resource=type_name(provider.kind), exc_info=error)


class Around:
    """The surroundings of the runs of one handler.

    Args:
        middleware: the outermost first.
        names: classes of resources by the names of the handler's parameters.
        opened: resources by their classes; filled when the runner starts.
    """

    __slots__ = ("_middleware", "_names", "_opened")

    def __init__(
        self, middleware: tuple[Middleware, ...], names: Mapping[str, type[Any]], opened: Mapping[type[Any], Any]
    ) -> None:
        self._middleware = middleware
        self._names = names
        self._opened = opened

    def resources(self) -> dict[str, Any]:
        """Return the handler's resources by the names of its parameters."""
        return {name: self._opened[kind] for name, kind in self._names.items()}

    async def call(self, job: RunningJob, handler: CallNext) -> Any:
        """Run a handler with its middleware, and return its result."""
        following = handler
        for each in reversed(self._middleware):
            following = partial(each, job, following)
        return await following()
