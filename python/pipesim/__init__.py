"""Which pipeline-parallel schedule, and what will it really cost?

Each function runs the program ``pipesim``, which the package contains, and returns the objects of its JSON. So results, messages and
options are those of the command line: an option such as ``--memory-cap 8`` is the keyword ``memory_cap=8``. Nothing but Python is
needed; pandas or polars is imported when a data frame is asked for, torch when a schedule is turned into PyTorch's.

>>> import pipesim as ps
>>> prediction = ps.predict("zb-v", devices=4, microbatches=8)
>>> prediction.makespan
25.5
>>> ps.predict(["1f1b", "zb-v"], devices=4, microbatches=8).shortest.schedule
'zb-v'
"""

from __future__ import annotations

import html
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Generic, Iterable, Iterator, Mapping, Sequence, TypeVar, Union, overload

__all__ = [
    "Check", "Error", "EnvironmentFailure", "Explanation", "Hang", "Plan", "Plans", "Prediction", "Predictions", "Record", "Schedule",
    "ScheduleError", "Spans", "UsageError", "check", "compare", "explain", "from_torch", "plan", "predict", "predict_model", "run",
    "schedules",
]  # fmt: skip


class Error(Exception):
    """The program failed. The text is the program's own; ``code`` is its exit code."""

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


_ERRORS = {error.code: error for error in (UsageError, ScheduleError, EnvironmentFailure, Hang)}


def program() -> str:
    """Returns the path of the program: ``$PIPESIM``, the package's own, or the one on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "pipesim"
    found = os.environ.get("PIPESIM") or (str(own) if own.is_file() else shutil.which("pipesim"))
    if not found:
        raise EnvironmentFailure("expected the program pipesim on the PATH, found none; pip install pipesim, or set PIPESIM to its path")
    return found


def _run(args: Sequence[str], shown: bool = False) -> str:
    """Runs the program; returns what it prints. With `shown`, its messages and progress appear as in a terminal."""
    child = subprocess.Popen(
        [program(), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None if shown else subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        out, err = child.communicate()
    except KeyboardInterrupt:  # the program ends its step and writes what it has
        child.send_signal(signal.SIGINT)
        child.communicate()
        raise
    if child.returncode not in (0, 4):
        text = (err or "").strip() or f"pipesim {args[0]} ended with exit code {child.returncode}"
        error = _ERRORS.get(child.returncode, Error)(text.removeprefix("error: "))
        error.code = child.returncode
        raise error
    return out


class Schedule:
    """A schedule as text in pipesim's language.

    >>> own = ps.Schedule("def device(r, p, m):\\n    return m * F + m * B\\n", name="own")
    >>> ps.predict(own, devices=2, microbatches=4).makespan
    15.0
    """

    def __init__(self, text: str, name: str = "own", ending: str = "star"):
        self.text, self.name, self.ending = text, name, ending

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, {len(self.text.splitlines())} lines)"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schedule:
        """Reads a ``.star`` file, or a ``.csv`` file of PyTorch's."""
        path = Path(path)
        return cls(path.read_text(encoding="utf-8"), path.stem, path.suffix.removeprefix(".") or "star")

    def to_torch(self, stages: Any, n_microbatches: int, **options: Any) -> Any:
        """Returns a runnable schedule of ``torch.distributed.pipelining`` with this order; `stages` are the stages of this rank.

        The class is the one with which PyTorch loads files of orders, ``_PipelineScheduleRuntime``.
        """
        return _to_torch(self, stages, n_microbatches, options)


def _given(folder: str, schedule: Any) -> str:
    """Returns the name of a schedule for the command line; texts become files in `folder`."""
    if isinstance(schedule, Schedule):
        path = Path(folder) / f"{schedule.name}.{schedule.ending}"
        if path.exists():  # two of one name
            path = Path(tempfile.mkdtemp(dir=folder)) / path.name
        path.write_text(schedule.text, encoding="utf-8")
        return str(path)
    if isinstance(schedule, (str, os.PathLike)):
        return os.fspath(schedule)
    raise TypeError(f"expected the name of a schedule or a Schedule, found {type(schedule).__name__}")


def _options(options: Mapping[str, Any]) -> list[str]:
    """Turns keywords into options: True is a switch, a list repeats, a mapping is joined as in F=1,I=1."""
    args: list[str] = []
    for key, value in options.items():
        name = "--" + key.rstrip("_").replace("_", "-")
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={_cost(cost)}" for key, cost in value.items())
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                args.append(name)
            elif one is not None and one is not False:
                args += [name, str(one)]
    return args


def _cost(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


class Record(Mapping):
    """An object of the program's JSON: its fields are attributes and keys. ``.json`` is the plain value."""

    def __init__(self, json: Mapping[str, Any], again: Sequence[str] = (), files: Sequence[Schedule] = ()):
        self.json, self._again, self._files = dict(json), list(again), list(files)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "json":
            raise AttributeError(name)
        try:
            return _wrapped(self.json[name])
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are {', '.join(self.json)}") from None

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self.json[name])

    def __iter__(self):
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.json]

    def __repr__(self) -> str:
        plain = {key: value for key, value in self.json.items() if not isinstance(value, (dict, list))}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in plain.items())})"

    def _with_file(self, ending: str) -> bytes:
        """Asks the same again, with a file of this ending."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"timelines.{ending}"
            texts = {f"{{{k}}}": _given(folder, one) for k, one in enumerate(self._files)}
            _run([texts.get(word, word) for word in self._again] + ["-q", "-o", str(path)])
            return path.read_bytes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture, page or file; its ending says which, as with ``-o``: svg, png, pdf, html, json, csv, trace.json."""
        name = Path(path).name
        ending = name.split(".", 1)[1] if "." in name else ""
        ending = "trace.json" if ending.endswith("trace.json") else ending.rsplit(".", 1)[-1]
        Path(path).write_bytes(self._with_file(ending))

    def _repr_svg_(self) -> str | None:
        return self._with_file("svg").decode() if self._again else None

    @property
    def timeline(self) -> Spans:
        """The spans of the timeline, in the prediction's unit of time."""
        return Spans(self._with_file("csv").decode())


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    return [_wrapped(one) for one in value] if isinstance(value, list) else value


class _Step(Record):
    """A predicted step: times in ``time_unit``; ``bubble`` and the like are shares."""

    schedule: str
    devices: int
    microbatches: int
    time_unit: str
    makespan: float
    span: float
    ideal: float
    bubble: float
    span_bubble: float
    bubble_over_ideal: float
    efficiency: float
    lower_bound: float
    gap_to_bound: float
    lower_bound_if_split: float
    per_device: list[Record]


class Prediction(_Step):
    """The predicted step of one schedule; the page "File formats" defines the fields. Times are in ``time_unit`` unless named ``_s``
    (seconds); ``bubble``, ``mfu`` and the like are shares. Fields after ``costs`` are those of a model on hardware."""

    chunks: int
    costs: Record
    iteration_s: float
    iteration_interval_s: list[float]
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    gpus: int
    parameters: int
    active_parameters: int
    prediction_parameters: int
    model_flops_per_token: float
    time_s: Record
    memory: Record
    memory_bytes: int
    misfit: Record
    layers: list[int]
    stage_layout: str
    modules: list[list[str]]
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    edp: int
    rounds: int
    micro_batch_size: int


class Explanation(_Step):
    """Why devices idle, and what would shorten the step; times are in ``time_unit``."""

    bounds: Record
    bounds_at_own_peaks: Record
    idle: Record
    slack: list[Record]
    critical_path: list[Record]
    sensitivities: list[Record]
    memory: list[Record]
    sentences: list[str]
    advice: Record


class Check(Record):
    """Which deliveries a schedule runs with."""

    schedule: str
    devices: int
    chunks: int
    microbatches: int
    ops: int
    fewest_slots: int
    deliveries: list[Record]

    @property
    def survives(self) -> dict[str, bool]:
        """Whether the step ends, by delivery."""
        return {one["delivery"]: one["survives"] for one in self.json["deliveries"]}


R = TypeVar("R", bound=Record)


class _Several(Record, Generic[R]):
    _list: str
    _kind: type[R]

    @property
    def all(self) -> list[R]:
        return [self._kind(one) for one in self.json[self._list]]

    def __iter__(self) -> Iterator[R]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.json[self._list])

    @overload
    def __getitem__(self, key: int) -> R: ...
    @overload
    def __getitem__(self, key: Union[slice, str]) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        return self.all[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.all!r})"

    def _rows(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in one.json.items() if not isinstance(value, (dict, list))} for one in self.all]

    def to_pandas(self) -> Any:
        """Returns a pandas data frame with a row each, of plain fields."""
        return _pandas(self._rows())

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: a table of the plain fields with a row each, and the picture if there is one."""
        rows = self._rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [names, *([f"{value:.6g}" if isinstance(value, float) else value for value in map(row.get, names)] for row in rows)]
        lines = ["".join(f"<td>{html.escape('' if cell is None else str(cell))}</td>" for cell in line) for line in cells]
        table = "".join(f"<tr>{line}</tr>" for line in lines).replace("<td>", "<th>", len(names)).replace("</td>", "</th>", len(names))
        return f"<table>{table}</table>{self._repr_svg_() or ''}"


class Predictions(_Several[Prediction]):
    """Predictions of several schedules."""

    _list, _kind = "predictions", Prediction

    @property
    def shortest(self) -> Prediction:
        """The prediction with the least makespan."""
        return min(self.all, key=lambda one: one.json["makespan"])


class Plan(Record):
    """A layout of a model; ``command`` predicts it in full."""

    schedule: str
    gpus: int
    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    micro_batch_size: int
    microbatches: int
    chunks: int
    recompute: str
    stage_layout: str
    zero: int
    sequence_parallel: bool
    layers: list[int]
    iteration_s: float
    iteration_interval_s: list[float]
    tokens_per_second_per_gpu: float
    mfu: float
    memory_bytes: int
    time_s: Record
    tie: bool
    command: str
    flags: Record


class Plans(_Several[Plan]):
    """The best layouts of a model, best first."""

    _list, _kind = "plans", Plan


def _pandas(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        raise EnvironmentFailure("expected pandas, found none; pip install pandas, or take .json") from None
    return pandas.DataFrame(rows)


class Spans(Sequence):
    """The spans of a timeline, a dict each: schedule, device, queue, op, kind, stage, microbatch, start, end, unit."""

    def __init__(self, text: str):
        import csv

        whole, real = ("device", "stage", "microbatch"), ("start", "end")
        self._rows = [
            {key: (int(value) if key in whole else float(value) if key in real else value) if value else None for key, value in row.items()}
            for row in csv.DictReader(text.splitlines())
        ]

    def __getitem__(self, key: Any) -> Any:
        return self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Spans({len(self)} spans of {len({row['device'] for row in self._rows})} devices)"

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Returns the spans as an Arrow stream, so that ``polars.DataFrame(timeline)`` and ``pyarrow.table(timeline)`` take them."""
        from . import _arrow

        formats = {"device": "l", "stage": "l", "microbatch": "l", "start": "g", "end": "g"}
        names = self._rows[0] if self._rows else formats
        return _arrow.stream({name: formats.get(name, "u") for name in names}, self._rows)

    def to_pandas(self) -> Any:
        """Returns a pandas data frame with a row per span."""
        return _pandas(self._rows)

    def to_polars(self) -> Any:
        """Returns a polars data frame with a row per span."""
        try:
            import polars
        except ImportError:
            raise EnvironmentFailure("expected polars, found none; pip install polars, or take to_pandas()") from None
        return polars.DataFrame(self._rows, infer_schema_length=None)


def _ask(verb: str, schedules: Any, options: Mapping[str, Any], kind: type[Record], name: str) -> Any:
    several = isinstance(schedules, Iterable) and not isinstance(schedules, (str, Schedule, os.PathLike))
    wanted = list(schedules) if several else [schedules]
    texts = [one for one in wanted if isinstance(one, Schedule)]
    words = [f"{{{texts.index(one)}}}" if isinstance(one, Schedule) else os.fspath(one) for one in wanted]
    again = [verb, *(word for one in words for word in ("-s", one)), *_options(options)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"{{{k}}}": _given(folder, one) for k, one in enumerate(texts)}
        out = json.loads(_run([*(paths.get(word, word) for word in again), "-q", "--format", "json"]))
    return Predictions(out, again, texts) if several and kind is Prediction else [kind(one, again, texts) for one in out[name]] if several else kind(out[name][0], again, texts)


#: The name of a schedule, the path of one, or its text.
Named = Union[str, "os.PathLike[str]", Schedule]
#: Costs as text, or by name: a number, a text with a unit, or a list with one per stage.
Costs = Union[str, Mapping[str, Any], None]


@overload
def predict(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Prediction: ...
@overload
def predict(schedule: Iterable[Named], devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Predictions: ...
def predict(schedule: Any, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Any:
    """Predicts a step: a :class:`Prediction`, or :class:`Predictions` for a list of schedules.

    `costs` are those of ``--costs``, as text or as a mapping: ``{"F": 1, "I": 1.2, "W": 0.8, "comm": 0.1}``, a list has a cost per
    stage. Without a unit of time they are units.

    >>> ps.predict("1f1b", 4, 8, costs={"F": 1, "B": 2}).bubble
    0.2727272727272727
    """
    return _ask("predict", schedule, {"stages": devices, "micro": microbatches, "costs": costs, **options}, Prediction, "predictions")


@overload
def predict_model(model: str, hardware: str, schedule: Named = "1f1b", *, stages: int, **options: Any) -> Prediction: ...
@overload
def predict_model(model: str, hardware: str, schedule: Iterable[Named], *, stages: int, **options: Any) -> Predictions: ...
def predict_model(model: str, hardware: str, schedule: Any = "1f1b", *, stages: int, **options: Any) -> Any:
    """Predicts the step of a model on hardware: times in ms, ``iteration_s``, ``mfu``, memory.

    >>> ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", stages=4, tp=8, micro=32, seq=8192).gpus
    32
    """
    return _ask("predict", schedule, {"model": model, "hardware": hardware, "stages": stages, **options}, Prediction, "predictions")


@overload
def explain(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Explanation: ...
@overload
def explain(schedule: Iterable[Named], devices: int, microbatches: int, costs: Costs = None, **options: Any) -> list[Explanation]: ...
def explain(schedule: Any, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Any:
    """Explains why devices idle, and what would shorten the step: an :class:`Explanation`, or a list of them."""
    return _ask("explain", schedule, {"stages": devices, "micro": microbatches, "costs": costs, **options}, Explanation, "explanations")


@overload
def check(schedule: Named, devices: int, microbatches: int, **options: Any) -> Check: ...
@overload
def check(schedule: Iterable[Named], devices: int, microbatches: int, **options: Any) -> list[Check]: ...
def check(schedule: Any, devices: int, microbatches: int, **options: Any) -> Any:
    """Checks with which communication a schedule runs: a :class:`Check`, or a list of them.

    >>> ps.check("1f1b", 2, 4).survives["channel"]
    False
    """
    return _ask("check", schedule, {"stages": devices, "micro": microbatches, **options}, Check, "checks")


def plan(model: str, hardware: str, *, gpus: int, batch: int, seq: int, **options: Any) -> Plans:
    """Finds the best layouts of a model on a number of GPUs."""
    args = _options({"model": model, "hardware": hardware, "gpus": gpus, "batch": batch, "seq": seq, **options})
    return Plans(json.loads(_run(["plan", *args, "-q", "--format", "json"])))


def run(schedule: Named | Iterable[Named], devices: int, microbatches: int, *, progress: bool = True, **options: Any) -> Record:
    """Trains a model on this machine and compares with the prediction, as ``pipesim run`` does; Ctrl-C ends after a step."""
    wanted = [schedule] if isinstance(schedule, (str, Schedule, os.PathLike)) else list(schedule)
    with tempfile.TemporaryDirectory() as folder:
        names = [word for one in wanted for word in ("-s", _given(folder, one))]
        args = ["run", *names, *_options({"stages": devices, "micro": microbatches, **options}), "--format", "json"]
        quiet = [] if progress else ["-q"]
        output = [] if "output" in options else ["-o", "-"]
        return Record(json.loads(_run([*args, *quiet, *output], shown=progress)))


def compare(*timelines: str | os.PathLike[str], **options: Any) -> Record:
    """Compares saved timelines and reports; predictions are paired with measurements."""
    return Record(json.loads(_run(["compare", *map(os.fspath, timelines), *_options(options), "-q", "--format", "json"])))


def schedules() -> list[Record]:
    """Returns the built-in schedules: name, summary, paper, memory and bubble.

    >>> ps.schedules()[2].name
    '1f1b'
    """
    return [Record(one) for one in json.loads(_run(["schedules", "--json"]))["schedules"]]


def from_torch(schedule: Any, devices: int | None = None, microbatches: int | None = None, **options: Any) -> Schedule:
    """Takes the order of a schedule object of ``torch.distributed.pipelining``, or of a class of it and p and m.

    The object needs a ``pipeline_order``: actions by rank, whose text is that of PyTorch's files. A class is called with stand-ins for
    its stages. torch itself is not imported.
    """
    if isinstance(schedule, type):
        if not devices or not microbatches:
            raise TypeError("expected devices and microbatches besides a class")
        return _from_class(schedule, devices, microbatches, options)
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


def _from_class(kind: type, devices: int, microbatches: int, options: Mapping[str, Any]) -> Schedule:
    if "stage" in inspect.signature(kind).parameters:
        return from_torch(kind(_Stage(0, devices, devices), microbatches))
    chunks = options.get("chunks", 2)
    stages = [_Stage(chunk * devices, devices * chunks, devices) for chunk in range(chunks)]
    return from_torch(kind(stages, microbatches))


def _to_torch(schedule: Schedule, stages: Any, n_microbatches: int, options: Mapping[str, Any]) -> Any:
    try:
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
    except ImportError:
        raise EnvironmentFailure("expected PyTorch, found none; pip install torch") from None
    first = stages[0]
    with tempfile.TemporaryDirectory() as folder:
        name = _given(folder, schedule)
        args = ["export", "-s", name, "--stages", str(first.group_size), "--micro", str(n_microbatches), "--to", "pytorch-csv", "-q", "-o"]
        path = str(Path(folder) / "order.csv")
        _run([*args, path])
        runtime = _PipelineScheduleRuntime(stages, n_microbatches, **options)
        runtime._load_csv(path)
    return runtime


def _main() -> None:
    """Runs the program with the arguments of this process: ``python -m pipesim``."""
    os.execv(program(), [program(), *sys.argv[1:]])
