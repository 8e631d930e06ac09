"""`bipareto doctor`: what is wrong with a run, and what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bipareto.cli import values
from bipareto.cli.options import Json, Quiet
from bipareto.cli.output import Output
from bipareto.errors import InvalidInput

if TYPE_CHECKING:
    from bipareto.doctor import Case
    from bipareto.fronts.pareto import ParetoFront

__all__ = ["doctor", "write_run"]

#: the file that `bipareto front --out` writes for the doctor
FILE = "run.npz"


def doctor(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A folder that `bipareto front --out` or `bipareto sweep` wrote."
        ),
    ],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is wrong with a run, the numbers that show it, and the remedy.

    Looks for steps that are too large, a theta that does not follow, a lower
    level at a maximum, a penalty that is too weak or too strong, features that
    collapse, an objective that drowns the others, and preferences without
    effect.  The exit code is 1 when something was found.

    \b
    Examples:
      bipareto front pl-sin2 --out runs/a && bipareto doctor runs/a
      bipareto front quadratic --set c=0.01 --out runs/b; bipareto doctor runs/b
    """
    from bipareto.doctor import examine
    from bipareto.sweep import sweep

    out = Output(as_json, quiet)
    case = sweep.case(run) if (run / "manifest.json").exists() else _read(run)
    found = examine(case)
    if not found:
        out.say(f"{run}: {case.runs} runs, nothing found")
    for diagnosis in found:
        out.say(str(diagnosis))
    out.result(
        {
            "run": str(run),
            "runs": case.runs,
            "diagnoses": [asdict(diagnosis) for diagnosis in found],
        }
    )
    if found:
        raise typer.Exit(1)


def write_run(found: ParetoFront, path: Path) -> None:
    """The last states and the records of a front, for the doctor.

    Args:
        found: what `front` returned, its lower level not solved again.
        path: the folder of --out.
    """
    import numpy as np

    from bipareto.problem import tree

    assert found.run is not None
    arrays = {
        f"history.{name}": value for name, value in found.run.history.items() if name != "step"
    }
    arrays |= {f"state.{i}": leaf for i, leaf in enumerate(tree.leaves(found.run.state))} | {
        "preference": found.preference
    }
    failure = json.dumps([None if f is None else [f.step, f.term] for f in found.failure])
    saved: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in arrays.items()}
    np.savez_compressed(path / FILE, failure=np.array(failure), **saved)


def _read(run: Path) -> Case:
    import warnings
    from dataclasses import fields

    import numpy as np
    import torch

    from bipareto import problems
    from bipareto.doctor import Case
    from bipareto.errors import BiparetoWarning
    from bipareto.methods import METHODS
    from bipareto.problem import tree
    from bipareto.run.results import Failure

    try:
        asked: dict[str, Any] = json.loads((run / "front.json").read_text(encoding="utf-8"))
        with np.load(run / FILE, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise InvalidInput(
            f"{run} holds no {missing}; give a folder that `bipareto front ... --out DIR` or "
            "`bipareto sweep` wrote"
        ) from error
    known = problems.get(asked["problem"].pop("name"), **asked["problem"])
    kind = METHODS[asked["method"].pop("name")]
    words = {f.name: asked["method"][f.name] for f in fields(kind)}
    method = kind(
        **{
            name: values.parse(text)
            if isinstance(text, str)
            else tuple(text)
            if isinstance(text, list)
            else text
            for name, text in words.items()
        }
    )
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items() if name != "failure"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BiparetoWarning)
        template = method.begin(method.prepare(known, known.x0, known.y0), None)
    state = tree.rebuild(
        template, [tensors[f"state.{i}"] for i in range(len(tree.leaves(template)))]
    )
    history = {
        name.removeprefix("history."): value
        for name, value in tensors.items()
        if name.startswith("history.")
    }
    failure = [None if f is None else Failure(*f) for f in json.loads(str(arrays["failure"]))]
    return Case(
        known,
        method,
        state.x,
        state.y,
        tensors["preference"],
        history,
        failure,
        state,
        (known.x0, known.y0),
    )
