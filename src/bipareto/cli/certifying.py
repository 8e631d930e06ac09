"""`bipareto certify`: what the points of a front are worth, without knowing the truth."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bipareto.cli.output import Output
from bipareto.cli.runs import Json, Quiet
from bipareto.errors import BiparetoWarning, InvalidInput

__all__ = ["certify"]


def certify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `bipareto front --out` wrote.")],
    index: Annotated[int | None, typer.Option("--index", "-i", metavar="N", help="One run of it, in full; else a table of all.")] = None,
    gamma: Annotated[float | None, typer.Option("--gamma", metavar="G", help="Of the Moreau envelope; else the method's own.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Certify the points of a front.

    For every point: is the lower level solved, and at a minimum?  Is a common
    descent direction left?  The kkt residual is valid for every method; the
    paper's stationarity is undefined where the constraint holds exactly.  At
    most 200 gradients a point.

    \b
    Examples:
      bipareto front pl-sin2 --out runs/a && bipareto certify runs/a
      bipareto certify runs/a --index 5
    """
    from bipareto import certificate, problems, tree
    from bipareto.pareto import ParetoFront

    out = Output(as_json, quiet)
    asked = _asked(run)
    known = problems.get(asked["problem"].pop("name"), **asked["problem"])
    found = ParetoFront.load(run / "front.npz")
    if index is not None and not 0 <= index < len(found):
        raise InvalidInput(f"--index {index}: the front in {run} has runs 0 to {len(found) - 1}")
    envelope_gamma = gamma if gamma is not None else asked["method"].get("gamma")
    certificates = {}
    for i in range(len(found)) if index is None else [index]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiparetoWarning)  # the same sentences are in the notes
            certificates[i] = certificate.certify(known, tree.select(found.x, i), tree.select(found.y, i), envelope_gamma)
    if index is not None:
        out.say(str(certificates[index]))
    else:
        rows = [
            [
                str(i), c.lower_curvature, f"{c.lower_residual:.1e}", f"{c.gap:.1e}", f"{c.kkt:.1e}",
                {True: "yes", False: "no", None: "perhaps"}[c.common_descent], "-" if c.stationarity is None else f"{c.stationarity:.1e}",
                str(c.gradients),
            ]
            for i, c in certificates.items()
        ]  # fmt: skip
        header = ["run", "lower level", "||grad_y g||", "gap", "kkt", "descent left", "stationarity", "gradients"]
        out.table(f"{known.name}: certificates of {len(rows)} points", header, rows, left=2)
    for i, c in certificates.items():
        for note in c.notes:
            out.warn(f"run {i}: {note}")
    out.result({"run": str(run), "certificates": [{"index": i, **asdict(c)} for i, c in certificates.items()]})


def _asked(run: Path) -> dict[str, Any]:
    """What the front was asked for, from its front.json."""
    try:
        asked: dict[str, Any] = json.loads((run / "front.json").read_text(encoding="utf-8"))
        return {"problem": dict(asked["problem"]), "method": dict(asked["method"])}
    except FileNotFoundError as error:
        raise InvalidInput(f"{run} holds no front.json; give a folder that `bipareto front ... --out DIR` wrote") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{run / 'front.json'} cannot be read ({error}); write the front again") from error
