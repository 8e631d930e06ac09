"""Misuses of the Python interface, tried one by one and classified.

A misuse is a call that a user may make by mistake.  What came of it is one of

- *refused*: a `BiparetoError`, which names what was found and the remedy;
- *told*: it went through with a `BiparetoWarning`;
- *fine*: it went through, and the case's own test says that the answer is right (a NumPy number
  for a Python one, say);
- *foreign*: an error of torch, NumPy or Python, in their words;
- *silent*: it went through without a word, and the answer is not what was asked for;
- *hang*: nothing within the time allowed.

Only the first three are good.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bipareto.errors import BiparetoError, BiparetoWarning
from limits import limited

__all__ = ["BAD", "Case", "Outcome", "count", "try_case"]

#: the outcomes that must not be
BAD = ("foreign", "silent", "hang")


class Case(NamedTuple):
    """A call and, where it may go through, the test of its answer.

    right: whether an answer is what was asked for; None where nothing but a refusal (or a warning,
        `may_warn`) will do.
    may_warn: whether a warning is enough.
    raises: errors of Python's own that are the right ones here, such as IndexError.
    """

    name: str
    call: Callable[[], Any]
    right: Callable[[Any], bool] | None = None
    may_warn: bool = False
    raises: tuple[type[BaseException], ...] = ()


class Outcome(NamedTuple):
    name: str
    kind: str
    words: str
    seconds: float


class _TooLong(BaseException):
    """Not an Exception, so that no handler on the way takes it for one."""


def try_case(case: Case, seconds: float = 20.0) -> Outcome:
    """Make the call and say what came of it; on the main thread, for the time limit is an alarm."""
    begun = time.perf_counter()
    kind, words = "fine", ""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with limited(seconds, _TooLong()):
                value = case.call()
                right = case.right is not None and bool(case.right(value))
        told = [str(w.message) for w in caught if issubclass(w.category, BiparetoWarning)]
        if not right:
            kind = "told" if told and case.may_warn else "silent"
            words = told[0] if told else repr(value)[:200]
    except _TooLong:
        kind, words = "hang", f"nothing within {seconds:g} s"
    except BiparetoError as error:
        kind, words = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is an outcome
        kind = "fine" if isinstance(error, case.raises) else "foreign"
        words = f"{type(error).__name__}: {error}"
    return Outcome(case.name, kind, words, time.perf_counter() - begun)


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many there are of each kind, all kinds named."""
    seen = Counter(outcome.kind for outcome in outcomes)
    return {kind: seen[kind] for kind in ("refused", "told", "fine", *BAD)}
