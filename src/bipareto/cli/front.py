"""`bipareto front`: many preferences and seeds, side by side."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from bipareto.cli import output, values
from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import (
    Compile,
    Dim,
    Hyperparameters,
    Json,
    MethodName,
    Noise,
    Options,
    Out,
    ProblemName,
    Quiet,
    Seeds,
    Settings,
    Steps,
    front_of,
    method_asked,
    preferences_asked,
    problem_asked,
    taking,
)
from bipareto.sweep.config import SweepConfig

__all__ = ["front"]


def front(
    problem: ProblemName,
    method: MethodName = "auto",
    preferences: Annotated[
        str,
        taking("N|NAME|FILE", "How many along each edge of the simplex, or a family, see above."),
    ] = "11",
    budget: Annotated[
        int | None,
        taking("N", "With --preferences adaptive: the work of so many full runs.", min=1),
    ] = None,
    steps: Steps = 20_000,
    seed: Seeds = None,
    dim: Dim = None,
    noise: Noise = 0.0,
    option: Options = None,
    settings: Settings = None,
    hyperparameters: Hyperparameters = "tuned",
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

    PROBLEM is one of `bipareto list`, or your own: package.module:function, a
    function of the options that returns (problem, x0, y0).

    With --out the run lives in a folder that survives a crash: killed, it goes
    on with `bipareto resume DIR`.  In it: front.csv (every digit, no times),
    front.png, front.npz (for bipareto.ParetoFront.load), measures.json, and
    slices/ (checkpoints, and what was seen on the way).  `bipareto certify DIR`
    says what each point is worth, `bipareto doctor DIR` whether anything went
    wrong, `bipareto report DIR` makes a page of it.  Two kinds of fronts are
    made in one piece, written at their end and not resumed: those of a race
    (data in batches, no --method), and adaptive ones.

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
      bipareto front package.module:function -o width=32 --out runs/mine
    """
    from bipareto.methods import METHODS
    from bipareto.report import plot_front
    from bipareto.sweep.plan import build

    out = Output(as_json, quiet)
    ensure_folder(out_dir, own="manifest.json")
    seeds = tuple(values.seeds(seed or ["0"]))
    with out.listening():
        began = time.perf_counter()
        asked = problem_asked(problem, option, dim, noise)
        setup = build(asked, seeds)
        config = SweepConfig(
            problem=asked,
            method=method_asked(method, hyperparameters, settings, setup),
            preferences=preferences_asked(preferences, budget, setup),
            seeds=seeds,
            steps=steps,
            compile=compiled,
        )
        callbacks = []
        if watch:
            from bipareto.doctor import Watch

            # Hyperparameters are read off the runs' states.
            kind = METHODS[config.method.name]
            callbacks.append(Watch(setup.problem, kind(), start=setup.starts[0]))
        found, chosen, _, done = front_of(config, setup, out_dir, out.progress, callbacks)
        seconds = time.perf_counter() - began
        known = setup.known
        distance = None if known is None else known.distance_to_front(found.objectives)
        w = found.preference if chosen.uses_preference else None
        position = None if known is None else output.position_error(known, chosen, found.x, w)
        for run, failure in enumerate(found.failure):
            if failure is not None:
                out.warn(f"run {run}: {failure}")
        if found.interrupted:
            out.warn(
                f"interrupted after {max(done)} of {steps} steps: the points are those reached by "
                "then"
            )
    counts = chosen.oracles(found.objectives.shape[1])
    data: dict[str, Any] = {
        "problem": {"name": asked.name, **asked.options},
        "method": output.hyperparameters(config.method.name, chosen),
        "preferences": preferences if budget is None else f"{preferences}, budget {budget}",
        "steps": steps,
        "seeds": list(seeds),
        "runs": len(found),
        "oracles": {name: count * sum(done) for name, count in counts.items()},
        **_measured(found, known),
        "distance_to_front": output.worst(distance),
        "distance_to_front_mean": None if distance is None else float(distance.mean()),
        "position_error": output.worst(position),
        "position_error_mean": None if position is None else float(position.mean()),
        "remaining": output.worst(found.remaining),
        "unseen": found.unseen,
        "nondominated": len(found.nondominated()),
        "reasons": {reason: found.reason.count(reason) for reason in sorted(set(found.reason))},
        "seconds": seconds,
    }
    output.front_table(out, asked.name, setup.problem, found, distance, position)
    off = (
        ""
        if distance is None
        else f"; worst distance {output.number(distance)} of the front's extent, worst position "
        f"error {output.number(position)}"
    )
    most = "up to " if budget or found.interrupted else ""
    out.say(
        f"hypervolume {data['hypervolume']:.6g} up to {_corner(data['reference'])}{off}; "
        f"{len(found)} run{'s' if len(found) > 1 else ''} of {most}{steps} steps in {seconds:.1f} s"
    )
    if out_dir is not None:
        plot_front(found, known, out_dir / "front.png", names=setup.problem.names)
        data["files"] = [
            str(out_dir / name) for name in ("front.csv", "front.npz", "front.png", "measures.json")
        ]
        out.say(
            f"wrote front.csv, front.npz, front.png and measures.json to {out_dir}; look at it: "
            f"bipareto report {out_dir}"
        )
    out.result(data)
    output.leave(all(failure is not None for failure in found.failure))


def _measured(found: Any, known: Any) -> dict[str, Any]:
    """The hypervolume, and up to which point it was taken."""
    from bipareto.sweep.collecting import reference_of

    reference = reference_of(found, known)[0]
    return {"hypervolume": found.hypervolume(reference), "reference": reference.tolist()}


def _corner(reference: list[float]) -> str:
    return "(" + ", ".join(f"{value:.5g}" for value in reference) + ")"
