"""Commands of the experiments; `bipareto` finds them by the entry points of the same names."""

from __future__ import annotations

from bipareto_experiments.commands.bench import bench
from bipareto_experiments.commands.data import commands as data
from bipareto_experiments.commands.demo import demo
from bipareto_experiments.commands.experiment import app as experiment

__all__ = ["bench", "data", "demo", "experiment"]
