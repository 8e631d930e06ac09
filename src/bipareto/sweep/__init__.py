"""Runs described by a configuration, in a folder that survives a crash."""

from __future__ import annotations

__all__: list[str] = []
