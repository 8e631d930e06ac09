"""Fronts as pictures, tables and pages."""

from __future__ import annotations

from bipareto.report.figures import (
    plot_comparison,
    plot_convergence,
    plot_front,
    plot_hypervolumes,
    plot_radar,
)

__all__ = ["plot_comparison", "plot_convergence", "plot_front", "plot_hypervolumes", "plot_radar"]
