"""`bipareto list`: the problems with known fronts, and the methods."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bipareto.cli.output import Output
from bipareto.sweep.grammar import show


def list_(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
) -> None:
    """Show the problems with known fronts, the methods, and the doctor's diagnoses.

    Those of other packages are among them (docs/extending.md says how).

    \b
    Examples:
      bipareto list
      bipareto list --json
    """
    from bipareto.doctor import looks
    from bipareto.doctor.evidence import sentence
    from bipareto.methods import METHODS
    from bipareto.methods.parts.scalarization import SCALARIZATIONS
    from bipareto.problem.plugins import declared
    from bipareto.problems import PROBLEMS, options
    from bipareto.sweep.engines import ENGINES

    out = Output(as_json)
    known = [
        {"name": name, "summary": cls.summary, "options": _plain(options(name))}
        for name, cls in PROBLEMS.items()
    ]
    methods = [
        {"name": name, "summary": sentence(cls), "hyperparameters": _plain(_defaults(cls))}
        for name, cls in METHODS.items()
    ]
    diagnoses = [{"name": seen.name, "summary": seen.disease} for seen in looks()]
    named = {
        "scalarizations": list(SCALARIZATIONS),
        "engines": list(ENGINES),
        "commands": sorted(declared("commands")),
    }
    if as_json:
        out.result({"problems": known, "methods": methods, "diagnoses": diagnoses, **named})
        return
    header = ["name", "what", "options (-o key=value) and defaults"]
    out.table(
        "Problems with a known front", header, [_row(entry, "options") for entry in known], left=3
    )
    header[2] = (
        "hyperparameters (--set key=value) and defaults; without it they are tuned to the problem"
    )
    out.table("Methods", header, [_row(entry, "hyperparameters") for entry in methods], left=3)
    rows = [[entry["name"], entry["summary"]] for entry in diagnoses]
    out.table("Diagnoses of `bipareto doctor RUN`", ["name", "what"], rows, left=2)
    for kind, names in named.items():
        added = " added by packages" if kind == "commands" else ""
        out.say(f"{kind}{added}: {', '.join(names)}")
    out.say(
        "RECONSTRUCTED: parts of the method are not in what could be read of its paper and code; "
        "docs/methods.md says which."
    )
    out.say("Try: bipareto front pl-sin2 --dim 20 --steps 20000 --out runs/pl-sin2")


def _defaults(method: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {field.name: field.default for field in fields(method)}


def _plain(defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: show(value) for key, value in defaults.items()}


def _row(entry: dict[str, Any], key: str) -> list[str]:
    written = {
        name: ",".join(map(str, value)) if isinstance(value, list) else value
        for name, value in entry[key].items()
    }
    return [
        entry["name"],
        entry["summary"],
        "  ".join(f"{name}={value}" for name, value in written.items()),
    ]
