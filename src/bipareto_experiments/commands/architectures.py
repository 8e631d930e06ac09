"""Tables of architecture search."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bipareto.cli.output import Output

if TYPE_CHECKING:
    from bipareto_experiments.nas.genotype import Genotype
    from bipareto_experiments.nas.known import KnownCells


def _weights(record: dict[str, Any]) -> str:
    weights = record.get("preference")
    return ", ".join(f"{w:.2f}" for w in weights) if weights else "-"


def _accuracy(record: dict[str, Any]) -> str:
    return f"{record['accuracy']['cifar10']:.2f}" if "accuracy" in record else "-"


def show_records(out: Output, records: list[dict[str, Any]], names: list[str]) -> None:
    """Searches one by one: the supernet's objectives, and the derived network."""
    rows = [
        [
            r["method"],
            _weights(r),
            *(f"{value:.4f}" for value in r["objectives"]),
            _accuracy(r),
            f"{r['flops'] / 1e6:.2f}",
            f"{r['params'] / 1e6:.3f}",
        ]
        for r in records
    ]
    header = ["method", "preference", *names, "accuracy %", "MFLOPs", "M params"]
    out.table(
        "Objectives of the supernet; known CIFAR-10 accuracy, and cost, of the derived network",
        header,
        rows,
        left=2,
    )


def show_cells(out: Output, records: list[dict[str, Any]], genotypes: list[Genotype]) -> None:
    """Architectures one by one."""
    rows = [
        [
            str(i),
            r.get("method", "-"),
            _weights(r),
            str(r.get("seed", "-")),
            _accuracy(r),
            f"{r['flops'] / 1e6:.2f}",
            f"{r['params'] / 1e6:.3f}",
        ]
        for i, r in enumerate(records)
    ]
    header = ["genotype", "method", "preference", "seed", "accuracy %", "MFLOPs", "M params"]
    out.table(f"Architectures of {genotypes[0].space.name}", header, rows, left=3)
    for i, genotype in enumerate(genotypes):
        out.say(f"{i:3d}  {str(genotype).partition(' ')[2]}")


def judged(out: Output, result: dict[str, Any], known: KnownCells | None) -> dict[str, Any]:
    """Tables of a comparison, shown and as data; what needs moocore or the known accuracies is left
    out where they are missing.
    """
    from bipareto_experiments.nas import judging

    found: dict[str, Any] = {
        "favoured": judging.favoured(result),
        "favoured_discrete": judging.favoured(result, "discrete"),
    }
    for method, said in found["favoured"].items():
        preferences = [
            "\n".join(f"{w:.2f}" for w in preference) for preference in said["preferences"]
        ]
        header = ["objective", *preferences, "best under its own", "in seeds"]
        rows = [
            [
                row["objective"],
                *(f"{v:.4f}" for v in row["values"]),
                "yes" if row["own"] else "no",
                "{} of {}".format(*row["seeds"]),
            ]
            for row in said["objectives"]
        ]
        out.table(
            f"{method}: objectives by preference (weights on top), mean over seeds", header, rows
        )
    found["operations"] = judging.operations(result)
    counts = [
        [row["method"], _weights(row), *(f"{count:.1f}" for count in row["edges"].values())]
        for row in found["operations"]
    ]
    out.table(
        "Edges of the derived cells by operation, mean over seeds",
        ["method", "preference", *found["operations"][0]["edges"]],
        counts,
        left=2,
    )
    if known is not None:
        found["correlations"] = judging.correlations(result, known)
        _show_correlations(out, found["correlations"])
    if find_spec("moocore") is None:
        out.say(
            "moocore is not installed: hypervolumes are left to `bipareto experiment nas figures` "
            "on a machine that has it"
        )
        return found
    found["objectives"] = judging.volumes(result)
    _show_volumes(out, found["objectives"])
    if known is not None and any("number" in r for r in result["records"]):
        found["hypervolume"] = judging.summary(result, known)
        _show_truth(out, found["hypervolume"])
        found["transfer"] = judging.summary(result, known, "cifar100")
        _show_truth(out, found["transfer"])
    return found


def show_best(out: Output, result: dict[str, Any]) -> dict[str, Any]:
    """The best trial of each method, shown and as data."""
    from bipareto_experiments.nas.judging import best_trials

    found = best_trials(result)
    rows = [
        [name, best["chosen"], _number(best["mixture"]), _number(best["discrete"])]
        for name, best in found.items()
    ]
    out.table(
        "Best trials: hypervolume on validation images",
        ["method", "with", "mixture", "derived cells"],
        rows,
        left=2,
    )
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _show_correlations(out: Output, found: list[dict[str, Any]]) -> None:
    rows = [
        [
            c["method"],
            str(c["seed"]),
            f"{c['spearman']:.3f}",
            f"{c['kendall']:.3f}",
            f"{c['spearman_better_half']:.3f}",
        ]
        for c in found
    ]
    if rows:
        header = ["method", "seed", "Spearman", "Kendall", "of the better half"]
        out.table(
            "Rank correlation of minus the supernet's loss with the known accuracy", header, rows
        )


def _show_volumes(out: Output, found: dict[str, Any]) -> None:
    corner = ", ".join(f"{value:.4g}" for value in found["reference"])
    for images, labels in (
        ("validation", ("mixture", "discrete")),
        ("unseen test", ("test_mixture", "test_discrete")),
    ):
        rows = [
            [
                name,
                *(
                    text
                    for label in labels
                    for text in (_number(own[label]["mean"]), _number(own[label]["error"]))
                ),
            ]
            for name, own in found["methods"].items()
            if labels[0] in own
        ]
        if rows:
            header = ["method", "of the mixture", "+-", "of the derived cells", "+-"]
            out.table(
                f"Hypervolume of the objectives on {images} images below ({corner})", header, rows
            )


def _show_truth(out: Output, said: dict[str, Any]) -> None:
    keys = ("chance", "median", "linked")
    rows = []
    for name, own in said["methods"].items():
        shares = [
            text
            for key in keys
            for text in (
                _number(own["hypervolume"][key]["mean"]),
                _number(own["hypervolume"][key]["error"]),
            )
        ]
        rows.append(
            [
                name,
                *shares,
                f"{own['by_luck']:.3f}",
                str(own["distinct"]),
                "-" if own["seconds"] is None else f"{own['seconds']:.0f}",
            ]
        )
    means = [text for key in keys for text in (_number(said["random"][key]["mean"]), "-")]
    rows.append([f"{said['random']['cells']} random cells", *means, "-", "-", "-"])
    header = [
        "method",
        "below chance",
        "+-",
        "below median",
        "+-",
        'without "none"',
        "+-",
        "median by luck",
        "distinct cells",
        "seconds",
    ]
    title = f"Hypervolume of accuracy on {said['dataset']} and FLOPs, share of the true front's"
    out.table(title, header, rows)
