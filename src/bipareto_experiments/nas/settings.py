"""What a search is asked for: the space, the supernet, the data's treatment, and the numbers of
every method.

proxy   NAS-Bench-201 with one cell per stage: small enough for many searches side by side
darts   the paper's space and objectives, DARTS with three cells Normal-Reduction-Normal,
        in 10 epochs with our numbers
paper   the paper's search: the same for 50 epochs with four objectives and its numbers
tiny    generated 8 x 8 images: a first try in under a minute
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bipareto.errors import InvalidInput
from bipareto.methods import MBMOMEHA, WCMHGD, Method, MoCo, WCPenalty
from bipareto.methods.parts.hypergradient import FiniteDifference
from bipareto.methods.parts.preferences import favouring
from bipareto.methods.parts.schedule import Cosine, Delayed, Power, Schedule
from bipareto_experiments.nas.first_order import FirstOrder
from bipareto_experiments.nas.objectives import Reading
from bipareto_experiments.nas.spaces import space_of
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet

__all__ = [
    "METHODS",
    "PRESETS",
    "STEPS",
    "TRIALS",
    "Settings",
    "configured",
    "default_preferences",
    "preset",
]

#: The paper's methods, ours first, and the baseline with one objective.
METHODS = ("mb-momeha", "wc-mhgd", "wc-penalty", "moco", "darts")

#: A step of first-order DARTS runs the network twice, one of MB-MOMEHA six times: for equal time it
#: gets three times the steps.
DARTS_STEPS = 3

#: Shift of the weights in differences of gradients, as DARTS has it.  In bfloat16 such a difference
#: is mostly rounding; over ten times the
#: distance it is not (benchmarks/precision.py).
SHIFT, SHIFT_IN_HALF = 0.01, 0.1

#: Steps of x and of the weights, by method.  0.2 acts on averaged gradients: a tenth of that is
#: SGD's with momentum 0.9, as in DARTS.
STEPS = {
    "mb-momeha": {"alpha_x": 10.0, "alpha_y": 0.2},
    "wc-mhgd": {"alpha_x": 10.0, "alpha_y": 0.2},
    "wc-penalty": {"alpha_x": 10.0, "alpha_y": 0.2},
    "moco": {"alpha_x": 10.0, "alpha_y": 0.2},
    "darts": {"alpha_x": 3e-3, "alpha_y": 0.02},
}
#: What each may be chosen from (`bipareto experiment nas tune`).
TRIALS = {
    "alpha_x": dict.fromkeys(METHODS[:4], (1.0, 3.0, 10.0)) | {"darts": (1e-3, 3e-3, 1e-2)},
    "alpha_y": dict.fromkeys(METHODS[:4], (0.1, 0.2, 0.4))
    | {"wc-penalty": (0.2, 1.0, 4.0), "darts": (0.01, 0.02, 0.04)},
}


@dataclass(frozen=True)
class Settings:
    """One kind of search.

    Args:
        space: "nas-bench-201" or "darts".
        supernet: "plain" (one call per operation) or "fast" (few wide calls); the same function.
        half: let the fast one work in bfloat16, batch norm's statistics and the weights excepted.
        channels, cells, stack: of the supernet; `cells` per stage for NAS-Bench-201, `stack` for
            DARTS.
        batch, steps: rows of a draw, and how many steps.
        objectives, reading: see `Search`.
        decay, clip: weight decay of the lower level, and the bound on gradients' norms (None for
            none).
        cosine: whose steps fall to zero along a cosine: "none", "weights", or "all", that of x too.
        pace: factor on the steps of x; a search four times as long comes as far with a quarter.
        warmup: share of the steps in which the architecture all but stands still and the weights
            learn what every operation is good for.
        sampled: temperature of drawn architectures, 0 for the mixture; see `Search`.
        margin, flip, cutout: augmentation, see `Halves`.
        numbers: "ours" or "paper", see `configured`.
    """

    space: str = "nas-bench-201"
    supernet: Literal["plain", "fast"] = "plain"
    half: bool = False
    channels: int = 16
    cells: int = 1
    stack: str = "NRN"
    batch: int = 64
    steps: int = 1000
    objectives: tuple[str, ...] = ("loss", "flops")
    reading: Reading = "real"
    decay: float = 3e-4
    clip: float | None = 5.0
    cosine: Literal["none", "weights", "all"] = "weights"
    pace: float = 1.0
    warmup: float = 0.0
    sampled: float = 0.0
    margin: int = 4
    flip: bool = True
    cutout: int = 0
    numbers: Literal["ours", "paper"] = "ours"

    def __post_init__(self) -> None:
        space_of(self.space)
        if self.supernet not in ("plain", "fast"):
            raise InvalidInput(f"supernet {self.supernet!r} is not known; choose plain or fast")
        if not 0 <= self.warmup < 1:
            raise InvalidInput(
                f"warmup = {self.warmup}; it is the share of steps before the architecture moves, "
                "from 0 to below 1"
            )
        if self.half and self.supernet != "fast":
            raise InvalidInput(
                "only the fast supernet works in bfloat16; use --supernet fast with --half"
            )
        if self.cosine not in ("none", "weights", "all") or not self.pace > 0:
            raise InvalidInput(
                f"cosine = {self.cosine!r}, pace = {self.pace}; choose none, weights or all, and a "
                "factor above 0"
            )
        if self.numbers not in ("ours", "paper"):
            raise InvalidInput(f"numbers {self.numbers!r} are not known; choose ours or paper")

    def network(self, size: int, classes: int) -> Supernet:
        """The supernet for images of that side."""
        of_201 = self.space == "nas-bench-201"
        shape: dict[str, Any] = {"channels": self.channels, "size": size, "classes": classes}
        shape |= {"cells": self.cells} if of_201 else {"stack": self.stack}
        if self.supernet == "plain":
            return NasBench201(**shape) if of_201 else Darts(**shape)
        # Not at the top: the kernels bring Triton with them, which takes a second where there is
        # one.
        from bipareto_experiments.nas import fast

        return (
            fast.FastNasBench201(**shape, half=self.half)
            if of_201
            else fast.FastDarts(**shape, half=self.half)
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


PRESETS = {
    "proxy": Settings(warmup=0.2),
    "darts": Settings(
        space="darts", steps=3900, reading="paper", warmup=0.2, cosine="all", pace=0.25
    ),
    "paper": Settings(
        space="darts",
        steps=19_500,
        objectives=("loss", "flops", "skip", "pooling"),
        reading="paper",
        numbers="paper",
        clip=None,
        cosine="none",
    ),
    "tiny": Settings(channels=4, batch=16, steps=40, margin=1),
}


def preset(name: str) -> Settings:
    """The settings of a name."""
    if name not in PRESETS:
        raise InvalidInput(f"preset {name!r} is not known; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def configured(name: str, settings: Settings, **steps: float) -> Method:
    """A method with its numbers; with another `alpha_x` or `alpha_y` than its own where one is
    given.

    "paper": the paper's.  Its step 0.05 on averaged gradients moves a logit by some 0.05 in 1,000
    steps, so that nothing is decided in a short search.  "ours": steps for a search of about 1,000
    steps, that of x tuned for each method; what belongs to a method alone (gamma, mu, c_t; u, D; v,
    eta; beta, gamma) stays as the paper has it where that works, see docs/nas.md.
    """
    if name not in METHODS:
        raise InvalidInput(
            f"method {name!r} takes no part in this experiment; choose from {', '.join(METHODS)}"
        )
    if settings.numbers == "paper":
        return _paper(name)
    chosen = STEPS[name] | steps
    x, y = (
        _waiting(settings.pace * chosen["alpha_x"], settings),
        _falling(chosen["alpha_y"], settings),
    )
    shift = SHIFT_IN_HALF if settings.half else SHIFT
    one_step = FiniteDifference(terms=1, eta=chosen["alpha_y"], eps=shift, relative=True)
    numbers: dict[str, Method] = {
        "mb-momeha": MBMOMEHA(
            gamma=8.0, mu=4.0, alpha_theta=y, alpha_x=x, alpha_y=y, beta=0.9, c=Power(1.0, 1 / 16)
        ),
        "wc-mhgd": WCMHGD(
            alpha_x=x, u=10.0, lower_steps=4, beta=y, hypergradient=one_step, qp_steps=8, qp_lr=0.01
        ),
        "wc-penalty": WCPenalty(u=0.01, v=0.2, alpha_x=x, alpha_y=y, eta=0.01, difference=shift),
        "moco": MoCo(
            alpha_x=x, beta=0.1, gamma=0.1, lower_steps=1, lower_step=y, hypergradient=one_step
        ),
        "darts": FirstOrder(alpha_x=x, alpha_y=y),
    }
    return numbers[name]


def _falling(step: float, settings: Settings) -> Schedule | float:
    return step if settings.cosine == "none" else Cosine(step, float(settings.steps))


def _waiting(step: float, settings: Settings) -> Schedule | float:
    least, first = (
        1e-4 * step,
        settings.warmup * settings.steps,
    )  # not zero: reports divide by the step
    if settings.cosine == "all":
        return Cosine(step, float(settings.steps), least, first)
    return Delayed(step, first, least) if settings.warmup else step


def _paper(name: str) -> Method:
    if name == "mb-momeha":
        return MBMOMEHA.paper("nas")
    if name == "darts":
        return FirstOrder()
    if name == "wc-penalty":
        # The weights of a supernet are many; products from gradients cost less memory than second
        # derivatives.
        return WCPenalty(u=0.01, v=0.2, alpha_x=0.05, alpha_y=0.025, eta=0.01, difference=0.01)
    return WCMHGD.paper() if name == "wc-mhgd" else MoCo.paper()


def default_preferences(m: int, strengths: Sequence[str] | None = None) -> list[tuple[float, ...]]:
    """The preferences of a comparison: for every strength one for each objective; with more than
    two objectives the equal one first.

    None: moderate and strong for two objectives, four in all; strong for more.
    """
    if strengths is None:
        strengths = ("moderate", "strong") if m == 2 else ("strong",)
    found = [] if m == 2 else [(1 / m,) * m]
    for strength in strengths:
        found += [tuple(round(v, 12) for v in row) for row in favouring(m, strength).tolist()]
    return list(dict.fromkeys(found))
