"""Finds the store that a verb works on, and opens the service while the verb runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.store import Store

T = TypeVar("T")


class GlobalOptions:
    """The options before the verb.

    Attributes:
        store: the store's address, None if it was not given.
    """

    def __init__(self, store: str | None) -> None:
        self.store = store


def chosen_store(context: typer.Context, store: str | None) -> str:
    """Return the store's address: the verb's option, else the one before the verb, the variable, the default."""
    from jobs_service.service import DEFAULT_STORE
    from jobs_service.settings import STORE_VARIABLE

    return store or context.obj.store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def refuse_store(context: typer.Context, why: str, store: str | None = None) -> None:
    """Refuse `--store` for a verb that would not use it.

    Raises:
        typer.BadParameter: it was given, before the verb or after it.
    """
    if store is not None or context.obj.store is not None:
        raise typer.BadParameter(why, param_hint="--store")


def run(
    context: typer.Context,
    store: str | None,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    rehearsal: Callable[[JobsService], Coroutine[Any, Any, object]] | None = None,
    supervise: bool = False,
) -> T:
    """Open the service, run a verb's body with it, close the service, and return the body's result.

    Args:
        context: the verb's.
        store: the verb's `--store`.
        body: called with the open service.
        rehearsal: run first on a memory store if the embedded store does not exist, so that an operation that is
            refused leaves no empty store behind. None for a body that must not make a store: then it must exist.
        supervise: whether to run the supervisor tree, which subscriptions need.

    Raises:
        StoreError: the store does not exist, or it cannot be opened.
    """
    return run_at(chosen_store(context, store), body, rehearsal=rehearsal, supervise=supervise)


def run_at(
    address: str,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    rehearsal: Callable[[JobsService], Coroutine[Any, Any, object]] | None = None,
    supervise: bool = False,
) -> T:
    """Do the same as `run`, given the address of the store."""
    import asyncio

    if rehearsal is None:
        require_store(address)
    elif missing_store(address) is not None:
        asyncio.run(_within(imitated(address), rehearsal, supervise=False))
    return asyncio.run(_within(address, body, supervise))


def require_store(address: str) -> None:
    """Raise StoreError if the address is that of an embedded store that does not exist."""
    from jobs_service.errors import StoreError
    from jobs_service.settings import STORE_VARIABLE

    path = missing_store(address)
    if path is not None:
        raise StoreError(
            f"there is no store at {path}; name another with --store or {STORE_VARIABLE}, "
            "or make this one: jobs-service types set TYPE SECONDS"
        )


def missing_store(address: str) -> str | None:
    """Return the path of an embedded store that does not exist; None if the store exists or is of another kind."""
    from pathlib import Path

    scheme, _, path = address.partition(":")
    if scheme != "lmdb" or not path or Path(path).is_file() or Path(path, "data.mdb").exists():
        return None
    return path


def imitated(address: str) -> Store:
    """Return a memory store with the limits of the store at an address, and its address."""
    from jobs_service.settings import Settings
    from jobs_service.sources import Sources
    from jobs_service.store import open_address
    from jobs_service.store.memory import MemoryStore

    settings, sources = Settings(), Sources()
    store = MemoryStore(settings=settings, sources=sources)
    store.limits = open_address(address, settings, sources).limits
    store.address = address
    return store


async def _within(store: str | Store, body: Callable[[JobsService], Coroutine[Any, Any, T]], supervise: bool) -> T:
    from jobs_service.cli.logging import configure
    from jobs_service.cli.progress_bars import conversion_shown

    configure("warning")
    with conversion_shown():
        return await _in_service(store, body, supervise)


async def _in_service(store: str | Store, body: Callable[[JobsService], Coroutine[Any, Any, T]], supervise: bool) -> T:
    from jobs_service import JobsService

    async with JobsService(store, supervise=supervise) as jobs:
        return await body(jobs)
