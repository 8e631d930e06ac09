"""Few-shot learning in several domains: one backbone for all, and a preference among the domains."""

from __future__ import annotations

__all__: list[str] = []
