"""Genotypes: the rules that derive them, JSON, pictures, and the known accuracies of
NAS-Bench-201.
"""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from bipareto.errors import InvalidInput
from bipareto_experiments.data import DataError, MissingData
from bipareto_experiments.nas.genotype import Genotype, derive
from bipareto_experiments.nas.known import FILE, PUBLISHED, KnownCells, load_known
from bipareto_experiments.nas.objectives import cost
from bipareto_experiments.nas.picture import svg
from bipareto_experiments.nas.spaces import DARTS, NAS_BENCH_201, Space
from experiments.nas.reference import counted, discrete, random_genotype

both = pytest.mark.parametrize("space", [NAS_BENCH_201, DARTS], ids=lambda space: space.name)
REAL = os.environ.get("BIPARETO_DATA")
real = pytest.mark.skipif(
    not REAL or not (Path(REAL) / FILE).is_file(),
    reason=f"BIPARETO_DATA names no folder with {FILE}",
)


@both
@pytest.mark.parametrize("seed", range(3))
def test_a_genotype_is_derived_from_its_own_logits_and_comes_back_from_json(
    space: Space, seed: int
) -> None:
    genotype = random_genotype(space, seed)
    assert derive(space, genotype.logits(strength=3.0)) == genotype
    assert Genotype.of(space, genotype.choices()) == genotype
    assert Genotype.from_json(genotype.to_json(), space) == genotype


def test_nas_bench_201_takes_the_largest_logit_of_every_edge() -> None:
    logits = torch.randn(6, 5)
    found = derive(NAS_BENCH_201, {"cell": logits})
    assert [name for _, name in found.cells["cell"]] == [
        NAS_BENCH_201.names[int(row.argmax())] for row in logits
    ]
    assert [edge for edge, _ in found.cells["cell"]] == list(NAS_BENCH_201.edges)


def test_darts_keeps_the_two_strongest_edges_apart_from_none() -> None:
    x = {kind: torch.randn(14, 8) for kind in DARTS.kinds}
    x["normal"][:, 0] += 5  # "none" leads everywhere, and is never taken
    found = derive(DARTS, x)
    for kind, logits in x.items():
        weight = logits.softmax(-1)[:, 1:].max(-1)
        for node in range(2, 6):
            own = [(edge, name) for edge, name in found.cells[kind] if edge.target == node]
            best = sorted(
                (i for i, edge in enumerate(DARTS.edges) if edge.target == node),
                key=lambda i: weight.values[i].item(),
            )[-2:]
            assert own == [
                (DARTS.edges[i], DARTS.names[1 + int(weight.indices[i])]) for i in sorted(best)
            ]


def test_darts_ranks_edges_by_weight_and_not_by_logit() -> None:
    """An edge with large logits all alike is weaker than one with small logits of which one
    leads.
    """
    logits = torch.zeros(14, 8)
    logits[2] = 9.0  # 3<-0: every operation alike
    logits[3, 4] = logits[4, 5] = 1.0  # 3<-1 and 3<-2 lead by one
    cells = derive(DARTS, {"normal": logits, "reduction": logits}).cells["normal"]
    assert [(str(edge), name) for edge, name in cells if edge.target == 3] == [
        ("3<-1", "sep_conv_3x3"),
        ("3<-2", "sep_conv_5x5"),
    ]


def edited(space: Space, change: object) -> str:
    found = json.loads(random_genotype(space, 0).to_json())
    change(found)  # type: ignore[operator]
    return json.dumps(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no JSON"),
        ("[1]", "a genotype is"),
        (
            edited(DARTS, lambda g: g.update(space="darst")),
            "no search space 'darst'; choose one of nas-bench-201, darts",
        ),
        (edited(DARTS, lambda g: g.update(space="nas-bench-201")), "needs cell"),
        (edited(DARTS, lambda g: g["cells"].pop("normal")), "needs normal, reduction"),
        (edited(DARTS, lambda g: g["cells"].update(normal=3)), "'normal' is a int"),
        (
            edited(DARTS, lambda g: g["cells"]["normal"].pop()),
            "node 5 has 1 incoming edges with an operation; darts needs 2",
        ),
        (
            edited(DARTS, lambda g: g["cells"]["normal"][0].update(operation="none")),
            "such an edge is left out",
        ),
        (edited(DARTS, lambda g: g["cells"]["normal"].reverse()), "write them in the order"),
        (
            edited(NAS_BENCH_201, lambda g: g["cells"]["cell"][0].pop("operation")),
            "cell 'cell' has an edge",
        ),
        (
            edited(NAS_BENCH_201, lambda g: g["cells"]["cell"][0].update(operation="conv")),
            "edge 1<-0 has operation 'conv'",
        ),
        (
            edited(NAS_BENCH_201, lambda g: g["cells"]["cell"][0].update({"from": 7})),
            "has no edge 1<-7",
        ),
        (
            edited(NAS_BENCH_201, lambda g: g["cells"]["cell"].append(g["cells"]["cell"][0])),
            "given 2 times",
        ),
        (
            edited(NAS_BENCH_201, lambda g: g["cells"]["cell"].pop(2)),
            "node 2 has 1 incoming edges with an operation",
        ),
    ],
)
def test_bad_genotypes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Genotype.from_json(text)


def test_genotypes_of_another_space_are_refused() -> None:
    text = random_genotype(DARTS, 0).to_json()
    with pytest.raises(InvalidInput, match="of the space darts, but nas-bench-201 was asked for"):
        Genotype.from_json(text, NAS_BENCH_201)
    with pytest.raises(InvalidInput, match="cells of kind normal, reduction"):
        derive(DARTS, {"cell": torch.zeros(6, 5)})


@both
def test_the_picture_shows_every_edge_inside_its_frame(space: Space) -> None:
    genotype = random_genotype(space, 1)
    text = svg(genotype, "a < b & c")
    assert text == svg(genotype, "a < b & c")
    root = ET.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    drawn = root.findall(".//{*}text")
    words = [element.text for element in drawn]
    assert words[0] == "a < b & c"
    for chosen in genotype.cells.values():
        for name in {name for _, name in chosen}:
            assert words.count(name) == sum(
                name == other for cell in genotype.cells.values() for _, other in cell
            )
    assert len(root.findall(".//{*}path")) == sum(
        len(chosen) for chosen in genotype.cells.values()
    ), "an arrowhead for every edge"
    assert all(
        0 < float(element.attrib["x"]) < width and 0 < float(element.attrib["y"]) < height
        for element in drawn
    )
    # No two texts on one line reach into each other (a letter is at most 8 pixels wide).
    for a in drawn[1:]:
        for b in drawn[1:]:
            if a is not b and a.attrib["y"] == b.attrib["y"]:
                gap = abs(float(a.attrib["x"]) - float(b.attrib["x"]))
                assert gap >= 4 * (len(a.text or "") + len(b.text or ""))


@pytest.fixture(scope="module")
def known() -> KnownCells:
    return load_known()


@real
def test_known_cells(known: KnownCells) -> None:
    empty = Genotype.of(NAS_BENCH_201, {"cell": torch.zeros(6, dtype=torch.int64)})
    assert [known.accuracy(empty, dataset) for dataset in ("cifar10", "cifar100")] == pytest.approx(
        [10.0, 1.0]
    )
    # The best cells as published: 94.37, 73.51 and 47.31 percent.
    best = {
        dataset: known.genotype(int(values.argmax()))
        for dataset, values in known.accuracies.items()
    }
    assert [round(known.accuracy(best[dataset], dataset), 2) for dataset in best] == [
        94.37,
        73.51,
        47.31,
    ]
    names = [name for _, name in best["cifar10"].cells["cell"]]
    assert names == [
        "nor_conv_3x3",
        "nor_conv_3x3",
        "nor_conv_3x3",
        "skip_connect",
        "nor_conv_1x1",
        "nor_conv_3x3",
    ]
    for n in (0, 1, 5, 11663, 15624):
        assert known.number(known.genotype(n)) == n
        assert known.flops[n].item() == cost(PUBLISHED, known.genotype(n)).flops
    assert cost(PUBLISHED, best["cifar10"]) == counted(discrete(PUBLISHED, best["cifar10"]), 32)
    with pytest.raises(InvalidInput, match="known for nas-bench-201 only"):
        known.accuracy(random_genotype(DARTS, 0))
    with pytest.raises(InvalidInput, match="'mnist'; choose one of cifar10"):
        known.accuracy(empty, "mnist")


@real
def test_numbers_agree_with_the_names_in_the_file(known: KnownCells) -> None:
    with np.load(Path(str(REAL)) / FILE) as found:
        names, accuracies = found["arch_str"], found["cifar100_test"]
    for row in range(0, 15625, 997):
        listed = [
            part.split("~")[0] for part in names[row].decode().replace("+", "").split("|") if part
        ]
        genotype = Genotype.of(
            NAS_BENCH_201,
            {"cell": torch.tensor([NAS_BENCH_201.names.index(name) for name in listed])},
        )
        assert known.accuracy(genotype, "cifar100") == accuracies[row]


@real
def test_the_true_front_is_not_dominated_and_dominates_the_rest(known: KnownCells) -> None:
    front = known.front("cifar10")
    accuracy, flops = known.accuracies["cifar10"], known.flops
    assert accuracy[front].max() == accuracy.max()
    assert flops[front].min() == flops.min()
    # By growing FLOPs accuracy grows strictly, and every cell is matched or beaten by one of the
    # front.
    assert (flops[front].diff() > 0).all()
    assert (accuracy[front].diff() > 0).all()
    assert ((accuracy[front] >= accuracy[:, None]) & (flops[front] <= flops[:, None])).any(1).all()


def test_a_missing_or_wrong_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIPARETO_DATA", raising=False)
    with pytest.raises(MissingData, match=f"{FILE}.*no data folder is named by BIPARETO_DATA"):
        load_known()
    with pytest.raises(MissingData, match="put it into the data folder"):
        load_known(tmp_path)
    (tmp_path / FILE).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be read as the table"):
        load_known(tmp_path)
    table = {f"{name}_test": np.zeros(3) for name in ("cifar10", "cifar100", "imagenet16")}
    edges = [str(edge) for edge in NAS_BENCH_201.edges]
    np.savez(
        tmp_path / FILE,
        ops=np.zeros((3, 6), np.uint8),
        op_names=np.array(NAS_BENCH_201.names),
        edge_order=np.array(edges),
        **table,
    )
    with pytest.raises(DataError, match="3 cells; need every cell"):
        load_known(tmp_path)
