"""What a comparison measured of each method, and in words who is ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bipareto.fronts.measures import beyond, hypervolume
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods import Method
from bipareto.problem import Problem
from bipareto.problems.base import KnownProblem


@dataclass(frozen=True)
class Contender:
    """One method's result: its resolved front and what was measured of it, or why there is none.

    distance, kkt, gap: the worst over its runs; distance to the exact front relative to its extent,
        the certificate's residual at the resolved points, and g - v_gamma at the points as they
        were returned; NaN where they are not known.
    hypervolumes: of the runs of each seed, on the problem's `test_data` where it has any.
    gradients, hessian_products: spent per run.
    notes: what the method warned of.
    """

    name: str
    method: Method | None
    front: ParetoFront | None
    steps: int
    distance: float
    kkt: float
    gap: float
    hypervolume: float
    gradients: int
    hessian_products: int
    seconds: float
    notes: tuple[str, ...]
    hypervolumes: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """The mean hypervolume over seeds."""
        return sum(self.hypervolumes) / len(self.hypervolumes) if self.hypervolumes else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN of a single seed."""
        n = len(self.hypervolumes)
        if n < 2:
            return math.nan
        spread = sum((value - self.mean) ** 2 for value in self.hypervolumes)
        return math.sqrt(spread / (n - 1) / n)

    def figures(self) -> dict[str, Any]:
        """What was measured, as plain values."""
        return {
            "method": self.name,
            "runs": 0 if self.front is None else len(self.front),
            "steps": self.steps,
            "distance_to_front": self.distance,
            "kkt": self.kkt,
            "hypervolume": self.hypervolume,
            "hypervolumes": list(self.hypervolumes),
            "hypervolume_mean": self.mean,
            "hypervolume_error": self.error,
            "gap": self.gap,
            "gradients": self.gradients,
            "hessian_products": self.hessian_products,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }


def reference_point(problem: Problem, found: Sequence[Contender]) -> Tensor:
    """The point (m,) up to which hypervolumes are taken: the known one, or the worst values of all
    methods plus a tenth of their ranges.
    """
    if isinstance(problem, KnownProblem):
        return problem.reference
    points = [_judged(c.front) for c in found if c.front is not None]
    return beyond(torch.cat(points)) if points else torch.empty(0)


def _judged(found: ParetoFront) -> Tensor:
    """The objectives (R, m) by which a front is judged: on data that no step has seen, if any."""
    return (found.objectives if found.test is None else found.test).detach().cpu().double()


def with_hypervolumes(contender: Contender, reference: Tensor) -> Contender:
    """The same with its hypervolumes up to that point (m,), of all runs and of each seed."""
    if contender.front is None:
        return contender
    f, seed = _judged(contender.front), contender.front.seed
    values = [_hypervolume(f[seed == s], reference) for s in dict.fromkeys(seed.tolist())]
    return replace(contender, hypervolume=_hypervolume(f, reference), hypervolumes=tuple(values))


def _hypervolume(f: Tensor, reference: Tensor) -> float:
    """Of the finite rows; NaN where moocore is not installed: all else is measured without it."""
    try:
        return hypervolume(f[torch.isfinite(f).all(1)], reference)
    except ModuleNotFoundError:
        return math.nan


def verdicts(found: Sequence[Contender]) -> list[str]:
    """Who is ahead by mean hypervolume, and beyond which error, in words."""
    ranked = sorted(
        (c for c in found if c.hypervolumes and math.isfinite(c.mean)), key=lambda c: -c.mean
    )
    if len(ranked) < 2:
        return []
    best, *others = ranked
    seeds = len(best.hypervolumes)
    if seeds < 2:
        return [
            f"{best.name} has the largest hypervolume, on one seed: whether it is ahead cannot be "
            "said; give several, e.g. --seed 0,1,2"
        ]
    if all(c.error == 0 for c in ranked):
        return [
            f"{best.name} has the largest hypervolume; the {seeds} seeds change nothing here "
            "(nothing is drawn), so the differences are exact, and other starts or data might "
            "turn them"
        ]
    words = []
    for other in others:
        lead, error = best.mean - other.mean, math.hypot(best.error, other.error)
        if lead > 2 * error:
            words.append(
                f"{best.name} is ahead of {other.name} by {lead:.3g} ± {error:.2g}, beyond two "
                f"standard errors of {seeds} seeds"
            )
        else:
            words.append(
                f"{best.name} and {other.name} cannot be told apart: {lead:.3g} ± {error:.2g} "
                f"over {seeds} seeds"
            )
    return words
