"""Handlers of pictures, of mails and of nothing, for the tests of `enqueue` and of results."""

from __future__ import annotations

from dataclasses import dataclass

from jobs_service import JobsService


@dataclass
class Picture:
    """What the handler takes."""

    path: str
    width: int = 640


HANDLERS = JobsService("memory:")


@HANDLERS.handler("picture", timeout=77)
async def picture(args: Picture) -> None:
    """Take a picture."""


@HANDLERS.handler("mail", timeout=77)
async def mail(to: str, subject: str = "hi") -> None:
    """Take two arguments."""


@HANDLERS.handler("nothing")
async def nothing() -> None:
    """Take nothing."""


CAT = Picture("cat.png", 320)
