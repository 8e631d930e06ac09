"""What batch norm adds to a variance, in the networks and in their kernels."""

from __future__ import annotations

#: PyTorch's default
EPSILON = 1e-5
