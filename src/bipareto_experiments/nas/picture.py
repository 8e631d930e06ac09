"""Pictures of cells as SVG: nodes are columns, every edge is an arrow in a row of its own, so that
nothing can overlap.
"""

from __future__ import annotations

from html import escape

from bipareto.fronts.drawing import COLOURS
from bipareto_experiments.nas.genotype import Chosen, Genotype
from bipareto_experiments.nas.spaces import Kind, Space

_COLUMN, _ROW, _MARGIN, _HEAD = 130, 34, 70, 58
_GREY = "#999999"
#: Operations of one kind share a colour; "none" is grey and dashed.
_COLOUR: dict[Kind, str] = {
    "none": _GREY,
    "skip": COLOURS[2],
    "max": COLOURS[4],
    "average": COLOURS[4],
    "plain": COLOURS[0],
    "separable": COLOURS[0],
    "dilated": COLOURS[1],
}


def svg(genotype: Genotype, title: str = "") -> str:
    """The cells of an architecture, one below the other, as the text of an SVG file.  Equal
    genotypes give equal text.
    """
    space = genotype.space
    width = 2 * _MARGIN + _COLUMN * (len(space.nodes) - 1)
    parts, top = [], 0
    if title:
        parts.append(_text(width / 2, 24, title, size=15, weight="bold"))
        top = 34
    for kind, chosen in genotype.cells.items():
        parts += _cell(space, kind, chosen, top)
        top += _HEAD + _ROW * len(chosen) + 26
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 '
        f'{width} {top}" '
        f'font-family="Helvetica, Arial, sans-serif">\n<rect width="{width}" height="{top}" '
        f'fill="white"/>\n{body}\n</svg>\n'
    )


def _cell(space: Space, kind: str, chosen: tuple[Chosen, ...], top: int) -> list[str]:
    """A heading, a column for each node, an arrow for each edge."""
    foot = top + _HEAD + _ROW * len(chosen) + 6
    heading = f"{kind} cell" if len(space.kinds) > 1 else space.name
    if space.given > 1:
        heading += f": its output is nodes {', '.join(space.nodes[space.given :])} side by side"
    parts = [_text(10, top + 18, heading, anchor="start", weight="bold")]
    for n, name in enumerate(space.nodes):
        x = _MARGIN + _COLUMN * n
        parts.append(
            f'<line x1="{x}" y1="{top + 48}" x2="{x}" y2="{foot}" stroke="#cccccc" '
            'stroke-width="2"/>'
        )
        parts.append(
            f'<rect x="{x - 38}" y="{top + 27}" width="76" height="22" rx="6" fill="#eeeeee" '
            'stroke="#666666"/>'
        )
        parts.append(_text(x, top + 42, name))
    for row, (edge, name) in enumerate(chosen):
        y = top + _HEAD + _ROW * row + 24
        start, end = (_MARGIN + _COLUMN * node for node in (edge.source, edge.target))
        operation = space.operations[space.names.index(name)]
        colour = _COLOUR[operation.kind]
        dash = ' stroke-dasharray="4 4"' if operation.kind == "none" else ""
        parts.append(
            f'<line x1="{start}" y1="{y}" x2="{end - 9}" y2="{y}" stroke="{colour}" '
            f'stroke-width="2.5"{dash}/>'
        )
        parts.append(f'<path d="M {end} {y} l -10 -5 l 0 10 z" fill="{colour}"/>')
        parts.append(f'<circle cx="{start}" cy="{y}" r="3.5" fill="{colour}"/>')
        # In the gap before the target no column runs through the words.
        parts.append(_text(end - _COLUMN / 2, y - 6, name))
    return parts


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    anchor: str = "middle",
    weight: str = "normal",
) -> str:
    font = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="#222222"'
    return f'<text x="{x:g}" y="{y:g}" {font}>{escape(words)}</text>'
