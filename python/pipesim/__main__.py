"""``python -m pipesim``: the program."""

from . import _main

_main()
