"""What a store knows of the format of what is in it, and of its conversion into the present one."""

from __future__ import annotations

from typing import ClassVar

from jobs_service.errors import StoreError


class Convertible:
    """A store that has had no earlier format, unless it says otherwise."""

    address: str

    converts_when_opened: ClassVar[bool] = True
    """Whether whoever opens a store of an earlier format may convert it: no other machine's programs use it."""

    async def needs_conversion(self) -> bool:
        """Whether what is in it is of an earlier format, or is being converted."""
        return False

    async def begin_conversion(self) -> None:
        """Note that it is being converted: earlier versions refuse it from now on."""
        raise StoreError(f"store {self.address} has no earlier format")

    async def end_conversion(self) -> None:
        """Note that all of it has the present format."""
        raise StoreError(f"store {self.address} has no earlier format")
