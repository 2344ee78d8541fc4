"""Writes configurations of Megatron-Bridge as it saves them, with overrides and what it reads, as Reading in src/jobs has it.

    python tests/jobs/parsers/bridge.py --checkout DIR --megatron DIR --seed 1 > rows.jsonl

DIR are checkouts of NVIDIA-NeMo/Megatron-Bridge and of the NVIDIA/Megatron-LM that its submodule names; needed packages and stubs are
those of tests/frameworks/bridge.py. Real: the recipe of a GPT, overrides, `ConfigContainer.to_yaml`, whose text (without the sections
in LEFT_OUT) is the job, and the merging of further overrides.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != here]
sys.path.insert(0, str(here.parents[1] / "frameworks"))
import bridge as frameworks  # noqa: E402

LEFT_OUT = ["logger", "checkpoint", "rng", "rerun_state_machine", "profiling", "scheduler", "tokenizer", "dist", "ft", "straggler", "env_vars",
            "nvrx_straggler", "inprocess_restart", "tensor_inspect", "optimizer_config_override_provider", "validation"]


def choose(generator):
    """Returns overrides of a recipe."""
    pick = generator.choice
    heads = pick([8, 16])
    sizes = {"num_layers": pick([8, 16]), "hidden_size": heads * 128, "num_attention_heads": heads, "num_query_groups": pick([heads, 4]),
             "ffn_hidden_size": pick([4096, 14336]), "gated_linear_unit": pick(["true", "false"]), "vocab_size": 32000,
             "share_embeddings_and_output_weights": pick(["true", "false"]), "tensor_model_parallel_size": pick([1, 2, 4]),
             "pipeline_model_parallel_size": pick([1, 2]), "context_parallel_size": pick([1, 2]), "sequence_parallel": pick(["true", "false"]),
             "recompute_granularity": pick(["null", "full", "selective"])}
    if sizes["recompute_granularity"] == "full":
        sizes.update(recompute_method="uniform", recompute_num_layers=1)
    if pick([True, False]):
        sizes.update(num_moe_experts=8, moe_router_topk=pick([1, 2]), moe_ffn_hidden_size=pick([1024, 2048]),
                     expert_model_parallel_size=pick([1, 2]), moe_token_dispatcher_type=pick(["alltoall", "flex"]))
    train = {"micro_batch_size": pick([1, 2]), "global_batch_size": pick([64, 128])}
    optimizer = pick(["true", "false"])
    return [*(f"model.{key}={value}" for key, value in sizes.items()), *(f"train.{key}={value}" for key, value in train.items()),
            f"optimizer.use_distributed_optimizer={optimizer}", f"ddp.use_distributed_optimizer={optimizer}"]


def reading(config, world):
    """Returns what a configuration says."""
    model, experts = config.model, config.model.num_moe_experts
    size = model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size
    selective = ",".join(sorted(model.recompute_modules or ["core_attn"]))
    dp = world // size
    return {
        "layers": model.num_layers, "hidden": model.hidden_size, "heads": model.num_attention_heads, "kv_heads": model.num_query_groups,
        "ffn": model.ffn_hidden_size, "vocab": model.vocab_size, "gated": model.gated_linear_unit,
        "tied": model.share_embeddings_and_output_weights, "experts": experts, "top_k": model.moe_router_topk if experts else None,
        "moe_ffn": model.moe_ffn_hidden_size if experts else None, "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size, "cp": model.context_parallel_size, "ep": model.expert_model_parallel_size, "world": world,
        "dp": dp, "micro_batch": config.train.micro_batch_size, "global_batch": config.train.global_batch_size,
        "num_microbatches": config.train.global_batch_size // (dp * config.train.micro_batch_size), "seq": config.dataset.seq_length,
        "recompute": {None: None, "full": "full", "selective": selective}[model.recompute_granularity], "precision": "bf16",
        "zero": int(config.ddp.use_distributed_optimizer), "distributed_optimizer": config.ddp.use_distributed_optimizer,
        "sequence_parallel": bool(model.sequence_parallel) and model.tensor_model_parallel_size > 1,
        "dispatcher": model.moe_token_dispatcher_type if experts else None,
    }


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkout", type=Path, required=True)
    options.add_argument("--megatron", type=Path, required=True)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    real = frameworks.Bridge(given.checkout, given.megatron)
    import yaml

    generator = random.Random(given.seed)
    written = 0
    while written < 10:
        config = real.runner.apply_cli_overrides(real.recipe(), choose(generator))
        with tempfile.NamedTemporaryFile("r", suffix=".yaml") as file:
            config.to_yaml(file.name)
            saved = yaml.safe_load(file.read())
        text = yaml.safe_dump({key: value for key, value in saved.items() if key not in LEFT_OUT})
        further = generator.choice([[], ["train.global_batch_size=256"], ["model.num_layers=32", "model.hidden_size=4096"]])
        config = real.runner.apply_cli_overrides(config, further)
        read = reading(config, 64)
        if read["num_microbatches"] == 0:
            continue  # refused later
        written += 1
        print(json.dumps({"form": "megatron-bridge", "name": "job.yaml", "text": text, "arguments": further, "gpus": 64,
                          "reading": read}))


main()
