"""Errors and warnings that name what was found and what to do about it."""

from __future__ import annotations

__all__ = ["BiparetoError", "BiparetoWarning", "InvalidInput", "NotBatchable"]


class BiparetoError(Exception):
    """Base class of every error this package raises on purpose."""


class InvalidInput(BiparetoError, ValueError):
    """An argument cannot be used; the message names what was found and the remedy."""


class NotBatchable(BiparetoError, RuntimeError):
    """A user's loss cannot be batched by `torch.func.vmap`; the message names the operator."""


class BiparetoWarning(UserWarning):
    """Something was done that the user may not have meant; the message says what to change."""
