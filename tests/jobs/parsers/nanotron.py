"""Writes configurations of nanotron with what its own classes read, as Reading in src/jobs has it.

    python tests/jobs/parsers/nanotron.py --checkout DIR --seed 1 > rows.jsonl
    python tests/jobs/parsers/nanotron.py --checkout DIR FILE...

DIR is a checkout of huggingface/nanotron. Needed: PyTorch, pyyaml, dacite, datasets, transformers; no GPU. Real: `get_config_from_file`.
Stubs: as tests/frameworks/nanotron.py.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != here]
sys.path.insert(0, str(here.parents[1] / "frameworks"))
import stubs  # noqa: E402

sys.path.pop(0)
STUBS = dict.fromkeys(["flash_attn", "flash_attn_2_cuda", "grouped_gemm", "wandb", "datatrove", "numba", "torchtyping", "lighteval",
                       "functorch.dim"], "2.6.0")


def reading(config):
    """Returns what a configuration says."""
    import torch

    model, sizes, tokens = config.model.model_config, config.parallelism, config.tokens
    get = lambda name, other=None: getattr(model, name, other)
    moe = get("moe_config")
    experts = {"experts": None, "top_k": None, "moe_ffn": None, "etp": None, "dispatcher": None}
    if moe is not None:
        experts = {"experts": moe.num_experts, "top_k": moe.top_k, "moe_ffn": moe.moe_intermediate_size, "etp": 1,
                   "dispatcher": moe.token_dispatcher_type}
    cp = getattr(sizes, "context_parallel_size", 1)
    mode = sizes.tp_mode.name
    is_gpt = hasattr(model, "is_starcoder2_config")
    schedule = {"AllForwardAllBackwardPipelineEngine": "afab", "OneForwardOneBackwardPipelineEngine": "1f1b"}
    return {
        "layers": model.num_hidden_layers, "hidden": model.hidden_size, "heads": model.num_attention_heads,
        "kv_heads": get("num_key_value_heads") or model.num_attention_heads, "ffn": model.intermediate_size, "vocab": model.vocab_size,
        "tied": get("tie_word_embeddings", True), "gated": not is_gpt, **experts,
        "world": sizes.dp * sizes.pp * sizes.tp * cp, "tp": sizes.tp, "pp": sizes.pp, "cp": cp, "dp": sizes.dp, "vp": 1,
        "ep": sizes.expert_parallel_size, "micro_batch": tokens.micro_batch_size, "num_microbatches": tokens.batch_accumulation_per_replica,
        "global_batch": tokens.micro_batch_size * tokens.batch_accumulation_per_replica * sizes.dp, "seq": tokens.sequence_length,
        "recompute": "full" if sizes.recompute_layer else None,
        "precision": {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[config.model.dtype],
        "zero": config.optimizer.zero_stage, "sequence_parallel": mode == "REDUCE_SCATTER" and sizes.tp > 1,
        "schedule": schedule[type(sizes.pp_engine).__name__],
    }


def job(generator, is_new):
    """Writes a configuration."""
    pick = generator.choice
    heads = pick([8, 16, 32])
    model = {"hidden_size": heads * 64, "intermediate_size": pick([2816, 5632, 11008]), "num_attention_heads": heads,
             "num_hidden_layers": pick([4, 16, 32]), "vocab_size": pick([32000, 50272]), "tie_word_embeddings": pick([True, False])}
    kind = pick(["is_llama_config", "is_qwen2_config"]) if is_new else "is_llama_config"
    model[kind] = True
    model["num_key_value_heads"] = pick([None, heads // 4])
    if kind == "is_qwen2_config" and pick([True, False]):
        model["moe_config"] = {"num_experts": pick([4, 8]), "top_k": pick([1, 2])}
        if pick([True, False]):
            model["moe_config"]["moe_intermediate_size"] = 1024
    if pick([True, False]):
        del model["vocab_size"]
    sizes = {"dp": pick([1, 2, 4]), "pp": pick([1, 2, 4]), "tp": pick([1, 2, 4])}
    for name, values in {"pp_engine": ["1f1b", "afab"], "tp_mode": ["REDUCE_SCATTER", "ALL_REDUCE"], "recompute_layer": [True, False],
                         "tp_linear_async_communication": [True, False]}.items():
        if pick([True, True, False]):
            sizes[name] = pick(values)
    if is_new and pick([True, False]):
        sizes["context_parallel_size"] = pick([1, 2])
    if sizes.get("tp_linear_async_communication") and sizes.get("tp_mode") != "REDUCE_SCATTER":
        del sizes["tp_linear_async_communication"]
    rest = {"seed": 42, "step": None, "run": "run"}
    return {
        "general": {"project": "check", **rest}, "model": {"init_method": {"std": 0.02}, "model_config": model, **pick([{}, {"dtype": "bfloat16"}, {"dtype": "float32"}])},
        "parallelism": sizes, "tokenizer": {"tokenizer_name_or_path": "gpt2"},
        "tokens": {"sequence_length": pick([1024, 4096]), "train_steps": 10, "micro_batch_size": pick([1, 2, 3]),
                   "batch_accumulation_per_replica": pick([1, 4, 8])},
        "optimizer": {"zero_stage": pick([0, 1]), "weight_decay": 0.01, "clip_grad": 1.0, "accumulate_grad_in_fp32": True,
                      "learning_rate_scheduler": {"learning_rate": 1e-4, "lr_warmup_steps": 1, "lr_warmup_style": "linear", "lr_decay_style": "cosine",
                                                  "min_decay_lr": 1e-5},
                      "optimizer_factory": {"name": "adamW", "adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95, "torch_adam_is_fused": True}},
    }


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkout", required=True)
    options.add_argument("--seed", type=int)
    options.add_argument("files", nargs="*")
    given = options.parse_args()
    sys.path.insert(0, f"{given.checkout}/src")
    os.environ.update(CUDA_DEVICE_MAX_CONNECTIONS="1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    stubs.install(STUBS)
    import yaml
    from nanotron.config import get_config_from_file

    for file in given.files:
        try:
            print(json.dumps({"file": file, "reading": reading(get_config_from_file(file))}))
        except Exception as error:
            print(json.dumps({"file": file, "error": repr(error)[:300]}))
    generator, written = random.Random(given.seed), 0
    is_new = os.path.exists(f"{given.checkout}/src/nanotron/models/qwen.py")
    while given.seed is not None and written < 12:
        text = yaml.safe_dump(job(generator, is_new), sort_keys=generator.choice([True, False]))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            try:
                read = reading(get_config_from_file(file.name))
            except Exception as error:
                print(repr(error)[:300], file=sys.stderr)
                continue
        form = "nanotron-2026-04" if is_new else "nanotron-0.5"
        print(json.dumps({"form": form, "name": "job.yaml", "text": text, "arguments": [], "gpus": None, "reading": read}))
        written += 1


main()
