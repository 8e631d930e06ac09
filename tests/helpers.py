"""What several test files use: small problems, command lines as users type them, what a run folder
tells, waiting.
"""

from __future__ import annotations

import gzip
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bipareto as bp
from bipareto.cli import main
from bipareto_battery.cases import DICT_PROBLEM, dict_start

__all__ = [
    "DICT_PROBLEM",
    "DOUBLE",
    "answer",
    "attempts",
    "call",
    "dict_start",
    "interrupted_at",
    "nonconvex",
    "quadratic",
    "wait_for",
    "write_image_sets",
]

DOUBLE = torch.float64


def call(*words: object) -> int:
    """The exit code of a command line, typed word by word."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0)


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What a command with --json said last."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def attempts(run: Path) -> list[list[dict[str, Any]]]:
    """Per slice of a run: by whom and at which step it was taken up; a line that is being written
    is left out, and so are those of checkpoints.
    """
    found = []
    for file in sorted(run.glob("slices/*/attempts.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        found.append([line for line in lines if "saved" not in line])
    return found


def wait_for(look: Callable[[], Any], seconds: float = 600) -> Any:
    """What `look` finds, once it finds something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing happened within {seconds} s")


def interrupted_at(problem: bp.Problem, call: int) -> Callable[[Any, Any], Tensor]:
    """The problem's g, with Ctrl-C pressed while it is evaluated for the `call`-th time."""
    count = 0

    def lower(x: Any, y: Any) -> Tensor:
        nonlocal count
        count += 1
        if count == call:
            raise KeyboardInterrupt
        return problem.lower(x, y)

    return lower


def nonconvex(
    d: int = 3, m: int = 2, seed: int = 0, device: str = "cpu"
) -> tuple[bp.Problem, Tensor, Tensor]:
    """m quadratic objectives over g(x, y) = sum phi(y - Ax), phi(u) = u^2/2 + 1.5 sin^2 u, and a
    random start.
    """
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=DOUBLE).to(device)

    A, p, q = 0.5 * normal(d, d), normal(m, d), normal(m, d)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * ((x - p).square().sum(1) + (y - q).square().sum(1)) + 1

    def lower(x: Tensor, y: Tensor) -> Tensor:
        u = y - A @ x
        return (0.5 * u.square() + 1.5 * u.sin().square()).sum()

    return bp.Problem(upper, lower), normal(d), normal(d)


def quadratic(scale: Tensor | None = None) -> tuple[bp.Problem, Tensor, Tensor]:
    """Two objectives over a lower level with y* = x, and a start away from everything."""
    factors = torch.ones(2, dtype=DOUBLE) if scale is None else scale

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return factors * torch.stack(
            [
                (x - 1).square().sum() + y.square().sum() + 1,
                x.square().sum() + (y - 2).square().sum() + 1,
            ]
        )

    return (
        bp.Problem(upper, lambda x, y: (y - x).square().sum() / 2),
        torch.full((3,), 0.3, dtype=DOUBLE),
        torch.full((3,), -0.5, dtype=DOUBLE),
    )


def write_image_sets(folder: Path) -> None:
    """scikit-learn's 8x8 digits, blown up to 28x28, as idx files: upright in the place of MNIST,
    upside down (and gzipped) of Fashion-MNIST.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.pad(np.kron(found.images * 15.9375, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    for name, turned in (("mnist", False), ("fashion-mnist", True)):
        (folder / name).mkdir()
        pixels = images[:, ::-1, ::-1] if turned else images
        for part, rows in (("train", slice(0, 1000)), ("t10k", slice(1000, None))):
            for kind, values in (
                ("images-idx3", pixels[rows]),
                ("labels-idx1", found.target[rows]),
            ):
                data = (
                    struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
                    + values.astype(np.uint8).tobytes()
                )
                path = folder / name / f"{part}-{kind}-ubyte"
                if turned:
                    path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 1))
                else:
                    path.write_bytes(data)
