"""`bipareto list` and `bipareto demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import show

__all__ = ["demo", "list_"]


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show the problems with known fronts, and the methods.

    \b
    Examples:
      bipareto list
      bipareto list --json
    """
    from bipareto.methods import METHODS
    from bipareto.problems import PROBLEMS, options

    out = Output(as_json)
    known = [{"name": name, "summary": cls.summary, "options": _plain(options(name))} for name, cls in PROBLEMS.items()]
    methods = [{"name": name, "summary": _first_line(cls), "numbers": _plain(_defaults(cls))} for name, cls in METHODS.items()]
    if as_json:
        out.result({"problems": known, "methods": methods})
        return
    header = ["name", "what", "options (-o key=value) and defaults"]
    out.table("Problems with a known front", header, [_row(entry, "options") for entry in known], left=3)
    header[2] = "numbers (--set key=value) and defaults; without --set they are tuned to the problem"
    out.table("Methods", header, [_row(entry, "numbers") for entry in methods], left=3)
    out.say("RECONSTRUCTED: parts of the method are not in what could be read of its paper and code; docs/methods.md says which.")
    out.say("Try: bipareto front pl-sin2 --dim 20 --steps 20000 --out runs/pl-sin2")


def demo(
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write front.csv and front.png to this folder.")] = Path("demo-out"),
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help="Fewer for a first look; by default enough to converge.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No words and no progress bar.")] = False,
) -> None:
    """Trace a front on real data: noisy handwritten digits.

    Two domains compete.  The upper level weighs every training sample, the lower
    level trains a small network on the weighted samples, and each preference
    between the domains gives one point of the front.  Nothing is downloaded.

    \b
    Examples:
      bipareto demo
      bipareto demo --out demo-out --json
    """
    from bipareto.experiments.digits import run_demo

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    with out.listening():
        # The demo speaks on stdout, which belongs to the object here.
        data = run_demo(out_dir, steps=steps, quiet=quiet or as_json)
    if as_json:
        out.say(data["words"])
    out.result(data)


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _defaults(method: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {field.name: field.default for field in fields(method)}


def _plain(defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: show(value) for key, value in defaults.items()}


def _row(entry: dict[str, Any], key: str) -> list[str]:
    written = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in entry[key].items()}
    return [entry["name"], entry["summary"], "  ".join(f"{name}={value}" for name, value in written.items())]
