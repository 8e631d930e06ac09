"""The page of a report in a real browser: clicks, sliders, keys, hostile names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bipareto as bp
from bipareto import problems
from bipareto.errors import BiparetoWarning, InvalidInput
from bipareto.fronts.pareto import ParetoFront
from bipareto.methods.parts.preferences import grid
from bipareto.report.page import build, write_page
from bipareto.sweep.config import ProblemConfig, SweepConfig, dump
from bipareto.sweep.reading import StoredRun, read_runs
from bipareto.sweep.store import RunFolder
from browser import chromium, opened

pytest.importorskip("plotly", reason="pages need plotly")

HOSTILE = "</script><img src=x onerror=alert(1)><b>run</b> & $x$ 'q\" %{x}"


def made(
    folder: Path, m: int, per_edge: int, seeds: tuple[int, ...] = (0,), shift: float = 0.0
) -> Path:
    """A folder as `bipareto front --out` writes it, with exact points of a known problem instead of
    a run.
    """
    folder.mkdir(parents=True)
    known = problems.get("quadratic", dim=4, m=m)
    w = grid(m, per_edge).repeat(len(seeds), 1)
    exact = [known.solution(one) for one in w]
    runs = len(w)
    ParetoFront(
        x=torch.stack([point.x for point in exact]),
        y=torch.stack([point.y for point in exact]),
        objectives=torch.stack([point.objectives for point in exact])
        + shift * (1 + torch.arange(runs, dtype=torch.float64)[:, None] % 3),
        preference=w,
        seed=torch.tensor(seeds).repeat_interleave(runs // len(seeds)),
        reason=("steps",) * runs,
        failure=(None,) * runs,
        seconds=1.5,
        lower_residual=torch.zeros(runs),
    ).save(folder / "front.npz")
    config = SweepConfig(ProblemConfig("quadratic", {"dim": 4, "m": m}))
    manifest = {"runs": runs, "slice": runs, "slices": 1, "m": m, "method": {"gamma": 0.5}}
    RunFolder(folder).create(dump(config), manifest)
    lines = [
        {
            "step": 10 * k,
            "objectives": [[1 / k] * m] * runs,
            "gap": [0.1 / k] * runs,
            "stationarity": [1.0 / k] * runs,
        }
        for k in range(1, 30)
    ]
    records = RunFolder(folder).slice(0).path / "metrics.jsonl"
    records.parent.mkdir(parents=True)
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def page(runs: list[StoredRun], target: Path) -> Path:
    write_page(build(runs, title="a title", version="0"), target)
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


# Opening a page takes a browser a second or more, so tests share three of them.


@pytest.fixture(scope="module")
def plane(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, StoredRun]]:
    """Two objectives, nine preferences, the run at 1 not finite; the browser prefers dark."""
    folder = tmp_path_factory.mktemp("plane")
    (read,) = read_runs(made(folder / "a", 2, 9))
    broken = read.front.objectives.clone()
    broken[1] = torch.nan
    run = StoredRun(
        **{**vars(read), "front": ParetoFront(**{**vars(read.front), "objectives": broken})}
    )
    with pytest.warns(BiparetoWarning, match="1 of 9 rows hold NaN or infinity"):
        shown = page([run], folder / "a.html")
    with opened(browser, shown, color_scheme="dark") as tab:
        yield tab, run


@pytest.fixture(scope="module")
def space(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, StoredRun]]:
    """Three objectives."""
    folder = tmp_path_factory.mktemp("space")
    (run,) = read_runs(made(folder / "a", 3, 4))
    with opened(browser, page([run], folder / "a.html")) as tab:
        yield tab, run


@pytest.fixture(scope="module")
def two(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Two runs with two and three seeds; the first has a hostile name, and so has the page."""
    folder = tmp_path_factory.mktemp("two")
    (first,) = read_runs(made(folder / "a", 2, 5, seeds=(0, 1)))
    (second,) = read_runs(made(folder / "b", 2, 5, seeds=(0, 1, 2), shift=0.05))
    report = build(
        [StoredRun(**{**vars(first), "name": HOSTILE, "config": HOSTILE}), second],
        title=HOSTILE,
        version="0",
    )
    write_page(report, folder / "two.html")
    with opened(browser, folder / "two.html") as tab:
        yield tab, report


def panel(tab: Any) -> str:
    return tab.inner_text("#panel")


def slide(tab: Any, k: int, value: float) -> None:
    tab.evaluate(
        "([k, v]) => { const s = document.getElementById('weight-' + k); s.value = v; "
        "s.dispatchEvent(new Event('input')); }",
        [k, value],
    )


def background(tab: Any) -> str:
    return tab.evaluate("getComputedStyle(document.body).backgroundColor")


def test_a_click_selects_a_point_and_its_line_of_code_works(plane: tuple[Any, StoredRun]) -> None:
    tab, _ = plane
    # Where Plotly has drawn the point: SVG has an element for each that is finite.
    mark = (
        tab.locator("#plot-front .scatterlayer .trace")
        .nth(1)
        .locator("path.point")
        .nth(1)
        .bounding_box()
    )
    tab.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    tab.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    tab.wait_for_function("document.querySelector('#panel h3').textContent.startsWith('Point 2 ')")
    assert "kkt residual" in panel(tab)  # small and known, so certified
    assert "(0.7, 0.3)" in panel(tab)
    names: dict[str, Any] = {"bp": bp}
    exec(tab.evaluate("document.getElementById('code').textContent"), names)
    wanted = problems.get("quadratic", dim=4, m=2).solution([0.7, 0.3])
    torch.testing.assert_close(names["x"], wanted.x)
    torch.testing.assert_close(names["y"], wanted.y)


def test_the_slider_picks_the_nearest_solution_that_is_finite(plane: tuple[Any, StoredRun]) -> None:
    tab, run = plane
    w = run.front.preference[:, 0]
    for value in (0.12, 0.44, 0.69):
        slide(tab, 0, value)
        assert f"Point {int((w - value).abs().argmin())} of" in panel(tab)
        assert tab.evaluate("document.getElementById('plot-front').data.at(-1).x") == pytest.approx(
            [float(run.front.objectives[(w - value).abs().argmin(), 0])]
        )
    slide(tab, 0, 0.79)  # the run at 0.8 is not finite
    assert "Point 2 of" in panel(tab)


def test_arrow_keys_go_from_point_to_point(plane: tuple[Any, StoredRun]) -> None:
    tab, _ = plane
    tab.focus("#plot-front")
    for key, point in (
        ("Home", 0),
        ("ArrowRight", 2),
        ("ArrowDown", 3),
        ("ArrowLeft", 2),
        ("End", 8),
        ("ArrowRight", 8),
    ):
        tab.keyboard.press(key)
        assert f"Point {point} of" in panel(
            tab
        )  # the largest weight of f1 comes first, having the smallest f1
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_everything_can_be_reached_by_tab(plane: tuple[Any, StoredRun]) -> None:
    tab, _ = plane
    tab.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(20):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "plot-front", "weight-0", "SUMMARY"} <= reached
    labels = tab.evaluate(
        "[...document.querySelectorAll('[tabindex=\"0\"], input, button')].map(e => "
        "e.getAttribute('aria-label'))"
    )
    assert all(labels)


def test_dark_light_and_paper(plane: tuple[Any, StoredRun]) -> None:
    tab, _ = plane
    assert background(tab) == "rgb(20, 23, 28)"
    tab.click("#theme")
    assert background(tab) == "rgb(255, 255, 255)"
    assert tab.evaluate("document.getElementById('plot-front').layout.font.color") == "#1b1f24"
    tab.click("#theme")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert background(tab) == "rgb(255, 255, 255)"
    assert not tab.is_visible("#sliders")
    assert (
        max(
            tab.evaluate(
                "[...document.querySelectorAll('.main-svg')].map(e => "
                "e.getBoundingClientRect().right)"
            )
        )
        <= 700
    )  # of a sheet's 718
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.emulate_media(media="screen")
    assert background(tab) == "rgb(20, 23, 28)"


def test_three_objectives_have_space_parallels_and_radar(space: tuple[Any, StoredRun]) -> None:
    tab, run = space
    kinds = tab.evaluate(
        "['front', 'parallel', 'radar'].map(n => document.getElementById('plot-' + "
        "n).data.at(-1).type)"
    )
    assert kinds in (
        ["scatter3d", "scatter", "scatterpolar"],
        ["scatter", "scatter", "scatterpolar"],
    )  # the latter without WebGL
    slide(tab, 1, 0.6)
    weights = tab.evaluate(
        "[...document.querySelectorAll('#sliders output')].map(o => Number(o.textContent))"
    )
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    assert weights[1] == pytest.approx(0.6)
    f, chosen = (
        run.front.objectives,
        int((run.front.preference - torch.tensor(weights)).square().sum(1).argmin()),
    )
    assert f"Point {chosen} of" in panel(tab)
    scaled = (f - f.amin(0)) / (f.amax(0) - f.amin(0))
    assert tab.evaluate("document.getElementById('plot-parallel').data.at(-1).y") == pytest.approx(
        scaled[chosen].tolist(), abs=1e-6
    )
    assert tab.evaluate(
        "document.getElementById('plot-radar').data[0].r.slice(0, 3)"
    ) == pytest.approx((1 - scaled[chosen]).tolist(), abs=1e-6)


def test_a_hostile_name_is_shown_as_text(two: tuple[Any, dict[str, Any]]) -> None:
    tab, _ = two
    assert tab.title() == HOSTILE
    assert tab.inner_text("#title") == HOSTILE
    assert HOSTILE in panel(tab)
    assert HOSTILE in tab.inner_text("#summary")
    assert HOSTILE in tab.evaluate("document.querySelector('#plot-front .legend').textContent")
    assert HOSTILE in tab.evaluate("document.querySelector('#config pre').textContent")
    assert tab.locator("main img, main b").count() == 0


def test_a_comparison_has_bars_with_the_spread_over_seeds(two: tuple[Any, dict[str, Any]]) -> None:
    tab, report = two
    bars, dots = tab.evaluate(
        "document.getElementById('plot-hypervolume').data.map(trace => trace.y)"
    )
    assert bars == pytest.approx(
        [np.mean(list(run["hypervolume_by_seed"].values())) for run in report["runs"]]
    )
    assert bars[0] > bars[1]
    assert len(dots) == 5
    tab.select_option("#run", "1")
    assert report["runs"][1]["name"] in panel(tab)


def test_runs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    runs = [*read_runs(made(tmp_path / "a", 2, 3)), *read_runs(made(tmp_path / "b", 3, 3))]
    with pytest.raises(
        InvalidInput, match=r"has 2 objectives and .*b has 3; write a page for each"
    ):
        build(runs, title="", version="")


def test_runs_of_different_problems_are_not_ranked(tmp_path: Path) -> None:
    runs = [
        *read_runs(made(tmp_path / "a", 2, 3)),
        *read_runs(made(tmp_path / "b", 2, 3) / "front.npz"),
    ]
    report = build(runs, title="", version="")
    assert not report["comparable"]
    assert report["exact"] is None


@pytest.mark.slow
def test_ten_thousand_points_and_a_million_steps_open_in_three_seconds(
    browser: Any, tmp_path: Path
) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from page import large_page, opening

    large_page(tmp_path, points=10_000, records=1_000_000)
    # Processor time: other tests run beside this one.
    assert min(opening(browser, tmp_path / "large.html")["processor"] for _ in range(3)) < 3
