"""Schedules as texts, and PyTorch's schedule objects."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Mapping

from . import _arguments, _program
from ._errors import EnvironmentFailure, UsageError

_LONGEST_NAME = 100


class Schedule:
    """A schedule as text in pipesim's language, or in that of PyTorch's files with ``ending="csv"``.

    >>> own = ps.Schedule("def device(r, p, m):\\n    return m * F + m * B\\n", name="own")
    >>> ps.predict(own, devices=2, microbatches=4).makespan
    15.0
    """

    def __init__(self, text: str, name: str = "own", ending: str = "star"):
        self.text, self.name, self.ending = text, name, ending
        #: The file that it was read from.
        self.path: str | None = None
        self.file_name()

    def file_name(self) -> str:
        """Returns the name of a file with the schedule, checked: the program is to read it as a name and nothing else."""
        if not isinstance(self.text, str) or re.search("[\ud800-\udfff]", self.text):
            _arguments.refuse("text", "a text of Unicode", self.text)
        if not isinstance(self.name, str) or not re.fullmatch(r"\w[^\x00-\x1f\x7f\ud800-\udfff,:=/\\]*", self.name) or len(self.name.encode()) > _LONGEST_NAME:
            _arguments.refuse("name", f"a name of at most {_LONGEST_NAME} bytes that begins with a letter or digit, without , : = / and \\", self.name, "choose another")
        if self.ending not in ("star", "csv"):
            _arguments.refuse("ending", "'star' or 'csv'", self.ending)
        return f"{self.name}.{self.ending}"

    def called(self) -> str:
        """Returns what messages call the file: the path that it was read from, or its name."""
        return self.path or self.file_name()

    def written(self, folder: str) -> str:
        """Writes the text to a file in `folder`, and returns its path."""
        if "," in folder:
            raise EnvironmentFailure(f"expected a folder for temporary files without ',', found {folder}; set TMPDIR to another")
        path = Path(folder) / self.file_name()
        if path.exists():  # two of one name
            path = Path(tempfile.mkdtemp(dir=folder)) / path.name
        path.write_text(self.text, encoding="utf-8")
        return str(path)

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, {len(self.text.splitlines())} lines)"

    @classmethod
    def read(cls, path: str | os.PathLike[str], name: str | None = None) -> Schedule:
        """Reads a ``.star`` file, or a ``.csv`` file of PyTorch's; its name is that of the file if none is given."""
        place = Path(_arguments.path("path", path))
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else "no text in UTF-8"
            raise UsageError(f"path: expected a schedule file at {place}, found: {what}; check the path") from None
        schedule = cls(text, place.stem if name is None else name, place.suffix.removeprefix(".").lower() or "star")
        schedule.path = str(place)
        return schedule

    def to_torch(self, stages: Any, n_microbatches: int, **options: Any) -> Any:
        """Returns a runnable schedule of ``torch.distributed.pipelining`` with this order; `stages` are the stages of this rank.

        The class is the one with which PyTorch loads files of orders, ``_PipelineScheduleRuntime``.
        """
        return _to_torch(self, stages, n_microbatches, options)


def from_torch(schedule: Any, devices: int | None = None, microbatches: int | None = None, *, chunks: int = 2) -> Schedule:
    """Takes the order of a schedule object of ``torch.distributed.pipelining``, or of a class of it and p and m.

    The object needs a ``pipeline_order``: actions by rank, whose text is that of PyTorch's files. A class is called with stand-ins for
    its stages, `chunks` per device. torch itself is not imported.
    """
    if isinstance(schedule, type):
        if devices is None or microbatches is None:
            raise UsageError("devices and microbatches: expected both besides a class, found one or none; give them")
        numbers = {"devices": devices, "microbatches": microbatches, "chunks": chunks}
        p, m, v = (_arguments.whole(name, value) for name, value in numbers.items())
        for name, value in numbers.items():
            if value < 1:
                _arguments.refuse(name, "1 or more", value)
        return _from_class(schedule, p, m, v)
    order = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None)
    # The order that PyTorch 2.15's Schedule1F1B tells of itself lacks 1F0, so those of schedules of one stage are not used.
    if not order or hasattr(schedule, "_stage"):
        raise UsageError(f"expected a schedule with a pipeline_order, found {type(schedule).__name__}, which has one stage per device; name the built-in one instead, as in '1f1b'")
    rows = [",".join("" if action is None else str(action) for action in order[rank]) for rank in sorted(order)]
    return Schedule("\n".join(rows) + "\n", type(schedule).__name__.removeprefix("Schedule") or "torch", "csv")


class _Stage:
    """What PyTorch's schedules ask of a stage before they run."""

    def __init__(self, index: int, stages: int, group_size: int):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, stages, group_size, index % group_size
        self.is_first, self.is_last, self.has_backward, self.submod = index == 0, index == stages - 1, True, None
        self.stage_index_to_group_rank = {stage: stage % group_size for stage in range(stages)}
        self.device, self.group = "cpu", None


def _from_class(kind: type, devices: int, microbatches: int, chunks: int) -> Schedule:
    if "stage" in inspect.signature(kind).parameters:
        return from_torch(kind(_Stage(0, devices, devices), microbatches))
    return from_torch(kind([_Stage(chunk * devices, devices * chunks, devices) for chunk in range(chunks)], microbatches))


def _to_torch(schedule: Schedule, stages: Any, n_microbatches: int, options: Mapping[str, Any]) -> Any:
    try:
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    except ImportError:
        raise EnvironmentFailure("expected PyTorch, found none; pip install torch") from None

    micro = _arguments.whole("n_microbatches", n_microbatches)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "order.csv")
        written = schedule.written(folder)
        words = [f"--schedule={written}", f"--stages={stages[0].group_size}", f"--micro={micro}", "--to=pytorch-csv"]
        _program.run(["export", *words, "-q", "-o", path], {"stages", "micro", "to", "schedule"}, names={written: schedule.called()})
        runtime = _PipelineScheduleRuntime(stages, micro, **options)
        runtime._load_csv(path)
    return runtime
