"""Fronts as pictures and tables."""

from __future__ import annotations

from bipareto.report.figures import plot_comparison, plot_front
from bipareto.report.methods import methods_page
from bipareto.report.tables import write_csv, write_history

__all__ = ["methods_page", "plot_comparison", "plot_front", "write_csv", "write_history"]
