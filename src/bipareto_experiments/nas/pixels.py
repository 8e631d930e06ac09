"""Images as a network sees them: shifted, mirrored and cut as a draw says, so that nothing is
random but the draw.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from bipareto.errors import InvalidInput

#: A place so far outside that a square around it touches no pixel; places are in 2^-20 of the side.
_OUTSIDE, _UNIT = -(2**40), 2**20


class Draw(NamedTuple):
    """Images as rows (n,) of the data, and how each is changed.

    corner: where it is cut from its padded picture, (n, 2) as (top, left).
    flip: whether it is mirrored, (n,).
    hole: the centre of the square that is cut out, (n, 2).
    noise: numbers from 0 to 1 for what else is random, (k,); see `Search`.
    """

    rows: Tensor
    corner: Tensor
    flip: Tensor
    hole: Tensor
    noise: Tensor


class Augmentation(NamedTuple):
    """What may be done to an image.

    margin: pixels by which it may be shifted in each direction, 4 in DARTS; 0 for none.
    flip: mirror it with probability 1/2.
    cutout: side of a square that is blanked at a random place, 16 in DARTS; 0 for none.
    """

    margin: int = 0
    flip: bool = False
    cutout: int = 0

    def check(self) -> None:
        """Refuse what makes no sense."""
        if self.margin < 0 or self.cutout < 0:
            raise InvalidInput(
                f"margin = {self.margin}, cutout = {self.cutout}; neither may be negative"
            )

    def plain(self, rows: Tensor) -> Draw:
        """Rows of the data as they are."""
        corner = torch.full((len(rows), 2), self.margin, device=rows.device)
        return Draw(
            rows,
            corner,
            torch.zeros_like(rows, dtype=torch.bool),
            torch.full_like(corner, _OUTSIDE),
            corner.new_empty(0, dtype=torch.float32),
        )

    def shuffled(self, rows: Tensor, stream: torch.Generator) -> Draw:
        """The rows in a random order, each changed at random."""
        n = len(rows)
        where: dict[str, Any] = {"generator": stream, "device": rows.device}
        order = torch.randperm(n, **where)
        corner = torch.randint(2 * self.margin + 1, (n, 2), **where)
        mirrored = torch.rand(n, **where) < 0.5
        hole = torch.randint(_UNIT, (n, 2), **where)
        return Draw(
            rows[order],
            corner,
            mirrored if self.flip else torch.zeros_like(mirrored),
            hole,
            _nothing(rows),
        )


def _nothing(rows: Tensor) -> Tensor:
    return torch.empty(0, device=rows.device)


class Pixels:
    """The images of draws, each channel with mean 0 and variance 1 over the data.

    Args:
        images: (N, 3, H, H) uint8; they stay where they are.
        augmentation: of the draws that will be asked for.
        like: rows whose mean and variance count; None for all.
    """

    def __init__(
        self, images: Tensor, augmentation: Augmentation, like: Tensor | None = None
    ) -> None:
        seen = images if like is None else images[like]
        spread, mean = torch.std_mean(seen[:: max(1, len(seen) // 4096)].float() / 255, (0, 2, 3))
        self._scale, self._shift = (
            (1 / (255 * spread))[:, None, None],
            (mean / spread)[:, None, None],
        )
        self._padded = pad(images, (augmentation.margin,) * 4)
        self.size, self.augmentation = images.shape[-1], augmentation

    def __call__(self, draw: Draw) -> Tensor:
        """(n, 3, H, H): shifted and mirrored by one gather, then cut."""
        side = torch.arange(self.size, device=draw.rows.device)
        across = torch.where(draw.flip[:, None], side.flip(0), side) + draw.corner[:, 1:]
        down = side + draw.corner[:, :1]
        channel = torch.arange(3, device=draw.rows.device)
        chosen = self._padded[
            draw.rows[:, None, None, None],
            channel[:, None, None],
            down[:, None, :, None],
            across[:, None, None, :],
        ]
        pixels = chosen * self._scale - self._shift
        cutout = self.augmentation.cutout
        if not cutout:
            return pixels
        low = draw.hole * self.size // _UNIT - cutout // 2
        inside = (side >= low[:, :, None]) & (side < low[:, :, None] + cutout)
        return pixels * ~(inside[:, 0, :, None] & inside[:, 1, None, :]).unsqueeze(1)
