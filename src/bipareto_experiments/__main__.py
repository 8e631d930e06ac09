"""`python -m bipareto_experiments`: the command line with these commands, from a source tree that
is not installed.
"""

from __future__ import annotations

from bipareto.cli import add_command, main
from bipareto_experiments import commands

if __name__ == "__main__":
    for name in commands.__all__:
        add_command(name, getattr(commands, name))
    main()
