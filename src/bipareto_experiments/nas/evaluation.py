"""Supernets and cells looked at: their objectives and accuracies on images as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.task import Task

#: Supernets that are judged at once, and cells with the weights of one.
AT_ONCE, CELLS_AT_ONCE = 4, 10


class Judged(NamedTuple):
    """Objectives (n, m) and accuracies (n,) of n supernets, float64."""

    objectives: Tensor
    accuracy: Tensor


def judged(task: Task, x: Tree, y: Tree, part: str) -> Judged:
    """Supernets, stacked, on images as they are: "upper" (validation images) or "test" (neither
    level saw them).

    Batch norm takes its statistics from the batch, so all batches have `task.full` images; a rest
    is left out where there is one such batch at least.
    """
    problem = task.problem
    rows = problem.halves.rows[part]
    if part == "upper":
        rows = rows[: task.full]
    count = max(1, len(rows) // task.full)
    batches = [
        problem.halves.augmentation.plain(chunk)
        for chunk in rows[: count * task.full].split(task.full)
    ]

    def look(x: Tree, y: Tree) -> tuple[Tensor, Tensor]:
        found = [(problem.upper(x, y, batch), problem.accuracy(x, y, batch)) for batch in batches]
        return torch.stack([f for f, _ in found]).mean(0), torch.stack(
            [share for _, share in found]
        ).mean()

    with torch.no_grad():
        if problem.folded:
            objectives, accuracy = torch.func.vmap(look, chunk_size=AT_ONCE)(x, y)
        else:
            runs = range(len(tree.first_leaf(x)))
            seen = [look(*tree.select((x, y), i)) for i in runs]
            objectives, accuracy = (torch.stack(values) for values in zip(*seen, strict=True))
    return Judged(objectives.double().cpu(), accuracy.double().cpu())


def stacked(genotypes: Sequence[Genotype], y: Tree) -> Tree:
    """Logits of cells, one-hot, with a first axis of cells, like the weights y."""
    return tree.map_(
        lambda leaf: leaf.to(tree.first_leaf(y)),
        tree.stack([genotype.logits() for genotype in genotypes]),
    )


def upper_of_many(task: Task, x: Tree, y: Tree) -> Tensor:
    """The validation objectives (n, m) of cells, stacked logits x, with the weights y of one
    supernet, batch norm by the batch.
    """
    problem = task.problem
    batch = problem.batch("upper", "full")
    with torch.no_grad():
        if problem.folded:
            found = torch.func.vmap(lambda v: problem.upper(v, y, batch), chunk_size=CELLS_AT_ONCE)(
                x
            )
        else:
            found = torch.stack(
                [problem.upper(tree.select(x, i), y, batch) for i in range(len(tree.first_leaf(x)))]
            )
    return found.double().cpu()


def ranked(task: Task, y: Tree, choices: Tensor) -> Tensor:
    """The validation loss (n,) of cells (n, edges) with the weights of a supernet."""
    f = upper_of_many(
        task, stacked([Genotype.of(NAS_BENCH_201, {"cell": cell}) for cell in choices], y), y
    )
    return f[:, task.settings.objectives.index("loss")]
