"""The problem: f, g, and where their data comes from."""

from __future__ import annotations

from bipareto.problem.base import Problem
from bipareto.problem.sampler import Sampler

__all__ = ["Problem", "Sampler"]
