"""A third of the upper level's data kept from the steps, to judge by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bipareto.problem import Problem, tree
from bipareto.problem.sampler import Role, generator
from bipareto.problem.wrapped import Wrapped


class HeldOut(Wrapped):
    """A problem whose draws of the upper level come from two thirds of its data; the last third,
    `held_out`, judges.

    With thousands of coordinates x learns the upper level's data by heart, and the step of x that
    does it fastest would win.
    """

    def __init__(self, problem: Problem, seed: int, whole: Any, sizes: Sequence[int]) -> None:
        super().__init__(problem, sampler=self._draw)
        self._sizes, self._several = sizes, problem.per_objective
        parts = list(whole.values()) if self._several else [whole]
        orders = [
            torch.randperm(tree.flat_axis(part), generator=generator(f"held-{i}", 0, seed))
            for i, part in enumerate(parts)
        ]
        thirds = [len(order) // 3 for order in orders]
        take = tree.select
        self._kept = [
            take(p, o[k:].to(tree.first_leaf(p).device))
            for p, o, k in zip(parts, orders, thirds, strict=True)
        ]
        held = [
            take(p, o[:k].to(tree.first_leaf(p).device))
            for p, o, k in zip(parts, orders, thirds, strict=True)
        ]
        #: a draw of the role "full" on the rows that no step has seen
        self.held_out = problem.with_key(Role("upper", "full"), 0, 0, self._together(held))

    @classmethod
    def of(cls, problem: Problem, seed: int) -> HeldOut | None:
        """The problem with a third of its upper data held out; None where rows cannot be told."""
        whole, one = (_data(problem.batch("upper", name, 0, seed)) for name in ("full", ""))
        every = [whole, one] if not problem.per_objective else [*whole.values(), *one.values()]
        for part in every:
            leaves = tree.leaves(part)
            if any(leaf.dim() == 0 or len(leaf) != len(leaves[0]) for leaf in leaves):
                return None
        parts = list(one.values()) if problem.per_objective else [one]
        wholes = list(whole.values()) if problem.per_objective else [whole]
        if min(tree.flat_axis(part) for part in wholes) < 3:
            return None
        return cls(problem, seed, whole, [tree.flat_axis(part) for part in parts])

    def _together(self, parts: list[Any]) -> Any:
        return dict(enumerate(parts)) if self._several else parts[0]

    def _draw(self, role: Role, t: int, seed: int) -> Any:
        if role.level != "upper":
            return self.inner.sampler(role, t, seed)  # type: ignore[misc]  # it has data
        rows = []
        for i, (part, size) in enumerate(zip(self._kept, self._sizes, strict=True)):
            order = torch.randperm(
                tree.flat_axis(part), generator=generator(f"{role}-{i}", t, seed)
            )
            index = order if role.full else order[:size]
            rows.append(tree.select(part, index.to(tree.first_leaf(part).device)))
        return self.inner.with_key(role, t, seed, self._together(rows))


def _data(batch: Any) -> Any:
    """The rows of a draw, without the dropout key that may lie beside them."""
    keyed = isinstance(batch, dict) and set(batch) == {"key", "batch"}
    return batch["batch"] if keyed else batch
