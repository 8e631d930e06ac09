"""Draws by role: what a stochastic step sees depends on (role, step, seed) and on nothing else.

A method declares its roles for m objectives, e.g. MB-MOMEHA the 2m + 3 of Algorithm 2:
`Role("lower", "theta")`, `Role("lower", "x")`, `Role("lower", "y")`, `Role("upper", "x", 0)`, ...,
`Role("upper", "y", 0)`, ....  The name "full" stands for all the data of a level, used to evaluate
and to re-solve.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from bipareto.errors import InvalidInput
from bipareto.problem import tree, validation

__all__ = ["Minibatches", "Role", "Sampler", "generator"]


class Role(NamedTuple):
    """What a draw is for.

    level: "upper" for draws on which f is evaluated, "lower" for g ("test" for data of neither).
    name: whose step it is for, "x", "y" or "theta"; "" serves all steps of the level, "full" is all
    its data.
    objective: which objective of f (of g: which of several steps); None serves all of them.

    >>> str(Role("upper", "x", 0)), str(Role("lower", "theta")), str(Role("upper"))
    ('x-upper-0', 'theta', 'upper')
    """

    level: str
    name: str = ""
    objective: int | None = None

    @property
    def full(self) -> bool:
        """Whether all the data is asked for."""
        return self.name == "full"

    def __str__(self) -> str:
        # Random streams are keyed by this text.
        if self.name not in ("", "x", "y"):
            return self.name
        last = None if self.objective is None else str(self.objective)
        return "-".join(part for part in (self.name, self.level, last) if part)


#: `sampler(role, t, seed) -> batch`; pure in all three.
Sampler: TypeAlias = Callable[[Role, int, int], Any]


def generator(
    role: Role | str, t: int, seed: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A random generator whose stream is a function of (role, t, seed): use it to write a sampler
    of one's own.

    >>> one, other = (torch.rand(2, generator=generator("theta", 7, 0)) for _ in range(2))
    >>> torch.equal(one, other)
    True
    """
    if not isinstance(role, Role | str):
        raise InvalidInput(
            f'role is {validation.shown(role)}; pass a Role, or a name of your own, e.g. "theta"'
        )
    key = (
        zlib.crc32(str(role).encode())
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
            `upper` is then a sequence of m functions; a role of objective i draws from entry i, and
            the roles of all objectives draw {i: batch}.
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

    def __call__(self, role: Role, t: int, seed: int) -> Any:
        if not (role.level == "upper" and self.per_objective):
            return self._batch(self.lower if role.level == "lower" else self.upper, role, t, seed)
        if role.objective is not None:
            return self._batch(self.upper[role.objective], role, t, seed)
        return {
            i: self._batch(self.upper[i], role._replace(objective=i), t, seed)
            for i in range(len(self.upper))
        }

    def _batch(self, data: Any, role: Role, t: int, seed: int) -> Any:
        if role.full:
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
