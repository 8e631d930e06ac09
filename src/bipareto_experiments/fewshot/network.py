"""The four-block convolutional network of few-shot learning, split into a backbone x and domain
learners y.

A *task* is a set of images with labels 0..ways-1.  Every function takes several tasks at once:
images (tasks, n, 3, H, W) and learners whose leaves have a first axis of tasks.  Batch
normalisation uses the statistics of one task's images (support and query apart), in training and in
testing alike; there are no running averages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d, pad

from bipareto.errors import InvalidInput
from bipareto.problem.tree import Tree
from bipareto_experiments.fewshot.block import judged, patches
from bipareto_experiments.fewshot.epsilon import EPSILON
from bipareto_experiments.fewshot.kernels import pooled

Learner = Literal["linear", "mlp", "block"]
LEARNERS: tuple[Learner, ...] = ("linear", "mlp", "block")


@dataclass(frozen=True)
class Network:
    """Conv-BN-ReLU-pool blocks, then a head; `learner` says where x ends and y begins.

    Args:
        learner: "linear" (a linear head; g is convex in y), "mlp" (a head with one hidden layer) or
            "block" (the last block and a linear head); the last two make the lower level nonconvex.
        channels: of every block, 64 in the paper.
        blocks: in all.
        ways: classes of a task.
        size: height and width of the images.
        hidden: width of the MLP head.
        half: convolutions and activations in bfloat16, statistics and learners in float32 (with
            products in TF32: `Task.arithmetic`).
        fused: normalise, rectify and pool in one Triton kernel, for a GPU and `channels` a power of
            two; else in plain operations. The block learner's loss is then fused too, and can be
            differentiated once.
        twice: learners in plain operations, fused or not, for methods that use second derivatives.
    """

    learner: Learner = "block"
    channels: int = 64
    blocks: int = 4
    ways: int = 5
    size: int = 32
    hidden: int = 64
    half: bool = False
    fused: bool = False
    twice: bool = field(default=False, repr=False)  # decides no result

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise InvalidInput(f"learner is {self.learner!r}; choose one of {', '.join(LEARNERS)}")
        if self.size % 2**self.blocks:
            raise InvalidInput(
                f"images of {self.size} pixels cannot be halved {self.blocks} times; use a "
                f"multiple of {2**self.blocks}"
            )

        if self.fused and self.channels & (self.channels - 1):
            raise InvalidInput(
                f"channels = {self.channels}; fused kernels need a power of two, plain operations "
                "(fused=False) any number"
            )

    @property
    def width(self) -> int:
        """Numbers per image that a head sees."""
        return self.channels * (self.size // 2**self.blocks) ** 2

    @property
    def _trunk(self) -> int:
        return self.blocks - (self.learner == "block")

    def start(self, tasks: int, seed: int) -> tuple[Tree, Tree]:
        """x_0, and y_0: the same for every task.  He's initialisation for what precedes a ReLU,
        zeros for the last layer.
        """
        stream = torch.Generator().manual_seed(seed)

        def normal(fan: int, *shape: int) -> Tensor:
            return torch.randn(*shape, generator=stream) * math.sqrt(2 / fan)

        def block(inputs: int) -> dict[str, Tensor]:
            C = self.channels
            return {
                "weight": normal(9 * inputs, C, inputs, 3, 3),
                "scale": torch.ones(C),
                "shift": torch.zeros(C),
            }

        x = {f"block{i}": block(3 if i == 0 else self.channels) for i in range(self._trunk)}
        y: dict[str, Tree] = {}
        inputs = self.width
        if self.learner == "block":
            y["block"] = block(self.channels)
        elif self.learner == "mlp":
            y["hidden"] = {
                "weight": normal(inputs, inputs, self.hidden),
                "shift": torch.zeros(self.hidden),
            }
            inputs = self.hidden
        y["head"] = {"weight": torch.zeros(inputs, self.ways), "shift": torch.zeros(self.ways)}
        return x, {
            layer: {name: leaf.expand(tasks, *leaf.shape).clone() for name, leaf in leaves.items()}
            for layer, leaves in y.items()
        }

    def features(self, x: Tree, images: Tensor) -> Tensor:
        """What x makes of images (tasks, n, 3, H, W): (tasks, n, channels, h, w)."""
        tasks, n = images.shape[:2]
        kind = torch.bfloat16 if self.half else images.dtype
        z = images.flatten(0, 1)
        for i in range(self._trunk):
            layer = x[f"block{i}"]
            z = self._convolved(z, layer["weight"], kind)
            if self.fused:
                z = pooled(z, layer["scale"], layer["shift"], tasks)
            else:
                z = _normalised(z.unflatten(0, (tasks, n)), (1, 3, 4))
                z = torch.relu(
                    z * layer["scale"][:, None, None] + layer["shift"][:, None, None]
                ).to(kind)
                z = max_pool2d(z.flatten(0, 1), 2)
        return z.unflatten(0, (tasks, n)).to(images.dtype)

    def _convolved(self, z: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
        if not self.fused:
            return conv2d(z.to(kind), weight.to(kind), padding=1)
        if z.shape[1] < 8:
            # With the channels last and at least eight of them the tensor cores take even the first
            # layer.
            z, weight = (pad(value, (0, 0, 0, 0, 0, 8 - z.shape[1])) for value in (z, weight))
        z, weight = (value.to(kind, memory_format=torch.channels_last) for value in (z, weight))
        return conv2d(z, weight, padding=1)

    def logits(self, y: Tree, features: Tensor) -> Tensor:
        """What the learners make of features (tasks, n, channels, h, w): (tasks, n, ways)."""
        z = features
        if self.learner == "block":
            z = self._last_block(y["block"], z)
        z = z.flatten(2)
        if self.learner == "mlp":
            z = torch.relu(torch.baddbmm(y["hidden"]["shift"][:, None], z, y["hidden"]["weight"]))
        return torch.baddbmm(y["head"]["shift"][:, None], z, y["head"]["weight"])

    def losses(self, y: Tree, features: Tensor) -> Tensor:
        """Cross entropy per task, (tasks,); images stand class by class."""
        if self.learner == "block" and self.fused and not self.twice:
            layer, head = y["block"], y["head"]
            z = layer["weight"].flatten(2) @ self._patches(features)
            return judged(
                z,
                layer["scale"],
                layer["shift"],
                head["weight"],
                head["shift"],
                (features.shape[3], features.shape[4]),
            )
        logits = self.logits(y, features)
        n, ways = logits.shape[1:]
        right = torch.eye(ways, dtype=logits.dtype, device=logits.device).repeat_interleave(
            n // ways, 0
        )
        return (logits.log_softmax(-1) * (right / -n)).sum((1, 2))

    def _last_block(self, layer: Tree, z: Tensor) -> Tensor:
        """A block with weights of its own for every task, as one batched product over patches: the
        images are tiny by now.
        """
        tasks, n, C, h, w = z.shape
        z = layer["weight"].flatten(2) @ self._patches(z)
        # Every channel of every task is a channel of one normalisation.
        z = batch_norm(
            z.flatten(0, 1)[None],
            None,
            None,
            layer["scale"].flatten(),
            layer["shift"].flatten(),
            training=True,
            eps=EPSILON,
        )
        return (
            max_pool2d(torch.relu(z).reshape(tasks, C, n * h, w), 2)
            .reshape(tasks, C, n, h // 2, w // 2)
            .transpose(1, 2)
        )

    def _patches(self, z: Tensor) -> Tensor:
        """The 3 x 3 neighbourhoods of all pixels: (tasks, n, C, h, w) to (tasks, C * 9, n * h *
        w).
        """
        if self.fused:
            return patches(z)
        tasks, n, C, h, w = z.shape
        # Gathered by place: `torch.nn.functional.unfold` launches a kernel for every image, and its
        # views cannot be batched.
        rows, columns = (torch.arange(size, device=z.device) for size in (h, w))
        corner = rows[:, None] * (w + 2) + columns
        shift = torch.arange(3, device=z.device)
        place = ((shift[:, None] * (w + 2) + shift).flatten()[:, None] + corner.flatten()).flatten()
        found = pad(z, (1, 1, 1, 1)).flatten(3).index_select(3, place).unflatten(3, (9, h * w))
        return found.permute(0, 2, 3, 1, 4).reshape(tasks, C * 9, n * h * w)


def _normalised(z: Tensor, axes: tuple[int, ...]) -> Tensor:
    """z with mean 0 and variance 1 over `axes`, in float32 at least."""
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    variance, mean = torch.var_mean(z, axes, correction=0, keepdim=True)
    return (z - mean) * torch.rsqrt(variance + EPSILON)
