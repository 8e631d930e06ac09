"""What y and x have learned of the upper level's data."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Leak(NamedTuple):
    """Objectives (m,) at the y that a run returned (None where that is the next row), with y solved
    or trained on g alone, and the same on data that no step has seen (None without `test_data`).

    From the first row to the second y unlearns what F's pull has taught it of the upper level's
    data; from the second to the third x is judged on data that it did not learn from.
    """

    own: Tensor | None
    objectives: Tensor
    test: Tensor | None

    def rows(self) -> list[tuple[str, Tensor]]:
        """What is known, each with its name."""
        names = ("y as returned", "y trained on g", "held-out data")
        return [(name, row) for name, row in zip(names, self, strict=True) if row is not None]

    def __str__(self) -> str:
        return "\n".join(
            f"{name:16}" + "".join(f"{value:12.5g}" for value in row.tolist())
            for name, row in self.rows()
        )
