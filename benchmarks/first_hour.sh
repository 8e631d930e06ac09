#!/bin/bash
# Five tasks of a first hour on a network of one's own, as the README has them, with their seconds.
#
# bash benchmarks/first_hour.sh PYTHON FOLDER      PYTHON has bipareto; FOLDER is emptied
set -u
python=$1
rm -rf "$2" && mkdir -p "$2" && cd "$2" || exit 1
cat > mynet.py <<'PY'
import torch
from sklearn.datasets import load_digits
from torch import nn, utils

import bipareto as bp


def make(hidden=6):
    torch.manual_seed(0)
    pixels, digit = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    parts = [
        utils.data.TensorDataset(images[r].float() / 16, digit[r], torch.full_like(digit[r], kind))
        for kind, images in enumerate((pixels, pixels.flip(1)))
        for r in (slice(600), slice(600, 1200))
    ]
    train, *new = (
        utils.data.DataLoader(rows, 128, shuffle=True)
        for rows in (parts[0] + parts[2], parts[1], parts[3])
    )
    loss = nn.functional.cross_entropy
    net = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, 10))
    training = lambda x, y, b: x.softmax(0)[b[2]] @ loss(y(b[0]), b[1], reduction="none") / len(b[1])
    reading = lambda x, y, b: loss(y(b[0]), b[1])
    return bp.Problem.from_modules(
        x=torch.zeros(2), y=net, lower=training, lower_data=train,
        upper=[reading] * 2, upper_data=new,
    )
PY

task() {
  echo "=== bipareto $*"
  TIMEFORMAT="processor %U s, wall %R s"
  time { timeout 600 "$python" -m bipareto "$@" > told.txt 2>&1; status=$?; }
  tail -n 16 told.txt | cut -c1-200
  echo "exit $status"
}

task front mynet:make --method twin --preferences 3 --steps 100 --out runs/a
task certify runs/a --trust
"$python" -m bipareto front mynet:make --method twin --preferences 3 --steps 300 --out runs/k > /dev/null 2>&1 &
begun=$!
while [ ! -e runs/k/slices/00000/metrics.jsonl ] && kill -0 $begun 2> /dev/null; do sleep 0.2; done
kill -9 $begun && echo "=== killed"
task resume runs/k
task compare mynet:make --methods twin,mb-momeha --preferences 3 --amount 600 --seed 0,1 --out runs/c
task report runs/a --out a.html
