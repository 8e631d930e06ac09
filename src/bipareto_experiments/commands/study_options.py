"""The options of few-shot studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bipareto.cli.values import Out, taking
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.options import Device, Tiny

Dataset = Annotated[
    str, taking("NAME", "fc100, caltech101, caltech256, or another image set.", "--dataset")
]


Tuning = Annotated[
    Path | None,
    taking(
        "FILE", "tuning.json of the tune command: its numbers instead of the preset's.", "--tuning"
    ),
]


Methods = Annotated[
    list[str] | None,
    taking("NAME,..", "momeha, wc-penalty, moml, forum, wc-mhgd; all if none.", "--methods"),
]


@dataclass(frozen=True)
class StudyOptions:
    """What every study is asked for."""

    sets: Annotated[
        list[str] | None,
        taking(
            "SET,SET,..",
            "Image sets or folders of class folders in the data folder, each a domain.",
            "--domains",
        ),
    ] = None
    learner: Annotated[
        str, taking("KIND", "linear (convex lower level), mlp or block (nonconvex).")
    ] = "block"
    protocol: Annotated[
        str, taking("NAME", "warm: learners begin anew in every episode; literal: carried over.")
    ] = "warm"
    preset: Annotated[str, taking("NAME", "robust, paper-sensitivity or paper-comparison.")] = (
        "robust"
    )
    seeds: Annotated[
        list[str] | None,
        taking("N,N,..", "Each has its own start and draws; 0,1,2 if none.", "--seed", "--seeds"),
    ] = None
    steps: Annotated[
        int | None,
        taking(
            "T", "Joint steps; if none 2500, 5000 with paper-sensitivity, 24 with --tiny.", min=1
        ),
    ] = None
    device: Device = None
    folder: Folder = None
    tiny: Tiny = False
    out_dir: Out = None
