"""`bipareto solve` and `bipareto front`: methods on the problems whose fronts are known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bipareto.cli import values
from bipareto.cli.doctor import write_run
from bipareto.cli.options import (
    Compile,
    Dim,
    Json,
    MethodName,
    Noise,
    Numbers,
    Options,
    Out,
    ProblemName,
    Quiet,
    Settings,
    Steps,
)
from bipareto.cli.output import Output, ensure_folder
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from bipareto.fronts.pareto import ParetoFront
    from bipareto.methods import Method
    from bipareto.problem.tree import Tree
    from bipareto.problems.base import KnownProblem
    from bipareto.run.results import Callback

__all__ = ["front", "known_problem", "solve"]


def solve(
    problem: ProblemName,
    preference: Annotated[
        str | None,
        typer.Option(
            "--preference", "-p", metavar="W1,W2,..", help="Weights that sum to 1; else equal ones."
        ),
    ] = None,
    method: MethodName = "momeha",
    steps: Steps = 20_000,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Which draws a noisy problem makes.")
    ] = 0,
    dim: Dim = None,
    noise: Noise = 0.0,
    option: Options = None,
    settings: Settings = None,
    numbers: Numbers = "tuned",
    compiled: Compile = None,
    track: Annotated[
        str | None,
        typer.Option(
            "--track", metavar="NAME", help="Also show records in tensorboard or mlflow, in --out."
        ),
    ] = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve one problem for one preference.

    Prints the point found, its distance to the exact front and to the exact
    point of the preference.

    With --out: solution.json, and history.csv with what was seen on the way.

    \b
    Examples:
      bipareto solve pl-sin2 --dim 20 --preference 0.7,0.3
      bipareto solve quadratic -o m=3 -p 0.5,0.3,0.2 --steps 5000 --json
      bipareto solve sin --method meha --set "c=power(5,0.45)" --out runs/sin
      bipareto solve quadratic --out runs/q --track tensorboard
    """
    import bipareto as bp

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    with out.listening():
        known, asked = known_problem(problem, option, dim, noise)
        weights = None if preference is None else values.numbers(preference, "--preference")
        began = time.perf_counter()
        chosen = _method(method, numbers, settings, known, steps)
        with _tracking(track, out_dir, method, chosen) as callbacks:
            found = bp.solve(
                known,
                known.x0,
                known.y0,
                preference=weights,
                method=chosen,
                steps=steps,
                seed=seed,
                compile=compiled,
                callbacks=callbacks,
                progress=out.progress,
            )
        seconds = time.perf_counter() - began
        x, y, objectives = _resolved(known, found.x, found.y)
        w = None if found.preference is None else found.preference[None]
        distance, position = (
            known.distance_to_front(objectives),
            _position_error(known, chosen, x, w),
        )
        if found.failure is not None:
            out.warn(str(found.failure))
    if not quiet:
        at = "" if w is None else f" at preference {_numbers(w[0])}"
        out.say(
            f"{known.name}{at}: f = {_numbers(objectives[0])} with the lower level solved (f = "
            f"{_numbers(found.objectives)} at the returned y)"
        )
        out.say(
            f"distance to the exact front {_number(distance)} of its extent, position error "
            f"{_number(position)}"
        )
        ended = {
            "steps": "all that were asked for",
            "converged": "it had converged",
            "nonfinite": "it had left the finite numbers",
        }
        out.say(
            f"stopped after {found.steps} steps in {seconds:.1f} s: "
            f"{ended.get(found.reason, found.reason)}"
        )
    data = {
        "problem": asked,
        "method": _numbers_of(method, chosen),
        "preference": None if w is None else w[0].tolist(),
        "seed": seed,
        "x": _plain(found.x),
        "y": _plain(found.y),
        "objectives": found.objectives.tolist(),
        "resolved": {"y": _plain(_only(y)), "objectives": objectives[0].tolist()},
        "distance_to_front": _worst(distance),
        "position_error": _worst(position),
        "reason": found.reason,
        "failure": None if found.failure is None else asdict(found.failure),
        "steps": found.steps,
        "oracles": found.oracles,
        "best": {
            "step": found.best.step,
            "residual": found.best.residual,
            "objectives": found.best.objectives.tolist(),
        },
    }
    if out_dir is not None:
        from bipareto.fronts.tables import write_history

        (out_dir / "solution.json").write_text(
            json.dumps(values.finite(data), indent=2) + "\n", encoding="utf-8"
        )
        write_history(found, out_dir / "history.csv")
        out.say(f"wrote solution.json and history.csv to {out_dir}")
    out.result({**data, "seconds": seconds})
    _leave(found.failure is not None)


@contextmanager
def _tracking(
    name: str | None, out_dir: Path | None, method: str, chosen: Method
) -> Iterator[list[Callback]]:
    """The callbacks that --track asks for."""
    if name is None:
        yield []
        return
    if out_dir is None:
        raise InvalidInput(f"--track {name} needs a folder to write to; add --out DIR")
    from bipareto.run.trackers import TrackerName, open_tracker

    with open_tracker(
        cast("TrackerName", name), out_dir, run="solve", parameters=_numbers_of(method, chosen)
    ) as tracker:
        yield [tracker]


def front(
    problem: ProblemName,
    method: MethodName = "momeha",
    preferences: Annotated[
        str,
        typer.Option(
            "--preferences",
            metavar="N|NAME|FILE",
            help="How many along each edge of the simplex, or a family, see above.",
        ),
    ] = "11",
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            metavar="N",
            min=1,
            help="With --preferences adaptive: the work of so many full runs.",
        ),
    ] = None,
    steps: Steps = 20_000,
    seed: Annotated[
        list[str] | None,
        typer.Option(
            "--seed", metavar="N,N,..", help="Every preference runs once with each; repeatable."
        ),
    ] = None,
    dim: Dim = None,
    noise: Noise = 0.0,
    option: Options = None,
    settings: Settings = None,
    numbers: Numbers = "tuned",
    compiled: Compile = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look for trouble on the way and warn, as `bipareto doctor` does."
        ),
    ] = False,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Trace a front: many preferences and seeds, side by side.

    All figures are taken with the lower level solved again at the returned x.
    Distances are relative to the extent of the exact front; the position error
    compares each point with the exact point of its preference.

    With --out: front.csv (every digit, no times), front.png, front.json (what
    was asked and measured), front.npz (for bipareto.ParetoFront.load) and
    metrics.jsonl and run.npz (what was seen on the way).  `bipareto certify DIR` then says
    what each point is worth, `bipareto doctor DIR` whether anything went wrong,
    `bipareto report DIR` makes a page of it.

    \b
    Preferences:
      11, das-dennis:11      a regular grid, 11 along each edge
      random:20              drawn uniformly
      weak, moderate, strong, extreme    the paper's, one for each objective
      FILE                   one vector per line, or a JSON list
      adaptive               chosen on the way where the front is thin, started
                             between solved neighbours; --budget N says how much

    \b
    Examples:
      bipareto front pl-sin2 --dim 20 --out runs/pl-sin2
      bipareto front pl-sin2 --preferences adaptive --budget 11 --out runs/b
      bipareto front quadratic -o m=3 --preferences 5 --steps 5000
      bipareto front pl-sin2 --method mb-momeha --noise 0.1 --seed 0,1,2 --json
      bipareto front pl-sin2 --set mu=8 --set "c=power(5,0.45)"
    """
    import bipareto as bp

    out = Output(as_json, quiet)
    ensure_folder(out_dir, own="front.json")
    run_seeds = values.seeds(seed or ["0"])
    with out.listening():
        known, asked = known_problem(problem, option, dim, noise)
        began = time.perf_counter()
        chosen = _method(method, numbers, settings, known, steps)
        wanted = preferences if chosen.uses_preference else None
        callbacks = [bp.doctor.Watch(known, chosen, start=(known.x0, known.y0))] if watch else []
        raw = bp.front(
            known,
            known.x0,
            known.y0,
            preferences=wanted,
            budget=budget,
            seeds=run_seeds,
            method=chosen,
            steps=steps,
            compile=compiled,
            callbacks=callbacks,
            progress=out.progress,
        )
        seconds = time.perf_counter() - began
        found = raw.resolve_lower()
        distance = known.distance_to_front(found.objectives)
        position = _position_error(
            known, chosen, found.x, found.preference if chosen.uses_preference else None
        )
        for run, failure in enumerate(found.failure):
            if failure is not None:
                out.warn(f"run {run}: {failure}")
        if raw.run is not None and "interrupted" in raw.reason:
            out.warn(
                f"interrupted after {max(raw.run.steps)} of {steps} steps: the points are those "
                "reached by then"
            )
    reference = known.reference
    data = {
        "problem": asked,
        "method": _numbers_of(method, chosen),
        "preferences": preferences if budget is None else f"{preferences}, budget {budget}",
        "steps": steps,
        "seeds": run_seeds,
        "runs": len(found),
        "oracles": raw.oracles,
        "hypervolume": found.hypervolume(reference),
        "reference": reference.tolist(),
        "distance_to_front": _worst(distance),
        "distance_to_front_mean": float(distance.mean()),
        "position_error": _worst(position),
        "position_error_mean": None if position is None else float(position.mean()),
        "nondominated": len(found.nondominated()),
        "reasons": {reason: found.reason.count(reason) for reason in sorted(set(found.reason))},
        "seconds": seconds,
    }
    _front_table(out, known, found, distance, position, many_seeds=len(run_seeds) > 1)
    out.say(
        f"hypervolume {data['hypervolume']:.6g} up to {_numbers(reference)}; worst distance "
        f"{_number(distance)} of the front's extent, "
        f"worst position error {_number(position)}; {len(found)} "
        f"run{'s' if len(found) > 1 else ''} "
        f"of {'up to ' if budget or 'interrupted' in found.reason else ''}{steps} steps in "
        f"{seconds:.1f} s"
    )
    if out_dir is not None:
        from bipareto.fronts.tables import write_csv, write_metrics
        from bipareto.report import plot_front

        write_csv(found, out_dir / "front.csv", distance)
        write_metrics(raw, out_dir / "metrics.jsonl")
        plot_front(found, known, out_dir / "front.png")
        found.save(out_dir / "front.npz")
        write_run(raw, out_dir)
        (out_dir / "front.json").write_text(
            json.dumps(values.finite(data), indent=2) + "\n", encoding="utf-8"
        )
        data["files"] = [
            str(out_dir / name)
            for name in (
                "front.csv",
                "front.json",
                "front.npz",
                "front.png",
                "metrics.jsonl",
                "run.npz",
            )
        ]
        out.say(
            "wrote front.csv, front.json, front.npz, front.png, metrics.jsonl and run.npz to "
            f"{out_dir}; look at it: bipareto report {out_dir}"
        )
    out.result(data)
    _leave(all(failure is not None for failure in found.failure))


def known_problem(
    name: str, option: list[str] | None, dim: int | None, noise: float
) -> tuple[KnownProblem, dict[str, Any]]:
    """The problem, and what was asked of it."""
    from bipareto import problems

    given = values.pairs(option or [], "-o", f"problem {name!r}", problems.options(name))
    given |= ({} if dim is None else {"dim": dim}) | ({"noise": noise} if noise else {})
    return problems.get(name, **given), {"name": name, **given}


def _method(
    name: str, source: str, settings: list[str] | None, known: KnownProblem, steps: int
) -> Method:
    """The method with its numbers: tuned, plain or the paper's, with those of --set on top."""
    from bipareto.methods import METHODS

    if name not in METHODS:
        raise InvalidInput(f"method {name!r} is not known; choose one of {', '.join(METHODS)}")
    kind = METHODS[name]
    changes = values.pairs(
        settings or [],
        "--set",
        f"method {name!r}",
        {field.name: field.default for field in fields(kind)},
    )
    sources: dict[str, Callable[[], Method]] = {
        "tuned": lambda: kind.tuned(known, known.x0, known.y0, steps=steps),
        "plain": kind,
    }
    if hasattr(kind, "paper"):
        sources["paper"] = kind.paper
    if source not in sources:
        raise InvalidInput(
            f"--numbers {source!r} is not known for {name}; choose one of {', '.join(sources)}"
        )
    base = sources[source]()
    try:
        return replace(base, **changes)
    except TypeError as error:
        raise InvalidInput(
            f"--set {' '.join(settings or [])}: {error}; see `bipareto list` for the kinds of "
            "values"
        ) from error


def _resolved(known: KnownProblem, x: Tree, y: Tree) -> tuple[Tree, Tree, Tensor]:
    """(x, y, objectives) of one run with a first axis of 1, the lower level solved again."""
    from bipareto.methods.parts import envelope
    from bipareto.problem import tree

    xs = tree.expand(x, 1)
    ys = envelope.solve_lower(known, xs, tree.expand(y, 1)).y
    return xs, ys, known.upper(x, tree.select(ys, 0), known.batch("upper", "full"))[None].detach()


def _only(stacked: Tree) -> Tree:
    from bipareto.problem import tree

    return tree.select(stacked, 0)


def _position_error(
    known: KnownProblem, method: Method, x: Tree, preference: Tensor | None
) -> Tensor | None:
    """How far each run is from the exact point of its preference; None where the method does not
    say which point that is.
    """
    from bipareto.methods.parts.scalarization import Fixed

    if preference is None:
        # One objective has one exact point, whatever the scalarization.
        return known.position_error(x, x.new_ones(len(x), 1)) if known.m == 1 else None
    question: dict[str, Any] = {
        name: getattr(method, name, None) for name in ("scalarization", "ideal", "mu", "extent")
    }
    if question["scalarization"] is None or not isinstance(question["ideal"], Fixed):
        return None
    return known.position_error(x, preference, **question)


def _front_table(
    out: Output,
    known: KnownProblem,
    found: ParetoFront,
    distance: Tensor,
    position: Tensor | None,
    *,
    many_seeds: bool,
) -> None:
    names = known.names or [f"f{i + 1}" for i in range(known.m)]
    header = [
        "run",
        *(["seed"] if many_seeds else []),
        "preference",
        *names,
        "distance",
        "position error",
        "stopped by",
    ]
    rows = [
        [
            str(run),
            *([str(int(found.seed[run]))] if many_seeds else []),
            "-"
            if found.preference[run].isnan().any()
            else _numbers(found.preference[run], "{:.3f}"),
            *(f"{value:.6g}" for value in found.objectives[run].tolist()),
            f"{float(distance[run]):.2e}",
            "-" if position is None else f"{float(position[run]):.2e}",
            found.reason[run],
        ]
        for run in range(len(found))
    ]
    out.table(f"{known.name}: objectives with the lower level solved", header, rows, left=0)


def _numbers_of(name: str, method: Method) -> dict[str, Any]:
    """A method and its numbers, in the form that --set reads."""
    return {
        "name": name,
        **{field.name: values.show(getattr(method, field.name)) for field in fields(method)},
    }


def _plain(tree_: Tree) -> Any:
    from bipareto.problem import tree

    return tree.map_(lambda leaf: leaf.tolist(), tree_)


def _worst(per_run: Tensor | None) -> float | None:
    return None if per_run is None else float(per_run.max())


def _number(per_run: Tensor | None) -> str:
    return "-" if per_run is None else f"{float(per_run.max()):.2e}"


def _numbers(vector: Tensor, form: str = "{:.5g}") -> str:
    return "(" + ", ".join(form.format(value) for value in vector.tolist()) + ")"


def _leave(failed: bool) -> None:
    if failed:
        raise typer.Exit(1)
