"""Draws by role: what a stochastic step sees depends on (role, step, seed) and on nothing else.

A method declares its roles for m objectives, e.g. MB-MOMEHA the 2m + 3 of Algorithm 2: "theta",
"x-lower", "y-lower", "x-upper-0", ..., "y-upper-0", ....  The role "full" stands for all the data,
used to evaluate and to re-solve.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from bipareto.errors import InvalidInput
from bipareto.problem import tree, validation

__all__ = ["Minibatches", "Sampler", "generator", "level_of"]

#: `sampler(level, role, t, seed) -> batch` with level "upper" or "lower"; pure in all four.
Sampler: TypeAlias = Callable[[str, str, int, int], Any]


def level_of(role: str) -> str:
    """Which data a role draws from: "upper" for the roles that evaluate f, "lower" for those that
    evaluate g.
    """
    return "upper" if "upper" in role else "lower"


def generator(role: str, t: int, seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A random generator whose stream is a function of (role, t, seed): use it to write a sampler
    of one's own.

    >>> one, other = (torch.rand(2, generator=generator("theta", 7, 0)) for _ in range(2))
    >>> torch.equal(one, other)
    True
    """
    if not isinstance(role, str):
        raise InvalidInput(f'role is {validation.shown(role)}; pass its name, e.g. "theta"')
    key = (
        zlib.crc32(role.encode())
        + (validation.count(t, "t", most=2**63) << 32)
        + (validation.seed(seed) << 96)
    )
    # Python's big integers carry the whole key; a 64-bit mix of it decides the stream (splitmix64's
    # constants).
    for _ in range(3):
        key = (key ^ (key >> 64) ^ ((key & (2**64 - 1)) >> 31)) * 0x9E3779B97F4A7C15 % 2**192
    try:
        stream = torch.Generator(device=device)
    except (TypeError, RuntimeError) as error:
        raise InvalidInput(
            f'device is {validation.shown(device)}; pass one that is there, e.g. "cpu" or "cuda:0"'
        ) from error
    return stream.manual_seed((key >> 64) & (2**63 - 1))


class Minibatches:
    """A sampler over tensors: rows drawn without replacement within a batch, afresh for every
    (role, step, seed).

    Args:
        lower: the lower level's data, a tree of tensors that share their first axis.
        upper: the upper level's data: one tree for all objectives, or a mapping from objective
            index (0, ..., m - 1) to tree when each objective has data of its own.  The problem's
            `upper` is then a sequence of m functions; role "...-upper-i" draws from entry i, and
            the roles of all objectives, "upper" and "full", draw {i: batch}.
        size: rows per batch.
    """

    def __init__(self, lower: Any, upper: Any | Mapping[int, Any], size: int) -> None:
        self.lower, self.upper = lower, upper
        #: whether every objective has data of its own
        self.per_objective = isinstance(upper, Mapping) and all(
            isinstance(key, int) for key in upper
        )
        if self.per_objective and set(upper) != set(range(len(upper) or 1)):
            raise InvalidInput(
                f"upper has data for objectives {sorted(upper)}; give one entry for each, counted "
                "from 0"
            )
        sets = {"lower": lower} | (
            {f"upper[{i}]": data for i, data in upper.items()}
            if self.per_objective
            else {"upper": upper}
        )
        smallest = min(_rows(data, name) for name, data in sets.items())
        self.size = validation.count(size, "size", least=1)
        if self.size > smallest:
            raise InvalidInput(
                f"size = {size}, but the smallest data set has {smallest} rows; choose 1 <= size "
                f"<= {smallest}"
            )

    def __call__(self, level: str, role: str, t: int, seed: int) -> Any:
        if not (level == "upper" and self.per_objective):
            return self._batch(self.lower if level == "lower" else self.upper, role, t, seed)
        tail = role.rsplit("-", 1)[-1]
        if tail.isdecimal():
            return self._batch(self.upper[int(tail)], role, t, seed)
        return {
            i: self._batch(self.upper[i], role if role == "full" else f"{role}-{i}", t, seed)
            for i in range(len(self.upper))
        }

    def _batch(self, data: Any, role: str, t: int, seed: int) -> Any:
        if role == "full":
            return data
        leaf = tree.first_leaf(data)
        order = torch.randperm(
            leaf.shape[0], generator=generator(role, t, seed, leaf.device), device=leaf.device
        )
        return tree.select(data, order[: self.size])


def _rows(data: Any, name: str) -> int:
    """The rows of a tree of tensors, which all have as many."""
    found = tree.named_leaves(data, name)
    if not found or not all(isinstance(leaf, torch.Tensor) and leaf.dim() for _, leaf in found):
        raise InvalidInput(
            f"{name} is {validation.shown(data)}; pass a tensor, or a tree of tensors, that share "
            "their first axis"
        )
    rows = {leaf.shape[0] for _, leaf in found}
    if len(rows) > 1:
        raise InvalidInput(
            f"the tensors of {name} have {sorted(rows)} rows; all of them must have as many, one "
            "per sample"
        )
    return rows.pop()
