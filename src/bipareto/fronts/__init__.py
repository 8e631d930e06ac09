"""Whole fronts: many preferences and seeds as one batch, measures of them, adaptive preferences."""

from __future__ import annotations

__all__: list[str] = []
