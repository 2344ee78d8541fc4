"""Facts of layouts, the lines that the checks read and write, and tables of verdicts."""

import json
import sys
import traceback
from pathlib import Path

import rules

# name of what was given, by the form of options
FORMS = {"arguments": "arguments", "overrides": "arguments", "json": "json", "yaml": "yaml"}
SIZES = [(1024, 2816, 16, 16), (2048, 5632, 16, 4), (2048, 5504, 32, 8), (4096, 11008, 32, 32), (4096, 14336, 32, 8), (3072, 8192, 24, 8),
         (2560, 6912, 20, 20), (1536, 8960, 12, 2), (896, 4864, 14, 2), (6144, 16384, 48, 8)]


def model(random, layers, experts=0):
    """Returns the facts of a model: dense, or a mixture."""
    hidden, ffn, heads, kv_heads = random.choice(SIZES)
    dense = random.choice([0, 0, 1]) if experts else 0
    return {
        "layers": layers, "prediction_layers": 0, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": kv_heads,
        "head_dim": hidden // heads, "vocab": random.choice([32000, 50257, 128256, 151936]), "gated": True, "rope": True,
        "tied": random.random() < 0.3, "mla": False, "norm": "rms", "windows": False, "experts": experts,
        "top_k": min(experts, random.choice([2, 4, 8])), "shared_experts": random.choice([0, 0, 1]) if experts else 0,
        "dense_layers": dense, "moe_ffn": random.choice([768, 1408, 1492]) if experts else 0, "expert_groups": 1,
    }


def split(layers, stages):
    """Returns layers per stage, the rest given to stages in the middle."""
    each, rest = divmod(layers, stages)
    first = (stages - rest) // 2
    return [each + (first <= stage < first + rest) for stage in range(stages)]


def string(stage_layers, prediction_layers=0):
    """Returns Megatron's string of the stages: flat, and with runs of equal stages as groups."""
    def one(count):
        return "" if count == 0 else "t" if count == 1 else f"t*{count}"

    last = len(stage_layers) - 1
    parts = [("E" if at == 0 else "") + one(count) + ("m" * prediction_layers + "L" if at == last else "")
             for at, count in enumerate(stage_layers)]
    flat = ["E" * (at == 0) + "t" * count + ("m" * prediction_layers + "L") * (at == last) for at, count in enumerate(stage_layers)]
    text, at = "", 0
    while at <= last:
        run = 1
        while at + run < last and parts[at + run] == parts[at]:
            run += 1
        grouped = at > 0 and run > 1
        text += f"({parts[at]}|)*{run}" if grouped else parts[at] + ("|" if at < last else "")
        at += run if grouped else 1
    return text, "|".join(flat)


def layout(random, p, v, m, b, dp, seq, tp=1, cp=1, ep=1, layers=None, experts=0, uneven=False, prediction_layers=0, **more):
    """Returns the facts of a layout. `uneven`: the contents of stages are given."""
    stages = p * v
    layers = layers if layers is not None else stages * random.choice([1, 2, 3])
    stage_layers = split(layers, stages)
    text, flat = string(stage_layers, prediction_layers)
    world = p * tp * cp * dp
    etp = more.get("etp", tp if experts and random.random() < 0.3 else 1)
    facts = {
        "p": p, "v": v, "m": m, "stages": stages, "schedule": "" if p == 1 else "1f1b" if v == 1 else "interleaved-1f1b", "group": p,
        "ops": [], "b": b, "batch": b * m * dp, "seq": seq, "tp": tp, "cp": cp, "ep": ep, "etp": etp, "dp": dp,
        "edp": max(1, world // (p * ep * etp)), "world": world, "zero": random.choice([0, 1]), "sequence_parallel": False,
        "precision": "bf16", "recompute": "none", "recompute_modules": [], "attention": "flash", "dispatcher": "alltoall",
        "routing": "balanced", "cuda_graph": "none", "moe_overlap": False, "delay_wgrad": False, "rounds": 1,
        "stage_layers": stage_layers, "layout": text, "layout_flat": flat,
        "even": len(set(stage_layers)) == 1 and prediction_layers == 0 and not uneven,
        "hardware": "h100-sxm", "architecture": "hopper", "gpus_per_node": 8,
    }
    facts.update(model(random, layers, experts))
    facts["prediction_layers"] = prediction_layers
    facts.update(more)
    return facts


class Silent(Exception):
    """The framework runs something else without an error."""


def verdict(judge, checkouts):
    """Runs `judge`; returns "accepted", or the error with its file and line in one of the checkouts."""
    try:
        judge()
    except Silent as difference:
        return {"verdict": "silent", "error": str(difference)}
    except (Exception, SystemExit) as error:
        at = ""
        for frame in traceback.extract_tb(error.__traceback__):
            for root in checkouts:
                if Path(frame.filename).is_relative_to(root):
                    at = f"{Path(frame.filename).relative_to(root)}:{frame.lineno}"
        return {"verdict": "refused", "error": " ".join(str(error).split()) or type(error).__name__, "at": at}
    return {"verdict": "accepted"}


def answer(judge, checkouts):
    """Reads lines with `facts`, `world` and `options`, as plans.py writes them; writes a verdict for each; counts those not accepted."""
    wrong = 0
    for line in filter(str.strip, sys.stdin):
        question = json.loads(line)
        facts = {**question["facts"], **{name: question[name] for name in ["world", "architecture"] if name in question}}
        found = verdict(lambda: judge(facts, question["options"]), checkouts)
        wrong += found["verdict"] != "accepted"
        print(json.dumps({"question": question.get("question", ""), **found}), flush=True)
    return wrong


def tabulate(framework, seed, layouts, options, judge, checkouts, path):
    """Puts layouts, what was given and verdicts into a table; says where the rules of a framework's file disagree."""
    name, version = framework["framework"], framework["version"]
    rows, wrong, alone = [], 0, set()
    for facts in layouts:
        given = options(framework, facts)
        found = verdict(lambda: judge(facts, given), checkouts)
        refused, silent = rules.broken(framework, facts), rules.broken(framework, facts, ["silent"])
        broken = refused or silent
        agrees = found["verdict"] == ("refused" if refused else "silent" if silent else "accepted")
        agrees = agrees and (not broken or any(same(text, found["error"]) for _, text in broken))
        alone |= {rule for rule, _ in broken if len(broken) == 1}
        if not agrees:
            wrong += 1
            print(f"differs: {json.dumps(found)}\n  rules: {broken}\n  options: {given}\n  facts: {json.dumps(facts)}", file=sys.stderr)
        rows.append({"facts": facts, "given": {FORMS[framework["form"]]: given}, **found})
    for rule in framework["rules"]:
        if rule["kind"] in ["refused", "silent"] and rule["name"] not in alone:
            print(f"no layout breaks {rule['name']} alone", file=sys.stderr)
    write(path, version, seed, rows)
    accepted = sum(row["verdict"] == "accepted" for row in rows)
    print(f"{name} {version}: {len(rows)} layouts, {accepted} accepted, {wrong} verdicts or errors differ from the rules", file=sys.stderr)
    return wrong


def write(path, version, seed, rows):
    """Puts the rows of a version into a table; facts that most rows share are in `common`."""
    def line(value):
        return json.dumps(value, separators=(",", ":"))

    common = {}
    for name in rows[0]["facts"]:
        values = [line(row["facts"][name]) for row in rows]
        most = max(sorted(set(values)), key=values.count)
        if 2 * values.count(most) > len(rows):
            common[name] = json.loads(most)
    rows = [{**row, "facts": {name: own for name, own in row["facts"].items() if common.get(name, ...) != own}} for row in rows]
    tables = json.loads(path.read_text()) if path.exists() else {}
    tables[version] = {"seed": seed, "common": common, "rows": rows}
    parts = [f'{line(version)}:{{"seed":{table["seed"]},"common":{line(table["common"])},"rows":[\n'
             + ",\n".join(map(line, table["rows"])) + "\n]}" for version, table in sorted(tables.items())]
    path.write_text("{" + ",\n".join(parts) + "}\n")


def same(text, error):
    """Returns whether an error is that of a rule, apart from white space."""
    return " ".join(text.split()) in " ".join(error.split())
