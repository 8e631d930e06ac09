"""Which stepper takes the steps: plain, traced, compiled, or replayed as a CUDA graph."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from bipareto.methods import Method
from bipareto.problem import Problem
from bipareto.run.stepping import Stepper

__all__ = ["stepper"]

_COMPILED: WeakKeyDictionary[Problem, dict[Any, Stepper]] = WeakKeyDictionary()


def stepper(
    problem: Problem,
    method: Method,
    *,
    batched: bool,
    shared_draw: bool = True,
    compile: bool | str = False,
    folded: bool = False,
) -> Stepper:
    """The step of a method on a problem, batched and compiled as asked.

    Args:
        batched: states carry a first run axis.
        shared_draw: all runs see the same draw (one seed); else draws carry the run axis too.
        compile: True for Inductor, a backend's name, or "replay" for a CUDA graph of the kernels
            that are there (`bipareto.run.graph.replay`), or "traced" for the plain operations run
            from a recording (`bipareto.run.graph.traced`).
        folded: a replayed batch is one step under `vmap`, not a branch for each run.

    Compiled steps are kept per problem and structure of method: numbers live in the state, so
    gamma, mu, steps and penalties of any value share one graph.
    """
    if not compile:
        return Stepper(problem, method, batched, shared_draw)
    # What turns a step into a graph is loaded where one is asked for.
    if compile == "traced":
        from bipareto.run.graph.traced import TracedStepper

        return TracedStepper(problem, method, batched, shared_draw)
    backend = "inductor" if compile is True else compile
    known = _COMPILED.setdefault(problem, {})
    key = (method.structure(), batched, shared_draw, backend, folded)
    if key not in known:
        if backend == "replay":
            from bipareto.run.graph.replay import ReplayedStepper

            known[key] = ReplayedStepper(problem, method, batched, shared_draw, folded)
        else:
            from bipareto.run.compiled import CompiledStepper

            known[key] = CompiledStepper(problem, method, batched, shared_draw, backend)
    return known[key]
