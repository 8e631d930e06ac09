"""Losses and samplers must be functions of their arguments; here they are evaluated twice to see
whether they are.

A run is resumed, batched, compiled, re-solved and certified on the understanding that f, g and the
sampler depend on nothing but what they are given, and change nothing.  One that draws from a global
random stream, counts its calls or writes to its arguments would give another answer at every call,
without a word.  So each is evaluated twice at the start, and what differs is named.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bipareto.errors import InvalidInput
from bipareto.problem import tree
from bipareto.problem.sampler import Role
from bipareto.problem.tree import Tree
from bipareto.problem.validation import shown

_REMEDY = (
    "what is random must be a draw, a function of (role, step, seed): let a sampler draw it with "
    "bipareto.problem.sampler.generator(role, t, seed), or use an nn.Dropout inside a module given "
    "to Problem.from_modules"
)


def seed_everything(seed: int) -> None:
    """Seed the global streams of torch (CPU), NumPy and Python, inside `kept_random_state`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the stream that data sets draw from
    random.seed(seed)


def random_streams() -> tuple[Any, ...]:
    """The states of the global random streams of torch (CPU), NumPy and Python."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def set_random_streams(states: tuple[Any, ...]) -> None:
    """Put them into states that `random_streams` gave."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Leave the global random streams of torch (CPU), NumPy and Python as they were before."""
    states = random_streams()
    try:
        yield
    finally:
        set_random_streams(states)


def _world(device: torch.device) -> dict[str, Any]:
    """What a pure function leaves as it is, by the name to be used in an error."""
    found: dict[str, Any] = {
        "torch's global random stream": torch.get_rng_state(),
        "NumPy's global random stream": tuple(np.random.get_state()),  # noqa: NPY002
        "the global stream of Python's random": random.getstate(),
        "torch's default dtype": torch.get_default_dtype(),
    }
    if device.type == "cuda":
        found["torch's global random stream on the GPU"] = torch.cuda.get_rng_state(device)
    return found


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name, value in before.items() if not same(value, after[name])]


def same(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    """Whether two trees hold equal leaves, NaN equal to NaN; tensors up to a tolerance relative
    to their largest entry.
    """
    mine, theirs = (pytree.tree_flatten(value) for value in (a, b))
    return mine[1] == theirs[1] and all(
        _equal(u, v, tolerance) for u, v in zip(mine[0], theirs[0], strict=True)
    )


def _equal(u: Any, v: Any, tolerance: float) -> bool:
    if u is v:
        return True
    if isinstance(u, Tensor) and isinstance(v, Tensor):
        if u.shape != v.shape or u.dtype != v.dtype:
            return False
        if not tolerance or not u.is_floating_point():
            return bool(
                torch.equal(u, v)
                or torch.allclose(u, v, rtol=0, atol=0, equal_nan=u.is_floating_point())
            )
        largest = float(torch.nan_to_num(u).abs().max()) if u.numel() else 0.0
        return bool(torch.allclose(u, v, rtol=0, atol=tolerance * largest, equal_nan=True))
    if isinstance(u, np.ndarray) and isinstance(v, np.ndarray):
        return bool(np.array_equal(u, v))
    try:
        return type(u) is type(v) and bool(u == v)
    except (TypeError, ValueError, RuntimeError):  # what cannot be compared says nothing
        return True


def _version(leaf: Any) -> int:
    """How often a tensor was written to; inference tensors do not count."""
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def tolerance(like: Tensor) -> float:
    """How far two evaluations may differ by rounding, relative to the largest value: kernels on
    a GPU add up in any order.
    """
    return 1e-2 if like.is_cuda else float(torch.finfo(like.dtype).eps ** 0.75)


def evaluate_twice(name: str, loss: Callable[[], Any], x: Any, y: Any, batch: Any) -> Any:
    """The value of a loss at (x, y) on a batch, refused by name where it is no function of these.

    Args:
        name: "upper" or "lower".
        loss: evaluates it at x, y and batch, which are given to be watched.
    """
    places = tree.named_leaves(x, "x") + tree.named_leaves(y, "y")
    held = [leaf.detach().clone() for _, leaf in places]
    like = places[0][1]
    rows = pytree.tree_leaves(batch)
    versions = [_version(leaf) for leaf in rows]
    own_versions = [_version(leaf) for _, leaf in places]
    with kept_random_state():
        before = _world(like.device)
        try:
            value = loss()
        except (TypeError, ValueError) as error:
            if batch is None or all(isinstance(leaf, Tensor) for leaf in rows):
                raise
            raise InvalidInput(
                f"{name} cannot be evaluated on the draw that it is given, {shown(batch)} "
                f"({error}); a sampler returns tensors, or trees of them"
            ) from error
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            raise InvalidInput(
                f"{name} writes to its arguments ({str(error).splitlines()[0]}); {_OUT_OF_PLACE}"
            ) from error
        changed = _changed(before, _world(like.device))
        # A write that changes nothing here (a clamp at its bounds) may change something later.
        written = [
            path
            for (path, leaf), old, version in zip(places, held, own_versions, strict=True)
            if version != _version(leaf) or not torch.equal(leaf.detach(), old)
        ]
        if written:
            raise InvalidInput(
                f"{name} writes to {', '.join(written[:3])} while it is evaluated; {_OUT_OF_PLACE}"
            )
        if versions != [_version(leaf) for leaf in rows]:
            raise InvalidInput(f"{name} writes to its batch while it is evaluated; {_OUT_OF_PLACE}")
        if "torch's default dtype" in changed:
            torch.set_default_dtype(before["torch's default dtype"])
        if changed:
            raise InvalidInput(f"{name} draws from or changes {' and '.join(changed)}; {_REMEDY}")
        with torch.no_grad():
            try:
                again = loss()
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                raise InvalidInput(
                    f"{name} differentiates inside by torch.autograd ({str(error).splitlines()[0]}"
                    "), which fails where only its value is asked for; use torch.func.grad there, "
                    "which also works for many runs side by side"
                ) from error
    if (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_meta
        and isinstance(again, Tensor)
        and not same(value.detach(), again.detach(), tolerance(like))
    ):
        first, second = (_short(v.detach()) for v in (value, again))
        raise InvalidInput(
            f"{name} was {first} and then {second} at the same x and y: it depends on something "
            "else, such as a counter, a buffer "
            f"that it updates, the time or a random stream of its own; {_REMEDY}"
        )
    return value


_OUT_OF_PLACE = (
    "a loss must leave its arguments as they are: use y.clamp(...) for y.clamp_(...), torch.where "
    "for assignments"
)


def _short(value: Tensor) -> str:
    return (
        str([float(f"{v:.9g}") for v in value.flatten()[:4].tolist()])
        if value.dim()
        else f"{float(value):.9g}"
    )


def draw_twice(draw: Callable[[], Any], role: Role) -> None:
    """Refuse a sampler with two batches for one (role, t, seed), or that moves global streams."""
    with kept_random_state():
        before = _world(torch.device("cpu"))
        first = draw()
        changed = _changed(before, _world(torch.device("cpu")))
        if changed:
            raise InvalidInput(
                f"the sampler draws role {str(role)!r} from {' and '.join(changed)}; {_PURE_DRAW}"
            )
        held = [_version(leaf) for leaf in pytree.tree_leaves(first)]
        second = draw()
        if held != [_version(leaf) for leaf in pytree.tree_leaves(first)]:
            raise InvalidInput(
                f"the sampler writes to the batch of role {str(role)!r} that it gave before; "
                "return a new one at every call"
            )
    if not same(first, second):
        raise InvalidInput(
            f"the sampler gave two different batches for role {str(role)!r} at one step and seed; "
            f"{_PURE_DRAW}"
        )


_PURE_DRAW = (
    "a draw must depend on (role, t, seed) and on nothing else, so that a run can be "
    "resumed, batched and repeated: "
    "take the random numbers from bipareto.sampler.generator(role, t, seed)"
)


class _Evaluated(Protocol):
    """What is asked of a problem here."""

    sampler: Any
    draws: Any


#: The losses and roles of a problem that were found to be pure: a second start costs nothing.
_PURE: WeakKeyDictionary[Any, set[str | Role]] = WeakKeyDictionary()


def once_twice(
    problem: _Evaluated, name: str, loss: Callable[..., Any], x: Tree, y: Tree, batch: Any
) -> Any:
    """A loss of a problem at (x, y) on a batch; the first time it is evaluated twice."""
    seen = _PURE.setdefault(problem, set())
    if name in seen:
        return loss(x, y, batch)
    value = evaluate_twice(name, lambda: loss(x, y, batch), x, y, batch)
    seen.add(name)
    return value


def check_draws(problem: _Evaluated, roles: Sequence[Role]) -> None:
    """Draw the first role of each level twice, the first time, and refuse an impure sampler."""
    if problem.sampler is None:
        return
    seen = _PURE.setdefault(problem, set())
    if problem.draws is not None:
        # Loaders keep the batch drawn last: they look at their rows themselves.
        if "loaders" not in seen:
            problem.draws.draw_twice()
            seen.add("loaders")
        return
    firsts = {role.level: role for role in reversed(roles) if not role.full}
    for role in firsts.values():
        if role not in seen:
            draw_twice(partial(problem.sampler, role, 0, 0), role)
            seen.add(role)
