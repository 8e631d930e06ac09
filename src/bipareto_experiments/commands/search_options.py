"""The options of architecture searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from bipareto.cli import values
from bipareto.cli.values import Out, taking
from bipareto.errors import InvalidInput
from bipareto_experiments.commands.cells import Channels, Dataset
from bipareto_experiments.commands.data import Folder
from bipareto_experiments.commands.options import Device, Tiny


@dataclass(frozen=True)
class SearchOptions:
    """What every search is asked for."""

    dataset: Dataset = "cifar10"
    preset: Annotated[
        str, taking("NAME", "proxy (NAS-Bench-201), darts, or paper (its search).")
    ] = "proxy"
    space: Annotated[
        str | None, taking("NAME", "nas-bench-201 or darts; the preset's if none.")
    ] = None
    supernet: Annotated[
        str | None, taking("KIND", "plain or fast, the same function; fast on a GPU if none.")
    ] = None
    half: Annotated[
        bool, typer.Option("--half", help="Let the fast supernet work in bfloat16.")
    ] = False
    objectives: Annotated[
        list[str] | None, taking("NAME,..", "Of loss, flops, skip, pooling; the preset's if none.")
    ] = None
    strengths: Annotated[
        list[str] | None,
        taking("NAME,..", "equal, weak, strong, extreme (-second: for FLOPs); the four if none."),
    ] = None
    steps: Annotated[int | None, taking("T", "Steps of a search; the preset's if none.", min=1)] = (
        None
    )
    batch: Annotated[int | None, taking("N", "Images of a draw; the preset's if none.")] = None
    channels: Channels = None
    cells: Annotated[
        int | None, taking("N", "A stage of NAS-Bench-201; the preset's if none.", min=1)
    ] = None
    side: Annotated[
        int | None, taking("PIXELS", "Images are averaged down to it; the preset's if none.")
    ] = None
    numbers: Annotated[
        str | None,
        taking(
            "WHOSE",
            "ours or paper: the methods' hyperparameters.",
            "--hyperparameters",
            "--numbers",
        ),
    ] = None
    warmup: Annotated[
        float | None,
        taking("SHARE", "Of the steps: the weights alone, before x moves; the preset's if none."),
    ] = None
    pretrain: Annotated[
        float | None,
        taking(
            "SHARE",
            "Of the time: before it, one supernet a seed learns alone; the preset's if none.",
        ),
    ] = None
    sampled: Annotated[
        float | None,
        taking("T", "Judge architectures drawn at temperature T, e.g. 1, not their mixture (0)."),
    ] = None
    cooled: Annotated[
        float | None, taking("T", "The temperature that drawn architectures end with.")
    ] = None
    draws: Annotated[
        str | None, taking("KIND", "twin or own: training images of MB-MOMEHA's theta and y.")
    ] = None
    together: Annotated[
        int | None, taking("N", "Searches side by side; all on a GPU if none.", min=1)
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
