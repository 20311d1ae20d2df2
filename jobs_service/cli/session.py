"""Finds the store of a verb, and opens the service while the verb runs."""

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
        store: the store's address; None if it was not given.
    """

    def __init__(self, store: str | None) -> None:
        self.store = store


def chosen_store(context: typer.Context, store: str | None) -> str:
    """Return the store's address: the verb's option, else the option before the verb, the variable or the default."""
    from jobs_service.service import DEFAULT_STORE
    from jobs_service.settings import STORE_VARIABLE

    return store or context.obj.store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def refuse_store(context: typer.Context, why: str, store: str | None = None) -> None:
    """Refuse `--store` for a verb that would not use it.

    Raises:
        typer.BadParameter: the option was given, before the verb or after it.
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
        context: the verb's context.
        store: the verb's `--store`.
        body: called with the open service.
        rehearsal: run first on a memory store if the embedded store does not exist, so that a refused operation leaves
            no empty store behind. None if the body must not make a store: then the store must exist.
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
    """Do the same as `run` for a store's address."""
    import asyncio

    if rehearsal is None:
        require_store(address)
    elif missing_store(address) is not None:
        asyncio.run(_within(imitated(address), rehearsal, supervise=False))
    return asyncio.run(_within(address, body, supervise))


def require_store(address: str) -> None:
    """Raise StoreError if the address names an embedded store that does not exist."""
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
    """Return a memory store with the limits and the address of the store at an address."""
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
    from jobs_service import JobsService
    from jobs_service.cli.logging import configure

    configure("warning")
    async with JobsService(store, supervise=supervise) as jobs:
        return await body(jobs)
