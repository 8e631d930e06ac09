"""Data parallel: every process holds all variables and a part of each draw, and gradients are
averaged.

# in train.py:  problem = bp.parallel.data_parallel(problem)
    torchrun --nproc-per-node 2 train.py

A step is pure and every process takes the same one: what differs is the data that the losses see.
Two operators, inverse to each other in the sense of differentiation, make the mean over processes
part of the functions themselves:

    spread(v) = v               its derivative averages over processes
    average(f) = mean of f      its derivative spreads

so the losses become average(loss(spread(x), spread(y), part of the batch)): values, gradients and
Hessian products are those of the whole batch, under `vmap` as well.  Nothing else in the library
knows that there are other processes.
"""

from __future__ import annotations

import atexit
import gc
import os
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.base import Problem
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.problem.wrapped import Wrapped

__all__ = ["DataParallel", "average", "data_parallel", "join", "leave", "spread"]


def join() -> torch.device:
    """Join the processes that `torchrun` started, by NCCL where there are GPUs and by gloo
    elsewhere; returns this process's device.

    Without torchrun there is one process, and nothing to join.
    """
    cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if cuda
        else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
        _leave_at_exit()
    return device


def _leave_at_exit() -> None:
    atexit.unregister(leave)
    atexit.register(leave)


def leave() -> None:
    """Leave the processes that were joined, by `join` or otherwise; it happens by itself when a
    program ends that has used either of the two functions here.

    Threads of a group that is still held by something would ask for the interpreter while it shuts
    down, which aborts the process; so the group goes, and what holds on to it, while all is there.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


def _mean(value: Tensor) -> Tensor:
    total = value.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def spread(value: Tensor) -> Tensor:
    """The identity, whose derivative averages over processes."""
    return _Linked.apply(value, False)  # type: ignore[no-untyped-call]


def average(value: Tensor) -> Tensor:
    """The mean over processes, whose derivative spreads."""
    return _Linked.apply(value, True)  # type: ignore[no-untyped-call]


class _Linked(torch.autograd.Function):
    """The mean over processes, or the identity: each is the other's derivative."""

    @staticmethod
    def forward(value: Tensor, mean: bool) -> Tensor:
        return _mean(value) if mean else value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.mean = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (spread if ctx.mean else average)(gradient), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, None], value: Tensor, mean: bool
    ) -> tuple[Tensor, int | None]:
        return (average if mean else spread)(value), in_dims[0]


class DataParallel(Wrapped):
    """A problem whose losses are averaged over processes; made by `data_parallel`."""

    def __init__(self, problem: Problem, split: bool) -> None:
        super().__init__(problem, _split(problem.sampler) if split else None)

    def upper(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return average(self.inner.upper(_spread(x), _spread(y), batch))

    def objective(self, i: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return average(self.inner.objective(i, _spread(x), _spread(y), batch))

    def lower(self, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return average(self.inner.lower(_spread(x), _spread(y), batch))

    def lower_part(self, part: int, x: Tree, y: Tree, batch: Any = None) -> Tensor:
        return average(self.inner.lower_part(part, _spread(x), _spread(y), batch))

    def lower_pair(self, x: Tree, y: Tree, theta: Tree, batch: Any = None) -> tuple[Tensor, Tensor]:
        both = average(
            torch.stack(self.inner.lower_pair(_spread(x), _spread(y), _spread(theta), batch))
        )
        return both[0], both[1]


def _spread(value: Tree) -> Tree:
    return tree.map_(spread, value)


def _split(sampler: Any) -> Any:
    def draw(role: Role, t: int, seed: int) -> Any:
        rank, size = dist.get_rank(), dist.get_world_size()

        def part(leaf: Tensor) -> Tensor:
            if leaf.dim() == 0:  # a dropout key, say
                return leaf
            if leaf.shape[0] % size:
                raise InvalidInput(
                    f"a draw of role {str(role)!r} has {leaf.shape[0]} rows, which {size} "
                    f"processes cannot share evenly; choose sizes that {size} divides "
                    "(all the data included), or split=False with loaders that give every process "
                    "its own part"
                )
            return leaf.chunk(size)[rank]

        return tree.map_(part, sampler(role, t, seed))

    return draw


def data_parallel(problem: Problem, *, split: bool = True) -> Problem:
    """The same problem, its draws shared out among the processes of the default group.

    Args:
        problem: one with data, whose losses are *means* over the rows of a batch.  Terms without
            data, such as a weight decay, stay as they are.
        split: every process makes the same draw and keeps its own rows, so that the answer is that
            of one process.  False takes draws as they are, for loaders that already give every
            process a part (`torch.utils.data.DistributedSampler`).

    In one process the problem is returned unchanged.  BatchNorm sees the rows of its process only,
    as with DistributedDataParallel; so do losses that relate rows to each other (a softmax over the
    batch).  Run with `compile=False`.
    """
    if problem.sampler is None:
        raise InvalidInput(
            "the problem has no data to share out; give it lower_data and upper_data, or a sampler"
        )
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return problem
    # Of a group that somebody else made, too: see `leave`.
    _leave_at_exit()
    return DataParallel(problem, split)
