"""The methods, one file each; `METHODS` maps their command-line names to their classes."""

from __future__ import annotations

from bipareto.methods.base import Method
from bipareto.methods.meha import MEHA
from bipareto.methods.momeha import MBMOMEHA, MOMEHA

__all__ = ["MBMOMEHA", "MEHA", "METHODS", "MOMEHA", "Method"]

METHODS: dict[str, type[Method]] = {"momeha": MOMEHA, "mb-momeha": MBMOMEHA, "meha": MEHA}
