"""Triton where there is one, and the library where operators of its kernels are registered."""

from __future__ import annotations

from typing import Any

import torch

try:
    import triton
    import triton.language as tl

    jit = triton.jit
# torch's builds without CUDA bring none; modules with kernels can then be read, their kernels not
# used
except ImportError:
    triton = tl = None

    def jit(kernel: Any) -> Any:
        """Leave a kernel that nobody can compile as it is."""
        return kernel


__all__ = ["LIBRARY", "jit", "tl", "triton"]

LIBRARY = torch.library.Library("bipareto", "FRAGMENT")
