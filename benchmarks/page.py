"""How long a page takes to open in Chromium: ten thousand points and a million logged steps.

    python benchmarks/page.py [--json FILE]

The page is made from a front of random points and records of one run; it is opened from the disk in
headless Chromium with graphics in software, five times.  Counted from the start of the navigation
until the front is shown and can be used, and until every chart is drawn; beside the clock stands
the processor time of the page's main thread, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bipareto.fronts.pareto import ParetoFront
from bipareto.methods.parts.preferences import random as draw
from bipareto.report.page import build, write_page
from bipareto.sweep.reading import read_runs

ARGUMENTS = [
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
]


def large_page(folder: Path, points: int, records: int) -> dict[str, Any]:
    """Write large.html; returns its size and how long that took."""
    w = draw(2, points)
    front = ParetoFront(
        x=torch.zeros(points, 2),
        y=torch.zeros(points, 2),
        objectives=(1 - w).square() + 0.05 * draw(2, points, 1),
        preference=w,
        seed=torch.zeros(points, dtype=torch.long),
        reason=("steps",) * points,
        failure=(None,) * points,
        seconds=1.0,
    )
    front.save(folder / "front.npz")
    stream = random.Random(0)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for t in range(1, records + 1):
            value = 1 / math.sqrt(t) + 0.01 * stream.random() + (5.0 if t == records // 3 else 0.0)
            row = {
                "step": t,
                "objectives": [[value, 2 * value]],
                "gap": [value / 10],
                "stationarity": [value],
            }
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
    begin = time.perf_counter()
    report = build(read_runs(folder), title="large", version="")
    write_page(report, folder / "large.html")
    curve = report["runs"][0]["curves"]["values"][0][0]
    spike = any(value > 4 for value in curve if value is not None)
    return {
        "megabytes": (folder / "large.html").stat().st_size / 1e6,
        "seconds_to_write": time.perf_counter() - begin,
        "spike_survives": spike,
    }


def opening(browser: Any, page: Path) -> dict[str, float]:
    """Seconds until the front is shown and until all is drawn, by the browser's clock, and
    processor seconds of the main thread.
    """
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable")
    tab.goto(page.absolute().as_uri())
    tab.wait_for_selector("html[data-ready=true]", timeout=120_000)
    found = {name: tab.evaluate(f"window.{name}At") / 1000 for name in ("shown", "drawn")}
    metrics = {
        item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]
    }
    tab.close()
    return {**found, "processor": metrics["ThreadTime"], "load": os.getloadavg()[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        facts = large_page(Path(folder), options.points, options.records)
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        facts |= {"points": options.points, "records": options.records, "chromium": browser.version}
        facts["opened"] = [opening(browser, Path(folder) / "large.html") for _ in range(5)]
        browser.close()
    print(json.dumps(facts, indent=1))
    if options.json:
        facts |= {
            "machine": "2-core x86 CPU",
            "graphics": "software",
            "python": platform.python_version(),
        }
        facts |= {
            "command": "python benchmarks/page.py --json docs/results/page.json",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }
        Path(options.json).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
