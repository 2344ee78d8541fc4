"""Gives configurations of DeepSpeed, and arguments of Megatron-DeepSpeed, to their own parser and engine, without a GPU.

    deepspeed.py --checkout DIR < lines                        lines: {"facts": {...}, "options": "{\"train_batch_size\": ...}"}
    deepspeed.py --checkout DIR --megatron DIR < lines         lines: {"facts": {...}, "options": "--micro-batch-size 1 ..."}
    deepspeed.py --checkout DIR [--megatron DIR] --table FILE --seed 1

DIR are checkouts of deepspeedai/DeepSpeed and deepspeedai/Megatron-DeepSpeed. Needed: PyTorch and DeepSpeed's requirements.

Real: the configuration, `deepspeed.initialize` up to the end of its engine (PipelineEngine with a pipeline), PipelineModule and how it
splits layers; with --megatron its parser, `validate_args`, the configuration that its example scripts write, and the number of
micro-batches.
Stubs: layers are tiny and named like Megatron-DeepSpeed's; process groups exchange nothing (PyTorch's `fake` backend); the shared-memory
kernel of DeepSpeed's CPU backend is not built; AutoTP, whose sharding needs a model of Hugging Face.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shlex
import sys
from pathlib import Path

import rules
import stubs
import tables
from deepspeed_layouts import edges

sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]


class DeepSpeed:
    """A checkout, imported."""

    def __init__(self, checkout, megatron):
        sys.path[:0] = [str(checkout)] + ([str(megatron)] if megatron else [])
        os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="localhost",
                          MASTER_PORT="29511")
        stubs.install({"apex": "0.1", "amp_C": "0.1"})
        import torch
        import deepspeed
        from deepspeed.pipe import LayerSpec, PipelineModule
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
        from torch.testing._internal.distributed.fake_pg import FakeStore

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
        self.torch, self.deepspeed, self.store, self.parser = torch, deepspeed, FakeStore, None
        self.spec, self.module, self.topology = LayerSpec, PipelineModule, PipeModelDataParallelTopology
        deepspeed.runtime.engine.DeepSpeedEngine._apply_autotp_partitioning = lambda *_: None
        self.groups = sys.modules["deepspeed.utils.groups"]
        self.fresh = {name: own for name, own in vars(self.groups).items() if not callable(own)}
        self.layer = type("ParallelTransformerLayerPipe", (torch.nn.Linear,), {})
        if megatron:
            stubs.install({"transformer_engine": "1.0"})
            from megatron import arguments

            self.parser = arguments

    def judge(self, facts, options):
        """Raises what DeepSpeed raises before or in the first step."""
        with contextlib.redirect_stdout(io.StringIO()):
            if self.parser is None:
                config = json.loads(options)
                # stages are the script's own: what the batch leaves of the GPUs
                ranks = facts["world"] * config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
                stages = facts.get("p", ranks // config.get("train_batch_size", ranks))
                self.run(facts, config, stages, facts["tp"] if stages > 1 and "tp" in facts else 1)
            else:
                self.parse(facts, options)

    def parse(self, facts, options):
        """Parses arguments of Megatron-DeepSpeed, and runs them with the configuration that belongs to them."""
        sizes = {"num-layers": facts["layers"], "hidden-size": facts["hidden"], "num-attention-heads": facts["heads"],
                 "num-key-value-heads": facts["kv_heads"], "ffn-hidden-size": facts["ffn"], "max-position-embeddings": 131072}
        os.environ.update(WORLD_SIZE=str(facts["world"]), CUDA_DEVICE_MAX_CONNECTIONS="1")
        sys.argv = ["pretrain_gpt.py", *[word for name, size in sizes.items() for word in (f"--{name}", str(size))], "--lr", "1e-4",
                    "--train-iters", "10", "--deepspeed", "--deepspeed_config", "deepspeed.json", *shlex.split(options)]
        try:
            with contextlib.redirect_stderr(io.StringIO()) as said:
                args = self.parser.parse_args()
        except SystemExit:
            raise ValueError(said.getvalue().strip().splitlines()[-1]) from None
        self.parser.validate_args(args)
        pp, tp = args.pipeline_model_parallel_size, args.tensor_model_parallel_size
        if (pp, tp) != (facts.get("p", pp), facts.get("tp", tp)):
            raise tables.Silent(f"runs {pp} stages of {tp} ranks")
        if facts.get("sequence_parallel") and not args.sequence_parallel:
            raise tables.Silent("sequence parallelism is switched off without tensor parallelism")
        from megatron.core.utils import divide

        for size in [args.ffn_hidden_size, args.num_attention_heads, args.num_key_value_heads]:
            divide(size, tp)
        config = {"train_batch_size": args.global_batch_size, "train_micro_batch_size_per_gpu": args.micro_batch_size,
                  "zero_optimization": {"stage": args.zero_stage}, "bf16": {"enabled": args.bf16}, "fp16": {"enabled": args.fp16}}
        self.run(facts, config, 0 if args.no_pipeline_parallel else pp, tp, args.seq_length if args.sequence_parallel else 0)

    def run(self, facts, config, stages, tp, sequence=0):
        """Starts the engine. `stages`: 0 for a model that is no PipelineModule. `sequence`: tokens that sequence parallelism divides."""
        distributed, torch = self.torch.distributed, self.torch
        distributed.init_process_group("fake", rank=0, world_size=facts["world"], store=self.store())
        try:
            self.deepspeed.init_distributed(dist_backend="gloo", verbose=False)
            if sequence:
                self.scatter(sequence, tp)
            one = [self.spec(torch.nn.Linear, 2, 2)]
            specs = one + [self.spec(self.layer, 2, 2) for _ in range(facts["layers"])] + one
            pp = max(stages, 1)
            topology = self.topology(num_pp=pp, num_mp=tp, num_dp=facts["world"] // pp // tp)
            model, more = self.module(specs, topology=topology, partition_method="type:transformer"), {}
            if stages <= 1:
                more = {"mpu": model.mpu()} if self.parser and tp > 1 else {}
                model = torch.nn.Linear(2, 2)
            optimizer = {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}}
            engine, *_ = self.deepspeed.initialize(
                model=model, model_parameters=list(model.parameters()), config={**config, "optimizer": optimizer}, **more)
            if stages > 1:
                parts = [sum(spec.typename is self.layer for spec in specs[start:stop])
                         for start, stop in zip(model.parts[:-1], model.parts[1:])]
                if parts != facts.get("stage_layers", parts):
                    raise tables.Silent(f"stages get {parts} layers instead of {facts['stage_layers']}")
            count = engine.gradient_accumulation_steps()
            if count != facts.get("m", count):
                raise tables.Silent(f"runs {count} micro-batches instead of {facts['m']}")
        finally:
            distributed.destroy_process_group()
            sys.modules["deepspeed.comm.comm"].cdb = None
            vars(self.groups).update(self.fresh)

    def scatter(self, sequence, ranks):
        """Divides a sequence as the embedding of Megatron-DeepSpeed does."""
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import mappings

        parallel_state.set_tensor_model_parallel_world_size(ranks)
        mappings.get_tensor_model_parallel_group = lambda: None
        mappings._reduce_scatter_along_first_dim(self.torch.empty(sequence, 1, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--megatron", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    checkouts = [path.resolve() for path in [given.checkout, given.megatron] if path]
    deepspeed = DeepSpeed(given.checkout.resolve(), given.megatron and given.megatron.resolve())
    if given.table is None:
        sys.exit(1 if tables.answer(deepspeed.judge, checkouts) else 0)
    framework = rules.load("megatron-deepspeed-2025-07" if given.megatron else "deepspeed-0.19")
    options = rules.arguments if given.megatron else lambda file, facts: json.dumps(rules.nested(file, facts))
    found = edges(random.Random(given.seed), bool(given.megatron))
    sys.exit(1 if tables.tabulate(framework, given.seed, found, options, deepspeed.judge, checkouts, given.table) else 0)


if __name__ == "__main__":
    main()
