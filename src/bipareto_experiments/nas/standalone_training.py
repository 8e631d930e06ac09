"""A network that was found, trained from scratch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bipareto.errors import InvalidInput
from bipareto.problem.sampler import generator
from bipareto.run.bars import bar
from bipareto.sweep.durable import Damaged, read_tensors, write_tensors
from bipareto_experiments.data import ImageSet
from bipareto_experiments.nas.genotype import Genotype
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.pixels import Augmentation, Draw, Pixels
from bipareto_experiments.nas.standalone import Recipe, Standalone
from bipareto_experiments.nas.supernet import Supernet


def train_network(
    genotype: Genotype,
    network: Supernet,
    images: ImageSet,
    recipe: Recipe,
    device: torch.device,
    *,
    layout: torch.memory_format = torch.contiguous_format,
    folder: Path | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train on the images outside the set's test split, and test on those inside (on all, where
    there is none).

    On a GPU a pass forward and back is recorded once and replayed: a network of many small layers
    is otherwise as slow as its launches.

    Args:
        layout: of images and weights in memory, see `faster_layout`; it changes nothing but speed
            and rounding.
        folder: keeps the network after every epoch (network.safetensors); the same call goes on
            from there.

    Returns epoch, loss (mean training cross entropy) and accuracy (in %) as lists, params, flops,
    and the recipe.
    """
    model = _model(genotype, network, recipe, device, layout)
    optimizer = torch.optim.SGD(
        model.parameters(),
        recipe.rate,
        momentum=recipe.momentum,
        weight_decay=recipe.decay,
        nesterov=True,
        fused=device.type == "cuda",
    )
    exact = cost(network, genotype)
    key = {
        "genotype": json.loads(genotype.to_json()),
        "network": repr(network),
        "data": images.name,
        "recipe": asdict(recipe),
    }
    history: dict[str, list[Any]] = {"epoch": [], "loss": [], "accuracy": []}
    path = None if folder is None else folder / "network.safetensors"
    if path is not None and path.exists():
        history = _restore(path, key, model, optimizer)
    own, look, labels = _images(images, recipe, device)
    held = images.test.nonzero().squeeze(1).to(device) if bool(images.test.any()) else own
    augmentation = look.augmentation
    if recipe.batch < 2 or recipe.batch > len(own):
        raise InvalidInput(
            f"batch = {recipe.batch}; it must be from 2 (for batch norm) to the {len(own)} "
            "training images"
        )
    with bar("training", recipe.epochs, progress, done=len(history["epoch"])) as advance:
        learn = None
        for epoch in range(len(history["epoch"]), recipe.epochs):
            learn = learn or _pass(model, look, labels, recipe)
            drawn = augmentation.shuffled(own, generator("train", epoch, recipe.seed, device))
            history["loss"].append(_epoch(model, optimizer, recipe, epoch, learn, drawn))
            history["accuracy"].append(
                _tested(model, look, labels, augmentation.plain(held), recipe)
            )
            history["epoch"].append(epoch + 1)
            if path is not None:
                _save(path, key, model, optimizer, history)
            if say is not None:
                say(
                    f"epoch {epoch + 1} of {recipe.epochs}: training loss "
                    f"{history['loss'][-1]:.4f}, test accuracy {history['accuracy'][-1]:.2f} %"
                )
            advance(1)
    return {**history, "params": exact.params, "flops": exact.flops, "recipe": asdict(recipe)}


def faster_layout(
    genotype: Genotype, network: Supernet, images: ImageSet, recipe: Recipe, device: torch.device
) -> torch.memory_format:
    """In which layout a pass of that network is faster; on a CPU it is the usual one.

    A GPU's library has its fast products for channels last, and not all of its depthwise
    convolutions.
    """
    if device.type != "cuda":
        return torch.contiguous_format
    layouts = (torch.contiguous_format, torch.channels_last)
    taken = [seconds_of_epoch(genotype, network, images, recipe, device, way) for way in layouts]
    return layouts[taken.index(min(taken))]


def seconds_of_epoch(
    genotype: Genotype,
    network: Supernet,
    images: ImageSet,
    recipe: Recipe,
    device: torch.device,
    layout: torch.memory_format,
    passes: int = 8,
) -> float:
    """What the passes of an epoch take, reckoned from a few."""
    model = _model(genotype, network, recipe, device, layout)
    own, look, labels = _images(images, recipe, device)
    learn, draw = _pass(model, look, labels, recipe), look.augmentation.plain(own[: recipe.batch])
    model.train()

    def taken(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            learn(draw)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    taken(1)
    return taken(passes) / passes * (len(own) // recipe.batch)


def _model(
    genotype: Genotype,
    network: Supernet,
    recipe: Recipe,
    device: torch.device,
    layout: torch.memory_format,
) -> Standalone:
    torch.manual_seed(recipe.seed)
    model = Standalone(genotype, network).to(device)
    return model.to(memory_format=layout)  # type: ignore[call-overload]


def _images(
    images: ImageSet, recipe: Recipe, device: torch.device
) -> tuple[Tensor, Pixels, Tensor]:
    """The rows to train on, the images as a network sees them, and all labels."""
    own = (~images.test).nonzero().squeeze(1).to(device)
    augmentation = Augmentation(recipe.margin, recipe.flip, recipe.cutout)
    augmentation.check()
    return own, Pixels(images.images.to(device), augmentation, own), images.labels.to(device)


def _scores(model: nn.Module, pixels: Tensor, half: bool) -> Tensor:
    """(n, classes), float32, whatever the passes work in."""
    # A recorded pass must not keep weights in bfloat16 from one step to the next.
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        return model(pixels).float()


def _pass(
    model: nn.Module, look: Pixels, labels: Tensor, recipe: Recipe
) -> Callable[[Draw], Tensor]:
    """A function of a draw: its loss, with gradients left in the parameters."""
    if labels.device.type == "cuda":
        return _recorded(model, look, labels, recipe)
    return _plain(model, look, labels, recipe)


def _plain(
    model: nn.Module, look: Pixels, labels: Tensor, recipe: Recipe
) -> Callable[[Draw], Tensor]:
    def learn(draw: Draw) -> Tensor:
        model.zero_grad()
        loss = cross_entropy(_scores(model, look(draw), recipe.half), labels[draw.rows])
        loss.backward()
        return loss.detach()

    return learn


def _recorded(
    model: nn.Module, look: Pixels, labels: Tensor, recipe: Recipe
) -> Callable[[Draw], Tensor]:
    """The same as a CUDA graph, whose gradients stay where they are from one call to the next."""
    learn, given = (
        _plain(model, look, labels, recipe),
        look.augmentation.plain(torch.arange(recipe.batch, device=labels.device)),
    )
    kept = {name: value.clone() for name, value in model.named_buffers()}
    model.train()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # the library chooses its algorithms before it is recorded
            learn(given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = learn(given)
    for name, value in model.named_buffers():  # running averages have not seen these images
        value.copy_(kept[name])

    def replay(draw: Draw) -> Tensor:
        for place, value in zip(given, draw, strict=True):
            place.copy_(value)
        graph.replay()
        return loss

    return replay


def _epoch(
    model: nn.Module,
    optimizer: torch.optim.SGD,
    recipe: Recipe,
    epoch: int,
    learn: Callable[[Draw], Tensor],
    drawn: Draw,
) -> float:
    model.train()
    steps = len(drawn.rows) // recipe.batch
    total = torch.zeros((), device=drawn.rows.device)
    for step in range(steps):
        share = (epoch + step / steps) / recipe.epochs
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * 0.5 * (1 + math.cos(math.pi * share))
        total += learn(_part(drawn, step * recipe.batch, recipe.batch))
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
    return float(total / steps)


def _part(drawn: Draw, first: int, count: int) -> Draw:
    """Some rows of a draw."""
    return Draw(*(leaf[first : first + count] for leaf in drawn))


def _tested(model: nn.Module, look: Pixels, labels: Tensor, drawn: Draw, recipe: Recipe) -> float:
    """Accuracy in per cent with running averages."""
    model.eval()
    right = torch.zeros((), device=labels.device)
    with torch.no_grad():
        for first in range(0, len(drawn.rows), recipe.batch):
            draw = _part(drawn, first, recipe.batch)
            scores = _scores(model, look(draw), recipe.half)
            right += (scores.argmax(1) == labels[draw.rows]).sum()
    return float(100 * right / len(drawn.rows))


def _save(
    path: Path,
    key: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.SGD,
    history: dict[str, list[Any]],
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for i, parameter in enumerate(model.parameters()):
        tensors[f"momentum.{i}"] = optimizer.state[parameter]["momentum_buffer"]
    write_tensors(path, tensors, key | {"history": history})


def _restore(
    path: Path, key: dict[str, Any], model: nn.Module, optimizer: torch.optim.SGD
) -> dict[str, list[Any]]:
    try:
        tensors, meta = read_tensors(path)
    except Damaged as error:
        raise Damaged(f"{error}; remove it to begin anew") from error
    for name, wanted in key.items():
        if meta[name] != json.loads(json.dumps(wanted)):
            numbers = wanted.items() if name == "recipe" else ()
            differ = "; ".join(
                f"{number} = {meta[name].get(number)}, not {value}"
                for number, value in numbers
                if meta[name].get(number) != value
            )
            said = f" ({differ})" if differ else ""
            raise InvalidInput(
                f"{path} holds the training of another {name}{said}; use another folder, or remove "
                "it"
            )
    model.load_state_dict(
        {
            name.removeprefix("model."): value
            for name, value in tensors.items()
            if name.startswith("model.")
        }
    )
    for i, parameter in enumerate(model.parameters()):
        optimizer.state[parameter]["momentum_buffer"] = tensors[f"momentum.{i}"].to(
            parameter.device
        )
    return meta["history"]
