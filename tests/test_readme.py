"""The code of the README and of every page of docs/ runs as it stands there, block after block."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if "```python" in path.read_text())


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def run(path: Path) -> Iterator[dict[str, Any]]:
    """The names after each block."""
    page = types.ModuleType("page")
    sys.modules["page"] = page  # dataclasses look their module up
    for number, block in enumerate(blocks(path)):
        exec(compile(block, f"{path.name}, block {number + 1}", "exec"), vars(page))
        yield dict(vars(page))
    del sys.modules["page"]


def test_the_readmes_blocks_run_one_after_the_other() -> None:
    first, second, third, modules = run(README)
    front = first["front"]
    assert front.lower_residual.max() <= 1e-7  # a tolerance relative to the first
    one, other = front.objectives.T
    # The first preference weighs f_1 most: along the grid f_1 rises and f_2 falls.
    assert bool((one.diff() > 0).all())
    assert bool((other.diff() < 0).all())
    assert second["answer"].reason == "steps"
    assert int(third["state"].t) == 10

    # The newcomer's script: a front of modules with BatchNorm and DataLoaders, in at most fifteen
    # statements.
    assert len(ast.parse(blocks(README)[3]).body) <= 22  # written to be read, not to be short
    assert blocks(README)[3].count("device)") == 2  # the model and the weights
    front, net = modules["front"], modules["net"]
    assert front.batched
    assert torch.isfinite(front.objectives).all()
    # Beyond the noise of three hundred steps on batches: the ends of the front trade one domain for
    # the other.
    assert float(front.objectives[0, 0]) < float(front.objectives[-1, 0]) - 0.1
    assert float(front.objectives[0, 1]) > float(front.objectives[-1, 1]) + 0.1
    assert bool((front.objectives < 1.5).all())  # guessing has a loss of 2.3
    assert int(net[1].num_batches_tracked) == 1
    assert torch.equal(net[0].weight, front.y["0.weight"][2])


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(run(page))


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{path.name}: {target}"
        for path in [README, *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"\]\((?!http)([\w./-]+)\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert not broken
