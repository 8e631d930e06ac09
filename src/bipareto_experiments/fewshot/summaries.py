"""What a study found, method by method."""

from __future__ import annotations

from typing import Any

import torch

from bipareto.errors import InvalidInput


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Per method: accuracies with their standard error over seeds, the hypervolume of its
    accuracies, and its preferences' effect.

    accuracy: mean over domains, preferences and seeds; `equal` the same under equal preferences
        alone.
    hypervolume: of the accuracies of one seed's backbones above chance (`reference`), averaged over
        seeds.  A method with preferences has several backbones there, one without has one; so
        `hypervolume_equal` is that of the backbone under equal preferences alone.
    response: see `_response`.
    """
    from bipareto.fronts.measures import hypervolume

    trained = comparable(result)
    untrained = [r["accuracy"] for r in result["records"] if r["method"] == "untrained"]
    if not trained or not untrained:
        raise InvalidInput(
            "these results hold no backbones to compare; run comparison or sensitivity to its end "
            "first"
        )
    plain = _mean(untrained)
    reference = [-0.2] * len(plain)
    methods: dict[str, Any] = {}
    for name in dict.fromkeys(r["method"] for r in trained):
        own = [r for r in trained if r["method"] == name]
        per_seed = {seed: [r for r in own if r["seed"] == seed] for seed in result["seeds"]}
        accuracy = torch.tensor(
            [_mean([r["accuracy"] for r in runs]) for runs in per_seed.values()],
            dtype=torch.float64,
        )
        spread, alone = (
            torch.tensor(
                [
                    hypervolume(
                        -torch.tensor([r["accuracy"] for r in runs], dtype=torch.float64), reference
                    )
                    for runs in kept
                ]
            )
            for kept in (
                per_seed.values(),
                [[r for r in runs if _is_even(r)] for runs in per_seed.values()],
            )
        )
        methods[name] = {
            "accuracy": float(accuracy.mean()),
            "accuracy_by_domain": accuracy.mean(0).tolist(),
            "accuracy_error": _error(accuracy.mean(1)),
            "hypervolume": float(spread.mean()),
            "hypervolume_error": _error(spread),
            "hypervolume_equal": float(alone.mean()),
            "hypervolume_equal_error": _error(alone),
            "reference": [0.2] * len(plain),
            "untrained": sum(plain) / len(plain),
            "untrained_by_domain": plain,
            "equal": _equal(own),
            "response": _response(own),
        }
    return methods


def comparable(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of backbones that were trained on all domains with a method's own numbers, each
    once.

    With another mu or gamma it is another method; a backbone with a curve is that of the same
    preference and seed once more.
    """
    return [
        r
        for r in result["records"]
        if r["method"] != "untrained"
        and r["group"] != "curves"
        and not {"mu", "gamma", "trained_on"} & r.keys()
    ]


def _mean(rows: list[list[float]]) -> list[float]:
    return torch.tensor(rows, dtype=torch.float64).mean(0).tolist()


def _error(values: torch.Tensor) -> float | None:
    """The standard error of a mean, None of a single value."""
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else None


def _is_even(record: dict[str, Any]) -> bool:
    """Whether a backbone was trained under equal preferences, or by a method without any."""
    return (
        record["preference"] is None or max(record["preference"]) - min(record["preference"]) < 1e-9
    )


def _equal(records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Accuracy under equal preferences, None for a method without."""
    even = [r["accuracy"] for r in records if r["preference"] and _is_even(r)]
    if not even:
        return None
    rows = torch.tensor(even, dtype=torch.float64)
    return {
        "accuracy": float(rows.mean()),
        "error": _error(rows.mean(1)),
        "by_domain": rows.mean(0).tolist(),
    }


def _response(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each preference that favours a domain: by how much that domain's accuracy rises over the
    equal preference.

    Both backbones of a seed are judged by the same episodes, so the difference is taken episode by
    episode; `error` is its standard error over all episodes and seeds, `seed_error` that over the
    seeds' means.
    """
    given = [r for r in records if r["preference"] and r.get("episodes")]
    even = {r["seed"]: r for r in given if _is_even(r)}
    favoured: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for record in given:
        if record["seed"] in even and record is not even[record["seed"]]:
            favoured.setdefault(tuple(record["preference"]), []).append(record)
    found = []
    for preference, runs in favoured.items():
        i = max(range(len(preference)), key=preference.__getitem__)
        rise = torch.tensor([r["episodes"][i] for r in runs], dtype=torch.float64) - torch.tensor(
            [even[r["seed"]]["episodes"][i] for r in runs]
        )
        rise /= runs[0]["judged"]
        seeds = rise.mean(1)
        found.append(
            {
                "domain": i,
                "weight": preference[i],
                "rise": float(rise.mean()),
                "error": float(rise.std() / rise.numel() ** 0.5),
                "seed_error": _error(seeds),
            }
        )
    return found
