"""A lower level as seen from one place, in coordinates in which it curves alike in all directions:
what steps of y and the first penalty are read off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import curvature, differentiation, envelope
from bipareto.methods.tuning import envelope_methods as rules
from bipareto.methods.tuning import local
from bipareto.methods.tuning.local import Kept, Local
from bipareto.problem import Problem, tree
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped


class View(NamedTuple):
    """The lower level as seen from a place (x_0, y_0).

    Attributes:
        at: the picture there, R = 1.
        x: x_0 as a tree.
        turned: the problem with y = y_0 + B v: g_vv is the identity at v = 0.
        given: a point v of interest: y as a user gave it, or 0.
        scale: how far y travels from place to place, root mean square per coordinate of v.
    """

    at: Local
    x: Tree
    turned: Turned
    given: Tensor
    scale: float


class Turned(Wrapped):
    """A problem with y = y_0 + B v for flat v, `like` giving the shapes of y."""

    def __init__(self, problem: Problem, origin: Tensor, root: Tensor, like: Tree) -> None:
        super().__init__(problem)
        self.origin, self.root, self.like = origin, root, like

    def back(self, v: Tensor) -> Tree:
        """y of v."""
        return tree.unravel(self.origin + self.root @ v, self.like)

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return self.inner.lower(x, self.back(y), batch)


def view(problem: Problem, like: tuple[Tree, Tree], at: Local, given: Tensor, other: Local) -> View:
    """The view from `at`.

    Args:
        like: x and y, for shapes and dtype.
        given: a point of interest, flat y - y_0 in float64.
        other: another place, which y may travel to.
    """
    dtype = tree.first_leaf(like[0]).dtype
    root = at.root[0]
    ways = torch.linalg.solve(root, torch.stack([other.y[0] - at.y[0], given], 1))
    return View(
        at,
        tree.unravel(at.x[0].to(dtype), like[0]),
        Turned(problem, at.y[0].to(dtype), root.to(dtype), like[1]),
        ways[:, 1].to(dtype),
        float(ways.square().mean(0).sqrt().max()) or 1.0,
    )


def curvatures(problem: Problem, view: View, kept: Kept, seed: int) -> tuple[float, float]:
    """The least and the greatest curvature of g in v, around y* as far as y travels (three times
    the scale), and where y was given.
    """
    generator, still = torch.Generator().manual_seed(seed), torch.zeros_like(view.given)
    points = rules.around([view.given, still], view.scale / 3, generator)
    if kept.lower is not None or len(still) <= rules.LANCZOS:
        y = torch.func.vmap(view.turned.back)(torch.stack(points))
        g_yy = local.lower_curvature(problem, tree.expand(view.x, len(points)), y, kept)
        found = local.spectrum(view.turned.root.double(), g_yy)
        if bool(found.isfinite().all()):
            return float(found.min()), float(found.max())
    x = tree.expand(view.x, len(points))
    with torch.enable_grad():
        at, slope = local.lower_slopes(view.turned, x, torch.stack(points), again=True)

    def product(v: Tensor) -> Tensor:
        return differentiation.products(slope, at, v[None])[0]

    start = torch.stack([curvature.normal(point, generator) for point in points])
    low, high = curvature.lanczos_rows(product, start, rules.LANCZOS)
    return float(low.min()), float(high.max())


def first_penalty(view: View, gamma: float, extent: Tensor, seed: int) -> float:
    """c_0 by the rule of `envelope_methods`, for coordinates of v that are each on their own."""
    root, count = view.turned.root, len(rules.RADII)
    tilts = (view.at.f_y[0] / extent[:, None]).to(root) @ root
    along = torch.stack([rules.direction_along(tilt, seed) for tilt in tilts])
    along = along.repeat_interleave(count, 0)
    v = (view.scale * rules.RADII).to(root).repeat(len(tilts))[:, None] * along
    x = tree.expand(view.x, len(v))
    prox = envelope.proximal_point(view.turned, x, v, gamma, tol=1e-6, max_iter=30).y
    _, slope = local.lower_slopes(view.turned, x, v)
    forces = ((slope - (v - prox) / gamma) * along).mean(1)
    return max(
        rules.tilt_size(tilt, 1.0) / rules.peak(row)
        for tilt, row in zip(tilts, forces.reshape(-1, count).tolist(), strict=True)
    )
