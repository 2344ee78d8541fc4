"""Layouts at the edges of Megatron-LM's rules, with the verdict of the real program.

Each row has the facts as the rules name them, the options that the framework's file prints for them, and what Megatron-LM said (`without`: to the options without the one that a rule of the kind `needs` asks for). Layouts are random but seeded: each starts from one that is accepted, of a dense
model or of a mixture, and changes one to three facts so that rules may break. What Transformer Engine checks when it runs (8-bit sizes, hardware) is kept out, since it is not run.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from random import Random

import megatron_rules as rules

DENSE = {"experts": 0, "top_k": 0, "shared_experts": 0, "dense_layers": 0, "moe_ffn": 0}
PARTS = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]


def model(pick: Random) -> dict:
    """Returns the facts of a model."""
    head_dim = pick.choice([64, 128])
    heads = pick.choice([4, 8, 12, 16, 24, 32])
    facts = {
        "layers": pick.choice([4, 6, 8, 12, 16, 22, 24, 40]),
        "hidden": heads * head_dim,
        "ffn": pick.choice([1024, 2048, 2752, 4096]),
        "heads": heads,
        "kv_heads": pick.choice([k for k in [1, 2, 3, 4, 8, heads] if heads % k == 0]),
        "head_dim": head_dim,
        "vocab": pick.choice([32000, 50257, 128256]),
        "gated": pick.random() < 0.8,
        "tied": pick.random() < 0.3,
        "norm": pick.choice(["rms", "layer"]),
        "windows": False,
        "mla": False,
        "rope": True,
        "prediction_layers": 0,
        **DENSE,
    }
    if pick.random() < 0.55:
        facts["experts"] = pick.choice([8, 12, 16, 64])
        facts["top_k"] = pick.choice([1, 2, 4])
        facts["shared_experts"] = pick.choice([0, 0, 1, 2])
        facts["moe_ffn"] = pick.choice([512, 768, 1024])
        facts["dense_layers"] = pick.choice([0, 0, 1, 3])
        facts["mla"] = pick.random() < 0.3
    if pick.random() < 0.2:
        facts["prediction_layers"] = pick.choice([1, 1, 2])
    if facts["mla"]:
        facts["kv_heads"] = facts["heads"]
    return facts


def layout(pick: Random, facts: dict) -> dict:
    """Returns the facts of a layout, most of which Megatron-LM accepts."""
    tp = pick.choice([t for t in [1, 1, 2, 4, 8] if facts["heads"] % t == 0])
    p = pick.choice([1, 2, 2, 4, 4, 8])
    v = pick.choice([1, 1, 2, 3]) if p > 1 else 1
    cp = pick.choice([1, 1, 1, 2, 4])
    experts = facts["experts"]
    ep = pick.choice([e for e in [1, 2, 4, 8] if experts % e == 0]) if experts else 1
    etp = pick.choice([1, 1, tp]) if experts else 1
    sharded = -(-etp * ep // (tp * cp))
    dp = pick.choice([1, 2, 3]) * sharded
    b = pick.choice([1, 1, 2, 4])
    m = p * pick.choice([1, 2, 3]) if v > 1 else pick.choice([1, 3, 8])
    overlap = ep > 1 and (v > 1 or p == 1) and facts["prediction_layers"] < 2 and pick.random() < 0.5
    return {
        "p": p,
        "v": v,
        "m": m,
        "group": p,
        "b": b,
        "seq": 2 * cp * tp * pick.choice([64, 512]),
        "tp": tp,
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "dp": dp,
        "zero": pick.choice([0, 1]),
        "sequence_parallel": tp > 1 and (bool(experts) or pick.random() < 0.6),
        "precision": pick.choice(["bf16", "bf16", "bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]),
        "recompute": "none",
        "recompute_modules": [],
        "attention": pick.choice(["flash", "flash", "plain"]),
        "dispatcher": pick.choice(["alltoall", "alltoall", "deepep", "hybridep"]) if ep > 1 else "alltoall",
        "routing": pick.choice(["balanced", "natural"]),
        "cuda_graph": pick.choice(["none", "none", "none", "partial", "full"]),
        "moe_overlap": overlap,
        "delay_wgrad": overlap and pick.random() < 0.5,
        "rounds": 1,
        "architecture": pick.choice(["hopper", "hopper", "blackwell"]),
        "hardware": "",
        "gpus_per_node": 8,
    }


def change(pick: Random, facts: dict) -> None:
    """Changes one fact towards an edge of a rule."""
    p, tp, cp, experts = facts["p"], facts["tp"], facts["cp"], facts["experts"]
    changes = {
        "m": lambda: max(1, p + pick.choice([-1, 0, 1, 2, p - 1, p + 1])),
        "group": lambda: pick.choice([p, p + 1, p - 1, 2 * p, facts["m"], facts["m"] + 1]) if facts["v"] > 1 and p > 1 else p,
        "v": lambda: pick.choice([1, 2, 3]),
        "seq": lambda: facts["seq"] + pick.choice([cp, 2 * cp, 4 * cp, 1, tp]),
        "tp": lambda: pick.choice([2, 3, 4, 8, 16]),
        "cp": lambda: pick.choice([2, 3, 8]),
        "ep": lambda: pick.choice([2, 3, 8, 16]) if experts else 1,
        "etp": lambda: pick.choice([1, 2, 4, 8]) if experts else 1,
        "dp": lambda: pick.choice([1, 2, 5]),
        "ffn": lambda: pick.choice([1000, 1001, 2730, 2056]),
        "moe_ffn": lambda: pick.choice([500, 514, 1001]) if experts else 0,
        "kv_heads": lambda: pick.choice([1, 2, 3, 6, facts["heads"]]) if not facts["mla"] else facts["heads"],
        "precision": lambda: pick.choice(["fp32", "fp8", "mxfp8", "bf16"]),
        "sequence_parallel": lambda: not facts["sequence_parallel"],
        "moe_overlap": lambda: bool(experts),
        "delay_wgrad": lambda: bool(experts),
        "dispatcher": lambda: pick.choice(["deepep", "hybridep"]) if experts else "alltoall",
        "routing": lambda: "capacity" if experts else "balanced",
        "cuda_graph": lambda: pick.choice(["partial", "full"]),
        "recompute": lambda: pick.choice(["selective", "full", "parts", "parts", "parts"]),
        "prediction_layers": lambda: pick.choice([0, 1, 2]),
        "rope": lambda: facts["mla"] or pick.random() < 0.5,
        "world": lambda: pick.choice([1, 4]),
        "batch": lambda: pick.choice([1, 3]),
    }
    name = pick.choice(list(changes) + ["recompute", "m", "moe_overlap"])
    facts[name] = changes[name]()
    if name == "recompute" and facts[name] == "parts":
        facts["recompute_modules"] = sorted(pick.sample(PARTS, pick.choice([1, 1, 2])))
    elif name == "recompute":
        facts["recompute_modules"] = []


def fork(pick: Random, facts: dict) -> None:
    """Makes the facts those of a schedule of the zero-bubble fork, which has dense models only."""
    names = ["zb-h1", "zb-2p", "zb-v", "v-half", "v-min", "1f1b-v", "1f1b", "interleaved-1f1b", "group-interleaved"]
    name = pick.choice(names)
    facts |= DENSE | {"ep": 1, "etp": 1, "mla": False, "prediction_layers": 0, "moe_overlap": False, "delay_wgrad": False}
    facts |= {"dispatcher": "alltoall", "routing": "balanced", "cuda_graph": "none", "tied": pick.random() < 0.1}
    facts["precision"] = pick.choice(["bf16", "fp16", "fp32"])
    facts["v"] = pick.choice([2, 3]) if "interleaved" in name and facts["p"] > 1 else 2 if "v" in name and facts["p"] > 1 else 1
    if facts["recompute"] == "parts":
        facts |= {"recompute": "none", "recompute_modules": []}
    complete(facts)
    facts["schedule"] = name if facts["p"] > 1 else ""
    facts["ops"] = ["split-backward"] if name[:2] in ["zb", "v-"] and facts["p"] > 1 else []


def split(pick: Random, facts: dict) -> None:
    """Adds the facts about stages: even where possible, and sometimes a layout."""
    stages = facts["stages"] = facts["p"] * facts["v"]
    layers = facts["layers"]
    each = [layers // stages + (1 if 0 < s <= layers % stages else 0) for s in range(stages)]
    if stages > 2 and layers >= stages and pick.random() < 0.2:
        each[0], each[-2] = each[0] - 1, each[-2] + 1
    prediction = ["" for _ in each]
    at = len(each) - 1 if pick.random() < 0.8 else pick.randrange(stages)
    prediction[at] = "m" * facts["prediction_layers"]
    if facts["prediction_layers"] == 2 and stages > 1 and pick.random() < 0.3:
        prediction[at], prediction[at - 1] = "m", "m"
    parts = ["t" * n + m for n, m in zip(each, prediction)]
    parts[0], parts[-1] = "E" + parts[0], parts[-1] + "L"
    facts["stage_layers"] = each
    facts["layout_stages"] = parts
    facts["layout"] = "|".join(parts)
    facts["even"] = len(set(each)) == 1 and facts["prediction_layers"] == 0
    facts["modules"] = []


def complete(facts: dict) -> None:
    """Adds the facts that follow from others."""
    facts["world"] = facts["tp"] * facts["p"] * facts["cp"] * facts["dp"] + facts.get("world", 0)
    facts["dp"] = facts["world"] // (facts["tp"] * facts["p"] * facts["cp"])
    facts["edp"] = max(1, facts["world"] // (facts["etp"] * facts["ep"] * facts["p"]))
    facts["batch"] = facts["m"] * facts["b"] * facts["dp"] + facts.get("batch", 0)
    facts["m"] = facts["batch"] // (facts["b"] * facts["dp"])
    name = "1f1b" if facts["v"] == 1 else "interleaved-overlap" if facts["moe_overlap"] else "interleaved-1f1b"
    facts["schedule"] = name if facts["p"] > 1 else ""


def own(facts: dict) -> list[str]:
    """Returns the model's own options, which people have in their launch script."""
    words = f"--num-layers {facts['layers']} --hidden-size {facts['hidden']} --ffn-hidden-size {facts['ffn']} --num-attention-heads {facts['heads']} --kv-channels {facts['head_dim']}"
    words += f" --vocab-size {facts['vocab']} --max-position-embeddings 65536 --disable-bias-linear --attention-dropout 0 --hidden-dropout 0"
    words += " --normalization RMSNorm" if facts["norm"] == "rms" else " --normalization LayerNorm"
    words += " --position-embedding-type " + ("rope" if facts["rope"] else "learned_absolute")
    words += " --swiglu" if facts["gated"] else ""
    words += "" if facts["tied"] else " --untie-embeddings-and-output-weights"
    if facts["mla"]:
        words += " --multi-latent-attention --rope-type rope --kv-lora-rank 64 --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32"
    elif facts["kv_heads"] != facts["heads"]:
        words += f" --group-query-attention --num-query-groups {facts['kv_heads']}"
    if facts["prediction_layers"]:
        words += f" --mtp-num-layers {facts['prediction_layers']}"
    if facts["experts"]:
        words += f" --num-experts {facts['experts']} --moe-router-topk {facts['top_k']} --moe-ffn-hidden-size {facts['moe_ffn']}"
        words += " --moe-router-pre-softmax" if facts["top_k"] == 1 else ""
        if facts["dense_layers"]:
            words += f" --moe-layer-freq [0]*{facts['dense_layers']}+[1]*{facts['layers'] - facts['dense_layers']}"
        if facts["shared_experts"]:
            words += f" --moe-shared-expert-intermediate-size {facts['shared_experts'] * facts['moe_ffn']}"
    return words.split()


def row(pick: Random, framework: dict, judge: Callable[[dict], dict]) -> dict | None:
    """Returns a layout and its verdict; none if its parts do not fit together, or only Transformer Engine would refuse it."""
    facts = model(pick)
    facts |= layout(pick, facts)
    for _ in range(pick.choice([0, 1, 1, 2, 3])):
        change(pick, facts)
    if framework["framework"] == "zero-bubble":
        fork(pick, facts)
    else:
        complete(facts)
    split(pick, facts)
    if facts["world"] > 256 or (facts["p"] == 1 and facts["v"] > 1 and not facts["even"]):
        return None
    broken = rules.broken(framework, facts)
    if any(is_elsewhere(rule) or (rule["kind"] == "missing" and rule["name"] != "moved-layers") for rule in broken):
        return None
    text = rules.arguments(framework, facts)
    question = {"world": facts["world"], "model": own(facts), "arguments": text, "architecture": facts["architecture"]}
    question["environment"] = rules.environment(framework, facts)
    new = {"facts": facts, "arguments": text, "verdict": judge(question)}
    plain = without(framework, facts, question)
    if plain and new["verdict"]["accepted"]:
        new["without"] = judge(plain)
    return new


def is_elsewhere(rule: dict) -> bool:
    """Returns whether code refuses it that is not run here: Transformer Engine's, and the fork's models and schedules."""
    return "TransformerEngine" in rule["source"] or "/legacy/" in rule["source"] or rule["name"] == "interleaved-micro-batches"


def without(framework: dict, facts: dict, question: dict) -> dict | None:
    """Returns the question without the option that a broken rule of the kind `needs` asks for."""
    names = [rule["name"] for rule in rules.broken(framework, facts) if rule["kind"] == "needs"]
    words = shlex.split(question["arguments"])
    if not names:
        return None
    if names[0] == "fp8-recompute-needs-recipe":
        option = "--fp8-recipe"
    elif names[0] == "one-expert-per-token":
        return question | {"model": [word for word in question["model"] if word != "--moe-router-pre-softmax"]}
    else:
        # megatron divides the layers itself
        option = "--pipeline-model-parallel-layout"
        words += ["--num-virtual-stages-per-pipeline-rank", str(facts["v"])] if facts["v"] > 1 else []
    at = words.index(option)
    return question | {"arguments": shlex.join(words[:at] + words[at + 2 :])}


def table(count: int, seed: int, framework: str, judge: Callable[[dict], dict]) -> str:
    """Returns the table as JSON, one layout per line, at most half of them accepted and few refused for the same reason; facts that most rows share are given once."""
    file = rules.load(framework)
    pick = Random(seed)
    rows: list[dict] = []
    seen: Counter[str] = Counter()
    for _ in range(20 * count):
        if len(rows) == count:
            break
        new = row(pick, file, judge)
        if new is None:
            continue
        verdict = new["verdict"]
        reason = verdict.get("at") or "accepted"
        seen[reason] += 1
        if seen[reason] > (count // 2 if verdict["accepted"] else count // 25):
            continue
        rows.append(new)
    usual = {}
    for name in sorted(rows[0]["facts"]):
        texts = Counter(json.dumps(one["facts"][name]) for one in rows)
        usual[name] = json.loads(texts.most_common(1)[0][0])
    for one in rows:
        one["facts"] = {name: one["facts"][name] for name in usual if one["facts"][name] != usual[name]}
    lines = ",\n".join(json.dumps(one) for one in rows)
    head = json.dumps({"framework": framework, "source": file["source"], "seed": seed, "usual": usual})
    return f'{head[:-1]}, "rows": [\n{lines}\n]}}'
