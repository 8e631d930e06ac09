"""Linear coordinates for a run: curvatures of size one, and a y that goes along with x.

Algorithm 1 knows no units: its steps are numbers, so an x in millimetres asks for other ones than
an x in metres, and a lower level of condition number 1e4 for ten thousand times as many of them.  A
run with coordinates is Algorithm 1 for the variables (u, v) with x = A u and y = B v + W x, written
back into x and y: P_x = A A' and P_y = B B' multiply the directions, the envelope's distance is
taken in the metric P_y^-1, and W, the slope of the lower solution, carries y and theta along when x
moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto.problem.tree import Tree


class Plain(NamedTuple):
    """x and y as they are: P_x and P_y the identity, W = 0."""

    def in_x(self, direction: Tree) -> Tree:
        """P_x d for a gradient d in x."""
        return direction

    def in_y(self, direction: Tree) -> Tree:
        """P_y d for a gradient d in y."""
        return direction

    def carried(self, y: Tree, before: Tree, after: Tree) -> Tree:
        """y + W (after - before): where y goes when x goes from `before` to `after`."""
        return y

    def squared_x(self, move: Tree) -> Tensor:
        """<d, P_x^-1 d>."""
        return tree.squared_norm(move)

    def squared_y(self, move: Tree) -> Tensor:
        """<d, P_y^-1 d>."""
        return tree.squared_norm(move)


class Coordinates(NamedTuple):
    """The coordinates of one run, as tensors of its state; methods as in `Plain`.

    Attributes:
        x: P_x (n_x, n_x), symmetric and positive definite.
        y: P_y (n_y, n_y), likewise.
        follow: W (n_y, n_x).
        made_x, made_y: the flat point (n_x,), (n_y,) at which they were made.
        first_x, first_y: the one near which the run began; Hessians are compared with those there.
    """

    x: Any
    y: Any
    follow: Any
    made_x: Any
    made_y: Any
    first_x: Any
    first_y: Any

    def in_x(self, direction: Tree) -> Tree:
        """P_x d."""
        return tree.unravel(self.x @ tree.ravel(direction), direction)

    def in_y(self, direction: Tree) -> Tree:
        """P_y d."""
        return tree.unravel(self.y @ tree.ravel(direction), direction)

    def carried(self, y: Tree, before: Tree, after: Tree) -> Tree:
        """y + W (after - before)."""
        move = self.follow @ (tree.ravel(after) - tree.ravel(before))
        return tree.add_scaled(y, 1.0, tree.unravel(move, y))

    def squared_x(self, move: Tree) -> Tensor:
        """<d, P_x^-1 d>."""
        return _squared(self.x, move)

    def squared_y(self, move: Tree) -> Tensor:
        """<d, P_y^-1 d>."""
        return _squared(self.y, move)


def _squared(metric: Tensor, move: Tree) -> Tensor:
    flat = tree.ravel(move)
    return flat @ torch.linalg.solve(metric, flat)
