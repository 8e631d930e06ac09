"""The options of few-shot studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from bipareto.cli.values import Out
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.options import Device, Tiny

Dataset = Annotated[
    str,
    typer.Option(
        "--dataset", metavar="NAME", help="fc100, caltech101, caltech256, or another image set."
    ),
]


Tuning = Annotated[
    Path | None,
    typer.Option(
        "--tuning",
        metavar="FILE",
        help="tuning.json of the tune command: its numbers instead of the preset's.",
    ),
]


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--methods",
        metavar="NAME,..",
        help="momeha, wc-penalty, moml, forum, wc-mhgd; all if none.",
    ),
]


@dataclass(frozen=True)
class StudyOptions:
    """What every study is asked for."""

    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--domains",
            metavar="SET,SET,..",
            help="Image sets or folders of class folders in the data folder, each a domain.",
        ),
    ] = None
    learner: Annotated[
        str,
        typer.Option(
            "--learner",
            metavar="KIND",
            help="linear (convex lower level), mlp or block (nonconvex).",
        ),
    ] = "block"
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="warm: learners begin anew in every episode; literal: carried over.",
        ),
    ] = "warm"
    preset: Annotated[
        str,
        typer.Option(
            "--preset", metavar="NAME", help="robust, paper-sensitivity or paper-comparison."
        ),
    ] = "robust"
    seeds: Annotated[
        list[str] | None,
        typer.Option(
            "--seed",
            "--seeds",
            metavar="N,N,..",
            help="Each has its own start and draws; 0,1,2 if none.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            metavar="T",
            min=1,
            help="Joint steps; if none 2500, 5000 with paper-sensitivity, 24 with --tiny.",
        ),
    ] = None
    device: Device = None
    folder: Folder = None
    tiny: Tiny = False
    out_dir: Out = None
