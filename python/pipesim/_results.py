"""Results: the objects of the program's JSON, with their timelines and pictures."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Iterator, Mapping, Sequence, TypeVar, Union, overload

from . import _arguments, _html, _program
from ._asked import Asked
from ._errors import EnvironmentFailure, UsageError

if TYPE_CHECKING:
    import pandas
    import polars


class Record(Mapping):
    """An object of the program's JSON: its fields are attributes and keys. ``.json`` is the plain value."""

    def __init__(self, json: Mapping[str, Any], asked: Asked | None = None):
        self.json, self._asked = dict(json), asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "json":
            raise AttributeError(name)
        try:
            return _wrapped(self.json[name], name)
        except KeyError:
            raise AttributeError(f"no field {name!r}; there are {', '.join(self.json)}") from None

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self.json[name], name)

    def __iter__(self):
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.json]

    def __repr__(self) -> str:
        plain = {key: value for key, value in self.json.items() if not isinstance(value, (dict, list))}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in plain.items())})"

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: the plain fields in a row, with rounded numbers."""
        return _html.table([self.json])


class Device(Record):
    """What one device does in a step; times are in the step's ``time_unit``, activations in those of micro-batches."""

    device: int
    busy: float
    idle: float
    peak_activations: float


class Remedy(Record):
    """The smallest change with which a step fits; ``change`` has its options."""

    change: str
    bytes: int
    iteration_s: float
    gpus: int


class Misfit(Record):
    """Why a step does not fit into memory; ``remedy`` is absent if no small change helps."""

    schedule: str
    device: int
    bytes: int
    capacity_bytes: int
    remedy: Remedy


class Delivery(Record):
    """Whether a schedule runs with a kind of communication; ``deadlock`` says why not."""

    delivery: str
    survives: bool
    deadlock: str


class BuiltIn(Record):
    """A built-in schedule."""

    name: str
    summary: str
    placement: str
    peak_activations: str
    options: list[Record]
    bubble: str | None
    paper: str | None
    frameworks: list[Record]


#: The kinds of objects in results, by the name of their field.
_KINDS: dict[str, type[Record]] = {"per_device": Device, "misfit": Misfit, "remedy": Remedy, "deliveries": Delivery}


def _wrapped(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return _KINDS.get(name, Record)(value)
    return [_wrapped(one, name) for one in value] if isinstance(value, list) else value


def of_job(out: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result with the job that it is of, and with what is said of its measured step, if there are any."""
    return {**one, **{name: out[name] for name in ("job", "verdict") if name in out}}


class _Saved(Record):
    """A result that the program can write to a file."""

    def _with_file(self, ending: str, name: str = "") -> bytes:
        """Asks the same again, with a file of this ending, which messages call by `name`."""
        if self._asked is None:
            raise UsageError("expected a result of this package's functions, found one that was made by hand; ask for it")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"timelines.{ending}"
            self._asked.run("-q", "-o", str(path), names={str(path): name} if name else {})
            return path.read_bytes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture, page or file; its ending says which, as with ``-o``: svg, png, pdf, html, json, csv, trace.json."""
        place = Path(_arguments.path("path", path))
        compound = [ending for ending in ("trace.json", "trace.json.gz") if place.name.endswith("." + ending)]
        ending = compound[-1] if compound else place.suffix.removeprefix(".")
        if not ending:
            _arguments.refuse("path", "an ending such as .svg, .html or .json", path)
        if not place.parent.is_dir():
            _arguments.refuse("path", f"a folder at {place.parent}", path, "make it")
        place.write_bytes(self._with_file(ending, str(place)))


class _Drawn(_Saved):
    """A result with a timeline."""

    _svg = None

    def _repr_svg_(self) -> str | None:
        if self._asked and self._svg is None:
            self._svg = self._with_file("svg").decode()
        return self._svg

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (self._repr_svg_() or "")

    @property
    def timeline(self) -> Spans:
        """The spans of the timeline, in the prediction's unit of time."""
        return Spans(self._with_file("csv").decode())


class _Step(_Drawn):
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
    per_device: list[Device]


class Prediction(_Step):
    """The predicted step of one schedule; the page "File formats" defines the fields. Times are in ``time_unit`` unless named ``_s``
    (seconds); ``bubble``, ``mfu`` and the like are shares. Fields after ``costs`` are those of a model on hardware."""

    chunks: int
    costs: Record
    iteration_s: float
    iteration_interval_s: list[float]
    iteration_interval_50_s: list[float]
    outside: list[str]
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    gpus: int
    parameters: int
    active_parameters: int
    prediction_parameters: int
    adapter_parameters: int
    model_flops_per_token: float
    time_s: Record
    memory: Record
    memory_bytes: int
    misfit: Misfit
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
    framework: Record
    job: Record
    verdict: Record


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
    job: Record

    def __str__(self) -> str:
        """Returns the sentences, as a terminal shows them."""
        return "\n  ".join([self.schedule, *self.sentences])

    def _repr_html_(self) -> str:
        return _html.lines(self.schedule, self.sentences) + (self._repr_svg_() or "")


class Check(Record):
    """Which deliveries a schedule runs with."""

    schedule: str
    devices: int
    chunks: int
    microbatches: int
    ops: int
    fewest_slots: int
    deliveries: list[Delivery]
    frameworks: list[Record]
    job: Record

    def _repr_html_(self) -> str:
        return _html.lines(self.schedule, []) + _html.table([{key: value for key, value in one.items() if key != "deadlock"} for one in self.json["deliveries"]])

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
        return [self._item(place, one) for place, one in enumerate(self.json[self._list])]

    def _item(self, place: int, json: Mapping[str, Any]) -> R:
        return self._kind(of_job(self.json, json), self._asked and self._asked.alone(place, self.json[self._list]))

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

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a pandas data frame with a row each, of plain fields."""
        return _pandas([_html.plain(one) for one in self.json[self._list]])

    def _repr_html_(self) -> str:
        """Returns what a notebook shows: a table with a row each, with rounded numbers, and the picture if there is one."""
        return _html.table(self.json[self._list]) + (self._repr_svg_() or "" if isinstance(self, _Drawn) else "")


class Predictions(_Several[Prediction], _Drawn):
    """Predictions of several schedules, or of several numbers of devices, micro-batches or ranks."""

    _list, _kind = "predictions", Prediction

    @property
    def shortest(self) -> Prediction:
        """The prediction with the least makespan."""
        return min(self.all, key=lambda one: one.json["makespan"])


class Explanations(_Several[Explanation], _Drawn):
    """Explanations of several schedules."""

    _list, _kind = "explanations", Explanation

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.all))

    def _repr_html_(self) -> str:
        return "".join(_html.lines(one.schedule, one.sentences) for one in self.all) + (self._repr_svg_() or "")


class Checks(_Several[Check]):
    """Checks of several schedules."""

    _list, _kind = "checks", Check


class BuiltIns(_Several[BuiltIn]):
    """The built-in schedules."""

    _list, _kind = "schedules", BuiltIn

    def _item(self, place: int, json: Mapping[str, Any]) -> BuiltIn:
        return BuiltIn(json)


class Imported(_Drawn):
    """The timeline of a run that was recorded, from its traces."""

    title: str
    verdict: str
    subtitle: str
    provenance: Record
    schedules: list[Record]
    tables: list[Record]

    def __str__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        return _html.lines(self.verdict, []) + (self._repr_svg_() or "")


class Training(Record):
    """A training that has ended: ``folder`` has its log, report and checkpoints, ``checkpoint`` is the newest of these."""

    folder: str
    checkpoint: str
    #: The lines of the log: ``step``, ``loss``, ``norm``, ``learning_rate``, ``tokens_per_second``, ...
    steps: list[Record]

    @property
    def losses(self) -> list[float]:
        """The loss of each step, before its update."""
        return [step["loss"] for step in self.json["steps"]]

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a pandas data frame with a row per step."""
        return _pandas(self.json["steps"])

    def _repr_html_(self) -> str:
        return _html.table(self.json["steps"][-5:])


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
    shard: int
    sequence_parallel: bool
    layers: list[int]
    iteration_s: float
    iteration_interval_s: list[float]
    iteration_interval_50_s: list[float]
    outside: list[str]
    tokens_per_second_per_gpu: float
    mfu: float
    memory_bytes: int
    time_s: Record
    tie: bool
    command: str
    flags: Record
    notes: Record
    refused: Record

    def predict(self) -> Prediction:
        """Predicts this layout in full, with its timeline."""
        asked = Asked("predict", [], {}, others=shlex.split(self.json["command"])[2:])
        out = _program.parsed(asked.run("--format", "json"))
        return Prediction(of_job(out, out["predictions"][0]), asked)

    def to(self, framework: str) -> str:
        """The plan as options of a framework: ``megatron``, ``megatron-bridge``, ``torchtitan``, ``deepspeed``, ... ``notes[framework]`` has what must be
        said next to them. A framework that refuses the plan raises :class:`UsageError` with its reason."""
        if framework in self.json["refused"]:
            raise UsageError(self.json["refused"][framework])
        if framework not in self.json["flags"]:
            known = ", ".join([*self.json["flags"], *self.json["refused"]])
            raise UsageError(f"framework: expected one of {known}, found {framework!r}; choose one of these")
        return self.json["flags"][framework]


class Plans(_Several[Plan], _Saved):
    """The best layouts of a model, best first."""

    job: Record
    mine: Record
    memory_margin: Record
    sizes: Record

    _list, _kind = "plans", Plan

    def _item(self, place: int, json: Mapping[str, Any]) -> Plan:
        return Plan(json)


def _pandas(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise EnvironmentFailure("expected pandas, found none; pip install pandas, or take .json") from None
    return pandas.DataFrame(rows)


#: The spans that a notebook shows.
_SHOWN = 10


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

    def _repr_html_(self) -> str:
        more = f"<p>... {len(self)} spans</p>" if len(self) > _SHOWN else ""
        return _html.table(self._rows[:_SHOWN]) + more

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Returns the spans as an Arrow stream, so that ``polars.DataFrame(timeline)`` and ``pyarrow.table(timeline)`` take them."""
        from . import _arrow

        formats = {"device": "l", "stage": "l", "microbatch": "l", "start": "g", "end": "g"}
        names = self._rows[0] if self._rows else formats
        return _arrow.stream({name: formats.get(name, "u") for name in names}, self._rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a pandas data frame with a row per span."""
        return _pandas(self._rows)

    def to_polars(self) -> polars.DataFrame:
        """Returns a polars data frame with a row per span."""
        try:
            import polars
        except ImportError:
            raise EnvironmentFailure("expected polars, found none; pip install polars, or take to_pandas()") from None
        return polars.DataFrame(self._rows, infer_schema_length=None)
