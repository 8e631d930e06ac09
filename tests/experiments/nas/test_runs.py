"""Searches as resumable runs: settings, folders, what is refused, and first-order DARTS against the
same arithmetic by torch.optim.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bipareto.errors import BiparetoError, InvalidInput
from bipareto.methods.base import Start
from bipareto.methods.parts.schedule import Cosine
from bipareto.problem import oracle, tree
from bipareto.problem.sampler import Role
from bipareto.run.graph.replay import traced
from bipareto.run.stepping import draw
from bipareto_experiments import trials as kept
from bipareto_experiments.data import ImageSet
from bipareto_experiments.nas import search as searching
from bipareto_experiments.nas.first_order import FirstOrder
from bipareto_experiments.nas.problem import Halves, Search
from bipareto_experiments.nas.search import NotEnoughMemory, Trial, search
from bipareto_experiments.nas.settings import (
    METHODS,
    ON_DARTS,
    PRESETS,
    STEPS,
    Settings,
    configured,
    default_preferences,
    hyperparameters_of,
    preset,
)
from bipareto_experiments.nas.supernet import NasBench201
from bipareto_experiments.nas.task import Task, build, generated

SMALL = replace(preset("tiny"), channels=2, batch=6, steps=3)


def trials(
    settings: Settings, name: str = "mb-momeha", seeds: tuple[int, ...] = (0,), **steps: float
) -> list[Trial]:
    method = configured(name, settings, **steps)
    wanted: list[Any] = (
        default_preferences(2, ["strong", "strong-second"]) if method.uses_preference else [None]
    )
    return [Trial(method, w, seed) for seed in seeds for w in wanted]


def start_of(task: Task, seed: int = 0) -> Start:
    x, y = task.problem.start(seed)
    return Start(x, y, task.problem.upper(x, y, task.problem.batch("upper", "full")).detach())


class _Broken(RuntimeError):
    pass


def test_a_search_stopped_at_ten_random_steps_ends_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "CHECKPOINT", 0.0)
    monkeypatch.setattr(searching, "TELL", -1.0)
    settings = replace(SMALL, steps=14, cutout=3, sampled=1.0)
    task, wanted = generated(settings), trials(settings)[:1]
    whole = search(task, wanted, folder=tmp_path / "whole")
    stops = sorted(random.Random(5).sample(range(1, 14), 10))
    reached: list[int] = []

    def fall(text: str) -> None:
        reached.append(int(text.split("step ")[1].split(maxsplit=1)[0]))
        if stops and reached[-1] == stops[0]:
            stops.pop(0)
            raise _Broken

    for _ in range(10):
        with pytest.raises(_Broken):
            search(generated(settings), wanted, folder=tmp_path / "broken", say=fall)
    # Every step was done once: each attempt went on right after the last.
    resumed = search(generated(settings), wanted, folder=tmp_path / "broken", say=fall)
    assert reached == list(range(1, 15))
    read = search(generated(settings), wanted, folder=tmp_path / "broken")
    for other in (resumed, read):
        assert torch.equal(whole.x["cell"], other.x["cell"])
        assert torch.equal(whole.y, other.y)
        assert torch.equal(whole.objectives, other.objectives)
    assert not list((tmp_path / "broken").glob("step-*"))


def test_searches_side_by_side_are_those_done_one_by_one() -> None:
    task, wanted = (
        generated(SMALL),
        trials(SMALL, seeds=(0, 3), alpha_y=0.1),
    )  # long steps would make rounding large
    alone, together = search(task, wanted), search(task, wanted, together=4)
    torch.testing.assert_close(alone.x["cell"], together.x["cell"], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(alone.objectives, together.objectives, rtol=1e-3, atol=1e-4)
    assert alone.objectives.shape == (3, 4, 2)
    assert len(alone.x["cell"].unique(dim=0)) == 4


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_both_sets_of_numbers(name: str) -> None:
    for numbers in ("ours", "paper"):
        settings = replace(SMALL, steps=1, numbers=numbers)
        found = search(generated(settings), trials(settings, name)[:1])
        assert found.reason == ("steps",)
        assert found.objectives.isfinite().all()
        assert found.y.isfinite().all()


@pytest.mark.slow
def test_a_traced_step_is_the_step() -> None:
    """What a GPU records: the same numbers, and every pass over the network once."""
    task = generated(replace(SMALL, cutout=2))
    method, problem = configured("darts", task.settings), task.problem
    state = method.begin(start_of(task))
    batches = draw(problem, method.roles(2), 0, [0])

    def step(leaves: list[Tensor], draws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, info = method.step(
            problem, tree.rebuild(state, leaves), tree.rebuild(batches, draws)
        )
        return tree.leaves(after), list(info.values())

    module = traced(step, tree.leaves(state), tree.leaves(batches))
    other = tree.leaves(draw(problem, method.roles(2), 1, [0]))
    for a, b in zip(
        *(tree.leaves(f(tree.leaves(state), other)) for f in (module, step)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    convolutions = Counter(str(node.target) for node in module.graph.nodes)[
        "aten.convolution.default"
    ]
    per_pass = 3 * 6 * 2 + 1 + 2 * 3
    assert convolutions == 2 * per_pass


def test_first_order_darts_is_adam_and_sgd() -> None:
    task = generated(replace(SMALL, clip=None))
    problem, method = task.problem, FirstOrder(alpha_x=0.01, alpha_y=0.05, beta=0.9, decay_x=0.01)
    state = method.begin(start_of(task))
    x, y = state.x["cell"].clone().requires_grad_(), state.y.clone().requires_grad_()
    adam = torch.optim.Adam([x], 0.01, betas=(0.5, 0.999), weight_decay=0.01)
    sgd = torch.optim.SGD([y], 0.05, momentum=0.9)
    for t in range(3):
        batches = draw(problem, method.roles(2), t, [0])
        state, info = method.step(problem, state, batches)
        loss = problem.objective(0, {"cell": x}, y, batches[Role("upper", "x", 0)])
        assert float(info["objectives"][0]) == pytest.approx(float(loss.detach()), rel=1e-4)
        (x.grad,) = torch.autograd.grad(loss, [x])
        adam.step()
        (y.grad,) = torch.autograd.grad(
            problem.lower({"cell": x.detach()}, y, batches[Role("lower", "x")]), [y]
        )
        sgd.step()
        torch.testing.assert_close(
            (state.x["cell"], state.y), (x.detach(), y.detach()), rtol=1e-3, atol=1e-5
        )


def test_weights_in_one_vector_are_the_tree_of_weights() -> None:
    problem = generated(SMALL).problem
    (x, tree_y), (_, flat) = problem.network.start(4), problem.start(4)
    batch = problem.batch("lower", "theta", 2, 0)
    assert problem.lower(x, flat, batch) == pytest.approx(problem.lower(x, tree_y, batch))
    torch.testing.assert_close(
        oracle.grad(lambda y: problem.lower(x, y, batch), flat),
        tree.ravel(oracle.grad(lambda y: problem.lower(x, y, batch), tree_y)),
    )


def test_clipping_bounds_the_gradient_in_the_weights_alone() -> None:
    images, labels = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8), torch.arange(40) % 10
    free, bound = (
        Search(NasBench201(channels=2, size=8), images, labels, Halves(40, 8), clip=clip)
        for clip in (None, 0.01)
    )
    x, y = free.start(0)
    batch = free.batch("lower", "theta", 0, 0)

    def gradients(problem: Search) -> Any:
        return oracle.grad(lambda both: problem.lower(*both, batch), (x, y))

    (x_free, y_free), (x_bound, y_bound) = gradients(free), gradients(bound)
    torch.testing.assert_close(x_free["cell"], x_bound["cell"])
    assert y_free.norm() > 0.02
    torch.testing.assert_close(y_bound, 0.01 * y_free / y_free.norm())


def test_cutout_blanks_a_square_of_every_image() -> None:
    images, labels = torch.randint(1, 256, (40, 3, 8, 8), dtype=torch.uint8), torch.arange(40) % 10
    problem = Search(NasBench201(channels=2, size=8), images, labels, Halves(40, 20, cutout=4))
    drawn = problem.halves(Role("lower", "theta"), 0, 0)
    pixels, whole = (
        problem.pixels(drawn),
        problem.pixels(problem.halves.augmentation.plain(drawn.rows)),
    )
    blank = (pixels == 0).all(1)
    torch.testing.assert_close(pixels, whole * ~blank.unsqueeze(1))
    rows, columns = blank.any(2).sum(1), blank.any(1).sum(1)
    assert torch.equal(blank.sum((1, 2)), rows * columns)
    assert rows.max() == columns.max() == 4  # less at a border
    assert (pixels != whole).any()


def test_an_epoch_shows_every_image_once() -> None:
    halves = Halves(40, 5)
    rows = torch.cat([halves(Role("upper", "x", 0), t, 7).rows for t in range(4)])
    assert torch.equal(rows.sort().values, halves.rows["upper"].sort().values)
    again = torch.cat([halves(Role("upper", "x", 0), t, 7).rows for t in range(4, 8)])
    assert not torch.equal(rows, again)


def test_presets_hold_the_paper_s_numbers() -> None:
    paper = configured("mb-momeha", PRESETS["paper"])
    assert PRESETS["paper"].steps == 50 * (25_000 // 64)
    assert (paper.gamma, paper.mu, paper.alpha_x.value, paper.alpha_y.value, paper.beta.value) == (
        8.0,
        4.0,
        0.05,
        0.025,
        0.9,
    )  # type: ignore[attr-defined]
    ours = configured("mb-momeha", PRESETS["proxy"])
    assert isinstance(ours.alpha_y, Cosine)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "random"])
def test_in_the_search_of_darts_every_method_s_steps_end_gently(name: str) -> None:
    settings = replace(PRESETS["darts"], warmup=0.2)
    own = (STEPS | ON_DARTS)[hyperparameters_of(name, settings)]["alpha_x"]
    x = configured(name, settings).alpha_x  # type: ignore[attr-defined]
    first, middle, last = (
        float(x(torch.tensor(share * settings.steps))) for share in (0.1, 0.5, 1.0)
    )
    assert first == pytest.approx(last)
    assert middle == pytest.approx(0.5 * own, rel=1e-3)
    assert last == pytest.approx(1e-4 * own)


def test_in_half_precision_gradients_are_compared_over_a_longer_way() -> None:
    half = replace(PRESETS["darts"], supernet="fast", half=True)
    for name, shift in (
        ("moco", lambda m: m.hypergradient.eps),
        ("wc-mhgd", lambda m: m.hypergradient.eps),
        ("wc-penalty", lambda m: m.difference),
    ):
        assert shift(configured(name, half)) == 10 * shift(configured(name, PRESETS["darts"]))


def test_in_the_warm_up_the_weights_learn_and_the_architecture_waits() -> None:
    settings = replace(SMALL, steps=4, warmup=0.75)
    task = generated(settings)
    for name in ("mb-momeha", "darts"):
        begun, moved = task.problem.start(0), []
        for steps in (3, 4):
            part = replace(task, settings=replace(settings, steps=steps))
            found = search(part, trials(settings, name)[:1])  # the numbers are those of four steps
            moved.append(
                [
                    float((a - b[0]).abs().max())
                    for a, b in zip(
                        (begun[0]["cell"], begun[1]), (found.x["cell"], found.y), strict=True
                    )
                ]
            )
        (x_waiting, y_waiting), (x_moving, _) = moved
        assert x_moving > 100 * x_waiting
        assert y_waiting > 1e-3


def test_a_folder_of_another_search_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    wanted = trials(SMALL)[:1]
    first = search(generated(SMALL), wanted, folder=tmp_path)
    darts = replace(SMALL, space="darts")
    with pytest.raises(
        InvalidInput, match=r"holds another search \(space = 'nas-bench-201', not 'darts'\)"
    ):
        search(generated(darts), trials(darts)[:1], folder=tmp_path)
    with pytest.raises(InvalidInput, match=r"holds another search \(batch = 6, not 8\)"):
        search(generated(replace(SMALL, batch=8)), wanted, folder=tmp_path)
    with pytest.raises(InvalidInput, match=r"holds another search \(trials\)"):
        search(generated(SMALL), trials(SMALL)[1:], folder=tmp_path)
    assert torch.equal(search(generated(SMALL), wanted, folder=tmp_path).y, first.y)


def test_too_little_memory_says_how_many_would_fit_and_the_folder_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    task, wanted = generated(SMALL), trials(SMALL, seeds=(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(kept, "drive", full)
        patch.setattr(searching, "_memory", lambda *_: (3 * 2**30, 8 * 2**30))
        with pytest.raises(
            NotEnoughMemory,
            match=r"for 4 searches side by side: one search takes about 3.0 GiB of the 8.0 GiB .* "
            r"so 2 would fit; use --together 2",
        ):
            search(task, wanted, folder=tmp_path, together=4)
        patch.setattr(searching, "_memory", lambda *_: (9 * 2**30, 8 * 2**30))
        with pytest.raises(NotEnoughMemory, match="use a smaller --batch or --channels"):
            search(task, wanted, folder=tmp_path, together=4)
        patch.setattr(searching, "_memory", full)
        with pytest.raises(
            NotEnoughMemory,
            match="for 4 searches side by side; use --together 2 or a smaller --batch",
        ):
            search(task, wanted, folder=tmp_path, together=4)
    assert search(task, wanted, folder=tmp_path, together=4).reason == ("steps",) * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: preset("mine"), "preset 'mine' is not known"),
        (lambda: replace(SMALL, supernet="slow"), "supernet 'slow' is not known"),  # type: ignore[arg-type]
        (lambda: replace(SMALL, numbers="yours"), "numbers 'yours' are not known"),  # type: ignore[arg-type]
        (lambda: replace(SMALL, space="nasnet"), "no search space 'nasnet'"),
        (lambda: replace(SMALL, warmup=1.0), "warmup = 1.0; it is the share"),
        (lambda: replace(SMALL, cosine="some"), "cosine = 'some'; choose none, weights or all"),  # type: ignore[arg-type]
        (lambda: replace(SMALL, sampled=-1.0), "temperatures are not negative"),
        (lambda: replace(SMALL, half=True), "only the fast supernet works in bfloat16"),
        (lambda: configured("momeha", SMALL), "method 'momeha' takes no part"),
        (
            lambda: generated(replace(SMALL, batch=1)),
            "batch norm takes its statistics from the batch",
        ),
        (lambda: search(generated(SMALL), []), "nothing to run"),
        (lambda: search(generated(SMALL), trials(SMALL), together=0), "together = 0"),
        (
            lambda: search(generated(SMALL), [*trials(SMALL), *trials(SMALL, "darts")]),
            "differ in numbers only",
        ),
    ],
)
def test_bad_input_is_named(call: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_a_missing_data_set_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(BiparetoError, match="cifar10 is not in"):
        build(SMALL, folder=tmp_path, device="cpu")


def test_images_to_judge_by_come_in_batches_of_all_classes() -> None:
    """A set may list its test images class by class; statistics of one class would make batch
    norm judge another network.
    """
    count, classes = 400, 4
    labels = torch.arange(classes).repeat_interleave(count // classes)
    images = ImageSet(
        name="sorted",
        images=torch.zeros(count, 3, 8, 8, dtype=torch.uint8),
        labels=labels,
        test=torch.arange(count) % 2 == 1,
        class_names=tuple("abcd"),
    )
    task = Task(replace(SMALL, side=4), images, torch.device("cpu"), full=50)
    assert task.judged_on == "the test images of sorted"
    rows = task.problem.halves.rows["test"]
    assert len(rows) == 200
    for batch in rows.split(50):
        assert torch.bincount(task.problem.labels[batch], minlength=classes).min() > 4
    # They are the set's own: none is among the rows of the halves, and labels went with their
    # images.
    assert int(rows.min()) == 200
    assert torch.bincount(task.problem.labels[rows]).tolist() == [50] * 4
    assert task.problem.network.size == 4
