"""Which store a verb means, and how it is opened for the verb's time. Floor: command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from jobs_service import JobsService

T = TypeVar("T")


class Chosen:
    """What the options before the verb say.

    Attributes:
        store: the store's address, None when there was none.
    """

    def __init__(self, store: str | None) -> None:
        self.store = store


def chosen_store(context: typer.Context, store: str | None) -> str:
    """Return the store's address: the verb's option, else the one before the verb, the variable, the default."""
    from jobs_service.service import DEFAULT_STORE
    from jobs_service.settings import STORE_VARIABLE

    return store or context.obj.store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def refuse_store(context: typer.Context, why: str, store: str | None = None) -> None:
    """Refuse a store that the command line names and the verb would not use.

    Raises:
        typer.BadParameter: there is one, before the verb or behind it.
    """
    if store is not None or context.obj.store is not None:
        raise typer.BadParameter(why, param_hint="--store")


def run(
    context: typer.Context,
    store: str | None,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    makes_store: bool = False,
    supervise: bool = False,
) -> T:
    """Open the service, run a verb's body with it, close it, and return the body's result.

    Args:
        context: the verb's.
        store: the verb's `--store`.
        body: called with the open service.
        makes_store: whether an embedded store that is not there is made; else that is an error.
        supervise: whether the supervisor tree runs meanwhile, which subscriptions need.

    Raises:
        StoreError: there is no such store, or it cannot be opened.
    """
    return run_at(chosen_store(context, store), body, makes_store=makes_store, supervise=supervise)


def run_at(
    address: str,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    makes_store: bool = False,
    supervise: bool = False,
) -> T:
    """Do what `run` does at the store with an address."""
    import asyncio

    if not makes_store:
        require_store(address)
    return asyncio.run(_within(address, body, supervise))


def require_store(address: str) -> None:
    """Raise StoreError if the address names an embedded store that is not there."""
    from jobs_service.errors import StoreError
    from jobs_service.settings import STORE_VARIABLE

    path = missing_store(address)
    if path is not None:
        raise StoreError(
            f"there is no store at {path}; name another with --store or {STORE_VARIABLE}, "
            "or make this one: jobs-service types set TYPE SECONDS"
        )


def missing_store(address: str) -> str | None:
    """Return the path of the embedded store that the address names, if there is none."""
    from pathlib import Path

    scheme, _, path = address.partition(":")
    if scheme != "lmdb" or not path or Path(path).is_file() or Path(path, "data.mdb").exists():
        return None
    return path


async def _within(address: str, body: Callable[[JobsService], Coroutine[Any, Any, T]], supervise: bool) -> T:
    from jobs_service import JobsService
    from jobs_service.cli.logging import configure

    configure("warning")
    async with JobsService(address, supervise=supervise) as jobs:
        return await body(jobs)
