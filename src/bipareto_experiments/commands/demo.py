"""`bipareto demo`: a front on real data in a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.output import Output, ensure_folder
from bipareto.cli.values import taking


def demo(
    out_dir: Annotated[
        Path, taking("DIR", "Write front.csv and front.png to this folder.", "--out")
    ] = Path("demo-out"),
    steps: Annotated[
        int | None, taking("N", "Fewer for a first look; by default enough to converge.", min=1)
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object, last on stdout; all else goes to stderr."),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No words and no progress bar.")
    ] = False,
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
    from bipareto_experiments.demo import run_demo

    out = Output(as_json, quiet)
    ensure_folder(out_dir)
    with out.listening():
        # The demo speaks on stdout, which belongs to the object here.
        data = run_demo(out_dir, steps=steps, quiet=quiet or as_json)
    if as_json:
        out.say(data["words"])
    out.result(data)
