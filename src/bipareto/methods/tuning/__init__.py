"""Hyperparameters of the methods, from probes of a problem."""

from __future__ import annotations

__all__: list[str] = []
