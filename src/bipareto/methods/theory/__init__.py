"""The constants of the proofs, and steps for which they hold."""

from __future__ import annotations

__all__: list[str] = []
