"""Multi-domain few-shot learning: the paper's first experiment."""

from __future__ import annotations

__all__: list[str] = []
