"""What all tests share: a fixed seed, one profile for property tests, and a sweep to compare
with.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a GPU machine need only run the tests marked gpu, which do without
    pass
else:
    # A first example may compile or import; a deadline would fail it for being first.
    settings.register_profile(
        "bipareto", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("bipareto")

#: read by type checkers, not run
collect_ignore = ["typing"]


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Tests that draw numbers draw the same ones alone and in the suite."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted sweep of the module's CONFIG."""
    from bipareto.sweep import sweep

    path = tmp_path_factory.mktemp("reference") / "run"
    sweep.sweep(request.module.CONFIG, path)
    return path
