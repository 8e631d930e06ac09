"""`bipareto solve`: one problem for one preference."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, cast

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
    Settings,
    Steps,
    front_of,
    method_asked,
    problem_asked,
    taking,
)
from bipareto.errors import InvalidInput
from bipareto.sweep.config import PreferencesConfig, SweepConfig

__all__ = ["solve"]


def solve(
    problem: ProblemName,
    preference: Annotated[
        str | None,
        taking("W1,W2,..", "Weights that sum to 1; else equal ones.", "--preference", "-p"),
    ] = None,
    method: MethodName = "auto",
    steps: Steps = 20_000,
    seed: Annotated[int, taking("N", "Which draws a noisy problem makes.")] = 0,
    dim: Dim = None,
    noise: Noise = 0.0,
    option: Options = None,
    settings: Settings = None,
    hyperparameters: Hyperparameters = "tuned",
    compiled: Compile = None,
    track: Annotated[
        str | None, taking("NAME", "Also show records in tensorboard, mlflow or wandb.")
    ] = None,
    out_dir: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Solve one problem for one preference.

    Prints the point found, its distance to the exact front and to the exact
    point of the preference.

    With --out: a run folder with one run, as `bipareto front --out` makes it.

    \b
    Examples:
      bipareto solve pl-sin2 --dim 20 --preference 0.7,0.3
      bipareto solve quadratic -o m=3 -p 0.5,0.3,0.2 --steps 5000 --json
      bipareto solve sin --method meha --set "c=power(5,0.45)" --out runs/sin
      bipareto solve quadratic --out runs/q --track tensorboard
    """
    import torch

    from bipareto.methods import METHODS
    from bipareto.problem import tree
    from bipareto.run.trackers import TrackerName
    from bipareto.sweep.plan import build

    out = Output(as_json, quiet)
    ensure_folder(out_dir, own="manifest.json")
    if track not in (None, "tensorboard", "mlflow", "wandb"):
        raise InvalidInput(f"--track {track!r} is not known; choose tensorboard, mlflow or wandb")
    if track is not None and out_dir is None:
        raise InvalidInput(f"--track {track} needs a folder to write to; add --out DIR")
    with out.listening():
        began = time.perf_counter()
        asked = problem_asked(problem, option, dim, noise)
        setup = build(asked, [seed])
        known = setup.known
        m = known.m if known else setup.problem.check(*setup.starts[0])
        asked_for = method_asked(method, hyperparameters, settings, setup)
        weights = [1 / m] * m
        if preference is not None:
            weights = values.numbers(preference, "--preference")
        elif not METHODS[asked_for.name].uses_preference:
            weights = []
        config = SweepConfig(
            problem=asked,
            method=asked_for,
            preferences=PreferencesConfig(vectors=(tuple(weights),) if weights else None),
            seeds=(seed,),
            steps=steps,
            compile=compiled,
            track=cast("TrackerName", track),
        )
        found, used, y, steps_done = front_of(config, setup, out_dir, out.progress)
        done = steps_done[0] if steps_done else 0
        seconds = time.perf_counter() - began
        w = found.preference if used.uses_preference else None
        batch = setup.problem.batch("upper", "full")
        with torch.no_grad():
            before = setup.problem.upper(tree.select(found.x, 0), tree.select(y, 0), batch)
        distance = None if known is None else known.distance_to_front(found.objectives)
        position = None if known is None else output.position_error(known, used, found.x, w)
        failure = found.failure[0]
        if failure is not None:
            out.warn(str(failure))
    if not quiet:
        at = "" if w is None else f" at preference {output.numbers(w[0])}"
        out.say(
            f"{asked.name}{at}: f = {output.numbers(found.objectives[0])} with "
            f"{output.lower_level(found)} (f = {output.numbers(before)} at the returned y)"
        )
        if distance is not None:
            out.say(
                f"distance to the exact front {output.number(distance)} of its extent, position "
                f"error {output.number(position)}"
            )
        ended = {
            "steps": "all that were asked for",
            "converged": "it had converged",
            "nonfinite": "it had left the finite numbers",
        }
        reason = found.reason[0]
        out.say(f"stopped after {done} steps in {seconds:.1f} s: {ended.get(reason, reason)}")
    if out_dir is not None:
        out.say(f"wrote a run folder to {out_dir}; look at it: bipareto report {out_dir}")
    counts = used.oracles(m)
    out.result(
        {
            "problem": {"name": asked.name, **asked.options},
            "method": output.hyperparameters(config.method.name, used),
            "preference": None if w is None else w[0].tolist(),
            "seed": seed,
            "x": output.plain(tree.select(found.x, 0)),
            "y": output.plain(tree.select(y, 0)),
            "objectives": before.tolist(),
            "resolved": {
                "y": output.plain(tree.select(found.y, 0)),
                "objectives": found.objectives[0].tolist(),
            },
            "distance_to_front": output.worst(distance),
            "position_error": output.worst(position),
            "remaining": output.worst(found.remaining),
            "unseen": found.unseen,
            "reason": found.reason[0],
            "failure": None if failure is None else asdict(failure),
            "steps": done,
            "oracles": {name: count * done for name, count in counts.items()},
            "seconds": seconds,
        }
    )
    output.leave(failure is not None)
