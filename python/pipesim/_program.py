"""Finding and running the program."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Any, Container, Mapping, Sequence

from ._errors import EnvironmentFailure, PipesimWarning, UsageError, of_code


def program() -> str:
    """Returns the path of the program: ``$PIPESIM``, the package's own, or the one on the PATH."""
    given = os.environ.get("PIPESIM")
    if given:
        found = shutil.which(given)
        if not found:
            path = Path(given)
            what = "a folder" if path.is_dir() else "a file that cannot be executed" if path.exists() else "none"
            raise EnvironmentFailure(f"expected the program pipesim at $PIPESIM, {given}, found {what}; correct or unset PIPESIM")
        return found
    own = Path(sysconfig.get_path("scripts")) / "pipesim"
    found = shutil.which(own) or shutil.which("pipesim")
    if not found:
        raise EnvironmentFailure("expected the program pipesim on the PATH, found none; pip install pipesim, or set PIPESIM to its path")
    return found


#: Arguments whose names differ from those of their options, by the name of the option.
ARGUMENTS = {"stages": "devices", "micro": "microbatches"}


def _warn(text: str) -> None:
    """Warns at the line that called the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, PipesimWarning, stacklevel=level)


def run(words: Sequence[str], given: Container[str] = (), shown: bool = False, names: Mapping[str, str] = {}) -> str:
    """Runs the program; returns what it prints. With `shown`, its messages and progress appear as in a terminal; otherwise its
    warnings become Python's.

    `given` has the names of the options that the caller chose: an error that is about one of them begins with its name. `names` has
    the caller's names of temporary files, which messages say instead.
    """
    path = program()
    try:
        child = subprocess.Popen(
            [path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None if shown else subprocess.PIPE, text=True, encoding="utf-8"
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise UsageError("expected shorter arguments, found more than the system passes to a program; write them to files") from None
        raise EnvironmentFailure(f"expected a program at {path}, found what cannot be run ({error.strerror}); install pipesim again, or correct PIPESIM") from None
    except ValueError as error:  # a NUL, or text that is not Unicode
        raise UsageError(f"expected text without NUL and surrogate characters, found others ({error}); leave them out") from None
    try:
        out, err = child.communicate()
    except KeyboardInterrupt:  # the program ends its step and writes what it has
        child.send_signal(signal.SIGINT)
        child.communicate()
        raise
    err = err or ""
    for temporary, name in names.items():
        err = err.replace(temporary, name)
    if child.returncode not in (0, 4):
        # remarks come before the error
        text = re.sub(r"\A(?:.*\n)*?error: ", "", err).strip() or f"pipesim {words[0]} ended with exit code {child.returncode}"
        named = [name.replace("-", "_") for name in re.findall("--([a-z][a-z0-9-]*)", text.split("\n")[0])]
        about = [ARGUMENTS.get(name, name) for name in named if name in given]
        if child.returncode == UsageError.code and about:
            text = f"{about[0]}: {text}"
        raise of_code(child.returncode, text)
    for warning in re.findall("^warning: (.*)", err, re.MULTILINE):
        _warn(warning)
    return out


def parsed(text: str) -> Any:
    """Returns the JSON that the program printed."""
    try:
        return json.loads(text)
    except ValueError:
        raise EnvironmentFailure(f"expected JSON from {program()}, found {text[:60]!r}; install pipesim again, or correct PIPESIM") from None
