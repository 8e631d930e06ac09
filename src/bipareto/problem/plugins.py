"""Things of other packages, found by their entry points.

A package that declares, say,

    [project.entry-points."bipareto.methods"]
    mine = "package.module:Mine"

adds a method `mine` to `METHODS`, and so to the command line, to sweeps, comparisons and the
battery.  The groups are bipareto.methods, .problems, .scalarizations, .diagnoses, .engines and
.commands.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from bipareto.errors import BiparetoWarning

T = TypeVar("T")


def declared(group: str) -> dict[str, EntryPoint]:
    """What other packages declare for a group such as "methods", by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=f"bipareto.{group}")}


def loaded(entry: EntryPoint) -> Any:
    """The thing that an entry point names; None, with a warning, where it cannot be imported: one
    broken package does not take the others along.
    """
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001  whatever another package's import does
        package = "a package" if entry.dist is None else entry.dist.name
        warnings.warn(
            f"{entry.name} of {package} ({entry.group}: {entry.value}) cannot be imported "
            f"({type(error).__name__}: {error}) and is left out; mend or uninstall {package}",
            BiparetoWarning,
            stacklevel=3,
        )
        return None


class Registry(MutableMapping[str, T]):
    """Things by name: the library's own, then those of other packages, which are imported when the
    table is first looked at, so that they may import this library themselves.

    Args:
        group: of the entry points, e.g. "methods".
        own: the library's; a name of theirs stays theirs.
    """

    def __init__(self, group: str, own: Mapping[str, T]) -> None:
        self._group, self._things, self._complete = group, dict(own), False

    def _all(self) -> dict[str, T]:
        if not self._complete:
            self._complete = True  # first: a plugin may look at this table while it is imported
            for name, entry in declared(self._group).items():
                if name not in self._things and (thing := loaded(entry)) is not None:
                    self._things[name] = thing
        return self._things

    def __getitem__(self, name: str) -> T:
        return self._things[name] if name in self._things else self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __repr__(self) -> str:
        return f"Registry({self._group!r}, {', '.join(self)})"
