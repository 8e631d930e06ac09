"""The package as users meet it: lazy names, documented things, explicit exports."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import bipareto

SOURCE = Path(bipareto.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in ("bipareto", "bipareto_battery", "bipareto_experiments")
    for path in (SOURCE.parent / package).rglob("*.py")
    if path.name != "__main__.py"
)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'typer', 'rich'}"
    code = f"import sys, bipareto; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_front_loads_no_drawing() -> None:
    heavy = "{'matplotlib', 'scipy', 'sklearn', 'pandas'}"
    code = f"import sys, bipareto; bipareto.front; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", bipareto.__all__)
def test_public_names_resolve_to_their_homes(name: str) -> None:
    value = getattr(bipareto, name)
    home, _, inside = bipareto._HOMES[name].partition(":")
    module = importlib.import_module(f"bipareto.{home}")
    assert value is (getattr(module, inside) if inside else module)
    assert name in dir(bipareto)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bipareto.nonsense  # noqa: B018


def test_type_checkers_see_the_names_that_are_loaded_lazily() -> None:
    """The imports under TYPE_CHECKING, the table of homes and __all__ say the same."""
    block = next(
        node
        for node in ast.parse((SOURCE / "__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.If)
    )
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    parents = {
        name: home.replace(":", ".").rpartition(".")[0] for name, home in bipareto._HOMES.items()
    }
    assert seen == {name: f"bipareto.{parent}".rstrip(".") for name, parent in parents.items()}


@pytest.mark.parametrize("name", MODULES)
def test_modules_list_their_exports(name: str) -> None:
    """Public modules do; of the others, names without an underscore are for others."""
    module = importlib.import_module(name)
    public = {f"bipareto.{home}" for home in bipareto._HOMES.values() if ":" not in home}
    assert hasattr(module, "__all__") or name not in public
    missing = [export for export in getattr(module, "__all__", ()) if not hasattr(module, export)]
    assert not missing, f"{name}.__all__ names things it does not have: {missing}"


@pytest.mark.parametrize("name", MODULES)
def test_public_methods_are_documented(name: str) -> None:
    """A docstring of their own, or the one they inherit: an override need not repeat it."""
    module = importlib.import_module(name)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == name
    ]
    silent = [
        f"{cls.__name__}.{member}"
        for cls in classes
        if not cls.__name__.startswith("_") and not getattr(cls, "_is_protocol", False)
        for member, value in vars(cls).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        if not inspect.getdoc(getattr(cls, member))
    ]
    assert not silent, f"{name}: no docstring: {silent}"
