#!/usr/bin/env python3
"""How fast PyTorch makes and dry-runs a pipeline schedule: one line of JSON per case, compared with pipesim's figures.

    tests/benches/pytorch_schedule.py [--repeat N] [--criterion FOLDER] [p,m,schedule ...]     default: 8,64,1f1b 8,64,zb-v

FOLDER has what `cargo bench` measured of the same case (group "text to makespan"; default target/criterion). The ratio is left out
without it, and refused unless both made equally many ops.

Measured are the constructor of PyTorch's class, which orders the ops of all ranks and adds the communication, and
`_simulate_comms_compute` on its result. Ops are forwards and backwards (F, I, W, B); the communication that PyTorch's lists
also hold is not counted. The best of N runs counts, one thread, no process group: the classes ask a stage for a few numbers
only, so a plain object stands for it.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from same_work import require_same_work

# PyTorch's class and its stages per device. Schedule1F1B makes no order that PyTorch can dry-run (it runs a hand-written
# loop); the interleaved class with one stage per device gives the same order.
CLASSES = {
    "1f1b": ("ScheduleInterleaved1F1B", 1),
    "interleaved-1f1b": ("ScheduleInterleaved1F1B", 2),
    "looped-bfs": ("ScheduleLoopedBFS", 2),
    "interleaved-zb": ("ScheduleInterleavedZeroBubble", 2),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
    "dualpipe-v": ("ScheduleDualPipeV", 2),
}


def stages_of(p, v):
    """The attributes of rank 0's stages that the classes read."""
    shape = {"group_size": p, "group_rank": 0, "num_stages": p * v, "submod": None, "has_backward": True}
    return [SimpleNamespace(stage_index=c * p, is_first=c == 0, is_last=c * p == p * v - 1, **shape) for c in range(v)]


def best(repeat, work):
    """Returns the shortest time of `repeat` runs in seconds, and the last result."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


def pipesim(folder, p, m, name):
    """Ops of the case, and millions of them per second, from what criterion has written; None if it has not measured the case."""
    found = folder / "text to makespan" / name / f"p={p} m={m}" / "new"
    if not (found / "benchmark.json").is_file():
        return None
    ops = json.loads((found / "benchmark.json").read_text())["throughput"]["Elements"]
    median_ns = json.loads((found / "estimates.json").read_text())["median"]["point_estimate"]
    return ops, round(ops / median_ns * 1e3, 3)


def compared(line, folder):
    """The line with pipesim's figures of the same case, if there are any."""
    ours = pipesim(folder, line["p"], line["m"], line["schedule"])
    if ours is None:
        return line | {"pipesim_mops_per_s": None}
    ops, rate = ours
    require_same_work({"ops": ops}, {"ops": line["ops"]}, keys=("ops",))
    theirs = line["mops_per_s"]
    return line | {"pipesim_mops_per_s": rate, "ratio": theirs and round(rate / theirs, 1)}


def measure(case, repeat):
    from torch.distributed.pipelining import schedules

    p, m, name = case.split(",")
    p, m = int(p), int(m)
    if name not in CLASSES:
        raise SystemExit(f"expected one of {', '.join(CLASSES)}, found {name}; correct the case {case}")
    own, v = CLASSES[name]
    stages = stages_of(p, v)
    made_s, schedule = best(repeat, lambda: getattr(schedules, own)(stages, m, loss_fn=lambda output, target: output))
    lowered = schedule.pipeline_order_with_comms
    leaves = [leaf for row in lowered.values() for action in row for leaf in action.sub_actions or (action,)]
    ops = sum(leaf.computation_type.value in ("F", "I", "W", "B") for leaf in leaves)
    # The dry run knows only ops, sends and receives.
    known = ("F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B")
    row_of = lambda row: [action for action in row if action.computation_type.value in known]  # noqa: E731
    order = {rank: row_of(row) for rank, row in lowered.items()}
    place = lambda stage: schedule.stage_index_to_group_rank[stage]  # noqa: E731
    line = {"schedule": name, "class": own, "p": p, "m": m, "ops": ops, "make_ms": round(made_s * 1e3, 3)}
    if all(action.sub_actions is None for row in lowered.values() for action in row):
        run_s, _ = best(repeat, lambda: schedules._simulate_comms_compute(order, place, p * v))
        line |= {"simulate_ms": round(run_s * 1e3, 3), "mops_per_s": round(ops / (made_s + run_s) / 1e6, 4)}
    else:
        line |= {"simulate_ms": None, "mops_per_s": None, "why": "PyTorch's dry run refuses OVERLAP_F_B"}
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["8,64,1f1b", "8,64,zb-v"], metavar="p,m,schedule")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each case, default 5")
    parser.add_argument("--criterion", type=Path, default=Path("target/criterion"), help="what cargo bench has written")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"expected a Python with torch, found {sys.executable}: {error}", file=sys.stderr)
        return 2
    for case in options.cases:
        line = compared(measure(case, options.repeat), options.criterion)
        print(json.dumps(line | {"torch": torch.__version__}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
