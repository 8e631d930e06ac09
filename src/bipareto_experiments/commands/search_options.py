"""The options of architecture searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from bipareto.cli import values
from bipareto.cli.values import Out
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.cells import Channels, Dataset
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.options import Device, Tiny


@dataclass(frozen=True)
class SearchOptions:
    """What every search is asked for."""

    dataset: Dataset = "cifar10"
    preset: Annotated[
        str,
        typer.Option(
            "--preset", metavar="NAME", help="proxy (NAS-Bench-201), darts, or paper (its search)."
        ),
    ] = "proxy"
    space: Annotated[
        str | None,
        typer.Option(
            "--space", metavar="NAME", help="nas-bench-201 or darts; the preset's if none."
        ),
    ] = None
    supernet: Annotated[
        str | None,
        typer.Option(
            "--supernet",
            metavar="KIND",
            help="plain or fast, the same function; fast on a GPU if none.",
        ),
    ] = None
    half: Annotated[
        bool, typer.Option("--half", help="Let the fast supernet work in bfloat16.")
    ] = False
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objectives",
            metavar="NAME,..",
            help="Of loss, flops, skip, pooling; the preset's if none.",
        ),
    ] = None
    strengths: Annotated[
        list[str] | None,
        typer.Option(
            "--strengths",
            metavar="NAME,..",
            help="equal, weak, strong, extreme (-second: for FLOPs); the four if none.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="T", min=1, help="Steps of a search; the preset's if none."
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Images of a draw; the preset's if none."),
    ] = None
    channels: Channels = None
    cells: Annotated[
        int | None,
        typer.Option(
            "--cells", metavar="N", min=1, help="A stage of NAS-Bench-201; the preset's if none."
        ),
    ] = None
    side: Annotated[
        int | None,
        typer.Option(
            "--side", metavar="PIXELS", help="Images are averaged down to it; the preset's if none."
        ),
    ] = None
    numbers: Annotated[
        str | None,
        typer.Option(
            "--hyperparameters",
            "--numbers",
            metavar="WHOSE",
            help="ours or paper: the methods' hyperparameters.",
        ),
    ] = None
    warmup: Annotated[
        float | None,
        typer.Option(
            "--warmup",
            metavar="SHARE",
            help="Of the steps: the weights alone, before x moves; the preset's if none.",
        ),
    ] = None
    pretrain: Annotated[
        float | None,
        typer.Option(
            "--pretrain",
            metavar="SHARE",
            help="Of the time: before it, one supernet a seed learns alone; the preset's if none.",
        ),
    ] = None
    sampled: Annotated[
        float | None,
        typer.Option(
            "--sampled",
            metavar="T",
            help="Judge architectures drawn at temperature T, e.g. 1, not their mixture (0).",
        ),
    ] = None
    cooled: Annotated[
        float | None,
        typer.Option(
            "--cooled", metavar="T", help="The temperature that drawn architectures end with."
        ),
    ] = None
    draws: Annotated[
        str | None,
        typer.Option(
            "--draws",
            metavar="KIND",
            help="twin or own: training images of MB-MOMEHA's theta and y.",
        ),
    ] = None
    together: Annotated[
        int | None,
        typer.Option(
            "--together", metavar="N", min=1, help="Searches side by side; all on a GPU if none."
        ),
    ] = None
    device: Device = None
    folder: Folder = None
    tiny: Tiny = False
    out_dir: Out = None

    def named_strengths(self) -> list[str] | None:
        """The preferences' strengths, None for the default ones."""
        return values.names(self.strengths) if self.strengths else None

    def settings(self) -> dict[str, Any]:
        """Settings other than the preset's; None for the preset's own."""
        if self.draws not in (None, "twin", "own"):
            raise InvalidInput(f"--draws {self.draws!r} is not known; choose twin or own")
        same = (
            "space supernet steps batch channels cells side numbers warmup pretrain sampled cooled"
        )
        return {name: getattr(self, name) for name in same.split()} | {
            "half": self.half or None,
            "objectives": tuple(values.names(self.objectives)) if self.objectives else None,
            "twin": None if self.draws is None else self.draws == "twin",
        }
