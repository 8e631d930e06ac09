"""Which numbers each method runs with, and under which preferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any, Literal

from bipareto.errors import InvalidInput
from bipareto.methods import FORUM, METHODS, MOMEHA, MOML, WCMHGD, Method, WCPenalty
from bipareto.methods.parts.hypergradient import CG
from bipareto.methods.parts.preferences import STRENGTHS, favouring
from bipareto.methods.parts.schedule import Cosine
from bipareto_experiments.episodic import Episodic
from bipareto_experiments.fewshot.network import Learner

Protocol = Literal["warm", "literal"]
PROTOCOLS: tuple[Protocol, ...] = ("warm", "literal")

#: The methods of the comparison, ours first.
COMPARED = ("momeha", "wc-penalty", "moml", "forum", "wc-mhgd")

#: Step size of a learner on its own domain's loss, in the warm-up, in joint steps and in the
#: adaptation to test episodes.
#: g is the mean over m domains, so a step on g is m times as large.
LEARNING = {"linear": 0.25, "mlp": 0.1, "block": 0.05}

#: MOMEHA's step of x and its penalty c, by learner.
MOVING = {"linear": (0.3, 0.3), "mlp": (1.0, 0.1), "block": (1.0, 0.3)}

#: Joint steps per episode.
JOINT = 2

#: Where the tuning of each method with the block learner begins: a product of values for its step
#: of x and the number that matters most besides, with one value for each other number of the
#: paper's grids.  From the best of them it goes on by factors of two in every number.
TRIALS: dict[str, list[dict[str, float]]] = {
    name: [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    for name, grid in {
        "momeha": {"alpha_x": (1.0, 2.0, 4.0, 8.0), "c": (0.1, 0.3), "mu": (4.0,), "gamma": (8.0,)},
        "wc-penalty": {"alpha_x": (2.5, 5.0, 10.0, 20.0), "v": (0.025, 0.05), "u": (1.0,)},
        "moml": {"alpha_x": (0.5, 1.0, 2.0, 4.0), "eta": (0.2, 0.4)},
        "forum": {"alpha_x": (1.5, 3.0, 6.0, 12.0), "rho": (0.1, 0.5), "eta": (0.2,)},
        "wc-mhgd": {"alpha_x": (0.3, 1.0, 3.0, 10.0), "u": (1.0, 10.0)},
    }.items()
}


def adaptation(learner: Learner, m: int) -> float:
    """The step size on g with which learners of m domains adapt, the same for every method and for
    an untrained backbone.
    """
    return m * LEARNING[learner]


def configured(
    name: str,
    learner: Learner,
    m: int,
    protocol: Protocol = "warm",
    preset: str = "robust",
    steps: int = 2500,
    numbers: Mapping[str, Any] | None = None,
) -> Method:
    """A method with its numbers.

    Args:
        name: one of `COMPARED`.
        learner, m: decide the learner's step size.
        protocol: "warm": in every episode learners are learned anew by eight steps on the support
            set, then two joint steps follow. "literal": one joint step per episode, learners
            carried over, as the paper's text reads.
        preset: "robust", chosen on validation classes; "paper-sensitivity" or "paper-comparison",
            the paper's numbers.
        steps: joint steps T of the run.  With "robust" the step of x falls to zero along half a
            cosine over them: a constant one leaves x shaking with the last episodes, by more than a
            preference moves it.
        numbers: others than the preset's, by name, as tuning finds them.
    """
    if name not in COMPARED:
        raise InvalidInput(
            f"method {name!r} takes no part in this experiment; choose from {', '.join(COMPARED)}"
        )
    if protocol not in PROTOCOLS:
        raise InvalidInput(
            f"protocol {protocol!r} is not known; choose one of {', '.join(PROTOCOLS)}"
        )
    eta = adaptation(learner, m)
    method = _robust(name, learner, eta) if preset == "robust" else _paper(name, preset)
    unknown = sorted(set(numbers or {}) - {f.name for f in fields(method)})
    if unknown:
        raise InvalidInput(
            f"{name} has no number {', '.join(unknown)}; it has "
            f"{', '.join(f.name for f in fields(method))}"
        )
    method = replace(method, **(numbers or {}))
    if preset == "robust":
        method = replace(method, alpha_x=Cosine(method.alpha_x.value, float(steps)))  # type: ignore[attr-defined, call-arg]
    return method if protocol == "literal" else Episodic(method, warmup=8, eta=eta, joint=JOINT)


def _robust(name: str, learner: Learner, learning: float) -> Method:
    alpha_x, c = MOVING[learner]
    numbers: dict[str, Method] = {
        "momeha": MOMEHA(
            gamma=8.0, mu=4.0, alpha_x=alpha_x, alpha_y=learning, alpha_theta=learning, c=c
        ),
        "wc-penalty": WCPenalty(u=1.0, v=0.2, alpha_x=1.0, alpha_y=learning, eta=0.01),
        "moml": MOML(inner_steps=4, eta=learning, alpha_x=0.3),
        "forum": FORUM(inner_steps=4, eta=learning, rho=0.5, alpha_x=0.3, alpha_y=learning),
        "wc-mhgd": WCMHGD(alpha_x=0.3, u=10.0, lower_steps=4, beta=learning, hypergradient=CG(4)),
    }
    return numbers[name]


def _paper(name: str, preset: str) -> Method:
    if preset not in ("paper-sensitivity", "paper-comparison"):
        raise InvalidInput(
            f"preset {preset!r} is not known; choose robust, paper-sensitivity or paper-comparison"
        )
    if name == "momeha":
        return MOMEHA.paper(preset.removeprefix("paper-"))
    return METHODS[name].paper()  # type: ignore[attr-defined]


def preferences(m: int, strengths: Sequence[str]) -> list[tuple[float, ...]]:
    """Equal weights, then for every strength one preference for each objective."""
    for strength in strengths:
        if strength not in STRENGTHS:
            raise InvalidInput(
                f"strength {strength!r} is not known; choose from {', '.join(STRENGTHS)}"
            )
    found = [(1 / m,) * m]
    for strength in strengths:
        found += [tuple(row) for row in favouring(m, strength).tolist()]
    return found
