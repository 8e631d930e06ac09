"""Options that the commands of several experiments have, and groups of options as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from bipareto.cli.values import taking

Device = Annotated[
    str | None, taking("NAME", "cpu or cuda; a GPU where there is one if none.", "--device")
]
Tiny = Annotated[
    bool,
    typer.Option(
        "--tiny", help="Generated images and a small network: a first try in under a minute."
    ),
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take options as the fields of a dataclass.

    A parameter that is annotated with a dataclass is replaced, in the signature that Typer reads,
    by the dataclass's fields, each an `Annotated` option with its default.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if hasattr(kind, "__dataclass_fields__")}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        own = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=own[item.name],
                default=inspect.Parameter.empty if item.default is MISSING else item.default,
            )
            for item in fields(groups[name])
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: kind(**{item.name: given.pop(item.name) for item in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **given)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
