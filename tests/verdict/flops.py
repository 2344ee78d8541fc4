"""Writes flops.json: FLOPs of a step by Megatron-LM's own function before and after 8873b55d6a (2025-03-06), which halved the scores.

Usage: flops.py REPOSITORY, a clone of NVIDIA/Megatron-LM.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

REVISIONS = {"before": "8873b55d6a^", "after": "8873b55d6a"}
DENSE = {"num_experts": None, "moe_router_topk": 2, "moe_shared_expert_intermediate_size": None, "moe_ffn_hidden_size": None}
# layers, hidden, heads, kv heads, MLP, vocabulary, tokens, gated, batch, experts
SHAPES = [
    (32, 4096, 32, 8, 14336, 128256, 8192, True, 256, 0),
    (80, 8192, 64, 8, 28672, 128256, 8192, True, 128, 0),
    (126, 16384, 128, 8, 53248, 128256, 8192, True, 64, 0),
    (96, 12288, 96, 96, 49152, 51200, 2048, False, 1536, 0),
    (24, 2048, 16, 16, 8192, 50304, 32768, False, 8, 0),
    (32, 4096, 32, 8, 14336, 32000, 4096, True, 128, 8),
]


def function(repository, revision):
    """Returns num_floating_point_operations of a revision."""
    text = subprocess.run(
        ["git", "-C", repository, "show", f"{revision}:megatron/training/training.py"], capture_output=True, text=True, check=True
    ).stdout
    start = text.index("def num_floating_point_operations")
    names = {}
    exec(text[start : text.index("\ndef ", start)], names)
    return names["num_floating_point_operations"]


def main():
    functions = {name: function(sys.argv[1], revision) for name, revision in REVISIONS.items()}
    rows = []
    for layers, hidden, heads, kv_heads, ffn, vocab, seq, gated, batch, experts in SHAPES:
        moe = {"num_experts": experts, "moe_ffn_hidden_size": ffn, "moe_layer_freq": 1} if experts else {}
        arguments = {
            "num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_query_groups": kv_heads,
            "group_query_attention": kv_heads != heads, "kv_channels": hidden // heads, "ffn_hidden_size": ffn,
            "padded_vocab_size": vocab, "seq_length": seq, "swiglu": gated, **DENSE, **moe,
        }  # fmt: skip
        shape = {
            "arch": "llama" if gated else "gpt", "layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
            "ffn": ffn, "vocab": vocab, "gated_mlp": gated, "tied": False, "moe": bool(experts),
        }  # fmt: skip
        shape |= {"experts": experts, "top_k": 2, "moe_ffn": ffn} if experts else {}
        shape |= {} if gated else {"act": "gelu", "pos": "learned"}
        found = {name: function(SimpleNamespace(**arguments), batch) for name, function in functions.items()}
        rows.append({"shape": shape, "seq": seq, "batch": batch, **found})
    text = ",\n".join(json.dumps(row) for row in rows)
    Path(__file__).with_name("flops.json").write_text(f"[\n{text}\n]\n")


main()
