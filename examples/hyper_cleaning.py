"""Data hyper-cleaning: MNIST and Fashion-MNIST with half of the training labels wrong, in FORUM's
setting.

The idx files are looked for in $BIPARETO_DATA/mnist and $BIPARETO_DATA/fashion-mnist (or where
Debian's dataset-fashion-mnist puts them). At full size this takes a GPU some minutes; `bipareto
experiment cleaning` has more options.

python examples/hyper_cleaning.py [OUT] [--small]
"""

from __future__ import annotations

import sys
from pathlib import Path

from bipareto_experiments.cleaning import FULL, SMALL
from bipareto_experiments.cleaning_run import run_cleaning

small = "--small" in sys.argv
out = Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "."))

found = run_cleaning(
    out,
    sizes=SMALL if small else FULL,
    seeds=[0] if small else [0, 1, 2],
    preferences=3 if small else 5,
    steps=15 if small else None,
)
for name, said in found["summary"].items():
    print(
        f"{name}: test accuracy {said['test'][0]:.1f} % on MNIST, {said['test'][1]:.1f} % on "
        "Fashion-MNIST"
    )
print(f"cleaning.json, cleaning.csv and cleaning.png are in {out}")
