"""Fronts as pictures, tables and pages."""

from __future__ import annotations

from bipareto.report.figures import (
    plot_comparison,
    plot_convergence,
    plot_front,
    plot_hypervolumes,
    plot_radar,
)
from bipareto.report.methods import methods_page

__all__ = [
    "methods_page",
    "plot_comparison",
    "plot_convergence",
    "plot_front",
    "plot_hypervolumes",
    "plot_radar",
]
