"""The state of a run of MOMEHA or MB-MOMEHA."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts.coordinates import Coordinates, Plain
from bipareto.methods.parts.scalarization import Ideal
from bipareto.methods.parts.schedule import Schedule
from bipareto.problem import tree
from bipareto.problem.tree import Tree


class Knobs(NamedTuple):
    """The numbers of a run as 0-d tensors; schedules are called with t."""

    gamma: Any
    mu: Any
    alpha_theta: Schedule
    alpha_x: Schedule
    alpha_y: Schedule
    c: Schedule
    ideal: Ideal
    beta: Schedule | tuple[()]


class Momentum(NamedTuple):
    """m_theta, m_x, m_y of Algorithm 2."""

    theta: Tree
    x: Tree
    y: Tree


class MomehaState(NamedTuple):
    """x_t, y_t, theta_t, the preference w (m,), the ideal point z (m,), t, the run's
    hyperparameters, its momenta (() in Algorithm 1), the extent s (m,) and its coordinates.
    """

    x: Tree
    y: Tree
    theta: Tree
    preference: Tensor
    ideal: Tensor
    t: Tensor
    knobs: Knobs
    momentum: Momentum | tuple[()]
    extent: Tensor
    coordinates: Coordinates | Plain

    @property
    def importance(self) -> Tensor:
        """w_i/s_i, by which the scalarization weighs f_i - z_i."""
        return self.preference / self.extent


def towards(direction: Tree, inverse_gamma: Tensor, theta: Tree, y: Tree) -> Tree:
    """direction + (theta - y)/gamma, the pull of the envelope's proximal term."""
    return tree.map_(lambda d, v, u: torch.addcmul(d, inverse_gamma, v - u), direction, theta, y)
