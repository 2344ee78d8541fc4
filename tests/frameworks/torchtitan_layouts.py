"""Layouts at the edges of the rules of frameworks/*.toml, and Python's reading of these files.

Expressions are evaluated by Python, of which Starlark is a part. A table has one row per layout: its facts, what was given to the
framework, and the framework's verdict; facts that most rows share are in `common`.
"""

import json
import os
import random
import re
import shlex
import tomllib

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "frameworks")
TABLES = os.path.dirname(os.path.abspath(__file__))
BUILT_IN = {name: getattr(__builtins__, name) if not isinstance(__builtins__, dict) else __builtins__[name]
            for name in ["max", "min", "len", "range", "any", "all", "str", "int", "list", "enumerate", "zip", "sorted"]}


def load(name):
    """Reads a file on top of its base."""
    with open(os.path.join(FOLDER, name + ".toml"), "rb") as file:
        own = tomllib.load(file)
    removed, base = own.pop("remove", []), own.pop("base", None)
    if base is None:
        return own
    table = load(base)
    for key, value in table.items():
        if isinstance(value, list):
            table[key] = [entry for entry in value if entry.get("name") not in removed]
    for key, value in own.items():
        if isinstance(value, list) and key in table:
            for entry in value:
                places = [i for i, known in enumerate(table[key]) if known.get("name") == entry.get("name", 0)]
                table[key][slice(places[0], places[0] + 1) if places else slice(len(table[key]), None)] = [entry]
        elif isinstance(value, dict) and key in table:
            table[key].update(value)
        else:
            table[key] = value
    return table


class Unknown(Exception):
    """An expression names a fact that is not known."""


def evaluate(text, facts):
    try:
        return eval(text, {**facts, "__builtins__": BUILT_IN})
    except NameError as error:
        raise Unknown(text) from error


def template(text, facts):
    return re.sub(r"\{([^{}]*)\}", lambda found: str(evaluate(found[1], facts)), text)


def objections(file, facts):
    """Returns name, kind and error of each broken rule."""
    found = []
    if facts.get("schedule") and facts["schedule"] not in file["schedules"]:
        found.append(("schedule", "missing", f"{file['title']} has no {facts['schedule']}"))
    for rule in file.get("rules", []):
        try:
            whole = f"({rule.get('when', 'True')}) and not ({rule['expect']})"
            # a rule is skipped if any fact that it names is unknown
            if any(name not in facts for name in names(whole)):
                continue
            if evaluate(whole, facts):
                found.append((rule["name"], rule["kind"], template(rule["error"], facts)))
        except Unknown:
            continue
    return found


def names(text):
    """Returns the free names of an expression."""
    code = compile(text, "rule", "eval")
    bound = set()
    stack = [code]
    found = set()
    while stack:
        one = stack.pop()
        found |= set(one.co_names)
        bound |= set(one.co_varnames)
        stack += [inner for inner in one.co_consts if hasattr(inner, "co_code")]
    return {name for name in found - bound - set(BUILT_IN) if not hasattr(str, name) and not hasattr(dict, name)}


def options(file, facts):
    """Returns the options as text, in the form that the file names."""
    found = []
    for option in file.get("options", []):
        if evaluate(option.get("when", "True"), facts):
            found.append((option["name"], evaluate(option["value"], facts) if "value" in option else None))
    return toml(found) if file["form"] == "toml" else arguments(found)


def arguments(found):
    words = []
    for name, value in found:
        words.append(name)
        if value is not None:
            words += [shlex.quote(str(one)) for one in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def toml(found):
    tables = {}
    for name, value in found:
        table, key = name.rsplit(".", 1)
        tables.setdefault(table, []).append(f"{key} = {json.dumps(True if value is None else value)}")
    return "\n\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items())


def of_pytorch(version, seed, count):
    """Yields layouts of a pipeline: ranks, stages per rank and micro-batches around the limits of each schedule."""
    file, pick, seen = load(f"pytorch-{version}"), random.Random(seed), set()
    while len(seen) < count:
        name = pick.choice(sorted(file["schedules"]))
        p = pick.choice([2, 3, 4, 5, 6, 8])
        v = {"1f1b": 1, "gpipe": 1, "zb-v": 2, "dualpipe-v": 2}.get(name) or pick.choice([1, 2, 3, 4])
        if pick.random() < 0.15:
            v = pick.choice([1, 2, 3])
        near = pick.choice([1, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 1, p * v - 1, p * v, p * v + 1, 3 * p, 3 * p + 2, 4 * p])
        m = max(1, near)
        if (name, p, v, m) in seen:
            continue
        seen.add((name, p, v, m))
        # PyTorch's own group, which differs from p only where it cannot be p
        facts = {"p": p, "v": v, "m": m, "stages": p * v, "schedule": name, "group": m // max(1, m // p), "ops": []}
        yield {"facts": facts, "given": {"schedule": file["schedules"][name], "p": p, "v": v, "m": m}}


COMMON = {
    "p": 1, "v": 1, "m": 1, "schedule": "", "ops": [], "b": 1, "seq": 4096, "tp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 1, "zero": 3,
    "sequence_parallel": False, "precision": "bf16", "recompute": "none", "recompute_modules": [], "attention": "flash",
    "dispatcher": "alltoall", "routing": "balanced", "cuda_graph": "none", "moe_overlap": False, "delay_wgrad": False, "rounds": 1,
    "layers": 8, "prediction_layers": 0, "even": True, "heads": 16, "kv_heads": 8, "head_dim": 16, "hidden": 256, "ffn": 768,
    "vocab": 2048, "gated": True, "tied": False, "mla": False, "rope": True, "norm": "rms", "windows": False, "experts": 0, "top_k": 0,
    "shared_experts": 0, "dense_layers": 0, "moe_ffn": 0, "qk_norm": False, "hardware": "h100-sxm", "architecture": "hopper",
    "gpus_per_node": 8,
}


def of_torchtitan(version, seed, count):
    """Yields layouts of a job, most of them changed at one or two edges."""
    file, pick = load(f"torchtitan-{version}"), random.Random(f"{seed} {version}")
    while count > 0:
        facts = layout(file, pick)
        if version != "2026-08" and facts["experts"] and facts["experts"] % facts["ep"]:
            continue  # these versions fail in the first exchange of tokens, which is not run here
        shape = ["layers", "heads", "kv_heads", "head_dim", "hidden", "ffn", "vocab", "tied", "mla", "experts", "top_k", "dense_layers",
                 "moe_ffn", "prediction_layers"]
        given = {"world": facts["world"], "toml" if file["form"] == "toml" else "arguments": options(file, facts),
                 "model": {name: facts[name] for name in shape if facts[name] != COMMON[name]}}
        given["model"].setdefault("kv_heads", facts["kv_heads"])
        given["model"].setdefault("layers", facts["layers"])
        if facts["qk_norm"]:
            given["model"]["name"] = "qwen3-14b"
        count -= 1
        yield {"facts": {name: value for name, value in facts.items() if COMMON.get(name, ...) != value}, "given": given}


def layout(file, pick):
    """Returns the facts of one layout."""
    f = dict(COMMON)
    chance = lambda of: pick.random() < of
    f["p"] = pick.choice([1, 2, 2, 3, 4, 4])
    if f["p"] > 1:
        f["schedule"] = pick.choice(sorted(file["schedules"]))
        f["v"] = {"1f1b": 1, "gpipe": 1}.get(f["schedule"], 2)
        if f["schedule"] in ("interleaved-1f1b", "looped-bfs", "interleaved-zb"):
            f["v"] = pick.choice([2, 2, 3, 4])
        if chance(0.12):
            f["v"] = pick.choice([1, 2, 3])
        f["m"] = f["p"] * f["v"] * pick.choice([1, 2])
        if chance(0.3):
            f["m"] = max(1, pick.choice([1, f["p"] - 1, f["p"] + 1, 2 * f["p"] + 1, 3 * f["p"] + 2, f["p"] * f["v"] - 1]))
    else:
        f["m"] = pick.choice([1, 2, 4])
    f["stages"] = f["p"] * f["v"]
    f["group"] = f["m"] // max(1, f["m"] // f["p"]) if f["p"] > 1 else 1
    f["tp"], f["cp"], f["dp"] = pick.choice([1, 2, 4, 8]), pick.choice([1, 1, 2]), pick.choice([1, 2, 4])
    f["sequence_parallel"] = f["tp"] > 1 and chance(0.85)
    f["b"], f["zero"] = pick.choice([1, 2]), pick.choice([0, 2, 2, 3])
    f["recompute"] = pick.choice(["none", "selective", "full"])
    model(f, pick, chance)
    if chance(0.12):
        f["seq"] += pick.choice([1, 2, 4, 8, 12, f["tp"], 2 * f["cp"]])
    if file["version"] == "0.2":  # does not know layers that predict, and always splits sequences; its heads fail in the first step
        f["prediction_layers"], f["sequence_parallel"] = 0, f["tp"] > 1
        f["qk_norm"] = not f["mla"] and chance(0.1)
        if f["ep"] > 1 and chance(0.3):
            f["etp"] = pick.choice([f["tp"], 2])
    elif chance(0.06):
        f["heads"], f["kv_heads"] = pick.choice([(12, 12), (16, 2), (24, 8), (16, 6)])
        f["hidden"] = f["heads"] * f["head_dim"]
    if chance(0.04):
        f["cuda_graph"] = "full"
    f["batch"] = f["b"] * f["m"] * f["dp"] + (f["dp"] if chance(0.05) else 0)
    f["world"] = f["p"] * f["tp"] * f["cp"] * f["dp"]
    if chance(0.03):
        f["world"] *= 2
    stages(f, pick, chance)
    return f


def model(f, pick, chance):
    """Gives the model experts, tied embeddings or layers that predict further tokens."""
    f["layers"] = f["stages"] * pick.choice([1, 2, 3])
    if chance(0.35):
        f["experts"], f["top_k"], f["moe_ffn"] = pick.choice([8, 16, 12]), 2, 256
        f["mla"] = chance(0.4)
        f["ep"] = pick.choice([1, 2, 4, 8, 16])
        if f["experts"] == 12 and f["ep"] > 4 and chance(0.7):
            f["ep"] = 4
        f["etp"] = 1 if f["ep"] > 1 else f["tp"]
        f["head_dim"] = 128 if not f["mla"] else 16
        f["hidden"] = f["heads"] * f["head_dim"]
    if f["mla"]:
        f["kv_heads"], f["dense_layers"], f["shared_experts"] = f["heads"], pick.choice([0, 1]), 2
        f["prediction_layers"] = 1 if chance(0.15) else 0
    elif not f["experts"] and chance(0.06):
        f["tied"] = True


def stages(f, pick, chance):
    """Splits the layers over the stages, sometimes unevenly."""
    count, layers = f["stages"], f["layers"]
    split = [layers // count] * count
    if f["p"] > 1 and (chance(0.3) or f["prediction_layers"]):
        f["even"] = False
        extra = pick.randrange(count)
        split[extra] += 1
        f["layers"] += 1
    if f["even"]:
        return
    f["stage_layers"], modules, first = split, [], 0
    for number, size in enumerate(split):
        names_of = ["tok_embeddings"] if number == 0 else []
        names_of += [f"layers.{layer}" for layer in range(first, first + size)]
        modules.append(names_of + (["norm", "lm_head"] if number == count - 1 else []))
        first += size
    f["modules"] = modules if not f["prediction_layers"] else []


def write(name, version, seed, rows):
    """Puts the rows of a version into the table of a framework."""
    path = os.path.join(TABLES, name + ".json")
    tables = json.load(open(path)) if os.path.exists(path) else {}
    common = COMMON if name == "torchtitan" else {}
    tables[version] = {"seed": seed, "common": common, "rows": list(rows)}
    line = lambda value: json.dumps(value, separators=(",", ":"))
    parts = [f'{line(version)}:{{"seed":{table["seed"]},"common":{line(table["common"])},"rows":[\n'
             + ",\n".join(line(row) for row in table["rows"]) + "\n]}" for version, table in sorted(tables.items())]
    with open(path, "w") as file:
        file.write("{" + ",\n".join(parts) + "}\n")


def agreement(name):
    """Returns where the rules and the table of a framework disagree."""
    tables, wrong = json.load(open(os.path.join(TABLES, name + ".json"))), []
    for version, table in tables.items():
        file = load(f"{name}-{version}")
        for number, row in enumerate(table["rows"]):
            facts = {**table["common"], **row["facts"]}
            broken = [(rule, kind, error) for rule, kind, error in objections(file, facts) if kind in ("refused", "silent")]
            kinds = {"refused"} if any(kind == "refused" for _, kind, _ in broken) else {kind for _, kind, _ in broken}
            agrees = kinds == ({row["verdict"]} - {"accepted"})
            says = row["verdict"] != "refused" or any(error in row["error"] for _, _, error in broken)
            if not agrees or not says:
                wrong.append((name, version, number, row.get("error"), row.get("at"), broken, row["given"]))
    return wrong


if __name__ == "__main__":
    for framework in ["pytorch", "torchtitan"]:
        if os.path.exists(os.path.join(TABLES, framework + ".json")):
            for one in agreement(framework):
                print(*one, sep="\n    ")
