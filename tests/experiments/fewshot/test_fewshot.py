"""Few-shot learning: episodes, the network's two halves, methods on episodes, traced steps,
studies.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import bipareto as bp
from bipareto.cli import app
from bipareto.errors import InvalidInput
from bipareto.problem import oracle, tree
from bipareto.problem.sampler import Role
from bipareto.run.graph.replay import traced
from bipareto.run.steppers import stepper
from bipareto.run.stepping import draw
from bipareto.sweep.store import SliceFolder
from bipareto_experiments.devices import device_of
from bipareto_experiments.episodic import Episodic
from bipareto_experiments.fewshot.episodes import Episodes
from bipareto_experiments.fewshot.network import LEARNERS, Learner, Network
from bipareto_experiments.fewshot.problem import FewShot
from bipareto_experiments.fewshot.settings import (
    COMPARED,
    TRIALS,
    adaptation,
    configured,
    preferences,
)
from bipareto_experiments.fewshot.studies import Study, comparison
from bipareto_experiments.fewshot.summaries import summary
from bipareto_experiments.fewshot.task import build, generated
from bipareto_experiments.fewshot.training import Trial, train
from bipareto_experiments.fewshot.tuning import tune

LABELS = torch.arange(14).repeat_interleave(9)
CLASSES = (tuple(range(7)), tuple(range(7, 14)))


def shaken(y: object) -> object:
    stream = torch.Generator().manual_seed(3)
    return tree.map_(lambda leaf: leaf + 0.1 * torch.randn(leaf.shape, generator=stream), y)


def test_episodes_are_classes_of_their_domain_with_no_image_twice() -> None:
    drawn = Episodes(LABELS, CLASSES, ways=3, shots=2, queries=4).block(5, 1)
    both = torch.cat(
        [drawn.support.unflatten(-1, (3, 2)), drawn.query.unflatten(-1, (3, 4))], -1
    )  # (episodes, domains, ways, images)
    classes = LABELS[both]
    assert (classes == classes[..., :1]).all(), "images of one place in an episode are of one class"
    assert all(len(set(row.tolist())) == 3 for row in classes[..., 0].flatten(0, 1)), (
        "the classes of an episode differ"
    )
    assert all(len(set(row.tolist())) == 18 for row in both.flatten(-2).flatten(0, 1)), (
        "no image is drawn twice"
    )
    assert (classes[:, 0] < 7).all()
    assert (classes[:, 1] >= 7).all()
    # Every class and every image has its turn.
    assert len(classes.unique()) == 14
    assert len(both.unique()) == len(LABELS)


def test_episodes_are_pure_in_step_and_seed() -> None:
    a, b = (Episodes(LABELS, CLASSES, ways=3, shots=2, queries=4) for _ in range(2))
    for t in (300, 2, 301, 2):
        assert torch.equal(
            a(Role("lower", "theta"), t, 7)[0],
            Episodes(LABELS, CLASSES, ways=3, shots=2, queries=4)(Role("lower", "x"), t, 7)[0],
        )
    assert not torch.equal(a(Role("lower", "x"), 3, 7)[0], b(Role("lower", "x"), 3, 8)[0])
    assert not torch.equal(a(Role("lower", "x"), 3, 7)[0], a(Role("lower", "x"), 4, 7)[0])
    test = Episodes(LABELS, CLASSES, ways=3, shots=2, queries=4, name="test")
    assert not torch.equal(a(Role("lower", "x"), 3, 7)[0], test(Role("lower", "x"), 3, 7)[0])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (((0, 1), (2, 3, 4)), "domain 1 has 2 classes, too few for 3-way"),
        (((0, 1, 2), (2, 3, 4)), "class 2 is in domains 1 and 2"),
        (((0, 1, 2), (3, 4, 20)), "class 20 has 0 images, too few for 6"),
    ],
)
def test_impossible_episodes_are_refused(
    classes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Episodes(LABELS, classes, ways=3, shots=2, queries=4)


def test_the_patchwise_block_is_a_convolution_block() -> None:
    network = Network("block", channels=4, blocks=2, size=8)
    _, y = network.start(1, 0)
    features = torch.randn(1, 6, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    block = tree.map_(lambda leaf: leaf[0], y["block"])
    z = torch.nn.functional.conv2d(features[0], block["weight"], padding=1)
    z = torch.nn.functional.batch_norm(z, None, None, block["scale"], block["shift"], training=True)
    expected = torch.nn.functional.max_pool2d(torch.relu(z), 2)
    torch.testing.assert_close(network._last_block(y["block"], features)[0], expected)


@pytest.mark.parametrize("learner", LEARNERS)
def test_tasks_do_not_see_each_other(learner: str) -> None:
    task = generated(learner)  # type: ignore[arg-type]
    x, y = task.start(0)
    batch = task.problem.batch("upper", "x", 0, 0)
    together = task.problem.upper(x, shaken(y), batch)
    alone = torch.stack([task.problem.objective(i, x, shaken(y), batch) for i in range(4)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("learner", LEARNERS)
def test_shared_features_change_no_gradient(learner: str) -> None:
    task = generated(learner)  # type: ignore[arg-type]
    x, y = task.start(0)
    theta, batch = shaken(y), task.problem.batch("lower", "x", 0, 0)

    def shared(v: object) -> Tensor:
        a, b = task.problem.lower_pair(v, y, theta, batch)
        return a - 2 * b

    def literal(v: object) -> Tensor:
        return task.problem.lower(v, y, batch) - 2 * task.problem.lower(v, theta, batch)

    for a, b in zip(
        tree.leaves(oracle.grad(shared, x)), tree.leaves(oracle.grad(literal, x)), strict=True
    ):
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-9


def test_adaptation_steps_as_the_warm_up_does() -> None:
    task = generated("linear")
    x, y = task.start(0)
    method = configured("momeha", "linear", 4)
    assert isinstance(method, Episodic)
    batch = task.problem.batch("lower", "lower", 0, 0)
    learned = method.learn(task.problem, x, y, torch.tensor(method.eta), {Role("lower"): batch})
    adapted = task.problem.adapted(
        task.problem.features(x, batch), y, method.warmup, adaptation("linear", 4)
    )
    torch.testing.assert_close(learned, adapted)


@pytest.mark.parametrize("name", COMPARED)
def test_an_episode_is_a_warm_up_and_joint_steps_and_ends_at_the_start(name: str) -> None:
    task = generated("linear")
    method = configured(name, "linear", 4)
    assert isinstance(method, Episodic)
    state = method.init(task.problem, *task.start(0))
    batches = draw(task.problem, method.roles(4), 0, [0])
    after, info = method.step(task.problem, state, batches)
    inner = method.method.relearned(
        state.inner, method.learn(task.problem, state.x, state.start, state.eta, batches)
    )
    for _ in range(method.joint):
        inner, seen = method.method.step(task.problem, inner, batches)
    for a, b in zip(tree.leaves(after.x), tree.leaves(inner.x), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(info["objectives"], seen["objectives"])
    assert all(
        torch.equal(a, b)
        for a, b in zip(tree.leaves(after.y), tree.leaves(state.start), strict=True)
    )
    assert (
        method.oracles(4)["lower_gradients"] == 8 + 2 * method.method.oracles(4)["lower_gradients"]
    )


@pytest.mark.parametrize("name", ["momeha", "wc-penalty"])
def test_a_traced_step_is_the_step_and_runs_the_backbone_once_per_x(name: str) -> None:
    task = generated("linear")
    method = configured(name, "linear", 4)
    state = method.init(task.problem, *task.start(0))
    batches = draw(task.problem, method.roles(4), 0, [0])
    support, query = batches[Role("lower")], task.problem.batch("upper", "x", 0, 0)
    template = tree.map_(lambda leaf: 0, state)

    def step(leaves: list[Tensor], draws: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        given = {
            role: tuple(draws[2:]) if role.level == "upper" else tuple(draws[:2])
            for role in method.roles(4)
        }
        after, info = method.step(task.problem, tree.rebuild(template, leaves), given)
        return tree.leaves(after), [info["objectives"]]

    leaves = [leaf.clone() for leaf in tree.leaves(state)]
    module = traced(step, leaves, [*support, *query])
    for a, b in zip(
        *(tree.leaves(f(leaves, [*support, *query])) for f in (module, step)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    if name == "momeha":
        counted = Counter(str(node.target) for node in module.graph.nodes)
        # Two joint steps, two sets of images, two blocks: once forward and once backward for each.
        assert (
            counted["aten.convolution.default"] == counted["aten.convolution_backward.default"] == 8
        )


def test_replay_without_a_gpu_is_refused() -> None:
    task = generated("linear")
    method = configured("momeha", "linear", 4)
    state = method.init(task.problem, *task.start(0))
    with pytest.raises(InvalidInput, match="records a CUDA graph, but the run is on cpu"):
        stepper(task.problem, method, batched=False, compile="replay")(
            state, draw(task.problem, method.roles(4), 0, [0])
        )


def test_backbones_trained_side_by_side_are_those_trained_alone() -> None:
    task = generated("linear")
    method = configured("momeha", "linear", 4)
    trials = [Trial(method, w, seed) for seed in (0, 1) for w in preferences(4, ["moderate"])[1:3]]
    together = train(task, trials, 6)
    alone = train(task, trials[3:], 6)
    for a, b in zip(
        tree.leaves(tree.select(together.x, 3)), tree.leaves(tree.select(alone.x, 0)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


class _Broken(RuntimeError):
    pass


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at every record."""
    recording = SliceFolder.recording
    monkeypatch.setattr(
        SliceFolder,
        "recording",
        lambda self, snapshot, seconds, keep: recording(self, snapshot, 0.0, keep),
    )


@pytest.mark.usefixtures("checkpoints")
def test_a_broken_training_goes_on_to_the_same_backbones(tmp_path: Path) -> None:
    task = generated("linear")
    trials = [Trial(configured("momeha", "linear", 4, steps=12), (0.25,) * 4, 0)]
    whole = train(task, trials, 12, folder=tmp_path / "whole")

    def fall(step: int, x: object) -> None:
        if step == 6:
            raise _Broken

    with pytest.raises(_Broken):
        train(task, trials, 12, folder=tmp_path / "broken", watch=fall, watch_every=2)
    assert SliceFolder(tmp_path / "broken").step == 2
    resumed = train(task, trials, 12, folder=tmp_path / "broken")
    read = train(task, trials, 12, folder=tmp_path / "broken")
    for a, b, c in zip(*(tree.leaves(t.x) for t in (whole, resumed, read)), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    with pytest.raises(InvalidInput, match=r"holds another training \(steps = 12, not 14\)"):
        train(task, trials, 14, folder=tmp_path / "broken")


@pytest.mark.usefixtures("checkpoints")
def test_a_broken_study_keeps_the_curve_up_to_where_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def study(folder: Path) -> Study:
        return Study(generated("linear"), folder, 6, [0], progress=False, episodes=4)

    def curve(of: Study) -> Any:
        trials = [Trial(of.method("moml"), None, 0)]
        of.run("moml", trials, [{"method": "moml"}], watched=lambda trial: True)
        return of.records[0]["curve"]

    whole = curve(study(tmp_path / "whole"))
    assert [point["step"] for point in whole] == [2, 4, 6]
    broken, judge = study(tmp_path / "broken"), Study.judge
    calls = 0

    def fall(self: Study, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:  # test and training classes of a point: in the middle of the second
            raise _Broken
        return judge(self, *args, **kwargs)

    monkeypatch.setattr(Study, "judge", fall)
    with pytest.raises(_Broken):
        curve(broken)
    monkeypatch.setattr(Study, "judge", judge)
    # The training goes on, then is read.
    assert curve(study(tmp_path / "broken")) == curve(study(tmp_path / "broken")) == whole


def test_a_preference_leads_and_accuracy_rises() -> None:
    """On the generated images the backbone learns: the equal preference gains on the untrained one
    in every seed.
    """
    task = generated("linear")
    study = Study(task, None, 40, [0, 1], progress=False, episodes=48)
    found = summary(comparison(study, ["momeha"], []))["momeha"]
    assert found["accuracy"] > found["untrained"] + 0.03 > 0.23
    assert found["equal"]["accuracy"] == pytest.approx(found["accuracy"])


def test_the_tiny_comparison_prints_what_it_promises(tmp_path: Path) -> None:
    arguments = [
        "experiment",
        "fewshot",
        "comparison",
        "--tiny",
        "--learner",
        "linear",
        "--methods",
        "momeha,wc-penalty",
        "--steps",
        "8",
        "--json",
    ]
    said = CliRunner().invoke(
        app, [*arguments, "--out", str(tmp_path / "tiny")], catch_exceptions=False
    )
    assert said.exit_code == 0
    found = json.loads(said.stdout.strip().splitlines()[-1])
    assert list(found["methods"]) == ["momeha", "wc-penalty"]
    assert {"accuracy", "hypervolume", "untrained"} <= set(found["methods"]["momeha"])
    assert found["methods"]["momeha"]["accuracy"] > 0.2
    drawn = CliRunner().invoke(
        app,
        ["experiment", "fewshot", "figures", str(tmp_path / "tiny"), "--json"],
        catch_exceptions=False,
    )
    assert {"tiny-comparison.png", "tiny-training.png", "tiny-strengths.png"} <= set(
        json.loads(drawn.stdout.strip().splitlines()[-1])["files"]
    )


def test_preferences_of_the_paper() -> None:
    found = preferences(4, ["weak", "moderate", "strong", "extreme"])
    assert [[round(v, 4) for v in w] for w in found[1::4]] == [
        [0.31, 0.23, 0.23, 0.23],
        [0.4, 0.2, 0.2, 0.2],
        [0.52, 0.16, 0.16, 0.16],
        [0.97, 0.01, 0.01, 0.01],
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: configured("meha", "linear", 4), "method 'meha' takes no part"),
        (lambda: configured("momeha", "linear", 4, preset="mine"), "preset 'mine' is not known"),
        (lambda: preferences(4, ["huge"]), "strength 'huge' is not known"),
        (lambda: Network("tree"), "learner is 'tree'"),  # type: ignore[arg-type]
        (lambda: Network(size=30), "cannot be halved 4 times"),
        (
            lambda: Network(channels=48, fused=True),
            "channels = 48; fused kernels need a power of two",
        ),
        (lambda: Episodic(bp.MOMEHA(), joint=0), "joint = 0"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()  # type: ignore[operator]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="no CUDA device here"):
        device_of("cuda")


def test_a_missing_data_set_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(bp.errors.BiparetoError, match="cifar100"):
        build("fc100", "linear", folder=tmp_path, device="cpu")


def test_training_and_test_classes_are_never_shared() -> None:
    domains = generated("linear").domains
    assert not {k for own in domains.train for k in own} & {k for own in domains.test for k in own}


def test_tuning_takes_the_best_trial_and_the_comparison_takes_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = generated("linear")
    task = replace(task, domains=replace(task.domains, validation=task.domains.test))
    assert {len(trials) for trials in TRIALS.values()} == {8}
    monkeypatch.setitem(TRIALS, "momeha", [{"alpha_x": 1e-6}, {"alpha_x": 0.3}])
    monkeypatch.setattr("bipareto_experiments.fewshot.tuning.ROUNDS", 1)
    found = tune(Study(task, tmp_path, 24, [0], progress=False, episodes=24), ["momeha"])
    trials = found["momeha"]["trials"]
    still, moved = (trial["accuracy"] for trial in trials[:2])
    assert moved > still + 0.1
    best = max(trials, key=lambda trial: trial["accuracy"])
    assert found["momeha"]["numbers"] == best["numbers"]
    # It lies on no edge where half and twice its numbers have been tried.
    tried = {trial["numbers"]["alpha_x"] for trial in trials}
    beside = {0.5 * best["numbers"]["alpha_x"], 2 * best["numbers"]["alpha_x"]}
    assert len(trials) == len(tried) > 3
    assert found["momeha"]["settled"] == (beside <= tried)
    assert json.loads((tmp_path / "tuning.json").read_text())["methods"] == found
    method = Study(task, None, 24, [0], numbers={"momeha": {"c": 0.7}}).method("momeha")
    assert "c=Constant(value=0.7)" in repr(method)


def test_the_step_of_x_ends_gently() -> None:
    task = generated("linear")
    trained = train(task, [Trial(configured("momeha", "linear", 4, steps=40), (0.25,) * 4, 0)], 40)
    assert trained.reason == ("steps",)
    inner = configured("momeha", "linear", 4, steps=40).method  # type: ignore[attr-defined]
    sizes = [float(inner.alpha_x(torch.tensor(float(t)))) for t in (0, 20, 40)]
    assert sizes == pytest.approx([0.3, 0.15, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    ("name", "twice"),
    [("momeha", False), ("forum", False), ("wc-penalty", True), ("moml", True), ("wc-mhgd", True)],
)
def test_methods_with_hessians_are_given_learners_that_bend_twice(
    name: str, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bipareto_experiments import trials as kept

    seen: list[bool] = []

    def stop(problem: FewShot, *_: object, **__: object) -> None:
        seen.append(problem.network.twice)
        raise _Broken

    monkeypatch.setattr(kept, "drive", stop)
    with pytest.raises(_Broken):
        train(generated("linear"), [Trial(configured(name, "linear", 4), None, 0)], 2)
    assert seen == [twice]


@pytest.mark.filterwarnings("ignore:.*strongly convex")
@pytest.mark.parametrize("learner", ["linear", "block"])
@pytest.mark.parametrize("name", ["moml", "wc-mhgd"])
def test_domain_by_domain_a_step_is_the_same(
    name: str, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = generated(learner)
    x, y = (tree.map_(torch.Tensor.double, part) for part in task.start(0))
    y = shaken(y)
    for name_ in ("_scale", "_shift"):
        monkeypatch.setattr(task.problem, name_, getattr(task.problem, name_).double())
    method = configured(name, learner, 4).method  # type: ignore[attr-defined]
    state = method.init(task.problem, x, y)
    batches = draw(task.problem, method.roles(4), 0, [0])
    parts, seen = method.step(task.problem, state, batches)
    monkeypatch.setattr(task.problem, "parts", ())
    whole, wanted = method.step(task.problem, state, batches)
    for a, b in zip(tree.leaves((parts.x, parts.y)), tree.leaves((whole.x, whole.y)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert seen.keys() == wanted.keys()
    for key in seen:
        torch.testing.assert_close(seen[key], wanted[key], rtol=1e-6, atol=1e-9)


def test_an_objective_is_not_differentiated_for_another() -> None:
    task = generated("linear")
    method = configured("moml", "linear", 4).method  # type: ignore[attr-defined]
    state = method.init(task.problem, *task.start(0))
    batches = draw(task.problem, method.roles(4), 0, [0])

    def work(parts: tuple[int, ...]) -> int:
        with pytest.MonkeyPatch.context() as patch, FlopCounterMode(display=False) as seen:
            patch.setattr(task.problem, "parts", parts)
            method.step(task.problem, state, batches)
        return seen.get_total_flops()

    assert work((0, 1, 2, 3)) < 0.45 * work(())
