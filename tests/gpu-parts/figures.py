#!/usr/bin/env python3
"""Figures of the GPU check: reads the JSON that pipesim wrote, says in one line what it found; exit code 1 if it is wrong.

Used by tests/gpu; needs nothing but Python.

    figures.py schedules PROGRAM run|accuracy P M BLOCKS    names that the command takes for so many devices, micro-batches
                                                            and blocks of the model; why not the others, on stderr
    figures.py losses RUN.json EXPECTED KEY TOLERANCE NAMES
    figures.py accuracy FOLDER...                           mean absolute error over schedules not calibrated on
    figures.py headline NAME...                             predictions and op times of the runs NAME.json with reports NAME/;
                                                            writes table.txt
    figures.py iterations RUN.json                          median iteration of each schedule
    figures.py killed SECONDS PROGRAM ARGUMENTS...          runs it, kills rank 1 after so long: exit code, seconds to its end
    figures.py throughput THROUGHPUT.json CEILINGS
    figures.py times LINES CEILINGS                         groups of kernels as shares of the card's rates; writes table.txt
    figures.py dram DRAM.csv CEILINGS                       bytes per second of each kernel, likewise
    figures.py words PROBE                                  what a probe's line of JSON says
    figures.py doctor DOCTOR.json
    figures.py summary OUT_DIR COMMIT PART...
"""

import concurrent.futures
import csv
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def why_not(program, command, name, devices, microbatches, blocks):
    """Why `command` cannot take the schedule, or None: found out with a tiny model on the CPU."""
    call = [program] + (["report", "accuracy", "--calibrate-micro", microbatches] if command == "accuracy" else ["run"])
    call += ["--device", "cpu", "--stages", devices, "--micro", microbatches, "--schedule", name, "--quiet"]
    call += ["--blocks", blocks, "--heads", "1", "--channels", "16", "--vocabulary", "257", "--max-sequence", "16"]
    call += ["--seq", "8", "--steps", "1", "--warmup", "0"]
    with tempfile.TemporaryDirectory() as folder:
        call += ["--output", folder + os.sep]
        done = subprocess.run(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


def schedules(program, command, devices, microbatches, blocks):
    listed = subprocess.run([program, "schedules", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    names = [schedule["name"] for schedule in json.loads(listed.stdout)["schedules"]]
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        reasons = list(pool.map(lambda name: why_not(program, command, name, devices, microbatches, blocks), names))
    for name, why in zip(names, reasons):
        if why is None:
            print(name)
        else:
            print(f"{name} left out: {why}", file=sys.stderr)
    return 0


def losses(run, expected, key, tolerance, names):
    """Losses of every run against `key` of the expected ones; or, where `key` is -, against another run's first."""
    theirs = read(expected)["runs"][0]["losses"] if key == "-" else read(expected)[key]
    runs = read(run)["runs"]
    wanted = names.split(",")
    wrong, largest = [], 0.0
    if sorted(entry["schedule"] for entry in runs) != sorted(wanted):
        wrong.append(f"expected {len(wanted)} schedules, found {sorted(entry['schedule'] for entry in runs)}")
    for entry in runs:
        ours = entry["losses"]
        if not ours or len(ours) > len(theirs):
            wrong.append(f"{entry['schedule']}: {len(ours)} losses, expected 1 to {len(theirs)}")
        for step, (found, reference) in enumerate(zip(ours, theirs)):
            difference = abs(found - reference)
            largest = max(largest, difference)
            if not difference <= float(tolerance):  # a NaN is wrong too
                wrong.append(f"{entry['schedule']} step {step}: {found}, expected {reference}")
    steps = len(runs[0]["losses"]) if runs else 0
    print(f"{len(runs)} schedules, {steps} losses each, largest difference {largest:.1e} (allowed {tolerance})")
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def accuracy_runs(folders):
    """Runs of several reports that were not calibrated on; each report names one schedule to calibrate on, 1f1b."""
    runs = [run for folder in folders for run in read(os.path.join(folder, "accuracy.json"))["runs"]]
    unseen = {}
    for run in runs:
        if run["schedule"] != "1f1b":
            unseen.setdefault((run["devices"], run["schedule"], run["microbatches"]), run)
    return list(unseen.values())


def accuracy(*folders):
    runs = accuracy_runs(folders)
    if not runs:
        print("no schedule but the one that was calibrated on")
        return 1
    errors = [100.0 * abs(run["error"]["makespan"]) for run in runs]
    bubbles = [abs(run["error"]["bubble"]) for run in runs]
    replays = [100.0 * abs(run["error"]["self_replay"]) for run in runs]
    worst = max(runs, key=lambda run: abs(run["error"]["makespan"]))
    print(
        f"{len(runs)} schedules not calibrated on: mean absolute makespan error {sum(errors) / len(errors):.2f} %, "
        f"largest {max(errors):.2f} % ({worst['schedule']}), mean bubble error {sum(bubbles) / len(bubbles):.2f} points, "
        f"mean self-replay error {sum(replays) / len(replays):.2f} %"
    )
    return 0


def op_times(folder, schedule):
    """Median milliseconds of F and of a whole backward of each device with all its chunks, then their means over the devices."""
    measured, ops = read(os.path.join(folder, f"{schedule}-measured.json")), {}
    for span in measured["spans"]:
        op = re.fullmatch(r"\d+([FBIW])\d+", span["op"])
        if op and span["queue"] == "compute":
            ops.setdefault((op[1], span["device"]), []).append((span["end_ns"] - span["start_ns"]) / 1e6)
    medians = {}
    for (kind, _), times in ops.items():
        medians.setdefault(kind, []).append(statistics.median(times))
    means = {kind: measured["chunks"] * sum(times) / len(times) for kind, times in medians.items()}
    return means.get("F", 0.0), means.get("B", means.get("I", 0.0) + means.get("W", 0.0))


def headline(*names):
    """Writes a table of all runs; says what the last one gave."""
    table = [
        "Op times are medians, of all chunks of a device; B is the whole backward. Costs of one schedule may not fit another, as slices share memory and power.",
        "",
        "| run | calibrated on | schedule | predicted ms | measured ms | error | over naive | F ms | B ms |",
        "| :--- | :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        runs = {run["schedule"]: run for run in read(f"{name}.json")["runs"]}
        calibrated = read(f"{name}.json")["calibrated_on"]["schedule"]
        ops = {schedule: op_times(name, schedule) for schedule in runs}
        for schedule, run in runs.items():
            predicted, measured = run["predicted"]["makespan"], run["measured"]["makespan"]
            ratio = ratio_over_naive(runs, schedule)
            table.append(
                f"| {name} | {calibrated} | {schedule} | {predicted:.2f} | {measured:.2f} | {100 * run['error']['makespan']:+.2f} % "
                f"| {ratio:.3f} | {ops[schedule][0]:.3f} | {ops[schedule][1]:.3f} |"
            )
    with open("table.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(table) + "\n")
    errors = {schedule: 100 * run["error"]["makespan"] for schedule, run in runs.items() if schedule != calibrated}
    ratios = ", ".join(f"{s} {ratio_over_naive(runs, s):.3f}" for s in runs if s != "naive")
    (f, b), (other_f, other_b) = ops["naive"], ops["1f1b"]
    print(
        f"over naive {ratios}; predicted from {calibrated} with errors "
        f"{', '.join(f'{schedule} {error:+.2f} %' for schedule, error in errors.items())}; "
        f"naive F {f:.3f} B {b:.3f} ms, 1f1b F {other_f:.3f} B {other_b:.3f} ms"
    )
    return 0


def ratio_over_naive(runs, schedule):
    return runs["naive"]["iteration_ms"]["median"] / runs[schedule]["iteration_ms"]["median"]


def card(path):
    """The card's ceilings by name: bytes, operations per second and seconds of a launch; nothing if they were not measured."""
    unit = {"GB/s": 1e9, "TFLOP/s": 1e12, "us": 1e-6}
    lines = [line.split() for line in optional(lambda: read_text(path), "").splitlines()]
    return {name: float(value) * unit[suffix] for _, name, value, suffix in lines}


# What GPT-2 124M needs at 32 sequences of 1024 tokens, by the arithmetic of docs/src/gpus.md: operations or bytes of a micro-batch.
# Attention's are causal: 2 products forward, 5 backward. Of the classifier's 9.9 GB a third is in L2.
WORK = {
    "products": ("product", 24.3e12),
    "attention forward": ("product", 0.62e12),
    "attention backward": ("product", 1.55e12),
    "LayerNorm forward": ("copy", 2.6e9),
    "LayerNorm backward": ("copy", 5.2e9),
    "biases": ("copy", 5.4e9),
    "classifier": ("copy", 6.6e9),
}


def times(path, ceilings):
    """Milliseconds of each group of kernels, and what the card's rates allow at best."""
    rates, quick = card(ceilings), os.environ.get("PIPESIM_GPU_QUICK") == "1"
    groups = re.findall(r"^group ([^:]*): ([0-9.]+) ms, expected ([0-9.]+) ms", read_text(path), re.MULTILINE)
    table, words = ["| kernels | ms | expected ms on an H200 | share of the card's rate |", "| :--- | ---: | ---: | ---: |"], []
    for group, ms, expected in groups:
        kind, work = WORK.get(group, ("", 0.0))
        share = f"{work / rates[kind] / (float(ms) / 1e3):.2f} of {kind}" if kind in rates and float(ms) > 0 and not quick else ""
        table.append(f"| {group} | {ms} | {expected} | {share} |")
        words.append(f"{group} {ms} ({share or expected})")
    with open("table.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(table) + "\n")
    print(f"{', '.join(words)} ms; in brackets the share of the card's rate, or what is expected of an H200")
    return 0 if groups else 1


def dram(path, ceilings):
    """Sums of ncu's launches by kernel, as rates."""
    unit = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0}
    unit |= {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
    with open(path, encoding="utf-8") as file:
        rows = list(csv.reader(line for line in file if line.startswith('"')))
    if len(rows) < 3:
        print("ncu wrote no launches")
        return 1
    columns = [rows[0].index(name) for name in ("Kernel Name", "gpu__time_duration.sum", "dram__bytes.sum")]
    factors = [unit[rows[1][column]] for column in columns[1:]]
    kernels = {}
    for row in rows[2:]:
        name, *values = (row[column] for column in columns)
        entry = kernels.setdefault(name.split("(")[0][:60], [0, 0.0, 0.0])
        values = [float(value.replace(",", "")) * factor for value, factor in zip(values, factors)]
        entry[:] = [entry[0] + 1, entry[1] + values[0], entry[2] + values[1]]
    rate = card(ceilings).get("copy")
    table = ["| kernel | launches | us | MB of DRAM | GB/s | share of the copy's rate |", "| :--- | ---: | ---: | ---: | ---: | ---: |"]
    for name, (count, seconds, moved) in sorted(kernels.items(), key=lambda kernel: -kernel[1][1]):
        speed = moved / seconds if seconds else 0.0
        share = f"{speed / rate:.2f}" if rate else ""
        table.append(f"| {name} | {count} | {seconds * 1e6:.1f} | {moved / 1e6:.1f} | {speed / 1e9:.0f} | {share} |")
    with open("table.txt", "w", encoding="utf-8") as file:
        file.write("\n".join(table) + "\n")
    print(f"{len(rows) - 2} launches of {len(kernels)} kernels")
    return 0


def iterations(run):
    found = [f"{entry['schedule']} {entry['iteration_ms']['median']:.2f} ms" for entry in read(run)["runs"]]
    print(", ".join(found))
    return 0


def rank_of(launcher, number):
    """The process that is rank `number` of the run that `launcher` started."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                is_it = parent == launcher and f"PIPESIM_RANK={number}".encode() in file.read().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if is_it:
            return int(name)
    return None


def killed(seconds, *call):
    """A rank that dies is named with exit code 6, and the run ends within ten seconds."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=errors)
        begun, rank = time.monotonic(), None
        while child.poll() is None and (rank is None or time.monotonic() - begun < float(seconds)):
            time.sleep(0.1)
            rank = rank or rank_of(child.pid, 1)
        if rank is None or child.poll() is not None:
            errors.seek(0)
            print(f"failed: it ended by itself with {child.poll()}: {errors.read().strip()[-300:]}")
            return 1
        os.kill(rank, 9)
        start = time.monotonic()
        try:
            code = child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            code = None
        took = time.monotonic() - start
        errors.seek(0)
        is_named = "rank 1 was killed by signal 9" in errors.read()
    good = code == 6 and took < 10 and is_named
    print(f"{'' if good else 'failed: '}exit code {code} after {took:.1f} s, {'named' if is_named else 'not named'}")
    return 0 if good else 1


def throughput(path, ceilings):
    """What each size gave, with the share of the card's rate of products; wrong where pipesim's own run failed."""
    sizes, rate = read(path)["sizes"], card(ceilings).get("product")
    words = []
    for size in sizes:
        names = [name for name in ("pipesim", "compiled", "eager") if name in size]
        share = {name: f" ({size[name]['tflops'] * 1e12 / rate:.2f} of products)" if rate else "" for name in names}
        speeds = ", ".join(f"{name} {size[name]['tokens_per_second']:,.0f}{share[name]}" for name in names)
        ratio = size.get("pipesim_over_compiled") or size.get("pipesim_over_eager")
        against = "compiled" if "pipesim_over_compiled" in size else "eager"
        attention = size.get(f"{against}_attention")
        asked = f" ({attention} attention, residual {size.get('pytorch_residual')})" if attention else ""
        ratio = f", {ratio:.2f} of {against}{asked}" if ratio else ""
        words.append(f"{size['sequences']} sequences: {speeds} tokens/s{ratio}")
    print("; ".join(words))
    return 0 if sizes and all("pipesim" in size for size in sizes) else 1


def doctor(path):
    needs = [f"{need['need']} {'usable' if need['usable'] else 'not usable'}" for need in read(path)["needs"]]
    print(f"{device(path)}; {', '.join(needs)}")
    return 0


def words(line):
    found = json.loads(line)
    print(f"expected a GPU's driver, found {found['found']}; {found.get('fix') or 'see pipesim doctor'}")
    return 0


def device(path):
    """What the doctor says of the GPUs and the driver."""
    found = {probe["name"]: probe["found"] for probe in read(path)["probes"] if "found" in probe}
    return "; ".join(found[name] for name in ("devices", "driver") if name in found)


def optional(make, missing="not measured"):
    """What `make` returns, or `missing` where a file or figure is not there."""
    try:
        return make()
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError):
        return missing


def mean_error(folders):
    present = [folder for folder in folders if os.path.exists(os.path.join(folder, "accuracy.json"))]
    runs = accuracy_runs(present)
    errors = [100.0 * abs(run["error"]["makespan"]) for run in runs]
    return f"{sum(errors) / len(errors):.2f} % over {len(errors)} schedules"


def summary(out, commit, *parts):
    def inside(*names):
        return os.path.join(out, *names)

    def folders(prefix):
        part = inside("accuracy")
        names = sorted(os.listdir(part)) if os.path.isdir(part) else []
        return [os.path.join(part, name) for name in names if name.startswith(prefix)]

    def speedup():
        runs = {run["schedule"]: run for run in read(inside("headline", "copy.json"))["runs"]}
        best = min((name for name in runs if name != "naive"), key=lambda name: runs[name]["iteration_ms"]["median"])
        error = 100 * runs[best]["error"]["makespan"]
        return f"{ratio_over_naive(runs, best):.3f} x ({best}, step predicted with {error:+.1f} %)"

    def tokens():
        sizes = read(inside("throughput", "throughput.json"))["sizes"]
        best = max((size for size in sizes if "pipesim" in size), key=lambda size: size["pipesim"]["tokens_per_second"])
        compiled = max(size[n]["tokens_per_second"] for size in sizes for n in ("compiled", "eager") if n in size)
        ours = best["pipesim"]["tokens_per_second"]
        way = "compiled" if any("compiled" in size for size in sizes) else "eager (compiled is missing)"
        return f"{ours:,.0f} tokens/s, PyTorch {way} {compiled:,.0f}: {ours / compiled:.3f} (best size of each)"

    lines = ["# GPU check", ""]
    lines.append(f"- device: {optional(lambda: device(inside('doctor', 'doctor.json')), 'unknown')}")
    named = optional(lambda: read_text(inside("doctor", "gpus.txt")), "")
    if named:
        lines.append(f"- name, driver, highest clock, memory: {'; '.join(named.splitlines())}")
    lines.append(f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")
    lines.append(f"- commit: {commit}")
    if os.environ.get("PIPESIM_GPU_QUICK") == "1":
        lines.append("- quick: tiny sizes, that only show that the check works; no figure here means anything")
    lines += ["", "| figure | value |", "| :--- | ---: |"]
    for p in ("2", "4"):
        error = optional(lambda: mean_error(folders(f"p{p}")))
        lines.append(f"| mean absolute prediction error, {p} slices, schedules not calibrated on | {error} |")
    lines.append(f"| speed-up over naive, 2 slices | {optional(speedup)} |")
    lines.append(f"| GPT-2 124M in bfloat16, whole GPU | {optional(tokens)} |")
    lines += ["", "| part | outcome | seconds | found |", "| :--- | :--- | ---: | :--- |"]
    statuses = {part: optional(lambda: read_text(inside(part, "status")), "") for part in parts}
    for status in filter(None, statuses.values()):
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in status.split("\t")) + " |")
    lines += ["", f"Not run: {', '.join(part for part in parts if not statuses[part])}"]
    for part in parts:
        table = optional(lambda: read_text(inside(part, "table.txt")), "")
        lines += ["", f"## {part}", "", table] if table else []
    with open(inside("summary.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return 0


COMMANDS = {
    command.__name__: command
    for command in (schedules, losses, accuracy, headline, iterations, killed, throughput, times, dram, doctor, words, summary)
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    return COMMANDS[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
