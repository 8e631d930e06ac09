"""The README's code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_blocks_run_one_after_the_other() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    space: dict[str, object] = {}
    for block in blocks:
        exec(block, space)
    front, answer, state = (space[name] for name in ("front", "answer", "state"))
    assert front.lower_residual.max() <= 1e-8  # type: ignore[attr-defined]
    first, second = front.objectives.T  # type: ignore[attr-defined]
    # The first preference weighs f_1 most: along the grid f_1 rises and f_2 falls.
    assert bool((first.diff() > 0).all())
    assert bool((second.diff() < 0).all())
    assert answer.reason == "steps"  # type: ignore[attr-defined]
    assert int(state.t) == 10  # type: ignore[attr-defined]
