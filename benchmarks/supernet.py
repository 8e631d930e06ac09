"""The fast supernets against the plain ones on one GPU: the same numbers, and how much sooner.

    python benchmarks/supernet.py [agree] [pass] [step] [plain-step] [--space darts|nas-bench-201]
    [--json FILE] [--profile FILE]

    agree        value and gradients of the two, in float32 with TF32 off, and of bfloat16: the
                 median and the worst of 8 batches of noise, and of CIFAR-10 if BIPARETO_DATA has it
    pass         one forward and backward pass at batch 64: eager, as a CUDA graph, fast, fast in
                 bfloat16; 1, 4 and 8 runs side by side
    step         one MB-MOMEHA step with two objectives through `compile="replay"`; 1, 4 and 8
                 preferences side by side
    plain-step   the same on the plain supernet, one preference (recording it takes a minute)

Without names: agree, pass and step.  Every result is printed with the seconds since the start and
written to FILE at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bipareto as bp
from bipareto.errors import BiparetoError
from bipareto.problem import tree
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto_experiments.data import load
from bipareto_experiments.nas.fast import FastDarts, FastNasBench201
from bipareto_experiments.nas.precompiled import precompile
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.supernet import Darts, NasBench201, Supernet

BATCH = 64
BEGAN = time.perf_counter()
SPACES: dict[str, tuple[Supernet, FastDarts | FastNasBench201]] = {
    "darts": (Darts(), FastDarts()),
    "nas-bench-201": (NasBench201(), FastNasBench201()),
}


class Results:
    """Printed and written as they come."""

    def __init__(self, file: Path | None) -> None:
        self.file, self.found = (
            file,
            {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": BATCH},
        )

    def __call__(self, name: str, **values: Any) -> None:
        shown = "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in values.items()
        )
        print(f"{time.perf_counter() - BEGAN:7.1f} s  {name:58s} {shown}", flush=True)
        self.found[name] = values
        if self.file:
            self.file.write_text(json.dumps(self.found, indent=1))


def exact(on: bool) -> None:
    """float32 as it is, or by TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not on


def start(network: Supernet, seed: int = 0, spread: float = 300) -> tuple[Any, Any]:
    """Logits so many times as far from the equal mixture as a search begins; far from it, so that
    every weight matters.
    """
    x, y = network.start(seed)
    return tree.map_(lambda leaf: spread * leaf.cuda(), x), tree.map_(lambda leaf: leaf.cuda(), y)


def judged(network: Supernet, images: torch.Tensor, labels: torch.Tensor) -> Callable[..., Any]:
    """(x, y) -> gradients in both, and the loss."""

    def loss(x: Any, y: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(network.logits(x, y, images), labels)

    return torch.func.grad_and_value(loss, argnums=(0, 1))


def milliseconds(call: Callable[[], object], repeats: int = 15) -> float:
    """The median of single calls, by events on the device."""
    call()
    times = []
    for _ in range(repeats):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def recorded(call: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = call()

    def replay(graph: Any = graph, kept: object = kept) -> None:
        graph.replay()

    return replay


def data(seed: int = 0, count: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of noise: time does not depend on what they show."""
    stream = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, 3, 32, 32, device="cuda", generator=stream), torch.randint(
        10, (count,), device="cuda", generator=stream
    )


def pictures(count: int = 8) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Batches of noise, and of CIFAR-10 where the data folder has it: on noise a gradient is small
    beside its own rounding.
    """
    found = {"noise": [data(seed) for seed in range(count)]}
    try:
        images = load("cifar10")
    except BiparetoError as error:
        print(f"without CIFAR-10: {error}", flush=True)
        return found
    order = torch.randperm(len(images.images), generator=torch.Generator().manual_seed(0))
    found["CIFAR-10"] = []
    for rows in order[: count * BATCH].split(BATCH):
        pixels = images.images[rows].cuda().float() / 255
        found["CIFAR-10"].append(
            (
                (pixels - pixels.mean((0, 2, 3), keepdim=True)) / pixels.std(),
                images.labels[rows].cuda(),
            )
        )
    return found


def agree(name: str, report: Results) -> None:
    """Values and gradients: the median and the worst of some batches."""
    plain, fast = SPACES[name]
    exact(True)
    networks = {"float32": fast, "bfloat16": replace(fast, half=True)}
    for place, spread in (("at the start", 1), ("far from it", 300)):
        point = start(plain, spread=spread)
        doubled = [tree.map_(torch.Tensor.double, part) for part in point]
        for kind, batches in pictures().items():
            apart: dict[str, list[list[float]]] = {}
            for images, labels in batches:
                truth = judged(plain, images.double(), labels)(*doubled)
                wanted = judged(plain, images, labels)(*point)
                apart.setdefault("plain to float64", []).append(distances(wanted, truth))
                for precision, network in networks.items():
                    found = judged(network, images, labels)(*point)
                    apart.setdefault(f"{precision} to plain", []).append(distances(found, wanted))
                    apart.setdefault(f"{precision} to float64", []).append(distances(found, truth))
            for pair, rows in apart.items():
                columns = dict(zip(("value", "x", "y"), zip(*rows, strict=True), strict=True))
                seen = {key: statistics.median(column) for key, column in columns.items()} | {
                    f"worst_{k}": max(c) for k, c in columns.items()
                }
                report(f"{name} agree on {kind} {place}: {pair}", **seen)


def distances(found: Any, wanted: Any) -> list[float]:
    """Of value, gradient in x and gradient in y, each as `judged` returns them."""
    (found_x, found_y), value = found
    (wanted_x, wanted_y), wanted_value = wanted
    return [
        float(tree.relative_distance(*pair))
        for pair in ((value, wanted_value), (found_x, wanted_x), (found_y, wanted_y))
    ]


def passes(name: str, report: Results) -> None:
    """One forward and backward pass, milliseconds."""
    plain, fast = SPACES[name]
    exact(False)
    point, batch = start(plain), data()
    half = replace(fast, half=True)
    networks = {"plain": plain, "fast": fast, "fast bfloat16": half}
    for label, network in networks.items():
        call = judged(network, *batch)
        if label == "plain":
            eager = milliseconds(lambda call=call: call(*point), 5)
            report(f"{name} pass: plain eager", ms=eager)
        graph = recorded(lambda call=call: call(*point))
        report(
            f"{name} pass: {label}",
            ms=(spent := milliseconds(graph)),
            eager_over_this=eager / spent,
        )
        if label != "plain":
            in_x = torch.func.grad(
                lambda x, network=network: torch.nn.functional.cross_entropy(
                    network.logits(x, point[1], batch[0]), batch[1]
                )
            )
            report(
                f"{name} pass: {label}, gradient in x alone",
                ms=milliseconds(recorded(lambda call=in_x: call(point[0]))),
            )
            for runs in (4, 8) if network.folded else ():
                many = [tree.stack([part] * runs) for part in point]
                together = torch.func.vmap(call)
                wide = milliseconds(recorded(lambda call=together, many=many: call(*many)))
                report(
                    f"{name} pass: {label}, {runs} runs",
                    ms=wide,
                    per_run=wide / runs,
                    of_one_alone=wide / runs / spent,
                )
        torch.cuda.empty_cache()


def problem_of(network: Supernet) -> Search:
    """A search on images of noise."""
    stream = torch.Generator().manual_seed(0)
    images = torch.randint(256, (4096, 3, 32, 32), dtype=torch.uint8, generator=stream).cuda()
    halves = Halves(4096, BATCH, margin=4, flip=True, full=256, device="cuda")
    return Search(
        network,
        images,
        torch.randint(10, (4096,), generator=stream).cuda(),
        halves,
        objectives=("loss", "flops"),
        decay=3e-4,
    )


def steps(
    name: str, report: Results, networks: dict[str, tuple[Supernet, tuple[int, ...]]]
) -> None:
    """One step of MB-MOMEHA, milliseconds, for some numbers of preferences."""
    exact(False)
    for label, (network, preferences) in networks.items():
        alone = None
        for runs in preferences:
            problem = problem_of(network)
            method = bp.MBMOMEHA.paper()
            roles = method.roles(2)
            state = method.init(problem, *problem.start(0))
            state = state if runs == 1 else tree.stack([state] * runs)
            step = stepper(problem, method, batched=runs > 1, compile="replay")
            draws = [draw(problem, roles, t, [0]) for t in range(4)]
            before = time.perf_counter()
            packed = step.pack(state, draws[0])
            torch.cuda.synchronize()
            recording = time.perf_counter() - before
            times = []
            for t in range(24):
                begun = time.perf_counter()
                packed, _ = step.advance(packed, draws[t % 4])
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - begun))
            spent = statistics.median(times[4:])
            alone = alone or spent
            finite = bool(torch.isfinite(tree.first_leaf(step.unpack(packed).x)).all())
            report(
                f"{name} step: {label}, {runs} preferences",
                ms=spent,
                per_preference=spent / runs,
                of_one_alone=spent / runs / alone,
                recording_s=recording,
                finite=finite,
            )
            del step, problem, packed, state
            torch.cuda.empty_cache()


def profile(name: str, file: Path) -> None:
    """The 25 kernels that take longest in one pass of the fast network, float32 and bfloat16, with
    their launches.
    """
    _, fast = SPACES[name]
    exact(False)
    tables = []
    for network in (fast, replace(fast, half=True)):
        point, batch = start(network), data()
        call = judged(network, *batch)
        call(*point)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            call(*point)
            torch.cuda.synchronize()
        rows = seen.key_averages()
        total = sum(row.self_device_time_total for row in rows)
        tables.append(
            f"{network}\nkernels {sum(row.count for row in rows)}, {total / 1e3:.3f} ms\n"
        )
        tables.append(
            rows.table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=70)
        )
    file.write_text("\n".join(tables))
    print("\n".join(tables), flush=True)


def warm(names: list[str]) -> None:
    """Compile the kernels in several processes at once; float32 also as agreement needs it."""
    for name in names:
        for on, half in ((True, False), (False, False), (False, True)):
            exact(on)
            precompile(replace(SPACES[name][1], half=half), [BATCH])


def main() -> None:
    """Run the chosen sections."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("sections", nargs="*", help="agree, pass, step, plain-step")
    arguments.add_argument("--space", choices=list(SPACES), action="append")
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--profile", type=Path)
    asked = arguments.parse_args()
    unknown = set(asked.sections) - {"agree", "pass", "step", "plain-step"}
    if unknown:
        arguments.error(f"no section {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        print("not run: no CUDA device here; this compares the two on a GPU")
        return
    report = Results(asked.json)
    names = asked.space or list(SPACES)
    warm(names)
    report("kernels compiled")
    for section in asked.sections or ([] if asked.profile else ["agree", "pass", "step"]):
        for name in names:
            plain, fast = SPACES[name]
            if section == "agree":
                agree(name, report)
            elif section == "pass":
                passes(name, report)
            elif section == "step":
                half = replace(fast, half=True)
                steps(name, report, {"fast": (fast, (1, 4, 8)), "fast bfloat16": (half, (1, 4, 8))})
            else:
                steps(name, report, {"plain": (plain, (1,))})
    if asked.profile:
        for name in names:
            profile(name, asked.profile.with_stem(f"{asked.profile.stem}-{name}"))


if __name__ == "__main__":
    main()
