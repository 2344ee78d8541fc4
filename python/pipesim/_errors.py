"""The exceptions of the package, one for each exit code of the program, and its warning."""

from __future__ import annotations


class Error(Exception):
    """The program failed. The text is the program's own, with the argument that it is about in front; ``code`` is its exit code."""

    code = 1


class UsageError(Error):
    """Arguments that make no sense (exit code 2)."""

    code = 2


class ScheduleError(Error):
    """A schedule that is invalid or deadlocks (exit code 3)."""

    code = 3


class EnvironmentFailure(Error):
    """The machine lacks what was asked for (exit code 5)."""

    code = 5


class Hang(Error):
    """A device hung or died (exit code 6)."""

    code = 6


class PipesimWarning(UserWarning):
    """What the program warns of, because it changes the answer: a step that does not fit into memory, an assumption."""


_ERRORS = {error.code: error for error in (UsageError, ScheduleError, EnvironmentFailure, Hang)}


def of_code(code: int, text: str) -> Error:
    """Returns the error for an exit code of the program."""
    error = _ERRORS.get(code, Error)(text)
    error.code = code
    return error
