"""What a suite measured: interleaved times, ratios, claims; their table, picture and JSON."""

from __future__ import annotations

import io
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bipareto.cli.output import Output


PACKAGES = (
    "torch", "numpy", "moocore", "boat-torch", "torchjd", "torchopt", "jaxopt", "jax", "optuna",
    "pymoo", "botorch",
)  # fmt: skip
#: colours of a picture
COLOURS = 64


class Times(dict[str, list[float]]):
    """Seconds per call by name, one entry for each round of an interleaved measurement."""

    def ms(self, name: str) -> float:
        """The median in milliseconds."""
        return 1e3 * statistics.median(self[name])

    def ratio(self, name: str, base: str) -> float:
        """The median over rounds of the time of `name` over that of `base` in the same round."""
        return statistics.median(a / b for a, b in zip(self[name], self[base], strict=True))


def interleaved(
    functions: dict[str, Callable[[], object]],
    seconds: float,
    repeats: int | dict[str, int] = 1,
    least: int = 5,
    clock: Callable[[], float] = time.process_time,
    wait: Callable[[], object] = lambda: None,
) -> Times:
    """Time functions in turns, so that a busy machine slows all alike.

    Args:
        functions: by name; each is called once before anything is timed.
        seconds: how long, in all.
        repeats: calls in each timing, one number or one per name.
        least: rounds at least.
        clock: CPU seconds of this process unless said otherwise.
        wait: called before the clock is read; waits for a device.
    """
    counts = {name: repeats if isinstance(repeats, int) else repeats[name] for name in functions}
    for fn in functions.values():
        fn()
    times = Times({name: [] for name in functions})
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < least or time.perf_counter() < end:
        rounds += 1
        for name, fn in functions.items():
            wait()
            begin = clock()
            for _ in range(counts[name]):
                fn()
            wait()
            times[name].append((clock() - begin) / counts[name])
    return times


@dataclass(frozen=True)
class Claim:
    """A figure and the bound it is held to; a value of None was not measured."""

    text: str
    value: float | None
    bound: float
    kind: str = "at most"

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None where nothing was measured."""
        if self.value is None or math.isnan(self.value):
            return None
        return self.value <= self.bound if self.kind == "at most" else self.value >= self.bound

    def words(self) -> str:
        """The verdict in a word or two."""
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


@dataclass
class Figures:
    """What one suite measured.

    tables: title -> header and rows, as they are printed.
    claims: what was asked of the figures.
    data: everything that was measured, for the JSON file.
    missing: rivals that could not be measured, with the reason.
    draw: puts the picture on axes, and how many of them there are.
    columns: panels in a row of the picture, at most.
    """

    suite: str
    tables: dict[str, tuple[Sequence[str], Sequence[Sequence[str]]]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    draw: tuple[int, Callable[[Sequence[Axes]], None]] | None = None
    columns: int = 3

    def timed(self, title: str, times: Times, ours: str) -> None:
        """Add a table of times, each with its ratio to `ours`, and its bars to the picture."""
        rows = [(name, f"{times.ms(name):.4g}", f"{times.ratio(name, ours):.2f}") for name in times]
        self.tables[title] = (("", "ms", f"times {ours}"), rows)
        self.data[title] = {
            "ms": {name: times.ms(name) for name in times},
            "ratio": {name: times.ratio(name, ours) for name in times},
            "rounds": len(times[ours]),
        }
        bars = self.data.setdefault("_bars", {})
        bars[title] = self.data[title]["ratio"]

    def show(self, out: Output) -> None:
        """Print the tables and the claims."""
        for title, (header, rows) in self.tables.items():
            out.table(title, header, rows)
        if self.claims:
            rows = [
                (c.text, "-" if c.value is None else f"{c.value:.3g}", f"{c.kind} {c.bound:g}",
                 c.words())
                for c in self.claims
            ]  # fmt: skip
            out.table("what is asked of it", ("", "measured", "asked", ""), rows)
        for name, reason in self.missing.items():
            out.warn(f"{name} was not measured: {reason}")

    def write(self, folder: Path, command: str, seeds: Sequence[int]) -> Path:
        """Write SUITE.json and SUITE.png into a folder; the path of the JSON file."""
        folder.mkdir(parents=True, exist_ok=True)
        data = {key: value for key, value in self.data.items() if not key.startswith("_")}
        path = folder / f"{self.suite}.json"
        content = {
            "about": about(command, seeds),
            "claims": [
                {"text": c.text, "value": c.value, "asked": f"{c.kind} {c.bound:g}", "met": c.met}
                for c in self.claims
            ],
            "not_measured": self.missing,
            "figures": data,
        }
        path.write_text(json.dumps(finite(content), indent=1) + "\n", "utf-8")
        self._picture(folder / f"{self.suite}.png")
        return path

    def _picture(self, path: Path) -> None:
        from matplotlib.figure import Figure

        bars = self.data.get("_bars", {})
        count, draw = self.draw or (len(bars), lambda axes: _bars(bars, axes))
        if not count:
            return
        columns = min(count, self.columns)
        lines = math.ceil(count / columns)
        figure = Figure(figsize=(4.6 * columns, 3.2 * lines), layout="constrained")
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        for spare in axes[count:]:
            spare.set_visible(False)
        draw(axes[:count])
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    """Write a figure with a palette, which takes a quarter of the bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    # The other ways of choosing a palette lose the colours of thin lines to those of wide bands.
    image = Image.open(buffer).convert("RGB")
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(path, optimize=True)


def _bars(groups: dict[str, dict[str, float]], axes: Sequence[Axes]) -> None:
    """One panel of bars for each table of times, on a scale of logs."""
    for axis, (title, ratios) in zip(axes, groups.items(), strict=True):
        names = list(ratios)[::-1]
        values = [ratios[name] for name in names]
        colours = ["#1f6f8b" if value == 1.0 else "#b8c4cc" for value in values]
        axis.barh(names, values, color=colours)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        axis.axvline(1.0, color="#1f6f8b", linewidth=0.8)
        for place, value in enumerate(values):
            axis.text(value, place, f" {value:.3g}", va="center", fontsize=8)
        axis.set_xlim(min(0.5, *values) / 1.2, max(2.0, *values) * 2.5)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("times ours", fontsize=8)
        axis.tick_params(labelsize=8)


def finite(value: Any) -> Any:
    """Plain data with None in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def about(command: str, seeds: Sequence[int]) -> dict[str, Any]:
    """The command, seeds, machine and versions."""
    import torch

    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": command,
        "seeds": list(seeds),
        "date": time.strftime("%Y-%m-%d"),
        "machine": _processor() + (
            f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
        ),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": found,
    }  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
