"""What was asked for, so that it can be asked again: with a file, or one result of several alone."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Mapping, Sequence

from . import _arguments, _program
from ._errors import Error
from ._schedule import Schedule

#: Options that say how a picture looks, and of those the ones that pages and data have.
_LOOK = frozenset("collapse columns font_size no_cut no_memory no_notes no_waits palette row_height title width window".split())
_OF_PAGES = frozenset("no_cut no_memory no_waits palette title window".split())


class Asked:
    """A verb with its schedules, the words of its options, and other words."""

    def __init__(self, verb: str, schedules: Sequence[str | Schedule], options: Mapping[str, Sequence[str]], several: Sequence[str] = (), others: Sequence[str] = ()):
        self.verb, self.schedules, self.options, self.others = verb, list(schedules), dict(options), list(others)
        #: The options that were given as several numbers.
        self.several = list(several)
        #: Which of the schedules is meant alone, from 1.
        self.only: int | None = None
        #: Which result is meant, and of how many, until `only` is known.
        self._place: tuple[int, int] | None = None

    def run(self, *more: str, shown: bool = False, names: Mapping[str, str] = {}) -> str:
        """Runs the program; texts of schedules become files meanwhile, of which messages say the caller's names, as of those in `names`."""
        if self._place:
            self.only, self._place = self._number(*self._place), None
        kept = self._of_files(Path(more[-1]).suffix[1:]) if "-o" in more else self.options
        with tempfile.TemporaryDirectory() as folder:
            written = {one.written(folder): one.called() for one in self.schedules if isinstance(one, Schedule)}
            paths = iter(written)
            schedules = [f"--schedule={next(paths) if isinstance(one, Schedule) else one}" for one in self.schedules]
            only = [f"--only={self.only}"] if self.only else []
            words = [word for words in kept.values() for word in words]
            return _program.run([self.verb, *schedules, *words, *self.others, *only, *more], {*self.options, "schedule"}, shown, {**written, **names})

    def _of_files(self, ending: str) -> dict[str, Sequence[str]]:
        """Returns the options for one file: without those of other files and of the look of another kind."""
        look = _LOOK if ending in ("svg", "png", "pdf") else _OF_PAGES if ending == "html" else frozenset()
        dropped = {"output", "fail_if"} | (_LOOK - look)
        return {name: words for name, words in self.options.items() if name not in dropped}

    def alone(self, place: int, results: Sequence[Mapping[str, Any]]) -> Asked:
        """Returns what asks for the result at `place` of several alone."""
        numbers = [tuple(one.get(_arguments.SEVERAL[name]) for name in self.several) for one in results]
        own = {name: [f"--{name.replace('_', '-')}={number}"] for name, number in zip(self.several, numbers[place])}
        asked = Asked(self.verb, self.schedules, {**self.options, **own}, others=self.others)
        if len(self.schedules) > 1:
            asked._place = numbers[:place].count(numbers[place]), numbers.count(numbers[place])
        return asked

    def _number(self, place: int, count: int) -> int:
        """Returns which schedule the result at `place` of `count` is of: schedules that do not exist for these numbers have none."""
        number = 0
        while count < len(self.schedules) and number < len(self.schedules):
            number += 1
            asked = Asked(self.verb, self.schedules, self._of_files(""))
            asked.only = number
            try:
                asked.run("-q", "--format", "json")
            except Error:
                continue
            place -= 1
            if place < 0:
                return number
        return number + place + 1


def schedule_words(schedule: Any) -> list[str | Schedule]:
    """Returns a schedule for :class:`Asked`: its name or path, or the object with its text; several for a text such as ``"1f1b,zb-v"``."""
    if isinstance(schedule, Schedule):
        return [schedule]
    if isinstance(schedule, str):
        return list(split(str.__str__(schedule)))
    if not isinstance(schedule, os.PathLike):
        _arguments.refuse("schedule", "the name of a schedule, its path or a Schedule", schedule)
    text = _arguments.path("schedule", schedule)
    if not text.lower().endswith((".star", ".csv")) or "," in text:
        _arguments.refuse("schedule", "the path of a .star or .csv file, without ','", text, "rename it, or pass Schedule.read(path, name='own')")
    return [text]


def split(text: str) -> list[str]:
    """Splits names of schedules at commas; ``key=value`` belongs to the name before it if that has options, too: ``hanayo:waves=2,p=3``."""
    names: list[str] = []
    for piece in text.split(","):
        is_option = re.match(r"\s*[A-Za-z_]\w*\s*=\s*\S", piece, re.ASCII) and not piece.lower().endswith((".star", ".csv"))
        if names and is_option and re.search(r":\s*[A-Za-z_]\w*\s*=\s*\S", names[-1], re.ASCII):
            names[-1] += "," + piece
        else:
            names.append(piece)
    return names
