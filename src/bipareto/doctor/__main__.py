"""`python -m bipareto.doctor env`: what is installed and what will be fast, without the command."""

from __future__ import annotations

import sys

from bipareto.doctor.environment import environment, in_words

if __name__ == "__main__":
    if sys.argv[1:] == ["env"]:
        sys.stdout.write(in_words(environment()) + "\n")
    else:
        sys.exit("usage: python -m bipareto.doctor env; for runs: bipareto doctor RUN")
