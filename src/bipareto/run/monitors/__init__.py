"""Callbacks that watch a run with the quantities of the theory."""

from __future__ import annotations

from bipareto.run.monitors.base import Gap, Monitor, Stationarity, Tracking
from bipareto.run.monitors.merit import Merit, StochasticMerit

__all__ = ["Gap", "Merit", "Monitor", "Stationarity", "StochasticMerit", "Tracking"]
