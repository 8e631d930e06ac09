"""Pytrees of tensors and their arithmetic.

A `Tree` is what x and y are made of: one tensor, or any nesting of dicts, lists, tuples and named
tuples of tensors. A single tensor takes a short path everywhere, because flattening a tree costs
more than a small tensor operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bipareto.errors import InvalidInput

__all__ = [
    "Tree",
    "add_scaled",
    "as_tree",
    "descend",
    "dot",
    "expand",
    "first_leaf",
    "flat_axis",
    "from_layout",
    "interpolate",
    "layout",
    "leaves",
    "map_",
    "named_leaves",
    "norm",
    "numbers",
    "ravel",
    "rebuild",
    "relative_distance",
    "select",
    "squared_norm",
    "stack",
    "structure",
    "sub",
    "unravel",
    "where_run",
    "zeros_like",
]

Tree: TypeAlias = Any
T = TypeVar("T")


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree in a fixed order."""
    if isinstance(tree, Tensor):
        return [tree]
    return list(tree) if _plain(tree) else pytree.tree_leaves(tree)


def numel(tree: Tree) -> int:
    """How many numbers a tree holds."""
    return sum(leaf.numel() for leaf in leaves(tree))


def structure(tree: Tree) -> str:
    """A printable form of a tree's nesting: trees with equal text have equal structure."""
    return str(pytree.tree_structure(tree))


def named_leaves(tree: Tree, name: str) -> list[tuple[str, Any]]:
    """Leaves with readable paths such as `x0['layer.weight']`, for error messages and files."""
    pairs, _ = pytree.tree_flatten_with_path(tree)
    return [(name + pytree.keystr(path), leaf) for path, leaf in pairs]


def map_(fn: Callable[..., Any], tree: T, *rest: T) -> T:
    """Apply `fn` leaf by leaf to trees of one structure."""
    if isinstance(tree, Tensor):
        return fn(tree, *rest)
    if _plain(tree):
        return tuple(fn(*each) for each in zip(tree, *rest, strict=True))  # type: ignore[return-value, call-overload]
    return pytree.tree_map(fn, tree, *rest)


def _plain(tree: Any) -> bool:
    """A pair (x, y) of tensors, say, which needs no walk through a tree."""
    # A list, since a generator costs as much as a small tensor operation.
    return type(tree) is tuple and all([isinstance(leaf, Tensor) for leaf in tree])


def first_leaf(tree: Tree) -> Tensor:
    """The first tensor: it decides device and dtype of a run."""
    return leaves(tree)[0]


def zeros_like(tree: Tree) -> Tree:
    """A tree of zeros of the same structure."""
    return map_(torch.zeros_like, tree)


def sub(a: Tree, b: Tree) -> Tree:
    """a - b."""
    return map_(torch.sub, a, b)


def add_scaled(a: Tree, scale: Tensor | float, b: Tree) -> Tree:
    """a + scale * b."""
    return map_(lambda u, v: u + scale * v, a, b)


def descend(a: Tree, step: Tensor, b: Tree) -> Tree:
    """a - step * b, in one operation per leaf; `step` is a 0-d tensor."""
    return map_(lambda u, v: torch.addcmul(u, step, v, value=-1), a, b)


def interpolate(a: Tree, b: Tree, weight: Tensor | float) -> Tree:
    """(1 - weight) * a + weight * b."""
    return map_(lambda u, v: torch.lerp(u, v, weight), a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product over all leaves, a 0-d tensor."""
    if isinstance(a, Tensor):
        return (a * b).sum()
    return torch.stack([(u * v).sum() for u, v in zip(leaves(a), leaves(b), strict=True)]).sum()


def squared_norm(a: Tree) -> Tensor:
    """||a||^2 over all leaves, a 0-d tensor."""
    if isinstance(a, Tensor):
        return torch.linalg.vector_norm(a).square()
    return dot(a, a)


def norm(a: Tree) -> Tensor:
    """||a|| over all leaves, a 0-d tensor."""
    return torch.linalg.vector_norm(a) if isinstance(a, Tensor) else dot(a, a).sqrt()


def relative_distance(a: Tree, b: Tree) -> Tensor:
    """||a - b|| / ||b|| over all leaves, a 0-d tensor."""
    return norm(sub(a, b)) / norm(b)


def numbers(tree: T, dtype: torch.dtype, device: torch.device) -> T:
    """Turn the Python numbers of a tree into 0-d tensors: data, and no part of a graph."""
    return pytree.tree_map(lambda value: torch.as_tensor(value, dtype=dtype, device=device), tree)


def stack(trees: list[T]) -> T:
    """One tree whose leaves carry a new first axis, one entry per given tree."""
    return pytree.tree_map(lambda *rows: torch.stack(rows), *trees)


def expand(tree: Tree, runs: int) -> Tree:
    """The same tree for `runs` runs: every leaf gets a first axis of that size, without a copy."""
    # Of a number `leaf.expand(1)` would have stride 0, which no file of tensors takes.
    return map_(lambda leaf: leaf[None].expand(runs, *leaf.shape), tree)


def select(tree: T, index: Any) -> T:
    """Index the first axis of every leaf: an int takes one run, a tensor or slice several."""
    return map_(lambda leaf: leaf[index], tree)


def where_run(mask: Tensor, a: T, b: T) -> T:
    """Per run: a where `mask` holds, else b; `mask` is of the run axis, () for a single run."""
    return map_(
        lambda u, v: torch.where(mask.reshape(mask.shape + (1,) * (u.dim() - mask.dim())), u, v),
        a,
        b,
    )


def ravel(tree: Tree, batch_dims: int = 0) -> Tensor:
    """All leaves side by side in one vector, or in rows when the first `batch_dims` axes are runs
    (or records, and runs).
    """
    return torch.cat([leaf.reshape(*leaf.shape[:batch_dims], -1) for leaf in leaves(tree)], dim=-1)


def rebuild(like: Tree, new_leaves: list[Tensor]) -> Tree:
    """A tree with the structure of `like` and the given leaves."""
    if isinstance(like, Tensor):
        return new_leaves[0]
    if _plain(like):
        return tuple(new_leaves)
    return pytree.tree_unflatten(new_leaves, pytree.tree_structure(like))


def unravel(flat: Tensor, like: Tree) -> Tree:
    """Undo `ravel`: a vector becomes a tree with the shapes of `like`, the tree of one run; rows
    become one whose leaves have the axes of the rows first.
    """
    axes = flat.shape[:-1]
    if isinstance(like, Tensor):
        return flat.reshape(axes + like.shape)
    parts = flat.split([leaf.numel() for leaf in leaves(like)], -1)
    pairs = zip(parts, leaves(like), strict=True)
    return rebuild(like, [part.reshape(axes + leaf.shape) for part, leaf in pairs])


def flat_axis(tree: Tree) -> int:
    """The length of the first axis that all leaves share."""
    return first_leaf(tree).shape[0]


def as_tree(value: Tree | nn.Module, name: str) -> Tree:
    """Take what a user passes as x0 or y0: a tensor, a nesting of tensors, or a module (its
    parameters, copied).

    The result is detached from the caller's graph and shares no memory with it, so a run cannot
    change its input.
    """
    if isinstance(value, nn.Module):
        value = dict(value.named_parameters())
        frozen = [key for key, parameter in value.items() if not parameter.requires_grad]
        if frozen:
            raise InvalidInput(
                f"{name} is a module with frozen parameters (requires_grad=False): "
                f"{', '.join(frozen[:4])}; Problem.from_modules keeps "
                f"these as they are, or pass a dict of the others: {{key: p for key, p in "
                "module.named_parameters() if p.requires_grad}"
            )
    found = named_leaves(value, name)
    if not found:
        raise InvalidInput(
            f"{name} is empty ({value!r}); pass a tensor, a dict of tensors, "
            "or a torch.nn.Module with parameters, not all of them frozen (requires_grad=False)"
        )
    for path, leaf in found:
        if not isinstance(leaf, Tensor):
            raise InvalidInput(
                f"{path} is a {type(leaf).__module__}.{type(leaf).__name__}, not a tensor; wrap "
                f"it, e.g. torch.as_tensor({path})"
            )
        _check_leaf(path, leaf)
    return map_(lambda leaf: leaf.detach().clone(), value)


def _check_leaf(path: str, leaf: Tensor) -> None:
    """Refuse a tensor that no run can start from."""
    if nn.parameter.is_lazy(leaf):
        raise InvalidInput(
            f"{path} belongs to a lazy module whose shapes are not known yet; call the module "
            "once, on a batch"
        )
    if leaf.is_nested or leaf.layout is not torch.strided:
        kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.")
        raise InvalidInput(
            f"{path} is a {kind} tensor; pass a dense one, e.g. {path}.to_dense(), or several in a "
            "list"
        )
    if leaf.is_meta:
        raise InvalidInput(
            f"{path} is on the device meta and holds no values; make it on the CPU or a GPU"
        )
    if not leaf.is_floating_point():
        raise InvalidInput(
            f"{path} has dtype {leaf.dtype}; gradients need a floating dtype, e.g. {path}.double()"
        )
    if not leaf.numel():
        raise InvalidInput(
            f"{path} has shape {tuple(leaf.shape)} and no entries; leave it out, or give it some"
        )


def layout(value: Tree) -> Any:
    """A tree's nesting as JSON: {"dict": ...}, {"list": ...}, {"tuple": ...}, or null for a tensor.

    Dicts with numbers for keys, which JSON does not know, are {"items": [[key, ...], ...]}; a named
    tuple becomes a tuple.

    >>> layout({"a": torch.zeros(1), "b": (torch.zeros(2),)})
    {'dict': {'a': None, 'b': {'tuple': [None]}}}
    """
    if isinstance(value, Tensor):
        return None
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {"dict": {key: layout(item) for key, item in value.items()}}
        if odd := [key for key in value if not isinstance(key, (str, int))]:
            raise InvalidInput(
                f"a dict of tensors has the key {odd[0]!r}; only texts and whole numbers can be "
                "written to a file"
            )
        return {"items": [[key, layout(item)] for key, item in value.items()]}
    kind = "list" if isinstance(value, list) else "tuple"
    return {kind: [layout(item) for item in value]}


def from_layout(nesting: Any, parts: Iterator[Tensor]) -> Tree:
    """The tree of that layout, its tensors taken from `parts` in the order of `leaves`."""
    if nesting is None:
        return next(parts)
    ((kind, items),) = nesting.items()
    if kind in ("dict", "items"):
        return {
            key: from_layout(item, parts)
            for key, item in (items.items() if kind == "dict" else items)
        }
    if kind not in ("list", "tuple"):
        raise ValueError(f"no layout: {kind!r}")
    built = [from_layout(item, parts) for item in items]
    return built if kind == "list" else tuple(built)
