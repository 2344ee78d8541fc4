"""Asks the real Megatron-LM how it reads the options of a job. Run by hand; needs PyTorch (CPU), `packaging` and a checkout, fetches nothing.

    python tests/jobs/megatron.py --checkout ../Megatron-LM > tests/jobs/megatron.json
    python tests/jobs/megatron.py --checkout ../Megatron-LM --rows rows.jsonl

Each row has `arguments` (words) and `world` (GPUs); its `reading` is what Megatron-LM's parser and validation made of them, in the words of
`Reading` (src/jobs/reading.rs), or `error`, its text. Without `--rows` the rows are those of `megatron_rows.py`. What Megatron-LM needs besides its own sources is
replaced as in tests/frameworks/megatron_stubs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "frameworks"))
import megatron_stubs as stubs  # noqa: E402


def reading(args, config) -> dict:
    """Returns what a job says, from its validated arguments and the model's configuration."""
    experts = args.num_experts or None
    granularity = config.recompute_granularity
    recompute = ",".join(sorted(set(config.recompute_modules))) if granularity == "selective" else granularity
    ends = [args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers]
    dtype = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"
    precision = f"fp8-{args.fp8}-{args.fp8_recipe}" if args.fp8 else f"fp4-{args.fp4}-{args.fp4_recipe}" if args.fp4 else dtype
    sharded = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}[args.data_parallel_sharding_strategy]
    fsdp = 3 if args.use_torch_fsdp2 else sharded if args.use_megatron_fsdp else None
    data = args.micro_batch_size * args.data_parallel_size
    return {
        "layers": args.num_layers,
        "hidden": args.hidden_size,
        "heads": args.num_attention_heads,
        "kv_heads": config.num_query_groups,
        "ffn": args.ffn_hidden_size,
        "experts": experts,
        "top_k": args.moe_router_topk if experts else None,
        "moe_ffn": args.moe_ffn_hidden_size if experts else None,
        "vocab": args.vocab_size,
        "gated": bool(config.gated_linear_unit),
        "tied": not args.untie_embeddings_and_output_weights,
        "mtp_layers": args.mtp_num_layers,
        "world": args.world_size,
        "tp": args.tensor_model_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "cp": args.context_parallel_size,
        "dp": args.data_parallel_size,
        "ep": args.expert_model_parallel_size,
        "etp": args.expert_tensor_parallel_size if experts else None,
        "vp": args.virtual_pipeline_model_parallel_size or 1,
        "micro_batch": args.micro_batch_size,
        "global_batch": args.global_batch_size,
        "num_microbatches": args.global_batch_size // data,
        "seq": args.seq_length,
        "recompute": recompute,
        "recompute_method": args.recompute_method if granularity == "full" else None,
        "recompute_layers": args.recompute_num_layers if granularity == "full" else None,
        "precision": precision,
        "zero": fsdp if fsdp is not None else int(args.use_distributed_optimizer),
        "distributed_optimizer": args.use_distributed_optimizer,
        "sequence_parallel": args.sequence_parallel,
        "layout": args.pipeline_model_parallel_layout,
        "first_last_layers": ends if ends != [None, None] else None,
        "account_for": [args.account_for_embedding_in_pipeline_split, args.account_for_loss_in_pipeline_split],
        "dispatcher": args.moe_token_dispatcher_type if experts else None,
    }


def judge(row: dict, printed: bool) -> dict:
    """Adds the reading, or the error, to a row; with `printed` also the values of all arguments."""
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

    os.environ["WORLD_SIZE"] = str(row["world"])
    os.environ.update({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} | row.get("environment", {}))
    sys.argv = ["pretrain_gpt.py", *row["arguments"]]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            args = parse_args(ignore_unknown_args=row.get("lenient", False))
            args = validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
            layout = args.pipeline_model_parallel_layout
            values = {name: str(value) for name, value in vars(args).items() if not name.startswith("_")}
            config = core_transformer_config_from_args(args)
            args.pipeline_model_parallel_layout = layout
    except SystemExit:
        return row | {"error": (said.getvalue().strip().splitlines() or ["exit"])[-1]}
    except Exception as error:
        return row | {"error": str(error) or type(error).__name__}
    return row | {"reading": reading(args, config)} | ({"printed": values} if printed else {})


def main() -> None:
    """Prints the rows with their readings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of Megatron-LM's sources")
    parser.add_argument("--rows", type=Path, help="file of rows, a JSON object per line")
    parser.add_argument("--printed", action="store_true", help="also write the values of all arguments, as a log prints them")
    options = parser.parse_args()
    stubs.before_import(options.checkout.resolve())
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).parent.resolve()]
    import megatron.training.arguments  # noqa: F401

    stubs.after_import()
    if options.rows:
        for line in options.rows.read_text().splitlines():
            print(json.dumps(judge(json.loads(line), options.printed)))
        return
    sys.path.append(str(Path(__file__).resolve().parent))
    from megatron_rows import rows

    print("[\n" + ",\n".join(json.dumps(judge(row, row.pop("printed", False))) for row in rows()) + "\n]")


if __name__ == "__main__":
    main()
