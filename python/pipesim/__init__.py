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
from typing import Any, Iterable, Mapping, Union, overload

from . import _arguments, _program
from ._asked import Asked, schedule_words
from ._errors import EnvironmentFailure, Error, Hang, ScheduleError, UsageError
from ._program import program
from ._results import Check, Explanation, Plan, Plans, Prediction, Predictions, Record, Spans
from ._schedule import Schedule, from_torch
from .record import Recorder, record

__all__ = [
    "Check", "Error", "EnvironmentFailure", "Explanation", "Hang", "Plan", "Plans", "Prediction", "Predictions", "Record", "Recorder",
    "Schedule", "ScheduleError", "Spans", "UsageError", "check", "compare", "explain", "from_torch", "plan", "predict",
    "predict_model", "program", "record", "run", "schedules",
]  # fmt: skip

#: The name of a schedule, the path of one, or its text.
Named = Union[str, "os.PathLike[str]", Schedule]
#: Costs as text, or by name: a number, a text with a unit, or a list with one per stage.
Costs = Union[str, "os.PathLike[str]", Mapping[str, Any], None]
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


def _of_job(out: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a result with the job that it is of, and with what is said of its measured step, if there are any."""
    return {**one, **{name: out[name] for name in ("job", "verdict") if name in out}}


def _answered(asked: Asked, name: str, several: bool) -> dict[str, Any]:
    """Returns the program's JSON, with as many results under `name` as were asked for."""
    out = _program.parsed(asked.run("-q", "--format", "json"))
    if not several and len(out[name]) != 1:
        raise UsageError(f"expected arguments of one result, found those of {len(out[name])}; give a list of schedules, devices or microbatches")
    return out


def _predicted(schedules: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    asked, several = _asking("predict", schedules, named, options)
    out = _answered(asked, "predictions", several)
    return Predictions(out, asked) if several else Prediction(_of_job(out, out["predictions"][0]), asked)


def _each(verb: str, kind: type[Record], name: str, schedules: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    asked, several = _asking(verb, schedules, named, options)
    out = _answered(asked, name, several)
    found = [_of_job(out, one) for one in out[name]]
    return [kind(one, asked.alone(place, found)) for place, one in enumerate(found)] if several else kind(found[0], asked)


@overload
def predict(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Any) -> Prediction: ...
@overload
def predict(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Prediction: ...
@overload
def predict(schedule: Iterable[Named], devices: int | Numbers, microbatches: int | Numbers, costs: Costs = None, **options: Any) -> Predictions: ...
@overload
def predict(schedule: Named, devices: Numbers, microbatches: int | Numbers, costs: Costs = None, **options: Any) -> Predictions: ...
@overload
def predict(schedule: Named, devices: int, microbatches: Numbers, costs: Costs = None, **options: Any) -> Predictions: ...
def predict(schedule: Any = None, devices: Any = None, microbatches: Any = None, costs: Costs = None, **options: Any) -> Any:
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
def predict_model(model: str | os.PathLike[str], hardware: str | os.PathLike[str], schedule: Named = "1f1b", *, stages: int, **options: Any) -> Prediction: ...
@overload
def predict_model(model: str | os.PathLike[str], hardware: str | os.PathLike[str], schedule: Iterable[Named], *, stages: int | Numbers, **options: Any) -> Predictions: ...
def predict_model(model: Any, hardware: Any, schedule: Any = "1f1b", *, stages: Any, **options: Any) -> Any:
    """Predicts the step of a model on hardware: times in ms, ``iteration_s``, ``mfu``, memory. Lists of `stages`, ``micro``, ``tp``,
    ``dp`` and ``micro_batch_size`` give :class:`Predictions` of every combination.

    >>> ps.predict_model("llama-3-70b", "h100-sxm", "1f1b", stages=4, tp=8, micro=32, seq=8192).gpus
    32
    """
    return _predicted(schedule, {"model": model, "hardware": hardware, "stages": stages}, options)


@overload
def explain(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Any) -> Explanation: ...
@overload
def explain(schedule: Named, devices: int, microbatches: int, costs: Costs = None, **options: Any) -> Explanation: ...
@overload
def explain(schedule: Iterable[Named], devices: int, microbatches: int, costs: Costs = None, **options: Any) -> list[Explanation]: ...
def explain(schedule: Any = None, devices: Any = None, microbatches: Any = None, costs: Costs = None, **options: Any) -> Any:
    """Explains why devices idle, and what would shorten the step: an :class:`Explanation`, or a list of them."""
    return _each("explain", Explanation, "explanations", schedule, {"stages": devices, "micro": microbatches, "costs": costs}, options)


@overload
def check(*, job: str | os.PathLike[str], **options: Any) -> Check: ...
@overload
def check(schedule: Named, devices: int, microbatches: int, **options: Any) -> Check: ...
@overload
def check(schedule: Iterable[Named], devices: int, microbatches: int, **options: Any) -> list[Check]: ...
def check(schedule: Any = None, devices: Any = None, microbatches: Any = None, **options: Any) -> Any:
    """Checks with which communication a schedule runs: a :class:`Check`, or a list of them.

    >>> ps.check("1f1b", 2, 4).survives["channel"]
    False
    """
    return _each("check", Check, "checks", schedule, {"stages": devices, "micro": microbatches}, options)


@overload
def plan(*, job: str | os.PathLike[str], hardware: str | os.PathLike[str], **options: Any) -> Plans: ...
@overload
def plan(model: str | os.PathLike[str], hardware: str | os.PathLike[str], *, gpus: int | Numbers, batch: int, seq: int, **options: Any) -> Plans: ...
def plan(model: Any = None, hardware: Any = None, *, gpus: Any = None, batch: Any = None, seq: Any = None, **options: Any) -> Plans:
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
    return Plans(_program.parsed(asked.run("-q", "--format", "json")), asked)


def run(schedule: Named | Iterable[Named], devices: int, microbatches: int, *, progress: bool = True, **options: Any) -> Record:
    """Trains a model on this machine and compares with the prediction, as ``pipesim run`` does; Ctrl-C ends after a step."""
    asked, _ = _asking("run", schedule, {"stages": devices, "micro": microbatches}, options)
    quiet = [] if progress else ["-q"]
    output = [] if options.get("output") is not None else ["--output=-"]
    return Record(_program.parsed(asked.run("--format", "json", *quiet, *output, shown=progress)))


def compare(*timelines: str | os.PathLike[str], **options: Any) -> Record:
    """Compares saved timelines and reports; predictions are paired with measurements."""
    paths = [_arguments.path("timelines", one) for one in timelines]
    words = {name: _arguments.option(name, value) for name, value in options.items()}
    listed = [word for listed in words.values() for word in listed]
    return Record(_program.parsed(_program.run(["compare", *listed, "-q", "--format", "json", "--", *paths], words)))


def schedules() -> list[Record]:
    """Returns the built-in schedules: name, summary, paper, memory and bubble.

    >>> ps.schedules()[2].name
    '1f1b'
    """
    return [Record(one) for one in _program.parsed(_program.run(["schedules", "--json"]))["schedules"]]


def _main() -> None:
    """Runs the program with the arguments of this process: ``python -m pipesim``."""
    try:
        path = program()
    except EnvironmentFailure as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
    os.execv(path, [path, *sys.argv[1:]])
