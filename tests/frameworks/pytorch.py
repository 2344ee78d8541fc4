"""Gives layouts and schedule files to PyTorch's own pipeline schedules on CPU and says what they accept.

    python tests/frameworks/pytorch.py [--checkout DIR] < layouts.jsonl > verdicts.jsonl
    python tests/frameworks/pytorch.py --table 2.15 --seed 1      # into pytorch.json

The installed PyTorch is checked. With --checkout its `torch.distributed.pipelining` comes from DIR, a checkout of PyTorch or the contents
of one of its wheels, of another version.
A layout is one JSON object per line: `schedule` (PyTorch's name), p ranks, v stages per rank, m micro-batches; or `csv` (text of a
schedule file), p, v, m, `format` (compute_only, which is the default, or compute_comms) and `style` (how stages are built: loop, the
default: stage s on rank s mod p; v: stages r and 2p-1-r on rank r).
A verdict is {"verdict": "accepted"}, {"verdict": "refused", "error", "at"} with file and line, or {"verdict": "silent", "error"} if the
stages that a rank builds are not those that its schedule runs.

The real code builds the schedule of the first and of the last rank, lowers it to sends and receives, and simulates all ranks
(`_simulate_comms_compute`).

Stubs: a process group of PyTorch's fake backend; each stage is one linear layer on the CPU.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import traceback

import torch
import torch.distributed as dist


def overlay(root):
    """Takes torch.distributed.pipelining from another version."""
    folder = os.path.join(root, "torch", "distributed", "pipelining")
    name = "torch.distributed.pipelining"
    for known in [one for one in sys.modules if one == name or one.startswith(name + ".")]:
        del sys.modules[known]
    path = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[folder])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return os.path.abspath(root)


def stages_of(rank, p, v, style):
    """Returns the stages that a rank builds."""
    if style == "v":
        return [rank, 2 * p - 1 - rank][:v] + list(range(2 * p, p * v, p))
    return [rank + chunk * p for chunk in range(v)]


def simulate(schedule, schedules):
    """Runs all ranks to the end with PyTorch's simulator, which knows ops, sends and receives alone."""
    known = [schedules.F, schedules.B, schedules.I, schedules.W, schedules.SEND_F, schedules.RECV_F, schedules.SEND_B, schedules.RECV_B]
    order = {rank: [one for action in actions for one in action.sub_actions or (action,) if one.computation_type in known]
             for rank, actions in schedule.pipeline_order_with_comms.items()}
    schedules._simulate_comms_compute(order, lambda stage: schedule.stage_index_to_group_rank[stage], schedule._num_stages)


def build(layout, rank):
    """Returns the silent fault of one rank, or raises what PyTorch raises."""
    from torch.distributed.pipelining import PipelineStage, schedules
    p, v, m = layout["p"], layout["v"], layout["m"]
    named = layout.get("schedule", "")
    style = layout.get("style", "v" if named in ("ZBVZeroBubble", "DualPipeV") else "loop")
    built = stages_of(rank, p, v, style)
    stages = [PipelineStage(torch.nn.Linear(1, 1), stage, p * v, torch.device("cpu")) for stage in built]
    if "csv" in layout:
        schedule = schedules._PipelineScheduleRuntime(stages, n_microbatches=m, loss_fn=torch.nn.functional.mse_loss)
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(layout["csv"])
            file.flush()
            schedule._load_csv(file.name, format=layout.get("format", "compute_only"))
    else:
        of = schedules.get_schedule_class(named)
        is_single = issubclass(of, schedules.PipelineScheduleSingle)
        schedule = of(stages[0] if is_single else stages, n_microbatches=m, loss_fn=torch.nn.functional.mse_loss)
        if is_single:
            return f"rank {rank} builds the stages {built}, and its schedule runs one" if v > 1 else None
    simulate(schedule, schedules)
    order = getattr(schedule, "pipeline_order_with_comms", None) or schedule.pipeline_order
    runs = set()
    for action in order[rank]:
        for one in action.sub_actions or (action,):
            runs.add(one.stage_index)
    if sorted(runs) != sorted(built):
        return f"rank {rank} builds the stages {built}, and its schedule runs {sorted(runs)}"
    return None


def place(error, root):
    """Returns file and line of PyTorch that raised the error."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/torch/" in frame.filename:
            return f"torch/{frame.filename.rsplit('/torch/', 1)[1]}:{frame.lineno}"
    return ""


def verdict(layout, root):
    """Returns what PyTorch says to a layout."""
    for rank in sorted({0, layout["p"] - 1}):
        dist.init_process_group("fake", rank=rank, world_size=layout["p"])
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                fault = build(layout, rank)
        except Exception as error:
            text = " ".join(str(error).split("\n\n")[0].split())
            return {"verdict": "refused", "error": f"{type(error).__name__}: {text}", "at": place(error, root)}
        finally:
            dist.destroy_process_group()
        if fault:
            return {"verdict": "silent", "error": fault}
    return {"verdict": "accepted"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--checkout", metavar="DIR")
    arguments.add_argument("--table", metavar="VERSION", help="make a table of layouts with the names of frameworks/pytorch-VERSION.toml")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--count", type=int, default=200)
    chosen = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    import torch.testing._internal.distributed.fake_pg  # registers the fake backend
    root = overlay(chosen.checkout) if chosen.checkout else ""
    if chosen.table:
        from torchtitan_layouts import of_pytorch, write
        rows = of_pytorch(chosen.table, chosen.seed, chosen.count)
        write("pytorch", chosen.table, chosen.seed, ({**row, **verdict(row["given"], root)} for row in rows))
        return
    for line in sys.stdin:
        layout = json.loads(line)
        print(json.dumps({**layout, **verdict(layout, root)}), flush=True)


if __name__ == "__main__":
    main()
