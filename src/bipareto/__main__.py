"""`python -m bipareto` is the command line."""

from __future__ import annotations

from bipareto.cli import main

if __name__ == "__main__":
    main()
