"""A step as a graph of tensor operations: traced, equal work done once, replayed."""

from __future__ import annotations

__all__: list[str] = []
