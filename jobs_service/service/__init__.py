"""JobsService, the class that applications embed, and its parts; imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs_service.service.service import DEFAULT_STORE, JobsService

__all__ = ["DEFAULT_STORE", "JobsService"]

if not TYPE_CHECKING:  # a type checker would take every name for a known one

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.service"), name)
