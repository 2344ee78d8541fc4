#!/usr/bin/env python3
"""Figures of the GPU check: reads the JSON that pipesim wrote, says in one line what it found; exit code 1 if it is wrong.

Used by tests/gpu; needs nothing but Python.

    figures.py schedules PROGRAM run|accuracy P M BLOCKS    names that the command takes for so many devices, micro-batches
                                                            and blocks of the model; why not the others, on stderr
    figures.py losses RUN.json EXPECTED KEY TOLERANCE NAMES
    figures.py accuracy FOLDER...                           mean absolute error over schedules not calibrated on
    figures.py speed RUN.json                               speed-up over naive
    figures.py iterations RUN.json                          median iteration of each schedule
    figures.py exits TIMES PROGRAM ARGUMENTS...             runs it so often: exit codes, seconds to its end
    figures.py killed SECONDS PROGRAM ARGUMENTS...          runs it, kills rank 1 after so long: exit code, seconds to its end
    figures.py throughput THROUGHPUT.json
    figures.py words PROBE                                  what a probe's line of JSON says
    figures.py doctor DOCTOR.json
    figures.py summary OUT_DIR COMMIT PART...
"""

import concurrent.futures
import datetime
import json
import os
import select
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


def speed(run):
    medians = {entry["schedule"]: entry["iteration_ms"]["median"] for entry in read(run)["runs"]}
    naive = medians["naive"]
    found = [f"{name} {naive / ms:.3f} x" for name, ms in medians.items() if name != "naive"]
    print(f"over naive ({naive:.1f} ms a step): {', '.join(found)}")
    return 0


def iterations(run):
    found = [f"{entry['schedule']} {entry['iteration_ms']['median']:.2f} ms" for entry in read(run)["runs"]]
    print(", ".join(found))
    return 0


def exits(times, *call):
    """Runs a program several times; the end of what it prints is the beginning of its way out."""
    codes, ways = [], []
    for _ in range(int(times)):
        child = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        last = time.monotonic()
        while select.select([child.stdout], [], [], 60)[0] and os.read(child.stdout.fileno(), 1 << 16):
            last = time.monotonic()
        try:
            codes.append(child.wait(1))
        except subprocess.TimeoutExpired:
            child.kill()
            codes.append("none after 60 s")
        ways.append(time.monotonic() - last)
    wrong = [code for code in codes if code != 0]
    words = f"exit codes other than 0: {wrong}: failed" if wrong else "exit code 0 each time"
    print(f"{len(codes)} runs, {words}; from the last word to the end {max(ways):.2f} s at most, {sum(ways) / len(ways):.2f} s in the mean")
    return 1 if wrong else 0


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


def throughput(path):
    """What each size gave; wrong where pipesim's own run failed."""
    sizes = read(path)["sizes"]
    words = []
    for size in sizes:
        names = [name for name in ("pipesim", "compiled", "eager") if name in size]
        speeds = ", ".join(f"{name} {size[name]['tokens_per_second']:,.0f}" for name in names)
        ratio = size.get("pipesim_over_compiled") or size.get("pipesim_over_eager")
        against = "compiled" if "pipesim_over_compiled" in size else "eager"
        attention = size.get(f"{against}_attention")
        asked = f" ({attention} attention, residual {size['pytorch_residual']})" if attention else ""
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
        medians = {e["schedule"]: e["iteration_ms"]["median"] for e in read(inside("speed-up", "run.json"))["runs"]}
        best = min((name for name in medians if name != "naive"), key=medians.get)
        return f"{medians['naive'] / medians[best]:.3f} x ({best})"

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
    for part in parts:
        status = optional(lambda: read_text(inside(part, "status")), "")
        cells = status.split("\t") if status else [part, "not run", "", ""]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    with open(inside("summary.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return 0


COMMANDS = {
    command.__name__: command
    for command in (schedules, losses, accuracy, speed, iterations, exits, killed, throughput, doctor, words, summary)
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    return COMMANDS[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
