"""A limit on what a call may take, in seconds of the processor: a busy machine is no hang."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["limited"]

#: a call that sleeps uses no processor: it has so many times the seconds on the clock
_WALL = 15.0


@contextmanager
def limited(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise `error` in a body that has used the processor for longer; on the main thread."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise error

    timers = [(signal.SIGPROF, signal.ITIMER_PROF, seconds)]
    timers.append((signal.SIGALRM, signal.ITIMER_REAL, _WALL * seconds))
    before = [signal.signal(number, ring) for number, _, _ in timers]
    try:
        try:
            for _, timer, limit in timers:
                # Again every second, for an alarm that rings inside a destructor is lost.
                signal.setitimer(timer, limit, 1.0)
            yield
        finally:
            for _, timer, _ in timers:
                signal.setitimer(timer, 0)
    finally:
        for (number, _, _), handler in zip(timers, before, strict=True):
            signal.signal(number, handler)
