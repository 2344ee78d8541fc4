"""Which pipeline-parallel schedule, and what will it really cost?

Each function runs the program ``pipesim``, which the package contains, and returns the objects of its JSON. So results, messages and
options are those of the command line: an option such as ``--memory-cap 8`` is the keyword ``memory_cap=8``. Nothing but Python is
needed; pandas or polars is imported when a data frame is asked for, torch when a schedule is turned into PyTorch's.

A value is a number (also numpy's, a Fraction or a Decimal), a text as on the command line, or a path. A switch is True or False, None
leaves an option out, a list gives an option several values, and a mapping gives it pairs: ``straggler={1: 1.3}``. Values that mean
nothing raise :class:`UsageError`, whose text begins with the argument's name.

>>> import pipesim as ps
>>> prediction = ps.predict("zb-v", devices=4, microbatches=8)
>>> prediction.makespan
25.5
>>> ps.predict(["1f1b", "zb-v"], devices=4, microbatches=8).shortest.schedule
'zb-v'
>>> [one.makespan for one in ps.predict("1f1b", devices=[2, 4], microbatches=8)]
[27.0, 33.0]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Iterable, Mapping, Union, overload

from . import _arguments, _program
from ._asked import Asked, schedule_words
from ._errors import EnvironmentFailure, Error, Hang, PipesimWarning, ScheduleError, UsageError
from ._program import program
from ._results import BuiltIn, BuiltIns, Check, Checks, Delivery, Device, Explanation, Explanations, Imported, Misfit, Plan, Plans, Prediction, Predictions, Record, Remedy, Spans, Training, of_job
from ._schedule import Schedule, from_torch
from .record import Recorder, record

__all__ = [
    "BuiltIn", "BuiltIns", "Check", "Checks", "Costs", "Delivery", "Device", "EnvironmentFailure", "Error", "Explanation", "Explanations",
    "Hang", "Imported", "Misfit", "Named", "Numbers", "PipesimWarning", "Plan", "Plans", "Prediction", "Predictions", "Record", "Recorder",
    "Remedy", "Schedule", "ScheduleError", "Spans", "Training", "UsageError", "Value", "check", "compare", "explain", "export", "from_torch",
    "generate", "import_traces", "plan", "predict", "predict_model", "program", "record", "run", "schedules", "train",
]  # fmt: skip

#: The name of a schedule, the path of one, or its text.
Named = Union[str, "os.PathLike[str]", Schedule]
#: Costs as text, or by name: a number, a text with a unit, or a list with one per stage.
Costs = Union[str, "os.PathLike[str]", Mapping[str, Any], None]
#: The value of an option: see the page "Python".
Value = Union[str, "os.PathLike[str]", float, bool, None, Iterable[Any], Mapping[Any, Any]]
#: Several numbers: a list, or a text as on the command line, such as ``"4..64*2"``.
Numbers = Union[str, Iterable[int]]


def _asking(verb: str, schedules: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Asked, bool]:
    """Returns what is asked for, and whether that is several; `named` are the options that are arguments of their own."""
    listed = _arguments.is_list(schedules)
    if options.get("job") is not None:  # which says what is not given here
        named = {name: value for name, value in named.items() if value is not None}
        schedules = [] if schedules is None else schedules
    wanted = [name for one in (schedules if _arguments.is_list(schedules) else [schedules]) for name in schedule_words(one)]
    if not wanted and options.get("job") is None:
        raise UsageError("schedule: expected a schedule or more, found an empty list; give one, as in ['1f1b']")
    twice = [name for name in options if name.rstrip("_") in named]
    if twice:
        raise UsageError(f"{twice[0]}: expected it once, found it as {_program.ARGUMENTS.get(twice[0], twice[0])}, too; leave one out")
    words, several = {}, []
    for name, value in {**named, **options}.items():
        name = name.rstrip("_")
        if name in _arguments.SEVERAL and (value is not None or name in named):
            text, is_several = _arguments.counts(_program.ARGUMENTS.get(name, name), value, verb == "predict")
            words[name] = [f"--{name.replace('_', '-')}={text}"]
            several += [name] * is_several
        elif name == "costs" and value is not None:
            words[name] = [f"--costs={_arguments.costs(value, named.get('stages'))}"]
        else:
            words[name] = _arguments.option(name, value)
    return Asked(verb, wanted, words, several), listed or bool(several) or len(wanted) > 1


def _answered(asked: Asked, name: str, several: bool) -> dict[str, Any]:
    """Returns the program's JSON, with as many results under `name` as were asked for."""
    out = _program.parsed(asked.run("--format", "json"))
    if not several and len(out[name]) != 1:
        raise UsageError(f"expected arguments of one result, found those of {len(out[name])}; give a list of schedules, devices or microbatches")
    return out


def _each(verb: str, one: type[Record], all_: type[Record], name: str, schedules: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Asks a verb; returns `one` result, or `all_` of several."""
    asked, several = _asking(verb, schedules, named, options)
    out = _answered(asked, name, several)
    return all_(out, asked) if several else one(of_job(out, out[name][0]), asked)


def _predicted(schedules: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    return _each("predict", Prediction, Predictions, "predictions", schedules, named, options)


@overload
def predict(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Value) -> Prediction: ...
@overload
def predict(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Value) -> Prediction: ...
@overload
def predict(schedule: Iterable[Named], devices: int | Numbers, microbatches: int | Numbers, costs: Costs = None, **options: Value) -> Predictions: ...
@overload
def predict(schedule: Named, devices: Numbers, microbatches: int | Numbers, costs: Costs = None, **options: Value) -> Predictions: ...
@overload
def predict(schedule: Named, devices: int, microbatches: Numbers, costs: Costs = None, **options: Value) -> Predictions: ...
def predict(schedule: Any = None, devices: Any = None, microbatches: Any = None, costs: Costs = None, **options: Value) -> Any:
    """Predicts a step: a :class:`Prediction`, or :class:`Predictions` for several schedules, devices or microbatches.

    `costs` are those of ``--costs``, as text or as a mapping: ``{"F": 1, "I": 1.2, "W": 0.8, "comm": 0.1}``, a list has a cost per
    stage. Without a unit of time they are units. Each of several predictions has its own timeline and picture.

    `job` is the path of a launch script, a configuration or a log, which says the rest: ``predict(job="train.sh",
    hardware="h100-sxm", job_env={"TP": 2}).job.reading.tp``; so in :func:`explain`, :func:`check` and :func:`plan`.

    >>> ps.predict("1f1b", 4, 8, costs={"F": 1, "B": 2}).bubble
    0.2727272727272727
    >>> ps.predict("1f1b", 2, 4, costs={"F": [1, 2], "B": [2, 4]}).makespan
    27.0
    """
    return _predicted(schedule, {"stages": devices, "micro": microbatches, "costs": costs}, options)


@overload
def predict_model(model: str | os.PathLike[str], hardware: str | os.PathLike[str], schedule: Named = "1f1b", *, stages: int, **options: Value) -> Prediction: ...
@overload
def predict_model(model: str | os.PathLike[str], hardware: str | os.PathLike[str], schedule: Iterable[Named], *, stages: int | Numbers, **options: Value) -> Predictions: ...
def predict_model(model: Any, hardware: Any, schedule: Any = "1f1b", *, stages: Any, **options: Value) -> Any:
    """Predicts the step of a model on hardware: times in ms, ``iteration_s``, ``mfu``, memory. Lists of `stages`, ``micro``, ``tp``,
    ``dp`` and ``micro_batch_size`` give :class:`Predictions` of every combination.

    >>> ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", stages=4, tp=8, micro=32, seq=8192, sequence_parallel=True).gpus
    32
    """
    return _predicted(schedule, {"model": model, "hardware": hardware, "stages": stages}, options)


@overload
def explain(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Value) -> Explanation: ...
@overload
def explain(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Value) -> Explanation: ...
@overload
def explain(schedule: Iterable[Named], devices: int, microbatches: int, costs: Costs = None, **options: Value) -> Explanations: ...
def explain(schedule: Any = None, devices: Any = None, microbatches: Any = None, costs: Costs = None, **options: Value) -> Any:
    """Explains why devices idle, and what would shorten the step: an :class:`Explanation`, or :class:`Explanations`.

    >>> ps.explain("gpipe", 2, 2).sentences[0]
    '9 units: an average device works 6 and idles 3 units (bubble 33.3 %).'
    """
    return _each("explain", Explanation, Explanations, "explanations", schedule, {"stages": devices, "micro": microbatches, "costs": costs}, options)


@overload
def check(*, job: str | os.PathLike[str], **options: Value) -> Check: ...
@overload
def check(schedule: Named, devices: int, microbatches: int, **options: Value) -> Check: ...
@overload
def check(schedule: Iterable[Named], devices: int, microbatches: int, **options: Value) -> Checks: ...
def check(schedule: Any = None, devices: Any = None, microbatches: Any = None, **options: Value) -> Any:
    """Checks with which communication a schedule runs: a :class:`Check`, or :class:`Checks`.

    >>> ps.check("1f1b", 2, 4).survives["channel"]
    False
    """
    return _each("check", Check, Checks, "checks", schedule, {"stages": devices, "micro": microbatches}, options)


@overload
def plan(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Value) -> Plans: ...
@overload
def plan(model: str | os.PathLike[str], hardware: str | os.PathLike[str], *, gpus: int | Numbers, batch: int, seq: int, **options: Value) -> Plans: ...
def plan(model: Any = None, hardware: Any = None, *, gpus: Any = None, batch: Any = None, seq: Any = None, **options: Value) -> Plans:
    """Finds the best layouts of a model on a number of GPUs, or on the best of several numbers.

    >>> ps.plan("gpt2", "a100-sxm-80gb", gpus=4, batch=16, seq=256, fix={"tp": 2})[0].tp
    2
    """
    named = {"model": model, "hardware": hardware, "gpus": gpus, "batch": batch, "seq": seq}
    for name, value in named.items():
        if value is None and options.get("job") is None:
            _arguments.refuse(name, "a value", value)
    words = {name: _arguments.option(name, value) for name, value in {**named, **options}.items()}
    asked = Asked("plan", [], words)
    return Plans(_program.parsed(asked.run("--format", "json")), asked)


def run(schedule: Named | Iterable[Named], devices: int, microbatches: int, *, progress: bool = True, **options: Value) -> Record:
    """Trains a model on this machine and compares with the prediction, as ``pipesim run`` does; Ctrl-C ends after a step."""
    asked, _ = _asking("run", schedule, {"stages": devices, "micro": microbatches}, options)
    output = [] if options.get("output") is not None else ["--output=-"]
    return Record(_program.parsed(asked.run("--format", "json", *output, shown=progress)))


def train(
    schedule: Named | None = None, devices: int | None = None, microbatches: int | None = None, *,
    output: str | os.PathLike[str] | None = None, resume: str | os.PathLike[str] | None = None, progress: bool = True, **options: Value,
) -> Training:  # fmt: skip
    """Trains a model to the end, as ``pipesim train`` does: ``train("1f1b", 2, 4, output="mine", steps=20)``, or goes on:
    ``train(resume="mine", steps=40)``. Ctrl-C finishes the step and saves."""
    if schedule is None and resume is None:
        _arguments.refuse("schedule", "a schedule, or a run to resume", schedule)
    folder = output if output is not None else resume
    if folder is None:
        _arguments.refuse("output", "a folder for the log and checkpoints", output)
    named = {"stages": devices, "micro": microbatches, "output": output, "resume": resume}
    words = {name: _arguments.option(name, value) for name, value in {**named, **options}.items() if value is not None}
    asked = Asked("train", [] if schedule is None else schedule_words(schedule), words)
    asked.run(shown=progress)
    place = Path(os.fspath(folder))
    run_ = place if (place / "log.jsonl").is_file() else place.parent  # a checkpoint of a run can be resumed, too
    steps = [_program.parsed(line) for line in (run_ / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    newest = max(path.name for path in run_.glob("step-*"))
    return Training({"folder": str(run_), "checkpoint": str(run_ / newest), "steps": steps})


def generate(checkpoint: str | os.PathLike[str], prompt: str | None = None, tokens: int = 100, **options: Value) -> str:
    """Returns text that a trained model writes after `prompt`: of a folder of :func:`train`, of one of its checkpoints, or of Hugging Face's."""
    words = {name: _arguments.option(name, value) for name, value in {"prompt": prompt, "tokens": tokens, **options}.items()}
    return Asked("generate", [], words, others=["--", _arguments.path("checkpoint", checkpoint)]).run().removesuffix("\n")


def import_traces(*traces: str | os.PathLike[str], **options: Value) -> Imported:
    """Reads the profiler's traces of a PyTorch run, one file per rank: files, folders and patterns. The result has the run's timeline.

    ``import_traces("traces/", label={r"fwd_(\\d+)": "F"}, costs="costs.json")``
    """
    if not traces:
        raise UsageError("traces: expected a trace or more, found none; give files, a folder or a pattern")
    paths = [_arguments.path("traces", one) for one in traces]
    words = {name: _arguments.option(name, value) for name, value in options.items()}
    asked = Asked("import", [], words, others=["./" + path if path.startswith("-") else path for path in paths])
    return Imported(_program.parsed(asked.run("--format", "json")), asked)


def export(schedule: Named, devices: int, microbatches: int, to: str, *, output: str | os.PathLike[str] | None = None, **options: Value) -> str:
    """Returns a schedule as text for another program, and writes it to `output` if that is given: ``to`` is ``pytorch-csv``,
    ``pytorch-csv-comms``, ``json``, ``dot``, ...

    >>> ps.export("1f1b", 2, 2, "pytorch-csv").splitlines()
    ['0F0,0F1,0B0,0B1', '1F0,1B0,1F1,1B1']
    """
    asked, several = _asking("export", schedule, {"stages": devices, "micro": microbatches, "to": to}, options)
    if several:
        _arguments.refuse("schedule", "one schedule and one number of each", schedule)
    text = asked.run()
    if output is not None:
        Path(_arguments.path("output", output)).write_text(text, encoding="utf-8", newline="")
    return text


def compare(*timelines: str | os.PathLike[str], **options: Value) -> Record:
    """Compares saved timelines and reports; predictions are paired with measurements."""
    paths = [_arguments.path("timelines", one) for one in timelines]
    words = {name: _arguments.option(name, value) for name, value in options.items()}
    listed = [word for listed in words.values() for word in listed]
    return Record(_program.parsed(_program.run(["compare", *listed, "-q", "--format", "json", "--", *paths], words)))


def schedules() -> BuiltIns:
    """Returns the built-in schedules: name, summary, paper, memory and bubble.

    >>> ps.schedules()[2].name
    '1f1b'
    """
    return BuiltIns(_program.parsed(_program.run(["schedules", "--json"])))


def _main() -> None:
    """Runs the program with the arguments of this process: ``python -m pipesim``."""
    try:
        path = program()
    except EnvironmentFailure as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
    os.execv(path, [path, *sys.argv[1:]])
