"""How pictures look, what they call objectives, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from os import PathLike
from typing import TYPE_CHECKING, Any

from bipareto.errors import InvalidInput
from bipareto.problem import validation
from bipareto.problem.checks import labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's colours
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
#: a marker for each of them
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
#: A method's colour and marker.  MOMEHA's forms share a colour, and so do MOML and DARTS, which
#: meet in no experiment.
_OF_METHOD = {
    "momeha": (COLOURS[0], "o"),
    "mb-momeha": (COLOURS[0], "p"),
    "mb-momeha-joint": ("#332288", "o"),
    "mb-momeha-nested": ("#332288", "p"),
    "meha": (COLOURS[0], "h"),
    "wc-mhgd": (COLOURS[1], "s"),
    "wc-penalty": (COLOURS[2], "^"),
    "moco": (COLOURS[3], "D"),
    "moml": (COLOURS[4], "v"),
    "darts": (COLOURS[4], "*"),
    "forum": (COLOURS[5], "P"),
    "gmoba": (COLOURS[6], "X"),
    "random": (COLOURS[7], "*"),
    # beyond the eight: Tol's wine; his indigo above
    "twin": ("#882255", "d"),
}


def labels_for(m: int, names: Sequence[str] | None = None) -> Sequence[str]:
    """The given names, or f_1, f_2, ... in mathematics."""
    if names is None:
        return [rf"$f_{{{i + 1}}}$" for i in range(m)]
    found = labels(names)
    if len(found) != m:
        raise InvalidInput(f"names has {len(found)} entries {found}, but there are {m} objectives")
    return found


def styles(names: Sequence[str]) -> list[dict[str, Any]]:
    """A colour and a marker for each name: a method's own where it first occurs; the others take,
    in their order, colours that are left.

    >>> colours = [style["color"] for style in styles(["moco", "momeha", "momeha"])]
    >>> colours == [COLOURS[3], COLOURS[0], COLOURS[1]]
    True
    """
    taken = {_OF_METHOD[name][0] for name in names if name in _OF_METHOD}
    pairs = list(zip(COLOURS, MARKERS, strict=True))
    left = cycle([pair for pair in pairs if pair[0] not in taken] or pairs)
    own = [
        _OF_METHOD[name] if name in _OF_METHOD and name not in names[:i] else next(left)
        for i, name in enumerate(names)
    ]
    return [{"color": colour, "marker": marker} for colour, marker in own]


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure; the ending of the path decides the format.  No version or date goes in: equal
    fronts give equal files.
    """
    path = validation.path(path, "front.pdf")
    kind = path.suffix.removeprefix(".").lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise InvalidInput(
            f"a figure cannot be written to {path}; let its name end in one of {', '.join(known)}"
        )
    nothing: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
    }
    try:
        figure.savefig(path, dpi=150, metadata=nothing.get(kind))
    except OSError as error:
        raise InvalidInput(
            f"a figure cannot be written to {validation.shown(str(path))} ({error.strerror}); "
            "give a file in a folder that exists"
        ) from error
