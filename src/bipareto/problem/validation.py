"""One gate for what users pass: numbers, counts, flags, names, functions, arrays, seeds, places
and paths.

Every function takes a value and the name it goes by, returns it in the one form that the code
behind it works with, and refuses what cannot be used by an `InvalidInput` that says what was found
and what to pass.  Starts are checked by `tree.as_tree` and preferences by
`preferences.as_preference`, which stand on these.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from os import fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bipareto.errors import InvalidInput

#: Characters of a value that an error shows.
SHOWN = 80
#: Steps of a run; a computer that makes one in a microsecond needs eleven days for them.
MOST_STEPS = 10**12
#: Seeds are what `torch.Generator` and the keys of draws can hold.
LARGEST_SEED = 2**63 - 1


def shown(value: Any) -> str:
    """A value as errors show it: short, and on one line."""
    text = _text(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**15:
        digits = math.floor(math.log10(abs(value)))  # of any length, where str() has a limit
        return f"{'-' if value < 0 else ''}about 10^{digits}"
    return " ".join(repr(value).split())


def _plain(value: Any) -> Any:
    """The Python number of a NumPy number, or of a tensor or array without axes; else the thing."""
    if isinstance(value, Tensor):
        plain = value.dim() == 0 and value.layout is torch.strided and not value.is_meta
        return value.item() if plain else value
    if isinstance(value, np.ndarray):
        return value.item() if value.ndim == 0 and value.dtype.kind in "iufb" else value
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "iufb" else value


def number(
    value: Any,
    name: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> float:
    """A real number within bounds, as a float.

    Args:
        above, least, below, most: value > above, >= least, < below, <= most.
        infinite: whether infinity is one of them.
    """
    plain = _plain(value)
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">", above), (">=", least), ("<", below), ("<=", most))
        if bound is not None
    ]
    kind = " ".join(["a number" if infinite else "a finite number", " and ".join(bounds)]).rstrip()
    if isinstance(plain, bool) or not isinstance(plain, numbers.Real):
        hint = ", not as text" if isinstance(plain, str) else ""
        raise InvalidInput(f"{name} is {shown(value)}, a {type(value).__name__}; pass {kind}{hint}")
    try:
        found = float(plain)
    except OverflowError:
        found = math.inf
    if math.isnan(found) or (math.isinf(found) and not infinite):
        raise InvalidInput(f"{name} = {shown(value)}; pass {kind}")
    fits = (
        (above is None or found > above)
        and (least is None or found >= least)
        and (below is None or found < below)
        and (most is None or found <= most)
    )
    if not fits:
        raise InvalidInput(f"{name} = {shown(plain)}; it must be {' and '.join(bounds)}")
    return found


def count(
    value: Any, name: str, *, least: int = 0, most: int | None = None, instead: str = ""
) -> int:
    """A whole number of at least `least`, as an int.

    Args:
        most: the largest that makes sense; a larger one would never end, or fill the memory.
        instead: what to do where more is wanted, for the error.
    """
    plain = _plain(value)
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)  # 2000.0 and 1e4 are counts that somebody computed
    try:
        whole = None if isinstance(plain, bool) else operator.index(plain)
    except TypeError:
        whole = None
    if whole is None:
        hint = ", not as text" if isinstance(plain, str) else ""
        raise InvalidInput(
            f"{name} is {shown(value)}; pass a whole number of at least {least}{hint}"
        )
    if whole < least:
        raise InvalidInput(
            f"{name} = {shown(whole)}; it must be a whole number of at least {least}"
        )
    if most is not None and whole > most:
        remedy = f": {instead}" if instead else ""
        raise InvalidInput(f"{name} = {shown(whole)}; it can be {most:,} at most{remedy}")
    return whole


def flag(value: Any, name: str) -> bool:
    """True or False, and nothing that Python would take for one of them."""
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise InvalidInput(f"{name} is {shown(value)}; pass True or False")
    return plain


def choice(value: Any, name: str, known: Iterable[str]) -> str:
    """One of the known names."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(f"{name} {shown(value)} is not known; choose one of {', '.join(known)}")
    return value


def function(value: Any, name: str, given: Sequence[str], remedy: str) -> Callable[..., Any]:
    """Something that can be called with arguments of the given names."""
    called = f"{name}({', '.join(given)})"
    if not callable(value):
        raise InvalidInput(f"{name} is {shown(value)}; pass a function {called}")
    try:
        # A module is called through its forward, which says what it takes.
        signature = inspect.signature(value.forward if isinstance(value, nn.Module) else value)
    except (TypeError, ValueError) as error:  # built in, without a signature
        if isinstance(value, type):
            raise InvalidInput(
                f"{name} is the class {value.__name__}; pass a function {called}"
            ) from error
        return value
    try:
        signature.bind(*given)
    except TypeError:
        raise InvalidInput(f"{name}{signature} cannot be called as {called}; {remedy}") from None
    return value


def instance(value: Any, name: str, kind: type | tuple[type, ...], remedy: str) -> Any:
    """An instance of a class, where the class itself or its name is easily passed instead."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is {shown(value)}; {remedy}")
    return value


def seed(value: Any, name: str = "seed") -> int:
    """A whole number from 0 to 2^63 - 1."""
    return count(
        value, name, least=0, most=LARGEST_SEED, instead="streams of random numbers have no others"
    )


def seeds(value: Any, most: int | None = None) -> list[int]:
    """Different seeds, at least one and `most` at most."""
    if isinstance(value, (str, bytes, Tensor)) and not (
        isinstance(value, Tensor) and value.dim() == 1
    ):
        raise InvalidInput(
            f"seeds is {shown(value)}; pass a list of whole numbers, e.g. seeds=[0, 1, 2]"
        )
    if not isinstance(value, Iterable):
        raise InvalidInput(
            f"seeds is {shown(value)}; pass a list of whole numbers, e.g. seeds=[{shown(value)}]"
        )
    if most is not None and isinstance(value, Sized) and len(value) > most:
        raise InvalidInput(f"seeds holds {len(value):,}; these can be {most:,} at most")
    found = [seed(one, f"seeds[{i}]") for i, one in enumerate(value)]
    if not found:
        raise InvalidInput("seeds is empty; pass at least one, e.g. seeds=[0]")
    if len(set(found)) < len(found):
        twice = Counter(found).most_common(1)[0][0]
        raise InvalidInput(
            f"seeds holds {twice} twice; runs of one seed are the same run, pass different ones"
        )
    return found


def array(value: Any, name: str, like: str, columns: int | None = None) -> Tensor:
    """Real numbers as a float64 tensor on the CPU, detached.

    Args:
        like: what was expected, for the error, e.g. "(R, m) numbers".
        columns: ask for two axes, the second of that length.
    """
    usable = not isinstance(value, (str, bytes, dict, set, frozenset))
    if isinstance(value, Tensor):
        usable = value.layout is torch.strided and not value.is_meta
    found = None
    if usable:
        try:
            found = torch.as_tensor(value)
            if isinstance(value, (list, tuple)) and not found.is_complex():
                # Once more from the Python numbers, without a detour by float32.
                kind = torch.bool if found.dtype is torch.bool else torch.float64
                found = torch.as_tensor(value, dtype=kind)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            found = None
    if found is None or found.dtype is torch.bool or found.is_complex():
        raise InvalidInput(f"{name} is {shown(value)}; pass {like}")
    if columns is not None and (found.dim() != 2 or found.shape[1] != columns):
        raise InvalidInput(
            f"{name} has shape {tuple(found.shape)}; pass {like}, shape (n, {columns})"
        )
    return found.detach().to("cpu", torch.float64)


def path(value: Any, example: str) -> Path:
    """A path that the system could know; whether anything is there is not looked at."""
    try:
        text = fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"path is {shown(value)}; pass a path, e.g. {example!r}")
    return Path(text)


#: Some of the runs: a slice, a boolean mask, or places in any order.
Places: TypeAlias = slice | Sequence[int] | Sequence[bool] | Tensor | np.ndarray[Any, Any]


def place(index: Any, runs: int) -> int:
    """A place on the run axis, counted from its start; a negative index counts from the end."""
    i = count(index, "index", least=-sys.maxsize)
    if not -runs <= i < runs:
        raise IndexError(f"index {i} is out of range for a front of {runs} runs")
    return i % runs


def places(index: Any, runs: int) -> list[int]:
    """The places that a mask, a slice or a list of places stands for.

    >>> places(torch.tensor([False, True, True]), 3)
    [1, 2]
    """
    if isinstance(index, slice):
        return list(range(runs))[index]
    remedy = f"a boolean mask of {runs} entries, whole numbers, or a slice"
    listed = list(index) if isinstance(index, range) else index
    if not isinstance(listed, (Tensor, np.ndarray, list, tuple)):
        raise InvalidInput(f"index is {shown(index)}; pass {remedy}")
    try:
        chosen = torch.as_tensor(listed).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"index is {shown(index)}; pass {remedy}") from error
    if not chosen.numel() and chosen.dim() == 1 and chosen.dtype is not torch.bool:
        return []
    if chosen.dim() != 1 or chosen.is_floating_point() or chosen.is_complex():
        raise InvalidInput(
            f"index has shape {tuple(chosen.shape)} and dtype {chosen.dtype}; pass {remedy}"
        )
    if chosen.dtype is not torch.bool:
        return [place(i, runs) for i in chosen.tolist()]
    if len(chosen) != runs:
        raise InvalidInput(f"the mask has {len(chosen)} entries; pass {remedy}")
    return chosen.nonzero().flatten().tolist()
