"""A package that extends bipareto: a method after Jiang and Huang (2026) with smaller steps, a
scalarization, a diagnosis and a command, without a change to bipareto.
"""

from dataclasses import dataclass

import typer

import bipareto as bp
from bipareto.doctor import Case, Diagnosis
from bipareto.methods.parts.scalarization import Scalarization


@dataclass(frozen=True)
class Patient(bp.MOMEHA):
    """MOMEHA with half of its default step in x.

    Args:
        alpha_x: the step of x; the others as in MOMEHA.
    """

    alpha_x: float = 0.005


def value(f, w, z, mu):
    return (w * (f - z).square()).sum(-1).sqrt()


def weights(f, w, z, mu):
    return w * (f - z) / value(f, w, z, mu)[..., None]


POWER_MEAN = Scalarization("power-mean", value, weights)


def too_few_records(case: Case) -> list[Diagnosis]:
    """Fewer than three records say nothing about convergence."""
    count = len(case.history["objectives"])
    runs = tuple(range(case.runs))
    few = Diagnosis("too-few-records", runs, f"{count} records", "take more steps")
    return [few] if count < 3 else []


def greet(name: str = "world") -> None:
    """Say hello, from another package."""
    typer.echo(f"hello, {name}")
