"""Comparisons: hypervolumes against the true front, correlations, what is written, and the
commands.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bipareto.cli import app
from bipareto.errors import InvalidInput
from bipareto_experiments.nas import figures, judging
from bipareto_experiments.nas.figures import draw
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.known import KnownCells, _all_flops
from bipareto_experiments.nas.settings import TRIALS, preset
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.studies import Study, compared, ranked, tuned
from bipareto_experiments.nas.task import generated

SMALL = replace(preset("tiny"), channels=2, batch=6, steps=2)


@pytest.fixture(scope="module")
def known() -> KnownCells:
    """All cells with made-up accuracies: a number of its own for every cell, more for more
    FLOPs.
    """
    choices = torch.cartesian_prod(*[torch.arange(5)] * 6)
    flops = _all_flops(choices)
    accuracy = (
        60
        + 30 * flops / flops.max()
        + 5
        * torch.rand(len(choices), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    )
    return KnownCells(
        choices, dict.fromkeys(("cifar10", "cifar100", "imagenet16"), accuracy), flops
    )


def record(known: KnownCells, number: int, seed: int, method: str = "mb-momeha") -> dict[str, Any]:
    return {
        "method": method,
        "number": number,
        "seed": seed,
        "preference": (0.5, 0.5),
        "logits": {"cell": torch.nn.functional.one_hot(known.choices[number], 5).tolist()},
        "accuracy": {"cifar10": float(known.accuracies["cifar10"][number])},
    }


def test_the_true_front_has_all_of_the_hypervolume_and_one_cell_its_rectangle(
    known: KnownCells,
) -> None:
    front = known.front().tolist()
    records = [record(known, n, 1) for n in front] + [
        record(known, front[-1], 1, "moco"),
        record(known, front[0], 2, "moco"),
    ]
    said = judging.summary({"records": records, "seconds": {}}, known)
    assert said["methods"]["mb-momeha"]["hypervolume"]["chance"]["mean"] == pytest.approx(1.0)
    assert said["methods"]["mb-momeha"]["hypervolume"]["median"]["mean"] == pytest.approx(1.0)
    corner = torch.tensor(said["references"]["chance"], dtype=torch.float64)
    rectangles = [
        (corner - judging.points_of(known, [n])[0]).clamp_min(0).prod() / said["front"]["chance"]
        for n in (front[-1], front[0])
    ]
    assert said["methods"]["moco"]["hypervolume"]["chance"]["by_seed"] == pytest.approx(
        [float(r) for r in rectangles]
    )
    assert (
        0
        < said["random"]["chance"]["low"]
        <= said["random"]["chance"]["mean"]
        <= said["random"]["chance"]["high"]
        < 1
    )
    with pytest.raises(InvalidInput, match="no cell of NAS-Bench-201"):
        judging.summary({"records": [], "seconds": {}}, known)


def test_without_none_an_edge_takes_what_comes_second(known: KnownCells) -> None:
    strong = torch.tensor([0, 2, 0, 4, 3, 0])
    logits = 2.0 * torch.nn.functional.one_hot(strong, 5)
    logits[[0, 2, 5], [3, 1, 4]] = 1.0
    number = judging.linked(known, logits.tolist())
    assert known.choices[number].tolist() == [3, 2, 1, 4, 3, 4]
    # Cells that have no such edge are the same by both rules.
    records = [record(known, number, 1)]
    volumes = judging.summary({"records": records, "seconds": {}}, known)["methods"]["mb-momeha"][
        "hypervolume"
    ]
    assert volumes["linked"]["by_seed"] == pytest.approx(volumes["median"]["by_seed"])


def test_volumes_of_objectives_are_below_a_guess_and_the_dearest() -> None:
    runs = [
        ("m", 0, [1.0, 0.5], [2.0, 0.5]),
        ("m", 0, [1.5, 0.25], [3.0, 0.1]),
        ("m", 1, [math.log(10), 0.1], [1.0, 1.0]),
    ]
    records = [
        {"method": name, "seed": seed, "objectives": f, "discrete": d} for name, seed, f, d in runs
    ]
    said = judging.volumes(
        {"objectives": ["loss", "flops"], "data": {"classes": 10}, "records": records}
    )
    guess = math.log(10)
    assert said["reference"] == [guess, 1.0]
    own = said["methods"]["m"]
    assert own["mixture"]["by_seed"] == pytest.approx(
        [(guess - 1) * 0.5 + (guess - 1.5) * 0.25, 0.0]
    )
    assert own["discrete"]["by_seed"] == pytest.approx([(guess - 2) * 0.5, 0.0])


def test_correlations_are_one_for_a_perfect_ranking_and_minus_one_for_its_reverse(
    known: KnownCells,
) -> None:
    cells = list(range(0, 15625, 500))
    accuracy = known.accuracies["cifar10"][cells]
    rankings = [
        {
            "method": "m",
            "seed": 0,
            "preference": None,
            "cells": cells,
            "loss": (s * accuracy).tolist(),
        }
        for s in (-1, 1)
    ]
    good, bad = judging.correlations({"rankings": rankings}, known)
    assert (good["spearman"], good["kendall"], good["spearman_better_half"]) == pytest.approx(
        (1, 1, 1)
    )
    assert (bad["spearman"], bad["kendall"]) == pytest.approx((-1, -1))


def test_favoured_says_under_which_preference_an_objective_is_best() -> None:
    runs = [
        ((0.8, 0.2), 0, [1.0, 0.5]),
        ((0.8, 0.2), 1, [1.2, 0.5]),
        ((0.2, 0.8), 0, [1.15, 0.4]),
        ((0.2, 0.8), 1, [0.9, 0.3]),
    ]
    records = [
        {"method": "m", "preference": w, "seed": seed, "objectives": f} for w, seed, f in runs
    ]
    loss, flops = judging.favoured({"objectives": ["loss", "flops"], "records": records})["m"][
        "objectives"
    ]
    assert (loss["own"], loss["best_under"]) == (False, (0.2, 0.8))
    assert (flops["own"], flops["values"]) == (True, pytest.approx([0.5, 0.35]))
    assert (loss["seeds"], flops["seeds"]) == ([1, 2], [2, 2])


def test_a_comparison_writes_what_tables_and_figures_need(
    tmp_path: Path, known: KnownCells
) -> None:
    study = Study(generated(SMALL), tmp_path, [0, 1], known, cells=5)
    result = compared(study, ["mb-momeha", "darts"], ["strong"])
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(result))
    ours, theirs = (
        [r for r in result["records"] if r["method"] == name] for name in ("mb-momeha", "darts")
    )
    assert [(r["preference"], r["seed"]) for r in ours] == [
        (w, s) for s in (0, 1) for w in ((0.75, 0.25), (0.25, 0.75))
    ]
    # Without preferences: as many searches, on other draws, three times as long.
    assert [r["draws"] for r in theirs] == [0, 1000, 1, 1001]
    assert (ours[0]["curve"]["step"][-1], theirs[0]["curve"]["step"][-1]) == (2, 6)
    assert [(r["method"], r["seed"]) for r in result["rankings"]] == [
        ("mb-momeha", 0),
        ("mb-momeha", 1),
        ("darts", 0),
        ("darts", 1),
    ]
    for r in result["records"]:
        genotype = Genotype.from_json(json.dumps(r["genotype"]))
        assert r["number"] == known.number(genotype)
        assert torch.equal(torch.tensor(r["logits"]["cell"]).argmax(-1), genotype.choices()["cell"])
        assert r["flops"] == int(known.flops[r["number"]])
    counted = judging.operations(result)
    assert [(row["method"], row["preference"]) for row in counted] == [
        ("mb-momeha", (0.75, 0.25)),
        ("mb-momeha", (0.25, 0.75)),
        ("darts", None),
    ]
    assert all(sum(row["edges"].values()) == pytest.approx(6) for row in counted)
    # The same call again runs nothing and finds the same.
    again = compared(
        Study(generated(SMALL), tmp_path, [0, 1], known, cells=5),
        ["mb-momeha", "darts"],
        ["strong"],
    )
    assert again["records"] == result["records"]
    assert again["seconds"] == result["seconds"]


def test_a_supernet_ranks_cells_by_the_loss_of_one_hot_logits(known: KnownCells) -> None:
    task = generated(SMALL)
    _, y = task.problem.start(0)
    cells = known.choices[[7, 9000]]
    losses = ranked(task, y, cells)
    one_hot = Genotype.of(NAS_BENCH_201, {"cell": cells[1]}).logits()
    assert float(losses[1]) == pytest.approx(
        float(task.problem.loss(one_hot, y, task.problem.batch("upper", "full")))
    )


def said(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(
        app, ["experiment", "nas", *arguments, "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_the_commands_from_search_to_a_trained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIPARETO_DATA", raising=False)
    run = str(tmp_path / "run")
    found = said("search", "--tiny", "--steps", "1", "--channels", "2", "--out", run)
    assert {"genotype", "objectives", "hypervolume"} <= set(found)
    assert len(found["genotype"]) == len(found["objectives"]["loss"]) == 2
    assert (tmp_path / "run" / "genotype-1.svg").read_text().startswith("<svg")
    cells = said("derive", run, "--out", str(tmp_path / "cells"))["cells"]
    assert [c["genotype"] for c in cells] == found["genotype"]
    assert [c["flops"] for c in cells] == found["flops"]
    one = str(tmp_path / "cells" / "genotype-0.json")
    assert said("derive", one)["cells"][0]["params"] == found["params"][0]
    trained = said("train", one, "--tiny", "--epochs", "1")
    assert trained["epoch"] == [1]
    drawn = said("figures", run, "--out", str(tmp_path / "drawn"))["files"]
    assert {"run-plane.png", "run-curves.png", "run-exploration.png", "run-tables.json"} <= set(
        drawn
    )
    assert all((tmp_path / "drawn" / name).stat().st_size < 300_000 for name in drawn)


def test_commands_name_what_is_wrong(tmp_path: Path) -> None:
    begun, other, noise = tmp_path / "begun", tmp_path / "other", tmp_path / "noise.json"
    begun.mkdir()
    (begun / "experiment.json").write_text('{"experiment": "nas"}')
    other.mkdir()
    (other / "results.json").write_text('{"records": [{"accuracy": [0.5]}]}')
    noise.write_text("{}")
    two = [str(tmp_path / name / "run") for name in ("a", "b")]
    for run in map(Path, two):
        run.mkdir(parents=True)
        (run / "results.json").write_text('{"settings": {}, "records": []}')
    for arguments, message in [
        (
            ["figures", str(tmp_path)],
            "holds no results.json; it is made with: bipareto experiment nas search",
        ),
        (["figures", str(tmp_path / "none")], "none does not exist; it is made with"),
        (["figures", *two], "two of the runs are named run"),
        (["derive", str(begun)], "holds no results.json; go on with the command that began it"),
        (["derive", str(other)], "holds no architecture searches"),
        (
            ["derive", str(tmp_path / "none.json")],
            "does not exist; give the folder of a search or comparison, or a genotype's JSON file",
        ),
        (["train", str(tmp_path / "none.json")], "cannot be read"),
        (["train", str(noise)], "noise.json: a genotype is"),
        (["search", "--tiny", "--method", "adam"], "method 'adam' takes no part"),
        (["search", "--tiny", "--batch", "1"], "too small: batch norm"),
        (
            ["search", "--tiny", "--objectives", "loss,speed"],
            "choose some of loss, flops, skip, pooling",
        ),
        (["tune", "--tiny", "--step", "gamma"], "choose alpha_x or alpha_y"),
        (["compare", "--data", str(tmp_path)], "cifar10 is not in"),
    ]:
        result = CliRunner().invoke(app, ["experiment", "nas", *arguments])
        assert result.exit_code != 0
        text = result.stderr + str(result.exception)
        assert message in text, text
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("step", TRIALS)
def test_trials_of_a_method_differ_in_one_step_alone(step: str, tmp_path: Path) -> None:
    study = Study(generated(replace(SMALL, steps=1, cosine="none")), None, [0], cells=0)
    tuned(study, ["wc-penalty"], step=step)
    labels = [f"wc-penalty, {step} = {value:g}" for value in TRIALS[step]["wc-penalty"]]
    assert [r["method"] for r in study.records] == [label for label in labels for _ in range(4)]
    found = [r["numbers"] for r in study.records[::4]]
    assert len(set(found)) == 3
    # No two methods are alike, and all are where that step is written as the first one's.
    values = [f"{step}=Constant(value={value})" for value in TRIALS[step]["wc-penalty"]]
    assert (
        len({text.replace(value, values[0]) for text, value in zip(found, values, strict=True)})
        == 1
    )
    assert draw(study.result(), None, tmp_path, "tuning") == []
    # Equal work has equal shares of the time.
    assert len(set(study.seconds.values())) == 1
    with pytest.raises(InvalidInput, match="the paper's numbers are fixed"):
        tuned(
            Study(generated(replace(SMALL, numbers="paper")), None, [0], cells=0),
            ["wc-penalty"],
            step=step,
        )


def test_the_plane_shows_what_counts_for_the_hypervolume_and_the_front_of_it() -> None:
    found = [
        [1.0, 0.5],
        [2.0, 0.2],
        [2.1, 0.3],
        [3.0, 0.1],
    ]  # the third is dominated, the fourth worse than a guess among ten
    records = [{"method": "moco", "objectives": point} for point in found]
    figure = figures._plane(
        {"objectives": ["loss", "flops"], "data": {"classes": 10}, "records": records}, None
    )
    assert figure is not None
    (axis,) = figure.axes
    assert axis.collections[0].get_offsets().tolist() == found[:3]
    assert [list(values) for values in axis.lines[0].get_data()] == [[1.0, 2.0], [0.5, 0.2]]
    assert "1 ended beyond that point" in axis.get_title()
    assert (
        figures._plane({"objectives": ["loss"], "data": {"classes": 10}, "records": records}, None)
        is None
    )


def test_parallel_coordinates_run_from_the_worst_to_the_best_of_each_objective() -> None:
    names, found = ["loss", "flops", "skip"], [[1.0, 0.5, 0.2], [3.0, 0.1, 0.2], [2.0, 0.2, 0.1]]
    records = [
        {
            "method": "mb-momeha",
            "preference": [0.6 if i == k else 0.2 for i in range(3)],
            "objectives": point,
        }
        for k, point in enumerate(found)
    ]
    figure = figures._exploration({"objectives": names, "records": records}, None)
    assert figure is not None
    heights = torch.tensor(
        [list(line.get_ydata()) for line in figure.axes[0].lines], dtype=torch.float64
    )
    torch.testing.assert_close(
        heights,
        torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.75, 1.0]], dtype=torch.float64),
    )
    # The ends are written in the paper's scale.
    assert [label.get_text().split("\n") for label in figure.axes[0].get_xticklabels()] == [
        ["-2.000", "1 - loss"],
        ["0.665", "1 - 0.67 flops"],
        ["0.600", "1 - 2 skip"],
    ]
