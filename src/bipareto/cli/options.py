"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ProblemName = Annotated[
    str,
    typer.Argument(metavar="PROBLEM", help="One of `bipareto list`, or package.module:function."),
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method", metavar="NAME", help="One of `bipareto list`, or auto: what suits the problem."
    ),
]
Seeds = Annotated[
    list[str] | None,
    typer.Option(
        "--seed", metavar="N,N,..", help="Every preference runs once with each; repeatable."
    ),
]
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Iterations of every run.")]
Dim = Annotated[int | None, typer.Option("--dim", metavar="N", min=1, help="Short for -o dim=N.")]
Noise = Annotated[
    float,
    typer.Option("--noise", metavar="SIGMA", min=0.0, help="Noise on every gradient coordinate."),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--option", metavar="KEY=VALUE", help="An option of the problem; repeatable."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A hyperparameter of the method: mu=8, c=power(5,0.45); repeatable.",
    ),
]
Hyperparameters = Annotated[
    str,
    typer.Option(
        "--hyperparameters",
        metavar="SOURCE",
        help="Where the others come from: tuned, plain or paper.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write files to this folder.")
]
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
