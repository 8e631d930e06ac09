"""Studies: what their folders refuse, what their summaries say, their figures, and the commands
around them.
"""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.measures import hypervolume
from bipareto.problem import tree
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.fewshot import figures, studies, tables, task
from bipareto_experiments.fewshot.figures import draw
from bipareto_experiments.fewshot.settings import MOVING, TRIALS, adaptation, configured
from bipareto_experiments.fewshot.studies import Study, comparison, refinement
from bipareto_experiments.fewshot.summaries import summary
from bipareto_experiments.fewshot.task import Task, generated
from bipareto_experiments.fewshot.training import Trial, train
from bipareto_experiments.fewshot.tuning import tune
from bipareto_experiments.trials import Finished
from helpers import answer, call

EVEN = (0.25,) * 4


def with_validation() -> Task:
    made = generated("linear")
    return replace(
        made,
        domains=replace(
            made.domains, validation=tuple(classes[:5] for classes in made.domains.train)
        ),
    )


def untaught(given: Task, trials: list[Trial], steps: int, **_: object) -> Finished:
    """Backbones as they begin, in the place of training; a step of 66 diverges."""
    x = tree.stack([given.start(trial.seed)[0] for trial in trials])
    reasons = tuple("nonfinite" if "66.0" in repr(trial.method) else "steps" for trial in trials)
    return Finished(x, None, 0.0, reasons, torch.zeros(1, len(trials), 4), torch.tensor([steps]))


def record(
    method: str, preference: tuple[float, ...] | None, seed: int, accuracy: list[float], **more: Any
) -> dict[str, Any]:
    rights = [[round(75 * a) + (k % 2) for k in range(4)] for a in accuracy]
    label = {
        "group": method,
        "method": method,
        "seed": seed,
        "preference": preference and list(preference),
    }
    return (
        label
        | {
            "accuracy": accuracy,
            "judged": 75,
            "episodes": rights,
            "training": {"step": [1, 2], "loss": [[1.0] * 4] * 2},
            "curve": [
                {"step": t, "loss_train": [1.0 / t] * 4, "accuracy_train": [0.3 * t] * 4}
                for t in (1, 2)
            ],
        }
        | more
    )


def favouring(d: int, weight: float = 0.4) -> tuple[float, ...]:
    return tuple(weight if i == d else (1 - weight) / 3 for i in range(4))


def result() -> dict[str, Any]:
    """Two methods with preferences and one without, two seeds; domain d gains 0.04 by its
    preference and the others lose 0.02.
    """
    records = [record("untrained", None, s, [0.3] * 4) for s in (0, 1)]
    for s in (0, 1):
        for name, level in (("momeha", 0.6), ("wc-penalty", 0.56)):
            records.append(record(name, EVEN, s, [level + 0.04 * s] * 4))
            records += [
                record(
                    name,
                    favouring(d),
                    s,
                    [level + 0.04 * s + (0.04 if i == d else -0.02) for i in range(4)],
                )
                for d in range(4)
            ]
        records.append(record("forum", None, s, [0.52 + 0.04 * s] * 4))
    return {"records": records, "seeds": [0, 1]}


# ---- folders


def test_a_folder_of_other_numbers_is_refused_finished_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = SliceFolder.recording
    monkeypatch.setattr(
        SliceFolder,
        "recording",
        lambda self, snapshot, seconds, keep: recording(self, snapshot, 0.0, keep),
    )
    made, small = generated("linear"), {"alpha_x": 0.2}
    study, tuned = Study(made, None, 4, [0]), Study(made, None, 4, [0], numbers={"momeha": small})

    def stop(step: int, x: object) -> None:
        if step == 4:  # behind the checkpoint of step 2
            raise KeyError("stopped by the test")

    with pytest.raises(KeyError):
        train(
            made,
            [Trial(study.method("momeha"), EVEN, 0)],
            4,
            folder=tmp_path / "a",
            watch=stop,
            watch_every=2,
        )
    part = SliceFolder(tmp_path / "a")
    assert part.checkpoints()
    assert not part.done
    for _ in range(2):
        with pytest.raises(
            InvalidInput, match=r"holds another training \(trials\), begun with bipareto \d.*; use"
        ):
            train(made, [Trial(tuned.method("momeha"), EVEN, 0)], 4, folder=tmp_path / "a")
        other = replace(made, domains=replace(made.domains, train=made.domains.train[::-1]))
        with pytest.raises(InvalidInput, match=r"another training \(domains"):
            train(other, [Trial(study.method("momeha"), EVEN, 0)], 4, folder=tmp_path / "a")
        train(
            made, [Trial(study.method("momeha"), EVEN, 0)], 4, folder=tmp_path / "a"
        )  # the second time it is finished
    assert part.done


def test_learners_for_second_derivatives_are_the_same_network_to_a_folder() -> None:
    network = generated("linear").network
    assert repr(replace(network, twice=True)) == repr(network)
    assert repr(replace(network, half=True)) != repr(network)


@pytest.mark.parametrize("protocol", ["warm", "literal"])
def test_a_step_of_x_that_falls_to_zero_ends_no_run(protocol: str) -> None:
    """An odd number of steps is rounded up to whole episodes: the last joint step then has length
    zero.
    """
    method = configured("momeha", "linear", 4, protocol=protocol, steps=3)  # type: ignore[arg-type]
    assert train(generated("linear"), [Trial(method, EVEN, 0)], 5).reason == ("steps",)


@pytest.mark.parametrize("before", [False, True])
def test_learners_use_tf32_while_a_half_network_runs_and_only_then(before: bool) -> None:
    products, made = torch.backends.cuda.matmul, generated("linear")
    kept = products.allow_tf32
    try:
        products.allow_tf32 = before
        for half in (False, True):
            with replace(made, network=replace(made.network, half=half)).arithmetic():
                assert products.allow_tf32 is (before or half)
            assert products.allow_tf32 is before
    finally:
        products.allow_tf32 = kept


# ---- summaries


def test_the_hypervolume_at_equal_preferences_is_that_of_one_backbone() -> None:
    found = summary(result())
    for name, level in (("momeha", 0.6), ("wc-penalty", 0.56), ("forum", 0.52)):
        boxes = [(level + 0.04 * s - 0.2) ** 4 for s in (0, 1)]
        assert found[name]["hypervolume_equal"] == pytest.approx(sum(boxes) / 2)
        assert found[name]["hypervolume_equal_error"] == pytest.approx(abs(boxes[1] - boxes[0]) / 2)
    # Each preference costs the mean over domains 0.005; seeds differ by 0.04.
    assert (found["momeha"]["accuracy"], found["momeha"]["accuracy_error"]) == (
        pytest.approx(0.616),
        pytest.approx(0.02),
    )
    assert found["forum"]["hypervolume"] == found["forum"]["hypervolume_equal"]
    points = -torch.tensor(
        [r["accuracy"] for r in result()["records"] if r["method"] == "momeha" and r["seed"] == 0],
        dtype=torch.float64,
    )
    assert len(points) == 5
    one = summary(result() | {"seeds": [0]})["momeha"]
    assert one["hypervolume"] == pytest.approx(hypervolume(points, [-0.2] * 4))
    assert one["hypervolume"] > one["hypervolume_equal"]
    assert one["hypervolume_error"] is None


def test_what_a_preference_changes_is_counted_once() -> None:
    plain = result()
    curves = [record("momeha", favouring(1), s, [0.9] * 4, group="curves") for s in (0, 1)]
    varied = [record("momeha", favouring(1), s, [0.1] * 4, mu=16.0) for s in (0, 1)]
    alone = [record("momeha", None, s, [0.1] * 4, trained_on=1) for s in (0, 1)]
    found = summary({**plain, "records": plain["records"] + curves + varied + alone})
    assert found == summary(plain)
    assert [
        (a["domain"], round(a["rise"], 6), a["seed_error"]) for a in found["momeha"]["response"]
    ] == [(d, 0.04, 0.0) for d in range(4)]
    with pytest.raises(
        InvalidInput, match="hold no backbones to compare; run comparison or sensitivity"
    ):
        summary({**plain, "records": alone})


# ---- tuning


def test_tuning_without_validation_classes_is_refused_before_any_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(studies, "train", pytest.fail)
    with pytest.raises(
        InvalidInput, match="domains of generated have no validation classes to tune on"
    ):
        tune(Study(generated("linear"), None, 4, [0]))
    for run in (tune, comparison):
        with pytest.raises(InvalidInput, match="method 'meha' takes no part"):
            run(Study(with_validation(), None, 4, [0]), ["momeha", "meha"])


def test_a_method_whose_trials_all_diverge_keeps_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bipareto_experiments.fewshot.tuning.train", untaught)
    monkeypatch.setattr("bipareto_experiments.fewshot.tuning.ROUNDS", 0)
    monkeypatch.setitem(TRIALS, "momeha", [{"alpha_x": 66.0}, {"alpha_x": 66.0, "c": 1.0}])
    monkeypatch.setitem(TRIALS, "moml", [{"alpha_x": 66.0}, {"alpha_x": 0.1}])
    with pytest.warns(BiparetoWarning, match="every trial of momeha diverged"):
        found = tune(Study(with_validation(), tmp_path, 4, [0], episodes=4), ["momeha", "moml"])
    assert found["momeha"]["numbers"] == {}
    assert found["moml"]["numbers"] == {"alpha_x": 0.1}
    # Judged on the validation classes, never on those of the test.
    made = with_validation()
    x, y = made.start(0)
    validated, tested = (
        float(made.judge(x, y, part=part, episodes=4, eta=adaptation("linear", 4)).accuracy.mean())
        for part in ("validation", "test")
    )
    assert [trial["accuracy"] for trial in found["moml"]["trials"]] == [0, pytest.approx(validated)]
    assert validated != tested


def test_the_tune_command_writes_what_the_comparison_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bipareto_experiments.fewshot.tuning.train", untaught)
    monkeypatch.setattr(task, "build", lambda *_, **__: with_validation())
    monkeypatch.setitem(
        TRIALS, "momeha", [{"alpha_x": 66.0, "c": 0.5}, {"alpha_x": 0.125, "c": 0.7}]
    )
    tuning = (
        "experiment",
        "fewshot",
        "tune",
        "--learner",
        "linear",
        "--methods",
        "momeha",
        "--seed",
        "0",
        "--steps",
        "4",
    )
    assert call(*tuning, "--out", tmp_path / "tuned", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out.splitlines()[-1])["methods"]["momeha"]["numbers"] == {
        "alpha_x": 0.125,
        "c": 0.7,
    }
    assert "alpha_x = 0.125, c = 0.7" in told.err
    given = (
        "experiment",
        "fewshot",
        "comparison",
        "--tiny",
        "--learner",
        "linear",
        "--methods",
        "momeha",
        "--steps",
        "4",
    )
    assert (
        call(
            *given, "--tuning", tmp_path / "tuned/tuning.json", "--out", tmp_path / "compared", "-q"
        )
        == 0
    )
    results = json.loads((tmp_path / "compared/results.json").read_text())
    assert results["numbers"] == {"momeha": {"alpha_x": 0.125, "c": 0.7}}
    method = next(r["numbers"] for r in results["records"] if r["method"] == "momeha")
    assert "alpha_x=Cosine(scale=0.125, period=4.0" in method
    assert "c=Constant(value=0.7)" in method


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a tuning.json (FileNotFoundError"),
        ("{", "is not a tuning.json (JSONDecodeError"),
        ('{"methods": {"momeha": {"trials": []}}}', "is not a tuning.json (KeyError: 'numbers')"),
        (
            '{"methods": {"momeha": {"numbers": {"c": "large"}}}}',
            "is not a tuning.json (ValueError",
        ),
        ("[1]", "is not a tuning.json (TypeError"),
        ('{"learner": "block", "methods": {}}', "was tuned with the block learner"),
        (
            '{"learner": "linear", "methods": {"momeha": {"numbers": {"speed": 1}}}}',
            "momeha has no number speed; it has gamma, mu",
        ),
    ],
)
def test_a_bad_tuning_file_is_named_with_the_remedy(
    text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tuning.json"
    if text is not None:
        path.write_text(text)
    assert (
        call(
            "experiment",
            "fewshot",
            "comparison",
            "--tiny",
            "--learner",
            "linear",
            "--methods",
            "momeha",
            "--tuning",
            path,
        )
        == 2
    )
    told = capsys.readouterr().err
    assert words in told
    assert "speed" in words or "fewshot tune --learner linear --out DIR" in told


def test_tuning_on_a_set_without_validation_classes_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task, "build", lambda *_, **__: generated("linear"))
    assert call("experiment", "fewshot", "tune", "--learner", "linear", "--steps", "4") == 2
    assert "have no validation classes to tune on" in capsys.readouterr().err


# ---- figures and tables


def test_the_exploration_shows_every_preference_against_the_equal_one() -> None:
    from matplotlib.figure import Figure

    axes = list(Figure().subplots(1, 2))
    names = [f"domain {i + 1}" for i in range(4)]
    assert figures._exploration(axes, result()["records"], names)
    for axis, title in zip(axes, ("momeha", "wc-penalty"), strict=True):
        assert axis.get_title() == title
        lines = {
            line.get_label(): list(line.get_ydata())
            for line in axis.get_lines()
            if str(line.get_label()).startswith("prefers")
        }
        assert list(lines) == [f"prefers {name}, 0.40" for name in names]
        for d, heights in enumerate(lines.values()):
            assert heights == pytest.approx([0.04 if i == d else -0.02 for i in range(4)])
    without = [r for r in result()["records"] if r["preference"] is None]
    assert not figures._exploration(list(Figure().subplots(1, 2)), without, names)


def test_preferred_domains_are_drawn_beside_those_trained_alone() -> None:
    from matplotlib.figure import Figure

    axes = list(Figure(layout="constrained").subplots(1, 4))
    alone = [
        record(
            "momeha",
            None,
            0,
            [0.3 + 0.05 * d + (0.02 if i == d else 0) for i in range(4)],
            trained_on=d,
        )
        for d in range(4)
    ]
    twice = [record("momeha", favouring(1), 0, [0.0] * 4, group="curves")]
    assert figures._strengths(
        axes, result()["records"] + twice, [f"domain {i + 1}" for i in range(4)], alone
    )
    for d, axis in enumerate(axes):
        dashed = [line.get_ydata()[0] for line in axis.get_lines() if line.get_linestyle() == "--"]
        assert dashed == pytest.approx([0.3 + 0.05 * d + 0.02])
        assert len(axis.containers) == 8
        for number, bars in enumerate(axis.containers):
            level, gain = 0.62 if number < 4 else 0.58, 0.04 if number % 4 == d else -0.02
            assert list(bars.lines[0].get_ydata()) == pytest.approx([level, level + gain])


def test_tables_hold_the_summary(tmp_path: Path) -> None:
    assert tables.write_tables(result(), tmp_path, "run") == ["run-methods.csv", "run-response.csv"]
    methods, answers = (
        list(csv.DictReader((tmp_path / f"run-{name}.csv").read_text().splitlines()))
        for name in ("methods", "response")
    )
    found = summary(result())
    assert [row["method"] for row in methods] == ["momeha", "wc-penalty", "forum"]
    for row in methods:
        for key in ("accuracy", "hypervolume", "hypervolume_equal", "untrained"):
            assert float(row[key]) == pytest.approx(found[row["method"]][key])
    assert [
        (row["method"], int(row["preferred_domain"]), round(float(row["rise"]), 6))
        for row in answers
    ] == [(name, d + 1, 0.04) for name in ("momeha", "wc-penalty") for d in range(4)]
    only = result()
    only["records"] = [r for r in only["records"] if r["preference"] is None]
    assert tables.write_tables(only, tmp_path, "only") == ["only-methods.csv"]
    only["records"] = [record("momeha", None, 0, [0.4] * 4, trained_on=1)]
    assert tables.write_tables(only, tmp_path, "none") == []


def test_all_figures_of_a_comparison_are_drawn_and_missing_results_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, records in (
        ("run", result()["records"]),
        (
            "single",
            [record("momeha", None, 0, [0.4] * 4, group="single", trained_on=i) for i in range(4)],
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(
            json.dumps({"records": records, "seeds": [0, 1]})
        )
    assert (
        call(
            "experiment",
            "fewshot",
            "figures",
            tmp_path / "run",
            tmp_path / "single",
            "--out",
            tmp_path / "drawn",
            "--json",
        )
        == 0
    )
    written = answer(capsys)["files"]
    kinds = (
        "strengths.png",
        "exploration.png",
        "comparison.png",
        "training.png",
        "response.png",
        "methods.csv",
        "response.csv",
    )
    assert written == [*(f"run-{kind}" for kind in kinds), "single-single.png"]
    assert all((tmp_path / "drawn" / name).stat().st_size for name in written)
    shutil.copytree(tmp_path / "run", tmp_path / "other" / "run")
    assert (
        call("experiment", "fewshot", "figures", tmp_path / "run", tmp_path / "other" / "run") == 2
    )
    assert "two of the runs are named run" in capsys.readouterr().err
    assert call("experiment", "fewshot", "figures", tmp_path) == 2
    assert (
        "holds no results.json; it is made with: bipareto experiment fewshot comparison"
        in capsys.readouterr().err
    )
    # Of a folder that is not there none is made, and another experiment's results are told apart.
    assert call("experiment", "fewshot", "figures", tmp_path / "none") == 2
    assert "does not exist; it is made with" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    (tmp_path / "run" / "results.json").write_text(
        json.dumps({"records": [{"genotype": {}}], "settings": {}})
    )
    assert call("experiment", "fewshot", "figures", tmp_path / "run") == 2
    assert "holds no few-shot study; give the folder of" in capsys.readouterr().err


def test_a_refinement_begins_with_the_shared_backbone_and_differs_by_the_preference_alone(
    tmp_path: Path,
) -> None:
    study = Study(generated(), tmp_path, 4, [0, 3], episodes=8)
    result = refinement(study, ["moderate"], steps=2, scalarizations=["stch", "linear"])
    shared, refined, linear = (
        [r for r in result["records"] if r["method"] == f"momeha, {name}"]
        for name in ("shared", "stch", "linear")
    )
    assert [r["seed"] for r in shared] == [0, 3]
    assert [(r["seed"], max(r["preference"])) for r in refined] == [
        (seed, w) for seed in (0, 3) for w in (0.25, 0.4, 0.4, 0.4, 0.4)
    ]
    # Nothing but the preference: the same one twice ends alike, with the step it was given.
    method = configured(
        "momeha",
        "block",
        4,
        steps=2,
        numbers={"alpha_x": 0.3 * MOVING["block"][0], "scalarization": "stch"},
    )
    assert refined[0]["numbers"] == repr(method)
    start = train(
        study.task, [Trial(study.method("momeha"), (0.25,) * 4, seed) for seed in (0, 3)], 4
    ).x
    again = train(
        study.task,
        [Trial(method, (0.25,) * 4, 3, draws=1003)],
        2,
        begin=tree.map_(lambda leaf: leaf[1:], start),
    )
    assert study.judge(tree.select(again.x, 0), 3)["accuracy"] == pytest.approx(
        refined[5]["accuracy"], abs=1e-6
    )
    rises = summary(result)["momeha, linear"]["response"]
    assert [a["domain"] for a in rises] == [0, 1, 2, 3]
    assert rises[0]["rise"] == pytest.approx(
        sum(linear[k + 1]["accuracy"][0] - linear[k]["accuracy"][0] for k in (0, 5)) / 2
    )
    assert "run-response.png" in draw(result, tmp_path, "run")
    # The same call goes on from what is kept.
    assert (
        refinement(Study(generated(), tmp_path, 4, [0, 3], episodes=8), ["moderate"], steps=2)[
            "records"
        ][-1]["accuracy"]
        == refined[-1]["accuracy"]
    )
