"""What bipareto costs and reaches beside its alternatives: the suites of `bipareto bench`."""

from __future__ import annotations

__all__: list[str] = []
