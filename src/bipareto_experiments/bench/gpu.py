"""Suite `gpu`: a step of a user's own network, ResNet-18-sized, replayed as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from bipareto.errors import BiparetoError
from bipareto.methods import MOMEHA
from bipareto.methods.parts.preferences import grid
from bipareto.problem import Problem, tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto_experiments.bench.figures import Claim, Figures, Times, interleaved

#: images of 32 x 32 in a batch: small ones wait for Python, large ones for the GPU
BATCHES = (32, 128)
PREFERENCES = 8


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, z: Tensor) -> Tensor:
        own = self.norm2(self.second(self.norm1(self.first(z)).relu()))
        return torch.relu(own + self.shortcut(z))


class ResNet(nn.Module):
    """ResNet-18 for images of 32 x 32: 11.2 million parameters at width 64."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            for place in range(2):
                outputs = width * 2**stage
                blocks.append(_Block(inputs, outputs, 2 if stage and not place else 1))
                inputs = outputs
        self.body = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def _images(count: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    pixels = torch.randn(count, 3, 32, 32, generator=stream)
    return pixels.to(device), torch.randint(10, (count,), generator=stream).to(device)


def _weighted(x: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    each = cross_entropy(logits, labels, reduction="none")
    return (torch.sigmoid(x)[labels] * each).mean()


def problem_of(batch: int, device: str, width: int = 64) -> tuple[Problem, Any, Any, nn.Module]:
    """Ten class weights x, the network y; f_1, f_2 are the losses on two halves of a batch."""
    torch.manual_seed(0)
    net = ResNet(width).to(device)
    lower, upper = _images(batch, 1, device), _images(batch, 2, device)
    half = batch // 2

    def loss(y: Any, data: tuple[Tensor, Tensor], rows: slice) -> Tensor:
        return cross_entropy(y(data[0][rows]), data[1][rows])

    found = Problem.from_modules(
        x=torch.zeros(10, device=device),
        y=net,
        lower=lambda x, y, data: _weighted(x, y(data[0]), data[1]),
        lower_data=lower,
        upper=[
            lambda x, y, data: loss(y, data, slice(half)),
            lambda x, y, data: loss(y, data, slice(half, None)),
        ],
        upper_data=upper,
    )
    return *found, net


def hand_made(
    net: nn.Module, method: MOMEHA, w: Tensor, batch: int, device: str
) -> tuple[Callable[[], None], list[list[Tensor]]]:
    """Algorithm 1 on lists of tensors, in place: what one would record as a CUDA graph by hand."""
    lower, upper = _images(batch, 1, device), _images(batch, 2, device)
    half = batch // 2
    names = [name for name, _ in net.named_parameters()]
    skeleton = net.train()
    for layer in skeleton.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    x = torch.zeros(10, device=device)
    y = [p.detach().clone() for p in net.parameters()]
    theta = [p.clone() for p in y]
    rates = [float(getattr(method, f"alpha_{k}").value) for k in ("theta", "x", "y")]
    c, mu, gamma = float(method.c.value), method.mu, method.gamma  # type: ignore[union-attr]

    def network(parameters: list[Tensor], images: Tensor) -> Tensor:
        out: Tensor = functional_call(
            skeleton, dict(zip(names, parameters, strict=True)), (images,)
        )
        return out

    def g(x: Tensor, parameters: list[Tensor]) -> Tensor:
        return _weighted(x, network(parameters, lower[0]), lower[1])

    def big(parameters: list[Tensor]) -> Tensor:
        f = torch.stack(
            [
                cross_entropy(network(parameters, upper[0][rows]), upper[1][rows])
                for rows in (slice(half), slice(half, None))
            ]
        )
        return torch.logsumexp(mu * w * f, 0) / mu

    def step() -> None:
        for leaf in (*theta, *y, x):
            leaf.requires_grad_()
        d = torch.autograd.grad(g(x.detach(), theta), theta)
        with torch.no_grad():
            for p, q, slope in zip(theta, y, d, strict=True):
                p.sub_(rates[0] * (slope + (p - q) / gamma))
        (dx,) = torch.autograd.grad(
            g(x, [q.detach() for q in y]) - g(x, [p.detach() for p in theta]), x
        )
        with torch.no_grad():
            x.sub_(rates[1] * dx)
        d = torch.autograd.grad(big(y) / c + g(x.detach(), y), y)
        with torch.no_grad():
            for p, q, slope in zip(theta, y, d, strict=True):
                q.sub_(rates[2] * (slope + (p - q) / gamma))

    return step, [[x], y, theta]


def _recorded(step: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: Callable[[], None] = step) -> None:
        # `kept` holds the tensors that the graph reads where they lie
        graph.replay()

    return replay


def _ours(problem: Problem, method: MOMEHA, state: Any, batched: bool, compile: bool | str) -> Any:
    step = stepper(problem, method, batched=batched, compile=compile)
    drawn = draw(problem, method.roles(2), 0, [0])
    packed = step.pack(state, drawn)

    def go() -> None:
        nonlocal packed
        packed, _ = step.advance(packed, drawn)

    return go


def _timed(batch: int, seconds: float, figures: Figures) -> Times:
    method = MOMEHA(gamma=1.0, alpha_theta=0.01, alpha_x=0.01, alpha_y=0.01, c=1.0)
    problem, x0, y0, net = problem_of(batch, "cuda")
    w = grid(2, PREFERENCES)
    start = method.prepare(problem, x0, y0)
    states = [method.begin(start, row) for row in w]
    builders: dict[str, Callable[[], Callable[[], object]]] = {
        "ours, replayed": lambda: _ours(problem, method, states[0], False, "replay"),
        "ours, eager": lambda: _ours(problem, method, states[0], False, False),
        "CUDA graph by hand": lambda: _recorded(
            hand_made(net, method, w[0].float().cuda(), batch, "cuda")[0]
        ),
    }
    twin = problem_of(batch, "cuda")[0]
    if batch == BATCHES[0]:
        builders["8 preferences, replayed"] = lambda: _ours(
            twin, method, tree.stack(states), True, "replay"
        )
    functions: dict[str, Callable[[], object]] = {}
    for name, build in builders.items():
        begin = time.perf_counter()
        try:
            functions[name] = build()
            torch.cuda.synchronize()
        except (RuntimeError, BiparetoError) as error:
            figures.missing[f"{name}, batch {batch}"] = str(error).splitlines()[0]
        figures.data[f"seconds to prepare: {name}, batch {batch}"] = time.perf_counter() - begin
    return interleaved(
        functions, seconds, repeats=10, clock=time.perf_counter, wait=torch.cuda.synchronize
    )


def _over(times: Times, name: str, base: str) -> float | None:
    return times.ratio(name, base) if name in times and base in times else None


def run(seconds: float, seed: int = 0) -> Figures:
    """Measure; says what is missing where there is no GPU."""
    figures = Figures("gpu")
    figures.missing["engine: ray"] = "Ray was not on the machine; fractional GPUs were not tried"
    replay: float | None = None
    hand: float | None = None
    eight: float | None = None
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        for batch in BATCHES:
            times = _timed(batch, seconds, figures)
            title = f"ResNet-18, 11.2 million weights, batches of {batch}"
            ours = "ours, replayed" if "ours, replayed" in times else next(iter(times))
            figures.timed(title, times, ours)
            figures.data[f"GiB at most, batch {batch}"] = torch.cuda.max_memory_allocated() / 2**30
            if batch == BATCHES[0]:
                replay = _over(times, "ours, eager", "ours, replayed")
                hand = _over(times, "ours, replayed", "CUDA graph by hand")
                eight = _over(times, "8 preferences, replayed", "ours, replayed")
    else:
        figures.missing["gpu"] = "no CUDA device here"
    figures.claims += [
        Claim("ResNet-18: eager / replayed", replay, 3.0, "at least"),
        Claim("ResNet-18: replayed / CUDA graph by hand", hand, 1.2),
        Claim("8 preferences / one, per preference", eight and eight / PREFERENCES, 1.05),
    ]
    return figures
