"""The battery's marks, for packages whose configuration does not know them."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks."""
    for mark in ("slow: takes long", "gpu: needs a CUDA device"):
        config.addinivalue_line("markers", mark)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a device that is not there."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
