"""The kernels of a fast supernet, compiled before they are needed: by several processes at once
instead of one after the other.

Triton compiles a kernel when it is first launched and keeps it on disk.  Here processes of their
own go through a pass of the network with tensors that have no memory, and compile, instead of
launching them, a share each of the kernels they meet.  They need no GPU for that.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bipareto.errors import BiparetoWarning
from bipareto.problem import tree
from bipareto.problem.tree import Tree
from bipareto.run.graph.triton import triton
from bipareto_experiments.nas import (
    bench_cell,
    conv,
    fast,
    kernels,
    kernels_backward,
    kernels_gather,
    kernels_weights,
    taps,
)
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.supernet import Supernet

_MODULES = (bench_cell, conv, kernels, kernels_backward, kernels_gather, kernels_weights)
#: processes at most: each loads torch, and the slowest kernel alone takes several seconds
_PROCESSES = 16
#: seconds after which a search no longer waits
_PATIENCE = 300.0
_CHILD = "from bipareto_experiments.nas.precompiled import _serve; _serve()"


def precompile(network: Supernet, batches: Sequence[int]) -> None:
    """Compile what passes of a network on the current GPU need, unless that has been done; for
    batches of these sizes.

    Whatever fails here fails quietly: a kernel that is missing is compiled when it is launched.
    """
    processes = min(_PROCESSES, os.cpu_count() or 1)
    if (
        not isinstance(network, FastDarts | FastNasBench201)
        or not network.folded
        or not kernels.PRESENT
        or processes == 1
    ):
        return
    capability = torch.cuda.get_device_capability()
    wish = (
        network,
        sorted(set(batches)),
        capability[0] * 10 + capability[1],
        torch.backends.cudnn.allow_tf32,
    )
    done = _kept() / f"bipareto-{_name(wish)}"
    if done.exists():
        return
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    running = []
    for k in range(processes):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert child.stdin is not None
        child.stdin.write(pickle.dumps((*wish, k, processes)))
        child.stdin.close()
        child.stdin = None
        running.append(child)
    try:
        told = [(child.communicate(timeout=_PATIENCE)[1], child.returncode) for child in running]
        failed = next(
            (error.decode(errors="replace").strip() for error, code in told if code), None
        )
    except subprocess.TimeoutExpired:
        failed = f"not done after {_PATIENCE} s"
    finally:
        for child in running:
            child.kill()
            with child:  # closes its pipes and waits for it
                pass
    if failed is None:
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    else:
        reason = failed.splitlines()[-1] if failed else "no reason given"
        warnings.warn(
            f"kernels could not be compiled ahead ({reason}); they will be as they are needed",
            BiparetoWarning,
            stacklevel=2,
        )


def _kept() -> Path:
    """Where Triton keeps what it has compiled."""
    return Path(
        os.environ.get("TRITON_CACHE_DIR")
        or Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    )


def _name(wish: tuple[Any, ...]) -> str:
    """Changes with everything that decides which kernels there are."""
    digest = hashlib.sha256(
        repr((wish, getattr(triton, "__version__", None), torch.__version__)).encode()
    )
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _serve() -> None:
    """A process of its own: compile every `processes`-th kernel, from the k-th on."""
    network, batches, capability, allow_tf32, k, processes = pickle.load(sys.stdin.buffer)
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    torch.backends.cudnn.allow_tf32 = allow_tf32
    # A driver that only says for which GPU: loading the true one would take memory of the GPU in
    # each process.
    driver.set_active(_Target(GPUTarget("cuda", capability, 32)))
    met = Met(
        lambda kernel, grid, values, options: kernel.warmup(*values, grid=grid, **options),
        k,
        processes,
    )
    _go_through(network, batches, met)


class _Target:
    """What Triton asks a driver when it compiles."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Met:
    """Kernels in the order in which they are met, each compilation of one counted once; `act` on
    every `of`-th from the k-th on.
    """

    def __init__(
        self, act: Callable[[Any, Any, Sequence[Any], dict[str, Any]], Any], k: int = 0, of: int = 1
    ) -> None:
        self.act, self.k, self.of = act, k, of
        self.seen: dict[Any, int] = {}

    def __call__(
        self, kernel: Any, grid: Any, values: Sequence[Any], options: dict[str, Any]
    ) -> None:
        function = getattr(kernel, "fn", kernel)
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        kinds = (
            self._kind(value, name, str(function.__annotations__.get(name)))
            for name, value in zip(names, values, strict=True)
        )
        key = (function.__name__, *kinds, *options.items())
        if key not in self.seen:
            self.seen[key] = len(self.seen)
            if self.seen[key] % self.of == self.k:
                self.act(kernel, grid, values, options)

    @staticmethod
    def _kind(value: Any, name: str, annotation: str) -> Any:
        """What of an argument is compiled in."""
        if isinstance(value, torch.Tensor):
            return value.dtype
        if "constexpr" in annotation:
            return value
        return (
            None
            if name in taps.PLAIN or isinstance(value, float)
            else (value == 1, value % 16 == 0)
        )


def _go_through(network: Supernet, batches: Sequence[int], met: Met) -> None:
    """One pass forward and back with nothing in it; whoever calls this has no further use for the
    kernels in its process.
    """
    vars(fast)["available"] = lambda *_: True
    for module in _MODULES:
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            setattr(module, name, _Launched(getattr(module, name), met))
    x, y = tree.map_(lambda leaf: leaf.to("meta"), network.start(0))
    for batch in batches:
        images = torch.empty(batch, 3, network.size, network.size, device="meta")
        torch.func.grad(partial(_passed, network, images))((x, y))


def _passed(network: Supernet, images: torch.Tensor, point: tuple[Tree, Tree]) -> torch.Tensor:
    return network.logits(point[0], point[1], images).sum()


class _Launched:
    """Stands for a kernel where it would be launched."""

    def __init__(self, kernel: Any, met: Met) -> None:
        self.kernel, self.met = kernel, met

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *values, **options: self.met(self.kernel, grid, values, options)
