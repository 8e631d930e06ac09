"""Pictures and tables of the studies, one per figure of the paper that their records can make."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bipareto.errors import InvalidInput
from bipareto.fronts.drawing import COLOURS, MARKERS, styles
from bipareto_experiments.fewshot.settings import COMPARED
from bipareto_experiments.fewshot.summaries import comparable, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Records = list[dict[str, Any]]

#: Figures with two panels; that of the strengths has one for each domain.
_WIDE = ("curves", "exploration", "training")


def draw(
    result: dict[str, Any], folder: Path, prefix: str, alone: Records | None = None
) -> list[str]:
    """Write every figure that the records of a study allow; returns the names of the files.

    Args:
        alone: records of single-domain training, the reference of the preferences' strengths.
    """
    records = result["records"]
    # Their full names are too long for axes; results.json has them.
    domains = [f"domain {i + 1}" for i in range(len(records[0]["accuracy"]))]
    kinds: dict[str, Callable[..., bool]] = {
        "mu": lambda a, r: _knob(a, r, "mu", domains),
        "gamma": lambda a, r: _knob(a, r, "gamma", domains),
        "curves": lambda a, r: _curves(a, r, domains),
        "strengths": lambda a, r: _strengths(a, r, domains, alone or []),
        "exploration": lambda a, r: _exploration(a, r, domains),
        "single": lambda a, r: _single(a, r, domains),
        "comparison": lambda a, r: _comparison(a, r, domains),
        "training": lambda a, r: _training(a, r, domains),
        "response": lambda a, r: _answers(a, result, domains),
    }
    from matplotlib.figure import Figure

    written = []
    for kind, painter in kinds.items():
        panels = len(domains) if kind == "strengths" else 2 if kind in _WIDE else 1
        width = {1: 6.4, 2: 11.0}.get(panels, 3.6 * panels)
        figure = Figure(figsize=(width, 4.4), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0].tolist()
        if not painter(axes, records):
            continue
        name = f"{prefix}-{kind}.png"
        figure.savefig(folder / name, dpi=130, metadata={"Software": None})
        written.append(name)
    if not written:
        raise InvalidInput(
            "these records make none of the figures; run sensitivity, single-domain or comparison"
        )
    return written


def _knob(axes: list[Axes], records: Records, name: str, domains: list[str]) -> bool:
    """Accuracy per domain against mu or gamma, with the standard error over seeds."""
    own = [r for r in records if name in r]
    if not own:
        return False
    values = sorted({r[name] for r in own})
    for d, domain in enumerate(domains):
        columns = [
            torch.tensor([r["accuracy"][d] for r in own if r[name] == value], dtype=torch.float64)
            for value in values
        ]
        errors = [float(c.std() / len(c) ** 0.5) if len(c) > 1 else 0.0 for c in columns]
        axes[0].errorbar(
            values,
            [float(c.mean()) for c in columns],
            errors,
            marker=MARKERS[d],
            color=COLOURS[d],
            capsize=3,
            label=domain,
        )
    axes[0].set_xscale("log", base=2)
    axes[0].set(
        xlabel=rf"$\{name}$", ylabel="test accuracy", title=f"Accuracy by domain against {name}"
    )
    _finish(axes)
    return True


def _curves(axes: list[Axes], records: Records, domains: list[str]) -> bool:
    """Losses and accuracies on the way under the equal preference, mean over seeds: unseen classes
    solid, training classes dotted.
    """
    own = [r for r in records if r["group"] == "curves" and r.get("curve")]
    if not own:
        return False
    steps = [p["step"] for p in own[0]["curve"]]
    for d, domain in enumerate(domains):
        for axis, key in zip(axes, ("loss", "accuracy"), strict=True):
            for suffix, part, line in (("", "test", "-"), ("_train", "training", ":")):
                values = _over_seeds(own, key + suffix, d)
                axis.plot(steps, values, line, color=COLOURS[d], label=f"{domain}, {part}")
    axes[0].set(xlabel="joint step", ylabel="cross entropy", title="Loss, equal preference")
    axes[1].set(xlabel="joint step", ylabel="accuracy", title="Accuracy, equal preference")
    for axis in axes:
        axis.grid(alpha=0.3)
        _legend_below(axis)
    return True


def _over_seeds(records: Records, key: str, d: int) -> list[float]:
    """The mean over records of domain d's entries of their curves."""
    rows = [[p[key][d] for p in r["curve"]] for r in records]
    return torch.tensor(rows, dtype=torch.float64).mean(0).tolist()


def _strengths(axes: list[Axes], records: Records, domains: list[str], alone: Records) -> bool:
    """A panel for each domain: its accuracy by the weight of the preferred domain, a line for each
    domain that is preferred, its own one thick; WC-penalty dotted; dashed: trained on it alone.
    """
    own = [
        r
        for r in records
        if r.get("preference") and r["group"] != "curves" and not {"mu", "gamma"} & r.keys()
    ]
    weights = sorted({round(max(r["preference"]), 6) for r in own})
    if len(weights) < 2:
        return False
    for (name, line), k in product((("momeha", "-"), ("wc-penalty", ":")), range(len(domains))):
        found = [
            [
                r["accuracy"]
                for r in own
                if r["method"] == name
                and round(max(r["preference"]), 6) == weight
                and r["preference"][k] == max(r["preference"])
            ]
            for weight in weights
        ]
        if not all(found):
            continue
        columns = [torch.tensor(rows, dtype=torch.float64) for rows in found]
        for d, axis in enumerate(axes):
            errors = [float(c[:, d].std() / len(c) ** 0.5) if len(c) > 1 else 0.0 for c in columns]
            axis.errorbar(
                range(len(weights)),
                [float(c[:, d].mean()) for c in columns],
                errors if k == d else None,
                linestyle=line,
                linewidth=2.4 if k == d else 0.9,
                marker=MARKERS[k],
                color=COLOURS[k],
                capsize=3,
                label=f"{name}, prefers {domains[k]}",
            )
    for d, axis in enumerate(axes):
        single = [r["accuracy"][d] for r in alone if r["trained_on"] == d]
        if single:
            axis.axhline(
                sum(single) / len(single), color="0.3", linestyle="--", label="trained on it alone"
            )
        axis.set_xticks(range(len(weights)), [f"{weight:.2f}" for weight in weights])
        axis.set(xlabel="weight of the preferred domain", title=f"In {domains[d]}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy")
    # One legend serves all.
    shown = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(*shown, loc="outside lower center", ncols=5, fontsize="small")
    return True


def _exploration(axes: list[Axes], records: Records, domains: list[str]) -> bool:
    """What each preference changes in every domain against the equal one, mean over seeds: MOMEHA
    left, WC-penalty right.
    """
    shown: tuple[list[Any], list[Any]] = ([], [])
    for axis, name in zip(axes, ("momeha", "wc-penalty"), strict=True):
        own = [
            r for r in records if r["method"] == name and r.get("group") == name and r["preference"]
        ]
        means: dict[tuple[float, ...], torch.Tensor] = {}
        for weights in dict.fromkeys(tuple(r["preference"]) for r in own):
            rows = [r["accuracy"] for r in own if tuple(r["preference"]) == weights]
            means[weights] = torch.tensor(rows, dtype=torch.float64).mean(0)
        even = next(
            (mean for weights, mean in means.items() if max(weights) - min(weights) < 1e-9), None
        )
        if even is None or len(means) < 2:
            axis.set_axis_off()
            continue
        for weights, mean in means.items():
            if mean is not even:
                d = weights.index(max(weights))
                style: dict[str, Any] = {
                    "color": COLOURS[d],
                    "marker": MARKERS[d],
                    "linestyle": ":" if max(weights) < 0.35 else "-",
                }
                axis.plot(
                    range(len(domains)),
                    (mean - even).tolist(),
                    label=f"prefers {domains[d]}, {max(weights):.2f}",
                    **style,
                )
        axis.axhline(0, color="0.5", linewidth=1)
        axis.set_xticks(range(len(domains)), domains)
        axis.set(ylabel="accuracy above that at equal weights", title=name)
        axis.grid(alpha=0.3)
        shown = axis.get_legend_handles_labels()
    if shown[0]:
        # One legend serves both.
        axes[0].figure.legend(*shown, loc="outside lower center", ncols=4, fontsize="small")
    return bool(shown[0])


def _single(axes: list[Axes], records: Records, domains: list[str]) -> bool:
    """Trained on one domain (rows), judged on all (columns)."""
    own = [r for r in records if "trained_on" in r]
    if not own:
        return False
    rows = [
        torch.tensor([r["accuracy"] for r in own if r["trained_on"] == i], dtype=torch.float64)
        .mean(0)
        .tolist()
        for i in range(len(domains))
    ]
    axis = axes[0]
    shown = axis.imshow(rows, cmap="viridis", vmin=0.2)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            colour = "black" if value - 0.2 > 0.6 * (max(map(max, rows)) - 0.2) else "white"
            axis.text(j, i, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(len(domains)), domains)
    axis.set_yticks(range(len(domains)), domains)
    axis.set(xlabel="judged on", ylabel="trained on", title="One domain alone: test accuracy")
    axis.figure.colorbar(shown, ax=axis, label="accuracy")
    return True


def _comparison(axes: list[Axes], records: Records, domains: list[str]) -> bool:
    """Every backbone's accuracies, domain by domain, one column of points per method, with the best
    of each.
    """
    methods = [
        name
        for name in COMPARED
        if any(r["method"] == name and "trained_on" not in r for r in records)
    ]
    if not any(r["group"] in COMPARED for r in records):
        return False
    for k, (name, style) in enumerate(zip(methods, styles(methods), strict=True)):
        rows = torch.tensor(
            [r["accuracy"] for r in records if r["method"] == name and r["group"] == name],
            dtype=torch.float64,
        )
        for d in range(len(domains)):
            at = d + 0.15 * (k - (len(methods) - 1) / 2)
            axes[0].scatter(
                [at] * len(rows), rows[:, d].tolist(), s=10, alpha=0.35, color=style["color"]
            )
            label = name if d == 0 else None
            axes[0].scatter(
                at, float(rows[:, d].max()), s=42, edgecolors="black", label=label, **style
            )
    plain = torch.tensor(
        [r["accuracy"] for r in records if r["method"] == "untrained"], dtype=torch.float64
    )
    if len(plain):
        axes[0].plot(
            range(len(domains)), plain.mean(0).tolist(), "k_", markersize=28, label="untrained"
        )
    axes[0].set_xticks(range(len(domains)), domains)
    axes[0].set(
        ylabel="test accuracy", title="All backbones; large marks: the best over preferences"
    )
    _finish(axes)
    return True


def _training(axes: list[Axes], records: Records, domains: list[str]) -> bool:
    """Loss and accuracy of the first domain's training classes on the way, mean over seeds, by
    method: under the moderate preference for it where the method takes one.
    """
    watched = [r for r in records if r.get("curve") and r["group"] == r["method"]]
    methods = [name for name in COMPARED if any(r["method"] == name for r in watched)]
    for name, style in zip(methods, styles(methods), strict=True):
        own = [r for r in watched if r["method"] == name]
        steps = [p["step"] for p in own[0]["curve"]]
        for axis, key in zip(axes, ("loss_train", "accuracy_train"), strict=True):
            axis.plot(steps, _over_seeds(own, key, 0), color=style["color"], label=name)
    for axis, what in zip(axes, ("cross entropy", "accuracy"), strict=True):
        axis.set(xlabel="joint step", ylabel=what, title=f"Training classes of {domains[0]}")
    if methods:
        _finish(axes)
    return bool(methods)


def _answers(axes: list[Axes], result: dict[str, Any], domains: list[str]) -> bool:
    """By how much the preferred domain's accuracy rises over the equal preference, with two
    standard errors over seeds.
    """
    if not comparable(result) or len(result["seeds"]) < 2:
        return False
    found = {
        (name, weight): [a for a in r["response"] if a["weight"] == weight]
        for name, r in summary(result).items()
        for weight in sorted({a["weight"] for a in r["response"]})
    }
    if not found:
        return False
    width = 0.8 / len(found)
    for k, ((name, weight), answers) in enumerate(found.items()):
        places = [a["domain"] + (k - (len(found) - 1) / 2) * width for a in answers]
        errors = [2 * a["seed_error"] for a in answers]
        rises = [a["rise"] for a in answers]
        label = f"{name}, w = {weight:g}"
        colour = COLOURS[k % len(COLOURS)]
        axes[0].bar(places, rises, 0.9 * width, yerr=errors, capsize=3, color=colour, label=label)
    axes[0].axhline(0.0, color="black", linewidth=0.8)
    axes[0].set_xticks(range(len(domains)), domains)
    title = f"What preferring a domain changes in it, {len(result['seeds'])} seeds"
    axes[0].set(ylabel="rise of its accuracy (two standard errors)", title=title)
    _finish(axes)
    return True


def _legend_below(axis: Axes) -> None:
    """Many entries would cover the lines."""
    axis.legend(
        fontsize="x-small", ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False
    )


def _finish(axes: list[Axes]) -> None:
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
