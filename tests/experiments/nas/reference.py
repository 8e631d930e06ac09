"""Discrete networks as ordinary modules, written down once more from the papers: what tables and
supernets are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.spaces import Space
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet

__all__ = ["counted", "discrete", "fill", "random_genotype"]


def random_genotype(space: Space, seed: int) -> Genotype:
    """Every edge an operation at random; where the space keeps two edges of a node, two at random
    and none of them "none".
    """
    stream = torch.Generator().manual_seed(seed)
    choices = {}
    for kind in space.kinds:
        choices[kind] = torch.randint(len(space.operations), (len(space.edges),), generator=stream)
        if space.kept is not None:
            choices[kind] = choices[kind].clamp(min=1)
            for node in range(space.given, len(space.nodes)):
                into = torch.tensor(space.into(node))
                choices[kind][into[torch.randperm(len(into), generator=stream)[space.kept :]]] = 0
    return Genotype.of(space, choices)


class FactorizedReduce(nn.Module):
    def __init__(self, inputs: int, outputs: int, affine: bool) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, affine=affine)

    def forward(self, z: Tensor) -> Tensor:
        z = z.relu()
        return self.norm(torch.cat([self.even(z), self.odd(z[:, :, 1:, 1:])], 1))


def relu_conv_norm(inputs: int, outputs: int, kernel: int, stride: int, affine: bool) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(outputs, affine=affine))


def operation(name: str, C: int, stride: int, affine: bool, pool_norm: bool) -> nn.Module:
    def norm() -> nn.Module:
        return nn.BatchNorm2d(C, affine=affine)

    def pooled(pool: nn.Module) -> nn.Module:
        return nn.Sequential(pool, nn.BatchNorm2d(C, affine=False)) if pool_norm else pool

    def separable(k: int, s: int, dilation: int = 1) -> list[nn.Module]:
        depthwise = nn.Conv2d(C, C, k, s, dilation * (k // 2), dilation, C, bias=False)
        return [nn.ReLU(), depthwise, nn.Conv2d(C, C, 1, bias=False), norm()]

    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(C, C, affine)
    if name == "max_pool_3x3":
        return pooled(nn.MaxPool2d(3, stride, 1))
    if name == "avg_pool_3x3":
        return pooled(nn.AvgPool2d(3, stride, 1, count_include_pad=False))
    kernel = int(name[-1])
    if name.startswith("nor_conv"):
        return relu_conv_norm(C, C, kernel, stride, affine)
    if name.startswith("sep_conv"):
        return nn.Sequential(*separable(kernel, stride), *separable(kernel, 1))
    return nn.Sequential(*separable(kernel, stride, dilation=2))


class Cell(nn.Module):
    def __init__(
        self, genotype: Genotype, kind: str, C: int, affine: bool, pool_norm: bool
    ) -> None:
        super().__init__()
        self.chosen = [(edge, name) for edge, name in genotype.cells[kind] if name != "none"]
        strides = [2 if kind == "reduction" and edge.source < 2 else 1 for edge, _ in self.chosen]
        self.ops = nn.ModuleDict(
            {
                f"{edge} {name}": operation(name, C, s, affine, pool_norm)
                for (edge, name), s in zip(self.chosen, strides, strict=True)
            }
        )

    def forward(self, given: list[Tensor], nodes: int) -> list[Tensor]:
        states = list(given)
        for node in range(len(given), nodes):
            incoming = [
                self.ops[f"{edge} {name}"](states[edge.source])
                for edge, name in self.chosen
                if edge.target == node
            ]
            states.append(
                sum(incoming, start=torch.zeros_like(states[0]))
                if not incoming
                else sum(incoming[1:], start=incoming[0])
            )
        return states


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, affine: bool) -> None:
        super().__init__()
        self.a, self.b = (
            relu_conv_norm(inputs, outputs, 3, 2, affine),
            relu_conv_norm(outputs, outputs, 3, 1, affine),
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, z: Tensor) -> Tensor:
        return self.b(self.a(z)) + self.shortcut(z)


class Discrete201(nn.Module):
    def __init__(self, network: NasBench201, genotype: Genotype, affine: bool) -> None:
        super().__init__()
        C = network.channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, C, 3, padding=1, bias=False), nn.BatchNorm2d(C, affine=affine)
        )
        self.cells, self.between = nn.ModuleList(), nn.ModuleDict()
        for stage in range(3):
            if stage:
                self.between[str(len(self.cells))] = Residual(C, 2 * C, affine)
                C *= 2
            self.cells.extend(
                Cell(genotype, "cell", C, affine, False) for _ in range(network.cells)
            )
        self.last = nn.BatchNorm2d(C, affine=affine)
        self.head = nn.Linear(C, network.classes)

    def forward(self, z: Tensor) -> Tensor:
        z = self.stem(z)
        for c, cell in enumerate(self.cells):
            z = self.between[str(c)](z) if str(c) in self.between else z
            z = cell([z], 4)[-1]
        return self.head(self.last(z).relu().mean((2, 3)))


class DiscreteDarts(nn.Module):
    def __init__(self, network: Darts, genotype: Genotype, affine: bool, pool_norm: bool) -> None:
        super().__init__()
        C = network.channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, 3 * C, 3, padding=1, bias=False), nn.BatchNorm2d(3 * C, affine=affine)
        )
        self.cells, self.before = nn.ModuleList(), nn.ModuleList()
        older = newer = 3 * C
        after_reduction = False
        for letter in network.stack:
            C *= 2 if letter == "R" else 1
            first = (
                FactorizedReduce(older, C, affine)
                if after_reduction
                else relu_conv_norm(older, C, 1, 1, affine)
            )
            self.before.append(nn.ModuleList([first, relu_conv_norm(newer, C, 1, 1, affine)]))
            self.cells.append(
                Cell(genotype, "reduction" if letter == "R" else "normal", C, affine, pool_norm)
            )
            older, newer, after_reduction = newer, 4 * C, letter == "R"
        self.head = nn.Linear(newer, network.classes)

    def forward(self, images: Tensor) -> Tensor:
        older = newer = self.stem(images)
        for (first, second), cell in zip(self.before, self.cells, strict=True):
            states = cell([first(older), second(newer)], 6)
            older, newer = newer, torch.cat(states[2:], 1)
        return self.head(newer.mean((2, 3)))


def discrete(network: Supernet, genotype: Genotype, *, searching: bool = False) -> nn.Module:
    """The network of a genotype; `searching` as within a search (batch norms without scale and
    shift, DARTS's pools normalised).
    """
    if isinstance(network, NasBench201):
        return Discrete201(network, genotype, affine=not searching)
    assert isinstance(network, Darts)
    return DiscreteDarts(network, genotype, affine=not searching, pool_norm=searching)


def counted(model: nn.Module, size: int) -> tuple[int, int]:
    """Parameters, and FLOPs of one image as torch counts them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, size, size))
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops()


def _weights(model: nn.Module) -> Iterator[nn.Conv2d]:
    return (module for module in model.modules() if isinstance(module, nn.Conv2d))


def fill(model: nn.Module, y: dict) -> nn.Module:
    """Copy the supernet's weights y into a discrete network."""

    def into(module: nn.Module, weights: list[Tensor]) -> None:
        pieces = (
            [piece for w in weights for piece in w.chunk(2)]
            if isinstance(module, FactorizedReduce)
            else weights
        )
        for conv, weight in zip(_weights(module), pieces, strict=True):
            conv.weight.data.copy_(weight)

    into(model.stem, y["stem"])
    for c, cell in enumerate(model.cells):
        for key, module in cell.ops.items():
            edge, name = key.split()
            into(module, y[f"cell{c}"][edge].get(name, []))
    if isinstance(model, Discrete201):
        for stage, residual in enumerate(model.between.values(), start=1):
            into(residual, y[f"reduction{stage}"])
    else:
        for c, pair in enumerate(model.before):
            for module, weight in zip(pair, y[f"before{c}"], strict=True):
                into(module, [weight])
    model.head.weight.data.copy_(y["head"]["weight"].T)
    model.head.bias.data.copy_(y["head"]["bias"])
    return model
