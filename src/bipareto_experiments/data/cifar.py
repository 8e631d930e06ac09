"""CIFAR-10 and CIFAR-100 in their public form: folders of pickles, read by an unpickler that knows
four harmless names.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bipareto_experiments.data.images import DataError, ImageSet, Summary, WrongSize

_SIDE = 32


class _Unpickler(pickle.Unpickler):
    """Builds numbers, strings, containers and numpy arrays; any other name in the pickle is refused
    before it is looked up.
    """

    def find_class(self, module: str, name: str) -> Any:
        import codecs

        import numpy as np

        # The files were written when numpy's inner module was called numpy.core.
        core = np._core if hasattr(np, "_core") else np.core
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): core.multiarray._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): core.multiarray._reconstruct,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): codecs.encode,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which image data never needs"
            )
        return allowed[module, name]


def read_cifar10(path: Path, name: str, size: int) -> ImageSet:
    """The folder cifar-10-batches-py."""
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    parts = [_load(path / file, "data", "labels") for file in batches]
    class_names = _load(path / "batches.meta", "label_names")["label_names"]
    return _assemble(name, size, path, parts, "labels", class_names)


def read_cifar100(path: Path, name: str, size: int) -> ImageSet:
    """The folder cifar-100-python, with its twenty superclasses as groups."""
    parts = [
        _load(path / file, "data", "fine_labels", "coarse_labels") for file in ("train", "test")
    ]
    meta = _load(path / "meta", "fine_label_names", "coarse_label_names")
    found = _assemble(name, size, path, parts, "fine_labels", meta["fine_label_names"])
    coarse = torch.tensor([int(c) for part in parts for c in part["coarse_labels"]])
    if len(coarse) != len(found):
        raise DataError(
            f"{path} has {len(found)} images and {len(coarse)} coarse labels; unpack the "
            "downloaded archive again"
        )
    group = torch.zeros(len(found.class_names), dtype=torch.int64)
    group[found.labels] = coarse
    return replace(found, group=group, group_names=tuple(meta["coarse_label_names"]))


def summarize_cifar10(path: Path) -> Summary:
    """What the folder cifar-10-batches-py holds."""
    return _summary(read_cifar10(path, "cifar10", _SIDE))


def summarize_cifar100(path: Path) -> Summary:
    """What the folder cifar-100-python holds."""
    return _summary(read_cifar100(path, "cifar100", _SIDE))


def _summary(found: ImageSet) -> Summary:
    # The pickles give nothing away without being read, which takes a moment only.
    return Summary(len(found), int(found.test.sum()), len(found.class_names), _SIDE, found.note)


def _load(path: Path, *keys: str) -> dict[str, Any]:
    remedy = "unpack the downloaded archive again"
    try:
        with path.open("rb") as file:
            found = _Unpickler(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    # What a damaged pickle raises depends on the byte that is wrong.
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        MemoryError,
        SystemError,
    ) as error:
        raise DataError(
            f"{path} is not a CIFAR file ({type(error).__name__}: {error}); {remedy}"
        ) from error
    if not isinstance(found, dict) or not set(keys) <= set(found):
        raise DataError(f"{path} is not a CIFAR file (no {', '.join(keys)} in it); {remedy}")
    for key in keys:
        kind = str if key.endswith("names") else int
        if key != "data" and not (
            isinstance(found[key], list) and all(isinstance(entry, kind) for entry in found[key])
        ):
            raise DataError(
                f"{path} is not a CIFAR file ({key} is no list of {kind.__name__}); {remedy}"
            )
    return found


def _assemble(
    name: str,
    size: int,
    path: Path,
    parts: list[dict[str, Any]],
    label: str,
    class_names: list[str],
) -> ImageSet:
    """One set from batches of rows of 3072 bytes; the last batch is the test split."""
    import numpy as np

    if size != _SIDE:
        raise WrongSize(
            f"{path} holds {_SIDE}x{_SIDE} images, and {size}x{size} were asked for; ask for "
            f"size={_SIDE}"
        )
    for part in parts:
        if getattr(part["data"], "shape", None) != (len(part[label]), 3 * _SIDE * _SIDE):
            found = getattr(part["data"], "shape", type(part["data"]).__name__)
            raise DataError(
                f"{path}: a batch of {len(part[label])} labels has image data of shape {found}; "
                "unpack the downloaded archive again"
            )
    images = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, _SIDE, _SIDE)
    labels = torch.tensor([int(c) for part in parts for c in part[label]])
    test = torch.arange(len(labels)) >= len(labels) - len(parts[-1][label])
    return ImageSet(name, torch.from_numpy(images), labels, test, tuple(class_names), note="exact")
