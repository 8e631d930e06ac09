"""What commands take: options that several share, values as people write them, the configuration
made of them, and the front or the run folder that it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.errors import InvalidInput
from bipareto.sweep import typed
from bipareto.sweep.config import MethodConfig, PreferencesConfig, ProblemConfig, SweepConfig
from bipareto.sweep.grammar import parse, show

if TYPE_CHECKING:
    from bipareto.cli.output import Output
    from bipareto.fronts.pareto import ParetoFront
    from bipareto.methods import Method
    from bipareto.problem.tree import Tree
    from bipareto.sweep.plan import Setup


def taking(metavar: str, told: str, *names: str, **more: Any) -> Any:
    """An option that takes a value, for `Annotated`; without names it has that of its parameter.

    Args:
        metavar: what stands for the value in the help.
        told: what it is, one sentence of the help.
        more: as `typer.Option` takes it.
    """
    return typer.Option(*names, metavar=metavar, help=told, **more)


ProblemName = Annotated[
    str,
    typer.Argument(metavar="PROBLEM", help="One of `bipareto list`, or package.module:function."),
]
MethodName = Annotated[
    str, taking("NAME", "One of `bipareto list`, or auto: what suits the problem.", "--method")
]
Seeds = Annotated[
    list[str] | None,
    taking("N,N,..", "Every preference runs once with each; repeatable.", "--seed"),
]
Steps = Annotated[int, taking("N", "Iterations of every run.", "--steps", min=1)]
Dim = Annotated[int | None, taking("N", "Short for -o dim=N.", "--dim", min=1)]
Noise = Annotated[float, taking("SIGMA", "Noise on every gradient coordinate.", "--noise", min=0.0)]
Options = Annotated[
    list[str] | None, taking("KEY=VALUE", "An option of the problem; repeatable.", "-o", "--option")
]
Settings = Annotated[
    list[str] | None,
    taking(
        "KEY=VALUE", "A hyperparameter of the method: mu=8, c=power(5,0.45); repeatable.", "--set"
    ),
]
Hyperparameters = Annotated[
    str, taking("SOURCE", "Where the others come from: tuned, plain or paper.", "--hyperparameters")
]
Out = Annotated[Path | None, taking("DIR", "Write files to this folder.", "--out")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No tables, no words, no progress bar.")]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Compile the step; by default when it pays."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import and call the code that the run names as its problem, if it does."
    ),
]
RunOrProblem = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder: of `front`, `solve`, `sweep`; or package.module:function.",
    ),
]
ShortSteps = Annotated[
    int, taking("N", "Of the front of package.module:function.", "--steps", min=1)
]


def numbers(text: str, name: str) -> list[float]:
    """Comma-separated numbers.

    >>> numbers(".7,.3", "--preference")
    [0.7, 0.3]
    """
    value = parse(text)
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(number, (int, float)) for number in found):
        raise InvalidInput(
            f"{name} {text!r} is not a list of numbers; write them with commas, e.g. 0.7,0.3"
        )
    return [float(number) for number in found]


def seeds(texts: Iterable[str]) -> list[int]:
    """Seeds from an option that may be repeated and may hold commas.

    >>> seeds(["0,1", "7"])
    [0, 1, 7]
    """
    try:
        return [int(part) for text in texts for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(
            f"--seed {' '.join(texts)!r} is not a list of whole numbers; write e.g. --seed 0,1,2"
        ) from error


def names(texts: Iterable[str]) -> list[str]:
    """Words separated by commas, from one option or several.

    >>> names(["weak,moderate", "strong"])
    ['weak', 'moderate', 'strong']
    """
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def pairs(
    texts: Iterable[str], flag: str, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """key=value options as a dict, their keys and kinds checked against the defaults.

    Args:
        texts: what was written.
        flag: the option it was written with, for messages.
        owner: whose options these are, for messages.
        defaults: every key there is, with its default value.

    >>> pairs(["dim=20", "kappa=3/2"], "-o", "pl-sin2", {"dim": 20, "kappa": 1.5})
    {'dim': 20, 'kappa': 1.5}
    """
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(
                f"{flag} {text!r} is not of the form key=value, e.g. {flag} "
                f"{next(iter(defaults))}={show(next(iter(defaults.values())))}"
            )
        if key not in defaults:
            raise InvalidInput(f"{owner} has no {key!r}; choose one of {', '.join(defaults)}")
        found[key] = parse(value)
        if (kind := typed.wanted(defaults[key], found[key])) is not None:
            raise InvalidInput(
                f"{flag} {text!r}: {key} must be {kind}, e.g. {key}={show(defaults[key])}"
            )
    return found


def problem_asked(
    name: str, option: list[str] | None, dim: int | None, noise: float
) -> ProblemConfig:
    """A problem of `bipareto list`, or one's own, package.module:function."""
    short = ({} if dim is None else {"dim": dim}) | ({"noise": noise} if noise else {})
    if ":" in name:
        given: dict[str, Any] = {}
        for text in option or []:
            key, equals, value = text.partition("=")
            if not equals:
                raise InvalidInput(f"-o {text!r} is not of the form key=value")
            given[key.strip()] = parse(value)
        return ProblemConfig(name, given | short)
    from bipareto import problems

    return ProblemConfig(
        name, pairs(option or [], "-o", f"problem {name!r}", problems.options(name)) | short
    )


def method_asked(name: str, source: str, settings: list[str] | None, setup: Setup) -> MethodConfig:
    """A method, where its hyperparameters come from, and those that are given.

    Args:
        name: "auto" is the method that suits the problem.
        source: what --hyperparameters says.
        settings: what --set says, each time.
        setup: the problem.
    """
    from bipareto.methods import METHODS
    from bipareto.sweep.plan import auto

    if name == "auto":
        name = auto(setup.problem)
    if name not in METHODS:
        raise InvalidInput(
            f"method {name!r} is not known; choose auto, or one of {', '.join(METHODS)}"
        )
    kind = METHODS[name]
    sources = ["tuned", "plain", *(["paper"] if hasattr(kind, "paper") else [])]
    if source not in sources:
        raise InvalidInput(
            f"--hyperparameters {source!r} is not known for {name}; choose one of "
            f"{', '.join(sources)}"
        )
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    given = pairs(settings or [], "--set", f"method {name!r}", defaults)
    return replace(typed.parse(MethodConfig, {"name": name, "hyperparameters": source}), set=given)


def preferences_asked(text: str, budget: int | None, setup: Setup) -> PreferencesConfig:
    """A count, a family, a file of vectors, or "adaptive" with its budget.

    Args:
        text: what --preferences says.
        budget: what --budget says.
        setup: the problem, whose number of objectives the vectors of a file must have.
    """
    if (budget is not None) != (text == "adaptive"):
        raise InvalidInput(
            f"--budget {budget} with --preferences {text}; --preferences adaptive and --budget N "
            "go together"
        )
    if text == "adaptive":
        return PreferencesConfig(family="adaptive", budget=budget)
    name, _, count = ("das-dennis", "", text) if text.isdecimal() else text.partition(":")
    if name in ("das-dennis", "random") and (count or "11").isdecimal():
        return typed.parse(PreferencesConfig, {"family": name, "count": int(count or 11)})
    from bipareto.methods.parts.preferences import STRENGTHS, named

    if text in STRENGTHS:
        return typed.parse(PreferencesConfig, {"family": text})
    m = setup.known.m if setup.known else setup.problem.check(*setup.starts[0])
    return PreferencesConfig(vectors=tuple(map(tuple, named(text, m).tolist())))


@contextmanager
def folder_of(out: Output, asked: str, steps: int, option: list[str] | None) -> Iterator[Path]:
    """The run folder that was named, or one of a short front of the problem that was named: five
    preferences along each edge, the method that suits the problem, tuned.
    """
    if ":" not in asked or Path(asked).exists():
        yield Path(asked)
        return
    from bipareto.sweep import sweep
    from bipareto.sweep.plan import build, chosen

    problem = problem_asked(asked, option, None, 0.0)
    setup = build(problem, [0])
    preferences = PreferencesConfig(count=5)
    config = chosen(SweepConfig(problem=problem, preferences=preferences, steps=steps), setup)
    with TemporaryDirectory() as folder, out.listening():
        run = Path(folder) / "run"
        sweep.sweep(config, run, setup=setup, progress=out.progress)
        out.say(f"{asked}: a front of {steps} steps, {config.method.name}")
        yield run


def front_of(
    config: SweepConfig,
    setup: Setup,
    out_dir: Path | None,
    progress: bool | None,
    callbacks: Sequence[Any] = (),
) -> tuple[ParetoFront, Method, Tree, list[int]]:
    """The front of a configuration, in a folder or in memory: with its lower level solved; its
    method with hyperparameters; y as the runs returned it, and their steps.
    """
    from bipareto.sweep import sweep
    from bipareto.sweep.reading import plan_of, returned

    if out_dir is not None:
        found = sweep.sweep(config, out_dir, setup=setup, callbacks=callbacks, progress=progress)
        return found, plan_of(out_dir, trusted=True).method, *returned(out_dir)
    raw = sweep.traced(config, setup, callbacks=callbacks, progress=progress)
    assert raw.method is not None
    # The y of a race was trained on g alone already.
    found = raw if raw.race else raw.resolve_lower()
    return found, raw.method, raw.y, [] if raw.run is None else raw.run.steps
