"""Records a training job's pipeline: when each forward, backward, send and receive ran, in one small file per rank.

No profiler runs, and the program ``pipesim`` is not needed: this file can be copied into a job. On GPUs times are those of CUDA events,
read after the step has ended; elsewhere those of the host's clock. A thread writes them while training goes on. ``pipesim import run/``
and ``pipesim explain run/`` read the folder, ``pipesim watch run/`` follows it while the job runs.

>>> import pipesim                                        # doctest: +SKIP
>>> for batch in batches:                                 # doctest: +SKIP
...     with pipesim.record("run"):                       # on every rank
...         schedule.step(batch)                          # PyTorch's, or Megatron's forward_backward_func(...)

"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import sys
import threading
import time
import warnings
from typing import Any, Callable, Iterator, Optional

__all__ = ["Recorder", "record"]

#: Version of the files' format.
VERSION = 1
#: After so many steps the ranks' clocks are compared again: they drift apart by some millionths.
CLOCKS_EVERY = 50
#: A float32 of milliseconds is exact to 2 us over this long.
FAR_NS = 20_000_000_000
#: How often two ranks exchange their times.
PING_PONGS = 8

_recorders: dict[str, "Recorder"] = {}


def record(folder: str | os.PathLike[str], every: int = 1) -> "Recorder":
    """Returns the recorder of `folder`, to be entered around each step on every rank of the pipeline.

    A call with the same folder returns the same recorder. `every` records each n-th step only. Steps of PyTorch's
    ``torch.distributed.pipelining`` and of Megatron-Core's ``forward_backward_func`` are recorded as they are;
    other pipelines name their ops with :meth:`Recorder.op`.

    The first step and each 50th ends with a few messages that compare the clocks of the pipeline's ranks, so all of them must record.
    """
    path = os.path.abspath(os.fspath(folder))
    if path not in _recorders:
        _recorders[path] = Recorder(path, every)
    return _recorders[path]


class _Host:
    """Times of the host's monotonic clock, in ns."""

    name = "cpu"

    def mark(self) -> int:
        return time.perf_counter_ns()

    def renew(self) -> None:
        pass

    def times(self, marks: list[int]) -> list[int]:
        return marks


class _Cuda:
    """Times of CUDA events on the current stream, in ns of the host's clock."""

    name = "cuda"

    def __init__(self, torch: Any) -> None:
        self.torch, self.device = torch, torch.cuda.current_device()
        self.anchor: Any = None
        self.anchor_ns = 0

    def mark(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def renew(self) -> None:
        """Ties the GPU's clock to the host's: waits for the stream once."""
        self.anchor = self.mark()
        self.anchor.synchronize()
        self.anchor_ns = time.perf_counter_ns()

    def times(self, marks: list[Any]) -> list[int]:
        """Returns the times of `marks`, whose last one ends the step. Each step is measured from the one before: an event's
        distance is a float32 of milliseconds, which is exact to a microsecond only over seconds."""
        with self.torch.cuda.device(self.device):
            marks[-1].synchronize()
            found = [self.anchor_ns + round(self.anchor.elapsed_time(mark) * 1e6) for mark in marks]
            self.anchor, self.anchor_ns = marks[0], found[0]
        return found


class _Step:
    """What happened in one step. Marks are times or events; a message's are host times."""

    def __init__(self, number: int, begin: Any) -> None:
        self.number, self.marks = number, [begin]
        self.ops: list[list[Any]] = []  # kind, stage, micro-batch, index of the first of two marks
        self.messages: dict[tuple[str, str, int, int], list[Optional[int]]] = {}
        self.pings: list[list[int]] = []


class Recorder:
    """Records the steps that it is entered around; :func:`record` makes it."""

    def __init__(self, folder: str, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every: expected 1 or more, found {every}")
        self.folder, self.every = folder, every
        self._number, self._recorded, self._last_ns = 0, 0, 0
        self._step: Optional[_Step] = None
        self._undo: list[tuple[Any, str, Any]] = []
        self._clock: Any = None
        self._group: Any = None
        self._rank, self._ranks, self._world_size = 0, [0], 1
        self._written: queue.Queue[Any] = queue.Queue()
        self._thread: Optional[threading.Thread] = None

    # Steps

    def __enter__(self) -> "Recorder":
        if self._step is not None:
            raise RuntimeError("expected one step at a time, found a recorder entered twice; leave it after each step")
        if self._number % self.every == 0:
            if self._clock is None:
                torch = sys.modules.get("torch")
                self._clock = _Cuda(torch) if torch is not None and torch.cuda.is_available() else _Host()
            now_ns = time.perf_counter_ns()
            if self._recorded % CLOCKS_EVERY == 0 or now_ns - self._last_ns > FAR_NS:
                self._written.join()  # the thread measures from the anchor
                self._clock.renew()
            self._last_ns = now_ns
            self._step = _Step(self._number, self._clock.mark())
            self._replace()
        self._number += 1
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        for owner, name, original in reversed(self._undo):
            setattr(owner, name, original)
        self._undo.clear()
        if kind is not None:
            return
        step.marks.append(self._clock.mark())
        if not step.ops and self._recorded == 0:
            warnings.warn(
                "expected a step of a pipeline, found no op of PyTorch's pipelining or Megatron-Core; enter the recorder "
                "around schedule.step(...) or forward_backward_func(...), or name ops with Recorder.op",
                stacklevel=2,
            )
        if self._recorded % CLOCKS_EVERY == 0:
            step.pings = self._compare_clocks()
        self._recorded += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="pipesim-record", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        self._written.put(step)

    def close(self) -> None:
        """Writes what is not yet written; the end of the process does so, too."""
        if self._thread is not None and self._thread.is_alive():
            self._written.put(None)
            self._thread.join(timeout=60)
        self._thread = None
        _recorders.pop(self.folder, None)

    @contextlib.contextmanager
    def op(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """Records an op of a pipeline of your own: `kind` is F, B (a whole backward), I (for the input) or W (for the weights)."""
        if kind not in ("F", "B", "I", "W"):
            raise ValueError(f"kind: expected F, B, I or W, found {kind!r}")
        step = self._step
        if step is not None:
            at = len(step.marks)
            step.marks.append(self._clock.mark())
        yield
        if step is not None:
            step.ops.append([kind, stage, microbatch, at, len(step.marks)])
            step.marks.append(self._clock.mark())

    # What is recorded

    def _replace(self) -> None:
        """Wraps the frameworks' functions for one step."""
        torch, megatron = (sys.modules.get(name) for name in ("torch.distributed.pipelining", "megatron.core.pipeline_parallel.schedules"))
        if torch is not None:
            self._replace_torch(torch.stage._PipelineStageBase, torch.schedules)
        if megatron is not None:
            self._replace_megatron(megatron)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replaces a function by `around`, whose first argument is the function; one that a version lacks is left out."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def wrapped(*args: Any, **named: Any) -> Any:
            return around(original, *args, **named)

        self._undo.append((owner, name, original))
        setattr(owner, name, wrapped)

    def _replace_torch(self, stage_class: Any, schedules: Any) -> None:
        works: dict[int, list[list[Optional[int]]]] = {}
        ops_of: dict[int, list[Optional[int]]] = {}
        messages = self._step.messages  # type: ignore[union-attr]

        def compute(kind: Callable[[dict[str, Any], tuple[Any, ...]], str]) -> Callable[..., Any]:
            def around(original: Any, stage: Any, chunk: int, *args: Any, **named: Any) -> Any:
                if self._group is None:
                    self._group = stage.group
                with self.op(kind(named, args), stage.stage_index, chunk):
                    return original(stage, chunk, *args, **named)

            return around

        def loss(original: Any, schedule: Any, stage: Any, output: Any, targets: Any, chunk: int, *args: Any, **named: Any) -> Any:
            found = original(schedule, stage, output, targets, chunk, *args, **named)
            step = self._step
            if stage.is_last and step is not None and step.ops and step.ops[-1][:3] == ["F", stage.stage_index, chunk]:
                step.marks[step.ops[-1][4]] = self._clock.mark()  # the loss is part of the last forward
            return found

        def posting(way: str, kind: str) -> Callable[..., Any]:
            def around(original: Any, stage: Any, chunk: int, *args: Any, **named: Any) -> Any:
                ops = original(stage, chunk, *args, **named)
                if ops:
                    times: list[Optional[int]] = [time.perf_counter_ns(), None]
                    messages[way, kind, stage.stage_index, chunk] = times
                    ops_of.update((id(op), times) for op in ops)
                return ops

            return around

        def batch(original: Any, ops: list[Any], *args: Any, **named: Any) -> Any:
            found = original(ops, *args, **named)
            times = [ops_of.pop(id(op)) for op in ops if id(op) in ops_of]
            if times and found:
                works.update((id(work), times if len(found) != len(times) else [times[at]]) for at, work in enumerate(found))
            return found

        def wait(original: Any, found: list[Any]) -> Any:
            waited = [works.pop(id(work), []) for work in found]
            out = original(found)
            now = time.perf_counter_ns()
            for times in (times for one in waited for times in one):
                times[1] = now
            return out

        full = lambda named, args: "B" if named.get("full_backward", args[1] if len(args) > 1 else True) else "I"  # noqa: E731
        self._wrap(stage_class, "forward_one_chunk", compute(lambda named, args: "F"))
        self._wrap(stage_class, "backward_one_chunk", compute(full))
        self._wrap(stage_class, "backward_weight_one_chunk", compute(lambda named, args: "W"))
        self._wrap(schedules._PipelineSchedule, "_maybe_compute_loss", loss)
        for name, way, kind in (("fwd_recv", "receives", "F"), ("bwd_recv", "receives", "B"), ("fwd_send", "sends", "F"), ("bwd_send", "sends", "B")):
            self._wrap(stage_class, f"get_{name}_ops", posting(way, kind))
        self._wrap(schedules, "_batch_p2p", batch)
        self._wrap(schedules, "_wait_batch_p2p", wait)

    def _replace_megatron(self, schedules: Any) -> None:
        from megatron.core import parallel_state

        self._group = parallel_state.get_pipeline_model_parallel_group()
        place, size = parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_world_size()
        forwards: dict[int, int] = {}
        of_output: dict[int, tuple[int, int]] = {}

        def chunk(named: dict[str, Any]) -> int:
            found = named.get("vp_stage")
            if found is None:
                found = parallel_state.get_virtual_pipeline_model_parallel_rank()
            return found or 0

        def outputs(tensors: Any) -> list[Any]:
            return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]

        def forward(original: Any, *args: Any, **named: Any) -> Any:
            stage = chunk(named) * size + place
            microbatch = forwards[stage] = forwards.get(stage, -1) + 1
            with self.op("F", stage, microbatch):
                found = original(*args, **named)
            # Older versions return the output alone; a list holds the output and, at the end, a count of tokens.
            for one in outputs(found[0] if isinstance(found, tuple) else found):
                of_output[id(one)] = (stage, microbatch)
            return found

        def backward(original: Any, inputs: Any, output: Any, *args: Any, **named: Any) -> Any:
            known = [of_output.pop(id(one)) for one in outputs(output) if id(one) in of_output]
            if not known:
                return original(inputs, output, *args, **named)
            with self.op("B", *known[0]):
                return original(inputs, output, *args, **named)

        self._wrap(schedules, "forward_step", forward)
        self._wrap(schedules, "backward_step", backward)

    # Clocks and files

    def _compare_clocks(self) -> list[list[int]]:
        """Returns, on the pipeline's first rank, exchanges with the others: rank, sent, received there, sent there, received."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return []
        dist = torch.distributed
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        if self._group is None and self._world_size > 1:
            self._group = dist.group.WORLD
        self._ranks = dist.get_process_group_ranks(self._group) if self._group is not None else [self._rank]
        if len(self._ranks) < 2 or self._rank not in self._ranks:
            return []
        cuda = self._clock.name == "cuda" and "nccl" in dist.get_backend(self._group)
        times = torch.zeros(2, dtype=torch.int64, device=torch.cuda.current_device() if cuda else "cpu")
        dist.all_reduce(times, group=self._group)  # all are here, and have a communicator
        first, found = self._ranks[0], []

        def pass_on(way: Any, peer: int) -> int:
            for work in dist.batch_isend_irecv([dist.P2POp(way, times, peer, self._group)]):
                work.wait()
            if cuda:
                torch.cuda.current_stream().synchronize()
            return time.perf_counter_ns()

        for peer in self._ranks[1:]:
            for _ in range(PING_PONGS):
                if self._rank == first:
                    sent = time.perf_counter_ns()
                    pass_on(dist.isend, peer)
                    received = pass_on(dist.irecv, peer)
                    found.append([peer, sent, *times.tolist(), received])
                elif self._rank == peer:
                    times[0] = pass_on(dist.irecv, first)
                    times[1] = time.perf_counter_ns()
                    pass_on(dist.isend, first)
        return found

    def _line(self, step: _Step) -> str:
        marks = self._clock.times(step.marks)
        sides: dict[str, list[Any]] = {"sends": [], "receives": []}
        for (way, kind, stage, microbatch), times in step.messages.items():
            sides[way].append([kind, stage, microbatch, *times])
        ops = [[kind, stage, microbatch, marks[start], marks[end]] for kind, stage, microbatch, start, end in step.ops]
        out = {"step": step.number, "start_ns": marks[0], "end_ns": marks[-1], "ops": ops, **sides, "pings": step.pings}
        return json.dumps({name: value for name, value in out.items() if value != []}, separators=(",", ":")) + "\n"

    def _header(self) -> str:
        torch = sys.modules.get("torch")
        head = {"pipesim_record": VERSION, "rank": self._rank, "world_size": self._world_size, "pipeline": self._ranks}
        more = {"device": self._clock.name, "pytorch": torch.__version__ if torch is not None else None}
        return json.dumps({**head, **more}, separators=(",", ":")) + "\n"

    def _write(self) -> None:
        """Writes steps as they come, a line each; a fault is told once and ends the record, never the job."""
        is_new, failed = True, False
        while (step := self._written.get()) is not None:
            try:
                if not failed:
                    os.makedirs(self.folder, exist_ok=True)
                    with open(os.path.join(self.folder, f"rank{self._rank}.jsonl"), "a", encoding="utf-8") as file:
                        file.write((self._header() if is_new else "") + self._line(step))
                    is_new = False
            except Exception as error:
                failed = True
                warnings.warn(f"the record {self.folder} ends here: {error}", stacklevel=1)
            finally:
                self._written.task_done()
