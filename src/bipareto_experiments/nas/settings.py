"""What a search is asked for: the space, the supernet, the data's treatment, and the
hyperparameters of every method.

proxy   NAS-Bench-201 with one cell per stage and images of 16 x 16 pixels: small enough for many
        searches side by side
darts   the paper's space and objectives, DARTS with three cells Normal-Reduction-Normal,
        in 10 epochs with our hyperparameters
paper   the paper's search: the same for 50 epochs with four objectives and its hyperparameters
tiny    generated 8 x 8 images: a first try in under a minute
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

from bipareto.errors import InvalidInput
from bipareto.methods import MBMOMEHA, WCMHGD, Method, MoCo, WCPenalty
from bipareto.methods.parts.hypergradient import FiniteDifference
from bipareto.methods.parts.preferences import favouring
from bipareto.methods.parts.schedule import Cosine, Delayed, Power, Schedule, as_schedule
from bipareto_experiments.nas.first_order import FirstOrder, WeightsAlone
from bipareto_experiments.nas.joint import JointMBMOMEHA
from bipareto_experiments.nas.objectives import Reading
from bipareto_experiments.nas.spaces import space_of
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet

#: Ours in two forms, the paper's other methods; the baseline with one objective; and random search
#: on a supernet whose weights alone are trained.
METHODS = (
    "mb-momeha-joint", "mb-momeha-nested", "mb-momeha", "wc-mhgd", "wc-penalty", "moco", "darts",
    "random",
)  # fmt: skip

#: MB-MOMEHA in both.
FORMS: dict[str, type[MBMOMEHA]] = {
    "mb-momeha-joint": JointMBMOMEHA,
    "mb-momeha-nested": JointMBMOMEHA,
    "mb-momeha": MBMOMEHA,
}

#: A step of MB-MOMEHA runs the network six times, one of first-order DARTS twice, one of the
#: weights alone once and a half: by that many more steps they take about as long; see `pace`.
PACES = {"darts": 3.0, "random": 4.0}

#: Shift of the weights in differences of gradients, as DARTS has it.  In bfloat16 such a difference
#: is mostly rounding; over ten times the distance it is not (benchmarks/precision.py).
SHIFT, SHIFT_IN_HALF = 0.01, 0.1

#: MB-MOMEHA with draws of their own for theta and y: where g is flat, noise in y - theta is
#: integrated twice unless gamma is large or theta's step exceeds y's.
GAMMA, KAPPA = 300.0, 1.5

_JOINT = {"alpha_x": 7.5, "alpha_y": 1.5, "c": 1.0, "mu": 0.5}
#: Hyperparameters by method: steps of x and of the weights, the steps D of the weights alone, and c
#: of MB-MOMEHA.  The best of nine trials (eight with twin draws) of each on validation images
#: (docs/results/nas/trials-one-cell; the first two rows docs/results/nas/trials), with a quarter of
#: the trial's step of x: searches are several times as long.
STEPS: dict[str, dict[str, float]] = {
    "mb-momeha": {"alpha_x": 2.5, "alpha_y": 0.6, "c": 1.0},
    "mb-momeha, twin": {"alpha_x": 2.5, "alpha_y": 1.5, "c": 1.0},
    "mb-momeha-joint": _JOINT,
    # On NAS-Bench-201 not tuned: the joint form's, with as many steps of the weights as WC-MHGD.
    "mb-momeha-nested": _JOINT | {"lower_steps": 3},
    "wc-mhgd": {"alpha_x": 7.5, "alpha_y": 1.0, "lower_steps": 4},
    "wc-penalty": {"alpha_x": 7.5, "alpha_y": 3.0},
    "moco": {"alpha_x": 7.5, "alpha_y": 1.0},
    "darts": {"alpha_x": 0.025, "alpha_y": 0.2},
    "random": {"alpha_y": 0.2},
}
#: The same on DARTS, on images averaged to 16 x 16.  The nested form and WC-MHGD are the best of
#: nine trials as long as a search (docs/results/nas/trials-darts-nested); WC-penalty and MoCo of
#: shorter ones, with 0.4 of the trial's step of x (docs/results/nas/trials-darts).  The joint
#: form's of these suit short searches only: with those above it ends better on validation images.
ON_DARTS: dict[str, dict[str, float]] = {
    "mb-momeha-nested": {"alpha_x": 50.0, "alpha_y": 0.75, "c": 1.0, "mu": 0.5, "lower_steps": 3},
    "wc-mhgd": {"alpha_x": 30.0, "alpha_y": 0.5, "lower_steps": 4},
    "wc-penalty": {"alpha_x": 40.0, "alpha_y": 3.0},
    "moco": {"alpha_x": 4.0, "alpha_y": 1.0},
}
Grid = dict[str, tuple[float, ...]]
Grids = dict[str, Grid]
_JOINT_GRID: Grid = {"alpha_x": (10.0, 30.0), "alpha_y": (1.5, 4.0), "mu": (0.5, 4.0)}
_JOINT_GRID_ON_DARTS: Grid = {"alpha_x": (7.5, 20.0), "alpha_y": (1.5, 3.0), "mu": (0.5, 2.0)}
#: What they are chosen from (`bipareto experiment nas tune`).
_GRIDS: Grids = {
    "mb-momeha": {"alpha_x": (1.0, 3.0, 10.0), "alpha_y": (0.3, 0.6, 1.2)},
    "mb-momeha, twin": {"alpha_x": (10.0, 30.0), "alpha_y": (1.5, 4.0), "mu": (0.5, 4.0)},
    "mb-momeha-joint": _JOINT_GRID,
    "mb-momeha-nested": _JOINT_GRID,
    "wc-mhgd": {"alpha_x": (10.0, 30.0, 100.0), "alpha_y": (0.3, 1.0, 3.0)},
    "wc-penalty": {"alpha_x": (10.0, 30.0, 100.0), "alpha_y": (1.0, 3.0, 10.0)},
    "moco": {"alpha_x": (3.0, 10.0, 30.0), "alpha_y": (0.1, 0.3, 1.0)},
    "darts": {"alpha_x": (1e-2, 3e-2, 1e-1), "alpha_y": (0.05, 0.1, 0.2)},
}
#: The same on DARTS.
_GRIDS_ON_DARTS: Grids = {
    "mb-momeha-joint": _JOINT_GRID_ON_DARTS,
    "mb-momeha-nested": {"alpha_x": (7.5, 20.0, 50.0), "alpha_y": (0.75, 1.5, 3.0)},
    "wc-mhgd": {"alpha_x": (10.0, 30.0, 100.0), "alpha_y": (0.5, 1.0, 2.0)},
}

#: The methods that are tuned: random search takes first-order DARTS's step of the weights.
TUNED = METHODS[:-1]

#: The paper's preferences for two objectives by its own names, the first objective preferred; and
#: the same with the second preferred.
TWO = {
    "equal": (0.5, 0.5),
    "weak": (0.6, 0.4),
    "strong": (0.75, 0.25),
    "extreme": (0.9, 0.1),
    "weak-second": (0.4, 0.6),
    "strong-second": (0.25, 0.75),
    "extreme-second": (0.1, 0.9),
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
        warmup: share of the steps in which the architecture all but stands still and the weights
            learn what every operation is good for.
        pretrain: share of a search's time that goes, before it, to the weights alone: one supernet
            a seed is trained on drawn architectures, and all searches of that seed begin with it.
            A warm-up pays for hypergradients that nobody follows, and pays once per preference.
        sampled: temperature of drawn architectures, 0 for the mixture; see `Search`.
        cooled: the temperature that they end with, 0 for that of the start.
        twin: MB-MOMEHA's theta and y are given the same training images at every step, see
            `Halves`; other methods have draws of their own.
        side: pixels to which images are averaged down, None for as they are.
        margin, flip, cutout: augmentation, see `Halves`.
        numbers: whose hyperparameters, "ours" or "paper", see `configured`.
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
    cosine: Literal["none", "weights", "all"] = "all"
    warmup: float = 0.0
    pretrain: float = 0.0
    sampled: float = 0.0
    cooled: float = 0.0
    twin: bool = False
    side: int | None = None
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
        if not 0 <= self.pretrain < 1:
            raise InvalidInput(
                f"pretrain = {self.pretrain}; it is a share of a search's time, from 0 to below 1"
            )
        if self.half and self.supernet != "fast":
            raise InvalidInput(
                "only the fast supernet works in bfloat16; use --supernet fast with --half"
            )
        if self.cosine not in ("none", "weights", "all"):
            raise InvalidInput(f"cosine = {self.cosine!r}; choose none, weights or all")
        if min(self.sampled, self.cooled) < 0 or (self.cooled and not self.sampled):
            raise InvalidInput(
                f"sampled = {self.sampled}, cooled = {self.cooled}; temperatures are not negative, "
                "and only drawn architectures cool: "
                "give a first temperature with --sampled"
            )
        if self.numbers not in ("ours", "paper"):
            raise InvalidInput(f"numbers {self.numbers!r} are not known; choose ours or paper")

    def twins(self, method: str) -> bool:
        """Whether that method's draws of training images are one."""
        ours = self.numbers == "ours"
        return FORMS.get(method) is JointMBMOMEHA or (self.twin and method == "mb-momeha" and ours)

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
    "proxy": Settings(
        steps=6000, side=16, margin=2, pretrain=0.3, sampled=1.0, cooled=0.3, twin=True
    ),
    "darts": Settings(
        space="darts", steps=3900, reading="paper", pretrain=0.3, sampled=1.0, cooled=0.3, twin=True
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
    "tiny": Settings(channels=4, batch=16, steps=40, margin=1, cosine="weights"),
}


def preset(name: str) -> Settings:
    """The settings of a name."""
    if name not in PRESETS:
        raise InvalidInput(f"preset {name!r} is not known; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def hyperparameters_of(name: str, settings: Settings) -> str:
    """The name under which `STEPS` keeps a method: MB-MOMEHA's two kinds of draws have
    hyperparameters of their own.
    """
    return f"{name}, twin" if name == "mb-momeha" and settings.twins(name) else name


def own_hyperparameters(name: str, settings: Settings) -> dict[str, float]:
    """What a method is run with in that space."""
    tuned = STEPS | ON_DARTS if settings.space == "darts" else STEPS
    return tuned[hyperparameters_of(name, settings)]


def trials(name: str, settings: Settings) -> list[dict[str, float]]:
    """The settings of a method that are worth a trial."""
    grids = _GRIDS | _GRIDS_ON_DARTS if settings.space == "darts" else _GRIDS
    grid = grids[hyperparameters_of(name, settings)]
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def pace(name: str, settings: Settings) -> float:
    """How many steps of a method take about as long as one of MB-MOMEHA; the joint forms run the
    network three times, and once more for each step of the weights alone.
    """
    if FORMS.get(name) is JointMBMOMEHA and settings.numbers == "ours":
        return 6 / (3 + own_hyperparameters(name, settings).get("lower_steps", 0))
    return PACES.get(name, 1.0)


def configured(name: str, settings: Settings, **chosen: float) -> Method:
    """A method with its hyperparameters; with others than its own (`STEPS`) where some are given.

    "paper": the paper's.  Its step 0.05 on averaged gradients moves a logit by some 0.05 in 1,000
    steps, so that nothing is decided in a short search.  "ours": those that train networks; what
    belongs to a method alone (mu, c_t; u; v, eta; beta, gamma) stays as the paper has it where that
    works, see docs/nas.md.
    """
    if name not in METHODS:
        raise InvalidInput(
            f"method {name!r} takes no part in this experiment; choose from {', '.join(METHODS)}"
        )
    if settings.numbers == "paper":
        return _paper(name)
    twin = settings.twins(name)
    own = own_hyperparameters(name, settings) | chosen
    y = _falling(own["alpha_y"], settings)
    if name == "random":
        return WeightsAlone(alpha_y=y)
    # MB-MOMEHA's x follows 1/c of its objectives' gradients: its step goes with c.
    x = _waiting(own["alpha_x"] * own.get("c", 1.0), settings)
    if name == "darts":
        return FirstOrder(alpha_x=x, alpha_y=y)
    shift = SHIFT_IN_HALF if settings.half else SHIFT
    one_step = FiniteDifference(terms=1, eta=own["alpha_y"], eps=shift, relative=True)
    if name in FORMS:
        gamma, kappa = (own["alpha_y"] * settings.steps, 1.0) if twin else (GAMMA, KAPPA)
        theta = _falling(kappa * own["alpha_y"], settings)
        nested: dict[str, Any] = (
            {"lower_steps": int(own["lower_steps"])} if "lower_steps" in own else {}
        )
        return FORMS[name](
            gamma=gamma,
            mu=own.get("mu", 4.0),
            alpha_theta=theta,
            alpha_x=x,
            alpha_y=y,
            beta=0.9,
            c=Power(own["c"], 1 / 16),
            **nested,
        )
    if name == "wc-mhgd":
        depth = int(own["lower_steps"])
        return WCMHGD(
            alpha_x=x,
            u=10.0,
            lower_steps=depth,
            beta=y,
            hypergradient=one_step,
            qp_steps=8,
            qp_lr=0.01,
        )
    if name == "wc-penalty":
        return WCPenalty(u=0.01, v=0.2, alpha_x=x, alpha_y=y, eta=0.01, difference=shift)
    return MoCo(alpha_x=x, beta=0.1, gamma=0.1, lower_steps=1, lower_step=y, hypergradient=one_step)


def _falling(step: float, settings: Settings) -> Schedule:
    return (
        as_schedule(step, "step")
        if settings.cosine == "none"
        else Cosine(step, float(settings.steps))
    )


def _waiting(step: float, settings: Settings) -> Schedule:
    least, first = (
        1e-4 * step,
        settings.warmup * settings.steps,
    )  # not zero: reports divide by the step
    if settings.cosine == "all":
        return Cosine(step, float(settings.steps), least, first)
    return Delayed(step, first, least) if settings.warmup else as_schedule(step, "step")


def _paper(name: str) -> Method:
    """The paper's hyperparameters; alpha_theta, which it does not give here, is that of its
    other experiment.
    """
    if name in FORMS:
        return replace(FORMS[name].paper("nas"), alpha_theta=0.05)
    if name == "darts":
        return FirstOrder()
    if name == "random":
        return WeightsAlone()
    if name == "wc-penalty":
        # The weights of a supernet are many; products from gradients cost less memory than second
        # derivatives.
        return WCPenalty(u=0.01, v=0.2, alpha_x=0.05, alpha_y=0.025, eta=0.01, difference=0.01)
    return WCMHGD.paper() if name == "wc-mhgd" else MoCo.paper()


def default_preferences(m: int, strengths: Sequence[str] | None = None) -> list[tuple[float, ...]]:
    """The preferences of a comparison by the paper's names.

    Two objectives: names of `TWO`; the paper's four if None.  More: for every strength (weak,
    moderate, strong, extreme, see `bipareto.methods.parts.preferences.favouring`) one for each
    objective, strong if None; the equal one comes first.
    """
    if m == 2:
        chosen = ("extreme", "strong", "weak", "equal") if strengths is None else tuple(strengths)
        unknown = [name for name in chosen if name not in TWO]
        if unknown:
            raise InvalidInput(
                f"strength {unknown[0]!r} is not one of the paper's for two objectives; choose "
                f"from {', '.join(TWO)}"
            )
        return [TWO[name] for name in dict.fromkeys(chosen)]
    found = [(1 / m,) * m]
    for strength in [name for name in strengths or ("strong",) if name != "equal"]:
        found += [tuple(round(v, 12) for v in row) for row in favouring(m, strength).tolist()]
    return list(dict.fromkeys(found))
