"""What is refused of a problem at its start, each with what was found and the remedy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.problem import tree, validation
from bipareto.problem.tree import Tree

#: How far away, in sizes of y, g is looked at to see whether it has a minimum.
FAR = 1e6


def check_leaves(x0: Tree, y0: Tree) -> None:
    """Refuse starts whose leaves differ in device or dtype, are of half precision or not finite."""
    found = tree.named_leaves(x0, "x0") + tree.named_leaves(y0, "y0")
    reference_path, reference = found[0]
    for path, leaf in found:
        for kind in ("device", "dtype"):
            if getattr(leaf, kind) != getattr(reference, kind):
                raise InvalidInput(
                    f"{path} has {kind} {getattr(leaf, kind)} but {reference_path} has "
                    f"{getattr(reference, kind)}; "
                    f"one run lives on one {kind}: use {path}.to({getattr(reference, kind)!r})"
                )
        if torch.finfo(leaf.dtype).bits < 32:
            raise InvalidInput(
                f"{path} has dtype {leaf.dtype}, in which a run cannot count its steps (256 + 1 is "
                f"256 in bfloat16); use {path}.float(), and let the "
                "losses work in half precision: Problem.from_modules(..., autocast=torch.bfloat16)"
            )
        if not torch.isfinite(leaf).all():
            raise InvalidInput(f"{path} holds NaN or infinity; start from finite values")


def check_outputs(f: Any, g: Any, like: Tensor) -> None:
    """Refuse f and g of other shapes than (m,) and (), or of other device or dtype than `like`."""
    for name, value in (("upper", f), ("lower", g)):
        if isinstance(value, Tensor) and (value.is_nested or value.layout is not torch.strided):
            raise InvalidInput(
                f"{name} returned a tensor of layout {value.layout}; return a dense one, with "
                ".to_dense()"
            )
    if not isinstance(f, Tensor):
        raise InvalidInput(
            f"upper returned a {type(f).__name__}; return one tensor of shape (m,), e.g. "
            "torch.stack([f1, f2])"
        )
    if f.dim() != 1 or not len(f):
        raise InvalidInput(
            f"upper returned shape {tuple(f.shape)}; it must be (m,), one number per objective: "
            "torch.stack([f1, f2]) of scalar losses"
        )
    if not isinstance(g, Tensor) or g.dim() != 0:
        shape = tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__
        raise InvalidInput(
            f"lower returned {shape}; it must be a scalar of shape (): reduce it with .sum() or "
            ".mean()"
        )
    for name, value in (("upper", f), ("lower", g)):
        for kind in ("device", "dtype"):
            if getattr(value, kind) != getattr(like, kind):
                raise InvalidInput(
                    f"{name} returned {kind} {getattr(value, kind)}, but x0 has "
                    f"{getattr(like, kind)}; one run lives on one {kind}: "
                    "start from x0 and y0 on that one, or return the losses with "
                    f".to({getattr(like, kind)!r})"
                )


def check_entries(batch: dict[Any, Any], m: int) -> None:
    """Refuse data for other objectives than the problem has; a dropout key may lie beside it."""
    data = batch.get("batch", batch)
    if isinstance(data, dict) and set(data) != set(range(m)):
        raise InvalidInput(
            f"there is data for the objectives {sorted(map(str, data))}, but upper has {m}; give "
            "one entry for each, counted from 0"
        )


def check_finite(f: Tensor, g: Tensor) -> None:
    """Refuse f (m,) and g () that are not finite, by name."""
    for name, value in [("lower", g), *((f"objective {i}", f_i) for i, f_i in enumerate(f))]:
        if not torch.isfinite(value):
            raise InvalidInput(
                f"{name} is {float(value)} at the start; look for NaN or infinity in the data, and "
                "for a log, sqrt or division of zero at x0, y0"
            )


def nudged(leaf: Tensor, stream: torch.Generator, share: float = 1e-3) -> Tensor:
    """A leaf moved by about this share of its size, as a leaf that gradients are taken of."""
    noise = torch.randn(leaf.shape, generator=stream, dtype=torch.float64).to(leaf)
    return (leaf.detach() + share * (1 + leaf.detach().abs()) * noise).requires_grad_()


def _flat_gradient(value: Tensor, variable: Tree) -> Tensor:
    if not value.requires_grad:
        return tree.ravel(tree.zeros_like(variable))
    found = torch.autograd.grad(
        value, tree.leaves(variable), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return tree.ravel(list(found))


def _depends(value: Tensor, variable: Tree) -> bool:
    return bool((_flat_gradient(value, variable) != 0).any())


def _depends_elsewhere(upper: Callable[[Tree, Tree], Tensor], i: int, x: Tree, y: Tree) -> bool:
    """Whether objective i has a slope at any of some points farther away."""
    stream = torch.Generator().manual_seed(1)
    for share in (0.03, 0.3, 1.0, 3.0, 30.0):
        for _ in range(2):
            away = tree.map_(lambda leaf, share=share: nudged(leaf, stream, share), (x, y))
            try:
                value = upper(*away)[i]
            except Exception:  # noqa: BLE001  # undefined there, which says nothing
                continue
            if _depends(value, away):
                return True
    return False


def check_dependence(
    f: Tensor,
    g: Tensor,
    x: Tree,
    y: Tree,
    parts: tuple[int | None, ...],
    upper: Callable[[Tree, Tree], Tensor],
) -> None:
    """Refuse objectives and a lower level that do not use the variables they must use.

    Args:
        f, g: the values at x, y.
        upper: f as a function, for a look at other points where an objective is flat at this one.
    """
    if not _depends(g, y):
        raise InvalidInput(
            "lower does not depend on y: there is nothing to solve at the lower level; check that "
            "g uses its second argument"
        )
    m = f.shape[0]
    if parts and len(parts) != m:
        raise InvalidInput(
            f"parts is {parts}, but upper returns m = {m} objectives; give one entry for each, a "
            "part of y or None"
        )
    for i in range(m):
        said_not_to = bool(parts) and parts[i] is None
        if _depends(f[i], y):
            if said_not_to:
                raise InvalidInput(
                    f"parts is {parts}, but objective {i} depends on y; None stands for objectives "
                    "that do not use y"
                )
            continue
        if not _depends(f[i], x):
            if _depends_elsewhere(upper, i, x, y):
                value = float(f[i].detach())
                warnings.warn(
                    f"objective {i} has no slope at the start, where it is {value:.4g}; "
                    "elsewhere it has: right for a relu, clamp or hinge that is at its floor there",
                    BiparetoWarning,
                    stacklevel=5,
                )
                continue
            raise InvalidInput(
                f"objective {i} depends neither on x nor on y; check that upper returns a "
                "differentiable function of them"
            )
        if said_not_to:
            continue
        warnings.warn(
            f"objective {i} does not depend on y; if that is not meant, check that upper uses its "
            "second argument",
            BiparetoWarning,
            stacklevel=5,
        )
    if not _depends(g, x) and not _depends(f.sum(), x):
        raise InvalidInput(
            "neither upper nor lower depends on x: there is nothing to choose; check that they use "
            "their first argument"
        )


def check_terms(
    f: Tensor, g: Tensor, terms: dict[int, Tensor], y: Tree, parts: tuple[int | None, ...]
) -> None:
    """Look whether the terms of g and the objectives of different parts share no coordinate of y,
    and the terms make up g.
    """
    whole = _flat_gradient(g, y)
    slopes = {part: _flat_gradient(term, y) for part, term in terms.items()}
    touched = {part: slope != 0 for part, slope in slopes.items()}
    for i, part in enumerate(parts):
        if part is not None:
            touched[part] = touched[part] | (_flat_gradient(f[i], y) != 0)
    if bool((torch.stack(list(touched.values())).sum(0) > 1).any()):
        raise InvalidInput(
            f"parts is {parts}, but objectives or terms of different parts use the same "
            "coordinates of y; give these one part"
        )
    if not torch.linalg.vector_norm(
        sum(slopes.values()) - whole
    ) <= 1e-2 * torch.linalg.vector_norm(whole):
        raise InvalidInput(
            f"the terms that lower_part gives for parts {list(terms)} do not add up to lower; "
            "every term of g belongs to one part"
        )


def labels(names: Any) -> tuple[str, ...]:
    """A label per objective, all different."""
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else []
    different = all(isinstance(name, str) for name in texts) and len(set(texts)) == len(texts)
    if not texts or not different:
        raise InvalidInput(
            f"names is {validation.shown(names)}; pass one text for each objective, all different, "
            'e.g. ["error", "cost"]'
        )
    return tuple(texts)


def warn_without_minimum(lower: Callable[[Tree], Tensor], g: Tensor, y: Tree) -> None:
    """Warn where g falls without end along its steepest descent from y: it has no minimum there.

    Args:
        lower: y -> g(x, y).
        g: its value at y, with a graph.

    Costs one evaluation, far away; only a g that is far below its value there is looked at closer.
    """
    slope = _flat_gradient(g, y)
    flat, length = tree.ravel(y).detach(), float(slope.norm())
    size = float(flat.norm()) + 1.0

    def along(distance: float) -> float:
        with torch.no_grad():
            return float(lower(tree.unravel(flat - distance * size / length * slope, y)))

    here, far = float(g.detach()), along(FAR)
    # A loss with a lower bound, whose value is of the size of its slope, cannot fall so far.
    if not (math.isfinite(here) and far < here - 0.5 * FAR * size * length):
        return
    values = [here, *(along(10.0**k) for k in range(-2, 6)), far]
    if all(later < earlier for earlier, later in pairwise(values)):
        warnings.warn(
            "lower has no minimum in y along its steepest descent: it falls from "
            f"{here:.4g} to {far:.4g} at a distance of {FAR * size:.1g}, and there may be no y*(x) "
            "to find; check its sign, or add a term that grows, such as a weight decay",
            BiparetoWarning,
            stacklevel=5,
        )
