"""The annotation of a handler's result: it is refused at registration if no such result could ever be stored."""

from __future__ import annotations

import abc
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Never, NewType, Protocol, TypedDict, TypeVar

import pytest
import typing_extensions

from jobs_service import EndedJob, InvalidSettings, Job, JobsService, RunningJob

T = TypeVar("T")


@dataclass
class Thumbnail:
    """A custom class."""

    file: str


class Box(Generic[T]):
    """A generic one."""


class Name(enum.StrEnum):
    """Its members are texts."""

    ADA = "ada"


class Movie(TypedDict):
    """A dict."""

    title: str


class Pair(NamedTuple):
    """A tuple."""

    one: int
    other: int


class Base:
    """A class that is no JSON, with a subclass that is."""


class Derived(Base, dict[str, int]):
    """A dict as well."""


class Shape(abc.ABC):
    """What subclasses are, they say themselves."""

    @abc.abstractmethod
    def area(self) -> int:
        """Return the area."""


class Sized(Protocol):
    """Whatever has a length."""

    def __len__(self) -> int: ...


Ids = NewType("Ids", Box[int])
Text = NewType("Text", str)
Boxes = typing_extensions.TypeAliasType("Boxes", Box[int] | Box[str])


@pytest.mark.parametrize(
    ("annotation", "called"),
    [
        (Box[int], "Box[int]"),
        ("Box[int]", "Box[int]"),
        (type[int], "type[int]"),
        (type, "type"),
        (set[Box[int]], "Box[int]"),
        (Box[int] | Box[str], "Box[int]"),
        (Annotated[Box[int], "ids"], "Box[int]"),
        (tuple[int, Box[int]], "Box[int]"),
        (EndedJob[Box[int]], "Box[int]"),
        (Ids, "Box[int]"),
        (Boxes, "Box[int]"),
    ],
)
def test_a_handler_that_says_that_it_returns_what_no_store_takes_is_refused(annotation: Any, called: str) -> None:
    jobs = JobsService("memory:")

    async def coroutine(args: int) -> Any: ...

    def plain(args: int) -> Any: ...

    for function in (coroutine, plain):
        function.__annotations__["return"] = annotation
        for register in (jobs.handler("t"), jobs.every(5, type="u")):
            with pytest.raises(InvalidSettings) as caught:
                register(function)
            assert f"{function.__name__} cannot be a handler: it returns " in str(caught.value)
            assert called in str(caught.value)
            assert ", which cannot be kept as a job's result" in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
    assert not jobs.handlers


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        None,
        object,
        Never,
        T,
        int,
        float,
        dict,
        dict[str, Any],
        dict[int, set[int]],
        list[set[int]],
        tuple[set[int], ...],
        tuple[()],
        Movie,
        Pair,
        Name,
        enum.Enum,
        Literal["a", 1],
        set[int] | None,
        "set[int] | int",
        Mapping[str, int],
        Sequence[int],
        Callable[[], int],
        Thumbnail,
        set[int],
        Derived,
        Base,
        Shape,
        Sized,
        Text,
        Job,
        EndedJob[int],
        EndedJob[int] | int,
        "Unknown",
        "1 / 0",
    ],
)
def test_a_handler_that_may_return_what_a_store_takes_is_not(annotation: Any) -> None:
    jobs = JobsService("memory:")

    async def function(job: RunningJob) -> Any: ...

    function.__annotations__["return"] = annotation
    jobs.handler("t")(function)
    assert list(jobs.handlers) == ["t"]


def test_methods_and_objects_say_what_they_return_as_well() -> None:
    jobs = JobsService("memory:")

    class Shop:
        async def order(self, args: int) -> Box[int]:
            return Box()

        def __call__(self) -> Box[int]:
            return Box()

    for function in (Shop().order, Shop(), functools.partial(Shop().order, args=1)):
        with pytest.raises(InvalidSettings, match=r"it returns .*Box\[int\], which cannot be kept"):
            jobs.handler("order")(function)
