"""The page of a report in a real browser: clicks, sliders, keys, hostile names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bipareto as bp
from bipareto import problems
from bipareto.errors import InvalidInput
from bipareto.pareto import ParetoFront
from bipareto.preferences import grid
from bipareto.report.page import build, write_page
from bipareto.report.runs import ReportRun, read_runs
from browser import chromium, opened

pytest.importorskip("plotly", reason="pages need plotly")

HOSTILE = "</script><img src=x onerror=alert(1)><b>run</b> & $x$ 'q\" %{x}"


def made(folder: Path, m: int, per_edge: int, seeds: tuple[int, ...] = (0,), shift: float = 0.0) -> Path:
    """A folder as `bipareto front --out` writes it, with exact points of a known problem instead of a run."""
    folder.mkdir(parents=True)
    known = problems.get("quadratic", dim=4, m=m)
    w = grid(m, per_edge).repeat(len(seeds), 1)
    exact = [known.solution(one) for one in w]
    runs = len(w)
    ParetoFront(
        x=torch.stack([point.x for point in exact]),
        y=torch.stack([point.y for point in exact]),
        objectives=torch.stack([point.objectives for point in exact]) + shift * (1 + torch.arange(runs, dtype=torch.float64)[:, None] % 3),
        preference=w,
        seed=torch.tensor(seeds).repeat_interleave(runs // len(seeds)),
        reason=("steps",) * runs,
        failure=(None,) * runs,
        seconds=1.5,
        lower_residual=torch.zeros(runs),
    ).save(folder / "front.npz")
    asked = {"problem": {"name": "quadratic", "dim": 4, "m": m}, "method": {"name": "momeha", "gamma": 0.5}}
    (folder / "front.json").write_text(json.dumps(asked))
    lines = [{"step": 10 * k, "objectives": [[1 / k] * m] * runs, "gap": [0.1 / k] * runs, "stationarity": [1.0 / k] * runs} for k in range(1, 30)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def page(runs: list[ReportRun], target: Path) -> Path:
    write_page(build(runs, title="a title", version="0"), target)
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def panel(tab: Any) -> str:
    return tab.inner_text("#panel")


def test_a_click_selects_a_point_and_its_line_of_code_works(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(Path("runs/a"), 2, 7)
    with opened(browser, page(read_runs(Path("runs/a")), tmp_path / "a.html")) as tab:
        assert "Point 3 of runs/a" in panel(tab)
        # Where Plotly has drawn the point; SVG has an element for each.
        mark = tab.locator("#plot-front .scatterlayer .trace").nth(1).locator("path.point").nth(1).bounding_box()
        tab.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
        tab.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
        tab.wait_for_function("document.querySelector('#panel h3').textContent.startsWith('Point 1 ')")
        shown, code = panel(tab), tab.inner_text("#code")
    assert "kkt residual" in shown  # small and known, so certified
    assert "0.75, 0.25" in shown
    names: dict[str, Any] = {"bp": bp}
    exec(re.sub(r"\s+", " ", code).replace("point( ", "point("), names)
    wanted = problems.get("quadratic", dim=4, m=2).solution([0.75, 0.25])
    torch.testing.assert_close(names["x"], wanted.x)
    torch.testing.assert_close(names["y"], wanted.y)


def test_the_slider_and_the_keys_pick_points(browser: Any, tmp_path: Path) -> None:
    runs = read_runs(made(tmp_path / "a", 2, 9))
    w = runs[0].front.preference[:, 0]
    with opened(browser, page(runs, tmp_path / "a.html")) as tab:
        for value in (0.12, 0.44, 0.87):
            tab.evaluate("v => { const s = document.getElementById('weight-0'); s.value = v; s.dispatchEvent(new Event('input')); }", value)
            assert f"Point {int((w - value).abs().argmin())} of" in panel(tab)
        tab.focus("#plot-front")
        tab.keyboard.press("Home")
        assert "Point 0 of" in panel(tab)  # the largest weight of f1 has the smallest f1
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowRight")
        assert "Point 2 of" in panel(tab)
        tab.keyboard.press("End")
        assert "Point 8 of" in panel(tab)
        outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_everything_can_be_reached_by_tab(browser: Any, tmp_path: Path) -> None:
    with opened(browser, page(read_runs(made(tmp_path / "a", 2, 5)), tmp_path / "a.html")) as tab:
        reached = set()
        for _ in range(20):
            tab.keyboard.press("Tab")
            reached.add(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
        labels = tab.evaluate("[...document.querySelectorAll('[tabindex=\"0\"], input, button')].map(e => e.getAttribute('aria-label'))")
    assert {"theme", "plot-front", "weight-0", "SUMMARY"} <= reached
    assert all(labels)


def test_three_objectives_have_space_parallels_and_radar(browser: Any, tmp_path: Path) -> None:
    runs = read_runs(made(tmp_path / "a", 3, 4))
    w = runs[0].front.preference
    with opened(browser, page(runs, tmp_path / "a.html")) as tab:
        kinds = tab.evaluate("['front', 'parallel', 'radar'].map(n => document.getElementById('plot-' + n).data.at(-1).type)")
        tab.evaluate("v => { const s = document.getElementById('weight-1'); s.value = v; s.dispatchEvent(new Event('input')); }", 0.6)
        weights = tab.evaluate("[...document.querySelectorAll('#sliders output')].map(o => Number(o.textContent))")
        chosen = int(re.match(r"Point (\d+) ", panel(tab)).group(1))  # type: ignore[union-attr]
        highlighted = tab.evaluate("document.getElementById('plot-parallel').data.at(-1).y")
    assert kinds in (["scatter3d", "scatter", "scatterpolar"], ["scatter", "scatter", "scatterpolar"])
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    assert weights[1] == pytest.approx(0.6)
    assert chosen == int((w - torch.tensor(weights)).square().sum(1).argmin())
    f = runs[0].front.objectives
    scaled = (f - f.amin(0)) / (f.amax(0) - f.amin(0))
    assert highlighted == pytest.approx(scaled[chosen].tolist(), abs=1e-6)


def test_a_comparison_has_bars_with_the_spread_over_seeds(browser: Any, tmp_path: Path) -> None:
    runs = [*read_runs(made(tmp_path / "a", 2, 5, seeds=(0, 1))), *read_runs(made(tmp_path / "b", 2, 5, seeds=(0, 1, 2), shift=0.05))]
    report = build(runs, title="two", version="0")
    write_page(report, tmp_path / "two.html")
    with opened(browser, tmp_path / "two.html") as tab:
        bars = tab.evaluate("document.getElementById('plot-hypervolume').data[0].y")
        dots = tab.evaluate("document.getElementById('plot-hypervolume').data[1].y.length")
        tab.select_option("#run", "1")
        assert str(tmp_path / "b") in panel(tab)
    assert bars == pytest.approx([np.mean(list(run["hypervolume_by_seed"].values())) for run in report["runs"]])
    assert bars[0] > bars[1]
    assert dots == 5


def test_a_hostile_name_is_shown_as_text(browser: Any, tmp_path: Path) -> None:
    (read,) = read_runs(made(tmp_path / "a", 2, 3))
    hostile = ReportRun(**{**vars(read), "name": HOSTILE, "config": HOSTILE})
    write_page(build([hostile, read], title=HOSTILE, version="0"), tmp_path / "hostile.html")
    with opened(browser, tmp_path / "hostile.html") as tab:
        assert tab.title() == HOSTILE
        assert tab.inner_text("#title") == HOSTILE
        assert HOSTILE in panel(tab)
        assert HOSTILE in tab.inner_text("#summary")
        legend = tab.evaluate("document.querySelector('#plot-front .legend').textContent")
        assert HOSTILE in legend
        assert tab.locator("main img, main b").count() == 0


def test_dark_light_and_paper(browser: Any, tmp_path: Path) -> None:
    target = page(read_runs(made(tmp_path / "a", 2, 3)), tmp_path / "a.html")

    def background(tab: Any) -> str:
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    with opened(browser, target, color_scheme="dark") as tab:
        assert background(tab) == "rgb(20, 23, 28)"
        tab.click("#theme")
        assert background(tab) == "rgb(255, 255, 255)"
        tab.click("#theme")
        tab.emulate_media(media="print")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert background(tab) == "rgb(255, 255, 255)"
        assert not tab.is_visible("#sliders")
    with opened(browser, target, color_scheme="light") as tab:
        assert background(tab) == "rgb(255, 255, 255)"


def test_runs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    runs = [*read_runs(made(tmp_path / "a", 2, 3)), *read_runs(made(tmp_path / "b", 3, 3))]
    with pytest.raises(InvalidInput, match="has 2 objectives and .*b has 3; write a page for each"):
        build(runs, title="", version="")


def test_runs_of_different_problems_are_not_ranked(tmp_path: Path) -> None:
    runs = [*read_runs(made(tmp_path / "a", 2, 3)), *read_runs(made(tmp_path / "b", 2, 3) / "front.npz")]
    report = build(runs, title="", version="")
    assert not report["comparable"]
    assert report["exact"] is None


def test_points_that_are_not_finite_leave_a_page(browser: Any, tmp_path: Path) -> None:
    (read,) = read_runs(made(tmp_path / "a", 2, 5))
    broken = read.front.objectives.clone()
    broken[1] = torch.nan
    runs = [ReportRun(**{**vars(read), "front": ParetoFront(**{**vars(read.front), "objectives": broken})})]
    with opened(browser, page(runs, tmp_path / "a.html")) as tab:
        tab.focus("#plot-front")
        for key in ("Home", "ArrowRight"):
            tab.keyboard.press(key)
        assert "Point 2 of" in panel(tab)


@pytest.mark.slow
def test_ten_thousand_points_and_a_million_steps_open_in_three_seconds(browser: Any, tmp_path: Path) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from page import large_page, seconds_to_open

    large_page(tmp_path, points=10_000, records=1_000_000)
    assert min(seconds_to_open(browser, tmp_path / "large.html") for _ in range(3)) < 3
