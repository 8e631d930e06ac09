"""Hessians at many places, from what is known of them at one.

Written down in full, C columns of a Hessian take C products, two backward passes each.  Much of it
is often the same everywhere: all of it where a loss is quadratic, all but a diagonal where squares
have weights; and what changes is sparse where a loss is a sum over coordinates, be it in
coordinates of its own.  `compare` looks at other places: entries that differ are those that change.
Rows of many such entries are found by a product each, and the others together: by one product all
columns whose changing entries share no row (Curtis, Powell and Reid, 1974).

Nothing is believed: every prediction is held against the product with one more, random vector at
its own place, and where it does not give that product to rounding, row by row and so in any units,
the columns are written down in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.methods.parts import differentiation

#: a flat point (N,) -> K values (K,)
Values = Callable[[Tensor], Tensor]
#: rounds of dividing rows and columns by the roots of their largest entries
ROUNDS = 10


class Seen(NamedTuple):
    """Values (R, K), gradients (R, K, N), and the last C columns of Hessians, (R, K, N, C), of K
    functions at R points; float64.
    """

    value: Tensor
    slope: Tensor
    columns: Tensor


class Turn(NamedTuple):
    """Coordinates in which changes may be sparse: H = T S Q, the changes of S in place of those of
    H's columns.

    Attributes:
        left, right: T^-1 (N, N) and Q^-1 (C, C).
        left_back, right_back: T and Q.
    """

    left: Tensor
    right: Tensor
    left_back: Tensor
    right_back: Tensor


class Known(NamedTuple):
    """What is known of the last C columns of K Hessians in N variables.

    Attributes:
        base: the columns at one place, (K, N, C).
        turn: those entries change in these coordinates ...
        changing: ... that are marked here, (N, C), and those of
        rows: whole rows, (k,), which are read off H itself.
        colour: of each column, (C,); columns of one colour share no row in `changing`.
        unit: sizes of the last C variables, (K, C), in which rows and columns compare.
        seeds: vectors (K, k + q + 1, N) to take products with: the unit vectors of `rows`, of each
            of the q colours the sum of its unit vectors, and a random one to check with.
    """

    base: Tensor
    turn: Turn | None
    changing: Tensor
    rows: Tensor
    colour: Tensor
    unit: Tensor
    seeds: Tensor


def see(fn: Values, points: Tensor, columns: int, known: Known | None, floor: float) -> Seen:
    """K functions at points (R, N), with so many last columns of their Hessians.

    Args:
        known: of these columns, or None.
        floor: a difference below this share of the terms it is a sum of is rounding.
    """
    if known is None:
        return _written(fn, points, columns)
    seeds, count, turn = known.seeds[..., -columns:], len(known.rows), known.turn
    value, slope, product = products(fn, points, known.seeds.to(points.dtype))
    H = known.base
    if bool(known.changing.any()):
        change = (product[:, :, count:-1] - seeds[:, count:-1] @ known.base.mT).mT
        change = change if turn is None else turn.left @ change
        # Entry (i, j) of the change stands in row i of the product of column j's colour.
        change = change[..., known.colour] / known.unit[:, None]
        change = torch.where(known.changing, change, 0.0)
        H = H + (change if turn is None else turn.left_back @ (change @ turn.right_back))
    if count:
        H = H.expand(len(points), *known.base.shape)
        H = H.index_copy(2, known.rows, product[:, :, :count, -columns:])
    check = seeds[:, -1, :, None]
    error = (product[:, :, -1] - (H @ check)[..., 0]).abs()
    good = (error <= floor * (H.abs() @ check.abs())[..., 0]).flatten(1).all(1)
    H = H.expand(len(points), *known.base.shape)
    if not bool(good.all()):
        bad = (~good).nonzero().flatten()
        H = H.index_copy(0, bad, _written(fn, points[bad], columns).columns)
    return Seen(value, slope, H)


def compare(
    fn: Values, first: Seen, others: Tensor, floor: float, follow: Tensor | None = None
) -> Known | None:
    """What the columns at one place and those at two other points (2, N) tell of all places; None
    where products for them would not be fewer than the columns are.

    Args:
        follow: W (C, N - C) for a loss that may be a function of y - W x, y the last C variables.
    """
    base = first.columns[0]
    columns = base.shape[-1]
    if columns < 3 or not bool(base.isfinite().all()):
        return None
    same = _known(base, _units(base), None, torch.zeros_like(base[0], dtype=torch.bool))
    second = see(fn, others[:1], columns, same, floor).columns[0]
    if not bool(second.isfinite().all()):
        return None
    turns = [None] if follow is None else [None, _carried(follow)]
    best = _best(base, second, turns, floor)
    if best is None and follow is not None:
        third = see(fn, others[1:], columns, None, floor).columns[0]
        if bool(third.isfinite().all()):
            best = _best(base, third, [_diagonal(base[0], second[0], follow)], floor)
    return best


def _best(base: Tensor, other: Tensor, turns: Sequence[Turn | None], floor: float) -> Known | None:
    """The coordinates in which the fewest products tell base from other, if they are few enough."""
    columns = base.shape[-1]
    ways = []
    for turn in turns:
        change, terms = other - base, torch.maximum(base.abs(), other.abs())
        if turn is not None:
            change = turn.left @ change @ turn.right
            terms = turn.left.abs() @ terms @ turn.right.abs()
        unit = _units(terms)
        size = unit[..., None] * unit[:, None, -columns:]
        ways.append(_known(base, unit, turn, (change.abs() * size > floor).any(0)))
    best = min(ways, key=lambda known: known.seeds.shape[1])
    return best if best.seeds.shape[1] < columns else None


def _carried(follow: Tensor) -> Turn:
    """Coordinates in which a Hessian of a function of y - W x changes in the rows of y alone: those
    of x change by -W' times as much, and T^-1 adds that up to nothing.
    """
    columns, rest = follow.shape
    total = columns + rest
    left, right = (torch.eye(k, dtype=follow.dtype, device=follow.device) for k in (total, columns))
    left[:rest, rest:] = follow.mT
    return Turn(left, right, 2 * torch.eye(total).to(left) - left, right)


def _diagonal(base: Tensor, other: Tensor, follow: Tensor) -> Turn:
    """Coordinates in which both Hessians in y are diagonal, as all are of a sum of functions of one
    combination of coordinates each.
    """
    carried, columns = _carried(follow), len(follow)
    unit = _units(base[None])[0, -columns:, None]
    values, vectors = torch.linalg.eigh(unit * base[-columns:] * unit.mT)
    root = unit * vectors / torch.where(values != 0, values.abs(), 1.0).sqrt()
    right = root @ torch.linalg.eigh(root.mT @ other[-columns:] @ root).eigenvectors
    back = torch.linalg.solve(right, torch.eye(columns, dtype=right.dtype, device=right.device))
    turned, undone = torch.eye(len(base)).to(base), torch.eye(len(base)).to(base)
    turned[-columns:, -columns:], undone[-columns:, -columns:] = right.mT, back.mT
    return Turn(turned @ carried.left, right, carried.left_back @ undone, back)


def _known(base: Tensor, unit: Tensor, turn: Turn | None, changing: Tensor) -> Known:
    """What is known where the entries `changing` (N, C) change in the coordinates of `turn`: how
    products tell them, rows with many of them one by one, the other entries by colours.
    """
    count, n, columns = base.shape
    # Rows with as many entries as this or more have a product of their own; what is left takes at
    # least as many colours as its fullest row has entries.
    each, order = changing.sum(1).sort(descending=True)
    full = int((torch.arange(n, device=each.device) + each).argmin()) if turn is None else 0
    rows = order[:full].sort().values
    changing = changing.index_fill(0, rows, False)
    colour, colours = _colours(changing)
    sums = torch.zeros(count, colours, columns, dtype=base.dtype, device=base.device)
    if colours:
        sums[:, colour, torch.arange(columns)] = unit[:, -columns:]
    random = torch.randn(columns, generator=torch.Generator().manual_seed(0), dtype=base.dtype)
    check = random.to(base) * _units(base)[:, None, -columns:]
    seeds = base.new_zeros(count, full + colours + 1, n)
    seeds[:, torch.arange(full, device=rows.device), rows] = 1.0
    seeds[:, full:-1, -columns:] = sums if turn is None else sums @ turn.right.mT
    seeds[:, -1:, -columns:] = check
    return Known(base, turn, changing, rows, colour.to(base.device), unit[:, -columns:], seeds)


def _colours(changing: Tensor) -> tuple[Tensor, int]:
    """A colour for each column of a mask (N, C), and how many there are: the first that no earlier
    column with a row in common has.
    """
    rows = changing.cpu().double()
    meets = ((rows.T @ rows) > 0).tolist()
    colour: list[int] = []
    for j, row in enumerate(meets):
        taken = {colour[i] for i in range(j) if row[i]}
        colour.append(next(c for c in range(j + 1) if c not in taken))
    return torch.tensor(colour), max(colour) + 1 if bool(changing.any()) else 0


def _units(columns: Tensor) -> Tensor:
    """u (K, N) with u_i |H_ij| u_j at most about one, and one somewhere in each row that is not 0,
    for the last C columns of symmetric matrices, (K, N, C).
    """
    count, n, known = columns.shape
    H = columns.new_zeros(count, n, n)
    H[:, :, n - known :] = columns.abs()
    H = torch.maximum(H, H.mT)
    unit = columns.new_ones(count, n)
    for _ in range(ROUNDS):
        most = (unit[..., None] * H * unit[:, None]).amax(-1)
        unit = unit * torch.where(most > 0, most, 1.0).rsqrt()
    return unit


def _written(fn: Values, points: Tensor, columns: int) -> Seen:
    units = torch.eye(points.shape[1], dtype=points.dtype, device=points.device)[-columns:]
    value, slope, product = products(fn, points, repeat(units))
    return Seen(value, slope, product.mT)


def products(fn: Values, points: Tensor, seeds: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Values (R, K), gradients (R, K, N) and products (R, K, q, N) of the K Hessians with the seeds
    of each, (q, N).
    """
    with torch.enable_grad():
        at = points.detach().requires_grad_()
        values = torch.func.vmap(fn)(at)
        found = []
        for value, row in zip(values.unbind(1), seeds, strict=False):
            slope = differentiation.slopes(value, at, again=True)
            vectors = row[:, None].expand(-1, *points.shape)
            found.append((slope.detach(), differentiation.products(slope, at, vectors)))
    slopes, rows = zip(*found, strict=True)
    return (
        values.detach().double(),
        torch.stack(slopes, 1).double(),
        torch.stack([row.movedim(0, 1) for row in rows], 1).double(),
    )
