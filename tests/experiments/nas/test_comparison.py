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
from bipareto.problem import tree
from bipareto.problem.sampler import Role, generator
from bipareto_experiments.nas import figures, judging, studies
from bipareto_experiments.nas.evaluation import ranked
from bipareto_experiments.nas.figures import draw
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.known import KnownCells, _all_flops
from bipareto_experiments.nas.settings import (
    PACES,
    STEPS,
    configured,
    default_preferences,
    pace,
    preset,
    trials,
)
from bipareto_experiments.nas.spaces import NAS_BENCH_201
from bipareto_experiments.nas.studies import Study, compared, tuned
from bipareto_experiments.nas.task import generated
from bipareto_experiments.trials import Trial

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
    # No draw of a few cells is the whole front; nothing is as little as the cheapest cell alone.
    assert said["methods"]["mb-momeha"]["by_luck"] == 0.0
    assert said["methods"]["moco"]["by_luck"] > 0.5
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
    tested = {"mixture": [1.0, 0.5], "discrete": [3.0, 0.5]}
    records = [
        {"method": name, "seed": seed, "objectives": f, "discrete": d, "test": tested}
        for name, seed, f, d in runs
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
    assert own["test_mixture"]["by_seed"] == pytest.approx([(guess - 1) * 0.5] * 2)
    assert own["test_discrete"]["by_seed"] == [0.0, 0.0]


def test_the_best_trial_has_the_most_hypervolume_on_validation_images() -> None:
    # The second is best by its mixture, the third by both together; the first only on test images.
    runs = [
        ("m, a = 1", 1.0, 2.0, 0.1),
        ("m, a = 2", 0.5, 2.2, 1.0),
        ("m, a = 3", 0.8, 1.0, 1.0),
        ("n, a = 1", 2.0, 2.0, 1.0),
    ]
    records = [
        {
            "method": name,
            "seed": 0,
            "objectives": [f, 0.5],
            "discrete": [d, 0.5],
            "test": {"mixture": [t, 0.5], "discrete": [t, 0.5]},
        }
        for name, f, d, t in runs
    ]
    found = judging.best_trials(
        {"objectives": ["loss", "flops"], "data": {"classes": 10}, "records": records}
    )
    assert {name: best["chosen"] for name, best in found.items()} == {"m": "a = 3", "n": "a = 1"}
    assert found["m"]["mixture"] == pytest.approx((math.log(10) - 0.8) * 0.5)


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
    result = compared(study, ["mb-momeha", "darts"], ["strong", "strong-second"])
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
        assert r["test"]["mixture"][1] == r["objectives"][1]  # FLOPs are no matter of images
        assert r["test"]["mixture"][0] != r["objectives"][0]
        assert 0 <= r["test_accuracy"]["discrete"] <= 1
    assert (
        result["judged_on"]
        == "a fifth of the validation images, set aside: generated has no test split"
    )
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
        ["strong", "strong-second"],
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
    nets = str(tmp_path / "nets")
    alike = ("train-alike", run, "--tiny", "--search-seed", "0", "--epochs", "1", "--out", nets)
    networks = said(*alike, "--half")["networks"]
    assert [n["method"] for n in networks] == ["mb-momeha"] * 2 + ["random cell"] * 2
    for one_of, other in zip(networks[:2], networks[2:], strict=True):
        assert other["preference"] == one_of["preference"]
        assert abs(other["flops"] - one_of["flops"]) <= 0.05 * one_of["flops"]
    assert (tmp_path / "nets" / "networks.png").stat().st_size < 100_000
    assert said(*alike, "--half")["networks"] == networks  # nothing is trained twice
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
        (["train-alike", two[0], "--tiny"], "none of the searches has the seed 1"),
        (["search", "--tiny", "--method", "adam"], "method 'adam' takes no part"),
        (["search", "--tiny", "--batch", "1"], "too small: batch norm"),
        (
            ["search", "--tiny", "--objectives", "loss,speed"],
            "choose some of loss, flops, skip, pooling",
        ),
        (
            ["tune", "--tiny", "--methods", "random"],
            "method 'random' is not tuned; choose from mb-momeha",
        ),
        (["search", "--tiny", "--side", "3"], "side = 3, but images of generated have 8 pixels"),
        (["search", "--tiny", "--cooled", "0.3"], "give a first temperature with --sampled"),
        (
            ["compare", "--tiny", "--strengths", "moderate"],
            "choose from equal, weak, strong, extreme",
        ),
        (["compare", "--data", str(tmp_path)], "cifar10 is not in"),
    ]:
        result = CliRunner().invoke(app, ["experiment", "nas", *arguments])
        assert result.exit_code != 0
        text = result.stderr + str(result.exception)
        assert message in text, text
    assert not (tmp_path / "none").exists()


def test_trials_of_a_method_differ_in_its_steps_alone(tmp_path: Path) -> None:
    study = Study(generated(replace(SMALL, steps=1, cosine="none")), None, [0], cells=0)
    tuned(study, ["wc-penalty"])
    pairs = [(trial["alpha_x"], trial["alpha_y"]) for trial in trials("wc-penalty", SMALL)]
    assert len(set(pairs)) == 9
    assert [r["method"] for r in study.records[::2]] == [
        f"wc-penalty, alpha_x = {x:g}, alpha_y = {y:g}" for x, y in pairs
    ]
    # No two methods are alike, and all are where these steps are written as the first one's.
    written = [f"alpha_x=Constant(value={x}), alpha_y=Constant(value={y})" for x, y in pairs]
    found = [r["numbers"] for r in study.records[::2]]
    assert len(set(found)) == 9
    assert (
        len({text.replace(own, written[0]) for text, own in zip(found, written, strict=True)}) == 1
    )
    assert draw(study.result(), None, tmp_path, "tuning") == []
    # Equal work has equal shares of the time.
    assert len(set(study.seconds.values())) == 1
    with pytest.raises(InvalidInput, match="the paper's numbers are fixed"):
        tuned(Study(generated(replace(SMALL, numbers="paper")), None, [0], cells=0), ["wc-penalty"])
    with pytest.raises(InvalidInput, match="method 'random' is not tuned"):
        tuned(study, ["random"])


def test_random_search_takes_the_cell_that_a_preference_likes_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(studies, "DRAWN", 6)
    study = Study(generated(replace(SMALL, sampled=1.0)), None, [3], cells=0)
    study.run("random", [(0.9, 0.1), (0.1, 0.9)])
    stream = generator("random search", 0, 3)
    cells = [Genotype.random(NAS_BENCH_201, stream) for _ in range(6)]
    # One supernet, whose weights have moved and whose logits have not: the cell for FLOPs is
    # cheaper, both are among those drawn.
    assert study.records[0]["curve"] == study.records[1]["curve"]
    drawn = [str(cell) for cell in cells]
    assert {str(Genotype.from_json(json.dumps(r["genotype"]))) for r in study.records} <= set(drawn)
    assert study.records[1]["discrete"][1] <= study.records[0]["discrete"][1]
    assert study.records[0]["objectives"] == study.records[0]["discrete"]


def test_methods_with_a_budget_of_seconds_make_the_steps_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def timed(task: Any, trials: Any, *, steps: int, records: int, **_: Any) -> Any:
        counted.append(steps)
        # 10 ms a step, and 0.2 s for the only record; the first search of 40 steps began sooner.
        sooner = 0.3 if steps == studies.LONG else 0.0
        return replace_seconds(0.2 + 0.01 * steps - sooner)

    def replace_seconds(seconds: float) -> Any:
        return studies.Finished({}, {}, seconds, (), torch.zeros(0), torch.zeros(0))

    study = Study(generated(SMALL), tmp_path, [0], cells=0, budget=8.0)
    with monkeypatch.context() as patch:
        patch.setattr(studies, "search", timed)
        steps = study._steps("mb-momeha", tmp_path / "mb-momeha", lambda task: ([], []))
    assert counted == [studies.SHORT, studies.SHORT, studies.LONG, 4 * studies.LONG]
    assert steps == pytest.approx((8.0 - 0.2 * studies.RECORDS) / 0.01, abs=1)
    # A call that goes on does not reckon again, and a study without a budget goes by steps.
    assert study._steps("mb-momeha", tmp_path / "mb-momeha", lambda task: ([], [])) == steps
    assert (
        Study(generated(SMALL), None, [0])._steps("darts", None, lambda task: ([], []))
        == 3 * SMALL.steps
    )


def test_searches_begin_with_weights_that_were_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: dict[str, Any] = {}
    plain = studies.search

    def watched(
        task: Any, trials: Any, *, label: str = "", begin: Any = None, **options: Any
    ) -> Any:
        assert label not in began  # nothing is trained twice
        began[label] = begin
        return plain(task, trials, label=label, begin=begin, **options)

    monkeypatch.setattr(studies, "search", watched)
    task = generated(replace(SMALL, steps=6, pretrain=0.5))
    study = Study(task, tmp_path, [3], cells=0, progress=False)
    compared(study, ["mb-momeha-joint", "moco", "random"], ["equal"])
    assert study.weights is not None
    alone = tree.select(study.weights.y, 0)
    assert began["weights alone"] is None
    assert began["random"] is None  # it is such a training itself
    for name in ("mb-momeha-joint", "moco"):
        assert torch.equal(began[name][3], alone)
    start = task.problem.start(3)[1]
    assert not torch.equal(alone, start)
    once = task.lasting(1, "moco")
    trial = Trial(configured("moco", once.settings), None, 3)
    y = tree.select(plain(once, [trial], begin={3: alone}, progress=False).y, 0)
    assert (y - alone).norm() < 0.5 * (y - start).norm()
    # Half of the passes go to the weights: 0.5 * 6 steps of MB-MOMEHA, four of the weights each.
    assert study.weights.steps[-1] == 0.5 * 6 * PACES["random"]
    assert {r["steps"] for r in study.records if r["method"] == "moco"} == {3}
    assert study.seconds["moco"] > study.weights.seconds


@pytest.mark.parametrize("name", ["proxy", "darts"])
def test_the_nested_form_trains_its_weights_between_steps_of_x(name: str) -> None:
    settings = preset(name)
    assert configured("mb-momeha-nested", settings).lower_steps == 3
    assert configured("mb-momeha-joint", settings).lower_steps == 0
    # Three passes and one for each of those steps, where Algorithm 2 has six.
    assert (pace("mb-momeha-nested", settings), pace("mb-momeha-joint", settings)) == (1, 2)
    assert configured("mb-momeha-nested", settings, lower_steps=5).lower_steps == 5
    assert settings.twins("mb-momeha-nested")


def test_preferences_of_two_objectives_have_the_papers_names() -> None:
    assert default_preferences(2) == [(0.9, 0.1), (0.75, 0.25), (0.6, 0.4), (0.5, 0.5)]
    assert default_preferences(2, ["equal", "weak", "weak-second"]) == [
        (0.5, 0.5),
        (0.6, 0.4),
        (0.4, 0.6),
    ]
    assert default_preferences(4)[:2] == [(0.25,) * 4, (0.52, 0.16, 0.16, 0.16)]
    with pytest.raises(
        InvalidInput,
        match="'moderate' is not one of the paper's for two objectives; choose from equal, weak, "
        "strong, extreme",
    ):
        default_preferences(2, ["moderate"])


def test_with_twin_draws_theta_and_y_see_the_same_images_and_are_stepped_alike() -> None:
    settings = replace(SMALL, twin=True, sampled=1.0, steps=50, cosine="none")
    task = generated(settings)
    halves = task.problem.halves
    theta, pair, other = (halves(Role("lower", name), 3, 1) for name in ("theta", "x", "y"))
    assert theta is pair or all(torch.equal(a, b) for a, b in zip(theta, pair, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(theta, other, strict=True))
    alone = [halves(Role("lower", "y", j), 3, 1) for j in range(2)]
    assert not torch.equal(alone[0].rows, alone[1].rows)  # several steps, several draws
    assert not torch.equal(alone[0].rows, other.rows)
    ours, theirs = (halves(Role("upper", name, 0), 3, 1) for name in ("x", "y"))
    assert not torch.equal(ours.rows, theirs.rows)
    method = configured("mb-momeha", settings)
    assert method.alpha_theta == method.alpha_y
    assert method.gamma == 50 * STEPS["mb-momeha, twin"]["alpha_y"]
    # x follows 1/c of the gradients: its step goes with c.
    longer = configured("mb-momeha", settings, c=10.0)
    assert longer.alpha_x.value == pytest.approx(10 * method.alpha_x.value)
    # Other methods, and the paper's hyperparameters, have draws of their own.
    assert task.lasting(2, "mb-momeha").problem.halves.twin
    assert not task.lasting(2, "wc-mhgd").problem.halves.twin
    assert not replace(settings, numbers="paper").twins("mb-momeha")


def test_hyperparameters_that_train_networks_and_those_of_the_paper() -> None:
    ours = configured("mb-momeha", replace(SMALL, cosine="all", warmup=0.2, steps=100))
    assert (ours.gamma, ours.alpha_x.scale, ours.alpha_y.scale, ours.alpha_theta.scale) == (
        300.0,
        2.5,
        0.6,
        pytest.approx(0.9),
    )
    ends = [
        float(schedule(torch.tensor(100.0)))
        for schedule in (ours.alpha_x, ours.alpha_y, ours.alpha_theta)
    ]
    assert ends == pytest.approx([0.0, 0.0, 0.0], abs=1e-3)
    theirs = configured("mb-momeha", replace(SMALL, numbers="paper"))
    steps = [
        float(schedule(torch.tensor(0.0)))
        for schedule in (theirs.alpha_theta, theirs.alpha_x, theirs.alpha_y)
    ]
    assert (theirs.gamma, *steps) == (8.0, 0.05, 0.05, 0.025)


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


def test_a_curve_is_of_the_preferences_for_an_objective_or_of_those_that_weigh_it_most() -> None:
    records = [{"preference": w} for w in ([0.75, 0.25], [0.6, 0.4], [0.5, 0.5])]
    assert figures._preferring(records, 0) == records[:2]
    assert figures._preferring(records, 1) == records[2:]
    assert figures._preferring([*records, {"preference": [0.25, 0.75]}], 1) == [
        {"preference": [0.25, 0.75]}
    ]


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
