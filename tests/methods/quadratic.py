"""The quadratic with a known front, as the method tests use it: its constants, and runs measured
against its front.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import bipareto as bp
from bipareto.methods import Method

__all__ = ["PREFERENCES", "QUADRATIC", "SLOPE", "Found", "L", "run", "tchebycheff"]

QUADRATIC = bp.problems.get("quadratic", dim=5, m=2)
#: the largest curvature of g in y, and of every f_i(x, y*(x)) in x
L = float(torch.linalg.eigvalsh(QUADRATIC.H)[-1])
SLOPE = float(
    torch.linalg.eigvalsh(torch.eye(5, dtype=torch.float64) + QUADRATIC.A.T @ QUADRATIC.A)[-1]
)
PREFERENCES = torch.tensor([[0.5, 0.5], [0.7, 0.3], [0.3, 0.7]], dtype=torch.float64)


class Found(NamedTuple):
    """Distance to the front and position along it, one per run, after the lower level was
    re-solved; and the last records.
    """

    distance: Tensor
    position: Tensor
    info: dict[str, Tensor]


def run(method: Method, steps: int, problem: bp.problems.KnownProblem = QUADRATIC) -> Found:
    """All of PREFERENCES, or the one run of a method without preferences."""
    preferences = PREFERENCES if method.uses_preference else None
    front = bp.front(
        problem,
        problem.x0,
        problem.y0,
        method=method,
        preferences=preferences,
        steps=steps,
        compile=False,
        progress=False,
    )
    solved = front.resolve_lower()
    assert front.run is not None
    info = {name: values[-1] for name, values in front.run.history.items()}
    return Found(
        problem.distance_to_front(solved.objectives), problem.coordinates(front.x)[:, 0], info
    )


def tchebycheff(problem: bp.problems.KnownProblem = QUADRATIC) -> Tensor:
    """The position of min max_i w_i f_i for each of PREFERENCES."""
    return torch.stack(
        [
            problem.solution(w, scalarization="tchebycheff", ideal=0.0).coordinates[0]
            for w in PREFERENCES
        ]
    )
