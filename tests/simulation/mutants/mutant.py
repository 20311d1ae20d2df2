"""What a mutant is, and how one is made: by changing a few words in a real function, for a while."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

Defect: TypeAlias = AbstractContextManager[object]


@dataclass(frozen=True)
class Change:
    """Words of a function that become others.

    Attributes:
        of: the full name of the function's module, a colon, and its name there.
        words: (words, other words).
        helpers: names of `helpers.py` that the other words need.
    """

    of: str
    words: tuple[tuple[str, str], ...]
    helpers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutant:
    """A defect, and in what runs it shows.

    Attributes:
        name: what it is called.
        doc: what is wrong.
        changes: all that make it.
        profile: of the runs' weather; None to have it drawn.
        workloads: names of those that run; None for all.
        rates: of kinds of fault, in place of those that the weather has.
    """

    name: str
    doc: str
    changes: tuple[Change, ...]
    profile: str | None = None
    workloads: Sequence[str] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_runs_of_its_own(self) -> bool:
        """Whether it says in what runs it shows."""
        return bool(self.profile or self.workloads or self.rates)

    def defect(self) -> Defect:
        """Return what has the defect while it is entered.

        Raises:
            LookupError: a function is gone, or has become another; the message says which.
        """
        return together(*[_planted(change) for change in self.changes])


def _planted(change: Change) -> Defect:
    helpers = import_module("tests.simulation.mutants.helpers") if change.helpers else None
    return changed(_function(change.of), *change.words, **{name: getattr(helpers, name) for name in change.helpers})


def _function(of: str) -> Any:
    name, _, path = of.partition(":")
    try:
        found: Any = import_module(name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"there is no {of}: {error}") from None
    return found


def changed(function: Any, *changes: tuple[str, str], **names: object) -> Defect:
    """Return what changes words in a function's source while it is entered, wherever the function is known.

    Args:
        function: any plain function, method, class method or property, or what wraps one.
        changes: (words, other words); each must occur exactly once.
        names: what the function's module knows beside, meanwhile.

    Raises:
        LookupError: words do not occur once; the function has become another since, and the mutant must be made anew.
    """
    plain: Any = function.fget if isinstance(function, property) else inspect.unwrap(function)
    plain = plain.__func__ if isinstance(plain, MethodType) else plain
    assert isinstance(plain, FunctionType), function
    return _other_code(plain, _changed_code(plain, changes), names)


@contextmanager
def together(*defects: Defect) -> Iterator[None]:
    """Have several changes at once that only together are a defect."""
    with ExitStack() as stack:
        for defect in defects:
            stack.enter_context(defect)
        yield


@contextmanager
def _other_code(function: FunctionType, code: CodeType, names: dict[str, object]) -> Iterator[None]:
    original, known = function.__code__, function.__globals__
    assert not known.keys() & names.keys()
    # The code, not the function: other modules, tables and wrappers have the function itself.
    function.__code__ = code
    known.update(names)
    _forget(known)
    try:
        yield
    finally:
        function.__code__ = original
        _forget(known)
        for name in names:
            del known[name]


def _forget(known: dict[str, Any]) -> None:
    """Clear what functions of a module keep: it hides a defect, or comes from one that is gone."""
    for value in [*known.values()]:
        if hasattr(type(value), "cache_clear"):  # asked of the value itself, some answer with an error
            value.cache_clear()


def _changed_code(function: FunctionType, changes: Sequence[tuple[str, str]]) -> CodeType:
    lines, first = inspect.getsourcelines(function)
    source = "".join(lines)
    for words, other in changes:
        if source.count(words) != 1:
            raise LookupError(f"{function.__qualname__} has {words!r} {source.count(words)} times, not once")
        source = source.replace(words, other)
    module = sys.modules[function.__module__]
    whole = inspect.getsource(module).splitlines(keepends=True)
    whole[first - 1 : first - 1 + len(lines)] = [source]
    compiled = compile("".join(whole), str(module.__file__), "exec", dont_inherit=True)
    [code] = [code for code in _codes(compiled) if code.co_qualname == function.__qualname__]
    return code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
