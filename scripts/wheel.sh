#!/bin/sh
# Build the sdist, the wheel from it, install that into an empty environment and use it there.
#
# sh scripts/wheel.sh PYTHON      PYTHON is the interpreter of a development environment
#
# The new environment gets the wheel and nothing else from this tree.  What the wheel depends on (torch above all, a download of hundreds
# of megabytes) is not installed again: a .pth file puts the development environment's packages at the end of the path, after the
# wheel's own.  The development environment's editable install of this package is kept out by the -I of the smoke test and checked by it.
set -eu
case $1 in /*) python=$1 ;; */*) python=$PWD/$1 ;; *) python=$1 ;; esac
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/tree" "$work/sdist"  # building writes beside the source
cp -r "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$root/src" "$work/tree"
(cd "$work/tree" && "$python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$work/sdist" > /dev/null)
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/dist" "$work"/sdist/*.tar.gz
"$python" -m venv --without-pip "$work/env"
site=$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$site" "$work"/dist/*.whl
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/borrowed.pth"

cd "$work"
"$work/env/bin/python" -I - "$site" <<'SMOKE'
import sys
import importlib.metadata

import bipareto as bp

assert bp.__file__.startswith(sys.argv[1]), f"the package was taken from {bp.__file__}, not from the wheel"
assert "torch" not in sys.modules, "importing the package loaded torch"
print("bipareto", importlib.metadata.version("bipareto"), "from", bp.__file__)

import torch

problem = bp.Problem(
    upper=lambda x, y: torch.stack([(x - 1).square().sum() + y.square().sum(), x.square().sum() + (y - 2).square().sum()]),
    lower=lambda x, y: (y - x).square().sum() / 2,
)
zero = torch.zeros(2, dtype=torch.float64)
front = bp.front(problem, zero, zero, preferences=bp.preferences.grid(2, 3), steps=200, compile=False).resolve_lower()
assert front.lower_residual.max() <= 1e-8
assert (front.objectives[:, 0].diff() > 0).all()
net = torch.nn.Linear(2, 1)
made, x0, y0 = bp.Problem.from_modules(
    x=torch.zeros(4), y=net, lower=lambda x, y, b: (x.sigmoid() * (y(b).flatten() - 1) ** 2).mean(), lower_data=torch.randn(4, 2),
    upper=[lambda x, y, b: y(b).square().mean(), lambda x, y, b: (y(b) - 2).square().mean()], upper_data=torch.randn(4, 2))
bp.solve(made, x0, y0, method=bp.MOMEHA(), steps=3).write_back(None, net)
SMOKE
"$work/env/bin/python" -I -m bipareto --version
"$work/env/bin/python" -I -m bipareto front quadratic --dim 2 --preferences 2 --steps 100 --no-compile --out "$work/run" --json -q > "$work/told.json"
test -s "$work/run/front.csv"
"$work/env/bin/python" -I -m bipareto --help > /dev/null
echo "the wheel works"
