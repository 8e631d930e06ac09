"""Multi-objective architecture search: the paper's second experiment."""

from __future__ import annotations

__all__: list[str] = []
