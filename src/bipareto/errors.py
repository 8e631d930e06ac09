"""Errors and warnings that name what was found and what to do about it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["BiparetoError", "BiparetoWarning", "InvalidInput", "NotBatchable"]


class BiparetoError(Exception):
    """Base class of every error this package raises on purpose."""


class InvalidInput(BiparetoError, ValueError):
    """An argument cannot be used; the message names what was found and the remedy."""


class NotBatchable(BiparetoError, RuntimeError):
    """A user's loss cannot be batched by `torch.func.vmap`; the message names the operator."""


class BiparetoWarning(UserWarning):
    """Something was done that the user may not have meant; the message says what to change."""


def installed(module: str, remedy: str) -> Any:
    """A module of a package that need not be there; without it, an error with the remedy."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidInput(remedy) from error
