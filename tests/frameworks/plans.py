"""Random questions for `pipesim plan --to TARGET`, and the options that it prints, as input of the checks of this folder.

    python tests/frameworks/plans.py --program target/debug/pipesim --target megatron --count 200 --seed 1 | python tests/frameworks/megatron.py --checkout DIR

A line is a JSON object: `question` (the command), `world`, `facts` (of the model), `model` (what the target's check takes as the model),
`arguments` and `options` (what was printed), `environment` (the variables that the notes ask for). Questions without a plan, and plans
that the target refuses with a reason, are counted on stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from random import Random

import megatron_table

ROOT = Path(__file__).resolve().parents[2]
DENSE = ["llama-3-8b", "llama-3-70b", "llama-3-405b", "llama-2-13b", "qwen2.5-7b", "qwen3-14b", "qwen3-32b", "mistral-7b", "llama-3.2-1b"]
MIXTURES = ["mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"]
STACKS = {"megatron": "megatron-core", "megatron-bridge": "megatron-bridge", "torchtitan": "torchtitan", "deepspeed": "megatron-deepspeed",
          "megatron-deepspeed": "megatron-deepspeed", "nanotron": "nanotron"}


def facts(name: str) -> dict:
    """Returns the facts of a model from its configuration."""
    config = json.loads((ROOT / "models" / f"{name}.json").read_text())
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    experts = config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0
    dense = config.get("first_k_dense_replace", 0) if experts else 0
    ffn = config["intermediate_size"]
    return {
        "model": name, "layers": layers, "hidden": config["hidden_size"], "ffn": ffn, "heads": heads,
        "kv_heads": config.get("num_key_value_heads", heads), "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "vocab": config["vocab_size"], "gated": True, "tied": config.get("tie_word_embeddings", False), "mla": "kv_lora_rank" in config,
        "rope": True, "norm": "rms", "windows": False, "experts": experts, "top_k": config.get("num_experts_per_tok", 0) if experts else 0,
        "moe_ffn": (config.get("moe_intermediate_size") or ffn) if experts else 0, "dense_layers": dense,
        "shared_experts": config.get("n_shared_experts") or 0, "prediction_layers": config.get("num_nextn_predict_layers", 0),
        "expert_groups": config.get("n_group", 1) or 1,
    }


def question(pick: Random, target: str) -> list[str]:
    """Returns the arguments of a random question."""
    model = pick.choice(DENSE + MIXTURES)
    gpus = 2 ** pick.randrange(3, 13)
    hardware = pick.choice(["h100-sxm", "h100-sxm", "b200", "a100-sxm-80gb", "h200-sxm"])
    words = ["--model", model, "--hardware", hardware, "--gpus", str(gpus), "--batch", str(max(gpus, 2 ** pick.randrange(6, 12)))]
    words += ["--seq", str(pick.choice([2048, 4096, 8192, 8200, 6000])), "--stack", STACKS[target]]
    if hardware != "a100-sxm-80gb" and pick.random() < 0.3:
        words += ["--precision", pick.choice(["fp8", "mxfp8"] if hardware == "b200" else ["fp8"])]
    fixed = pick.choice(["", "", "", "pp=2", "pp=4", "pp=8", "tp=2", "tp=8", "cp=2", "cp=4", "chunks=2,pp=4", "recompute=full", "zero=1", "recompute=moe_act",
                         "sequence-parallel=on,tp=4", "pp=3", "micro-batch-size=2", "pp=4,tp=2,micro-batch-size=1", "ep=8", "ep=4,pp=2"])
    return words + (["--fix", fixed] if fixed else [])


def asked(program: str, words: list[str], target: str) -> dict | str:
    """Asks the program; returns what it prints, or why there is nothing."""
    ran = subprocess.run([program, "plan", *words, "--to", target], capture_output=True, text=True, check=False)
    if ran.returncode or not ran.stdout.strip():
        return ran.stderr.strip().splitlines()[-1]
    own, text = facts(words[1]), ran.stdout.strip()
    environment = dict(re.findall(r"note: set (\w+)=(\S+)", ran.stderr))
    model = own if target == "torchtitan" else megatron_table.own(own)
    return {"question": shlex.join(["pipesim", "plan", *words, "--to", target]), "world": int(words[words.index("--gpus") + 1]), "facts": own,
            "model": model, "arguments": text, "options": text, "environment": environment, "architecture": architecture(words[3])}


def architecture(hardware: str) -> str:
    """Returns the generation of a GPU."""
    return {"a": "ampere", "h": "hopper", "b": "blackwell"}[hardware[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--target", required=True, choices=STACKS)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    pick, left, without = Random(chosen.seed), chosen.count, {}
    while left:
        words = question(pick, chosen.target)
        left -= 1
        found = asked(chosen.program, words, chosen.target)
        if isinstance(found, str):
            without[found] = without.get(found, 0) + 1
        else:
            print(json.dumps(found), flush=True)
    for why, count in sorted(without.items(), key=lambda item: -item[1]):
        print(f"{count} without options: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
