"""Gives configurations of nanotron to its own parser, and builds their stages, without a GPU.

    nanotron.py --checkout DIR < lines                      lines: {"facts": {...}, "options": "parallelism: ..." (YAML)}
    nanotron.py --checkout DIR --table FILE --seed 1

DIR is a checkout of huggingface/nanotron. Needed: PyTorch, pyyaml, dacite, datasets, transformers.

Real: `get_config_from_file`, ParallelContext, the padding of the vocabulary, the model with its division over stages and
tensor-parallel ranks, the refusal of context parallelism, the entry check of the pipeline engine, and the first reduce-scatter of
sequence parallelism.
Stubs: the packages in STUBS (empty classes); weights are on PyTorch's `meta` device; process groups exchange nothing (PyTorch's `fake`
backend) and hold their buffers on the CPU; devices are not set. The trainer is not built: its check for context parallelism is read
from its source.
"""

import argparse
import inspect
import os
import random
import sys
import tempfile
from pathlib import Path

import rules
import stubs
import tables
from nanotron_layouts import edges

sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

STUBS = dict.fromkeys(["flash_attn", "flash_attn_2_cuda", "grouped_gemm", "wandb", "datatrove", "numba", "torchtyping", "lighteval",
                       "functorch.dim"], "2.6.0")


class Entered(Exception):
    """The entry check of the pipeline engine is behind."""


class Nanotron:
    """A checkout, imported."""

    def __init__(self, checkout):
        sys.path.insert(0, str(checkout / "src"))
        os.environ.update(CUDA_DEVICE_MAX_CONNECTIONS="1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        stubs.install(STUBS)
        import torch
        import yaml
        from nanotron import config, distributed, helpers, trainer
        from nanotron.models import base
        from nanotron.parallel import context
        from nanotron.parallel.pipeline_parallel.block import PipelineBlock
        from nanotron.parallel.pipeline_parallel.p2p import P2P
        from nanotron.parallel.tensor_parallel import distributed_differentiable_primitives as primitives
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self.torch, self.yaml, self.config, self.distributed, self.helpers = torch, yaml, config, distributed, helpers
        self.trainer, self.base, self.context, self.block = trainer, base, context, PipelineBlock
        self.primitives, self.store = primitives, FakeStore
        torch.cuda.set_device = torch.cuda.device = lambda *_: None
        exchange = P2P.__init__
        P2P.__init__ = lambda self, pg, device: exchange(self, pg, torch.device("cpu"))

    def judge(self, facts, options):
        """Raises what nanotron raises before or in the first step."""
        document = self.complete(self.yaml.safe_load(options), facts)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            self.yaml.safe_dump(document, file)
            file.flush()
            config = self.config.get_config_from_file(file.name)
        os.environ.update(WORLD_SIZE=str(facts["world"]), LOCAL_WORLD_SIZE="1")
        self.torch.distributed.init_process_group("fake", rank=0, world_size=facts["world"], store=self.store())
        try:
            self.start(config, facts)
        finally:
            self.torch.distributed.destroy_process_group()

    def complete(self, document, facts):
        """Adds what a configuration says besides the layout."""
        document.update(general={"project": "check"}, tokenizer={"tokenizer_name_or_path": "gpt2"})
        document.setdefault("optimizer", {}).update(
            weight_decay=0.01, clip_grad=1.0, accumulate_grad_in_fp32=True, learning_rate_scheduler={
                "learning_rate": 1e-4, "lr_warmup_steps": 1, "lr_warmup_style": "linear", "lr_decay_style": "cosine", "min_decay_lr": 1e-5},
            optimizer_factory={"name": "adamW", "adam_eps": 1e-8, "adam_beta1": 0.9, "adam_beta2": 0.95, "torch_adam_is_fused": True})
        document.setdefault("tokens", {}).update(train_steps=10)
        document.setdefault("model", {}).update(init_method={"std": 0.02}, model_config={
            "is_llama_config": True, "hidden_size": facts["hidden"], "intermediate_size": facts["ffn"],
            "num_attention_heads": facts["heads"], "num_key_value_heads": facts["kv_heads"], "num_hidden_layers": facts["layers"],
            "vocab_size": facts["vocab"], "max_position_embeddings": 4096, "tie_word_embeddings": facts["tied"]})
        return document

    def start(self, config, facts):
        """Builds the stages and enters the pipeline, as DistributedTrainer does."""
        sizes = config.parallelism
        more = {"context_parallel_size": sizes.context_parallel_size} if hasattr(sizes, "context_parallel_size") else {}
        context = self.context.ParallelContext(
            tensor_parallel_size=sizes.tp, pipeline_parallel_size=sizes.pp, data_parallel_size=sizes.dp,
            expert_parallel_size=sizes.expert_parallel_size, **more)
        model = config.model.model_config
        model.vocab_size = self.helpers._vocab_size_with_padding(model.vocab_size, context.tp_pg.size(), config.model.make_vocab_size_divisible_by)
        builder = self.trainer.CONFIG_TO_MODEL_CLASS[type(model).__name__]
        built = self.base.build_model(
            lambda: builder(config=model, parallel_context=context, parallel_config=sizes, random_states=None), context,
            self.torch.bfloat16, device=self.torch.device("meta"))
        if more and sizes.context_parallel_size > 1:
            self.refuse_context_parallel()
        layer = next(kind for kind in built.get_block_compute_costs() if kind.__name__.endswith("DecoderLayer"))
        blocks = [one for one in built.modules() if isinstance(one, self.block) and one.module_builder is layer]
        split = [sum(one.rank == stage for one in blocks) for stage in range(sizes.pp)]
        if sizes.tp_mode.name == "REDUCE_SCATTER" and sizes.tp > 1:
            tokens = self.torch.empty(config.tokens.sequence_length, 1)
            self.primitives.DifferentiableReduceScatterSum.apply(tokens, context.tp_pg)
        try:
            sizes.pp_engine.train_batch_iter(Stop(), context.pp_pg, self.batches(), config.tokens.batch_accumulation_per_replica, None)
        except Entered:
            pass
        if config.global_batch_size != facts.get("batch", config.global_batch_size):
            raise tables.Silent(f"trains {config.global_batch_size} sequences per step instead of {facts['batch']}")
        if config.optimizer.zero_stage > 1:
            raise tables.Silent("any zero_stage above 0 shards the optimizer alone")
        if split != facts.get("stage_layers", split):
            raise tables.Silent(f"stages get {split} layers instead of {facts['stage_layers']}")

    def refuse_context_parallel(self):
        """Raises the error of `_load_model_checkpoint` for weights that are not loaded."""
        lines, first = inspect.getsourcelines(self.trainer.DistributedTrainer._load_model_checkpoint)
        at = next(number for number, line in enumerate(lines) if "NotImplementedError(" in line and "parallel_size > 1" in lines[number - 1])
        code = "\n" * (first + at - 1) + lines[at].strip()
        exec(compile(code, self.trainer.__file__, "exec"))

    def batches(self):
        """Stops at the first micro-batch."""
        raise Entered
        yield


class Stop:
    """A model that is never called."""

    def modules(self):
        raise Entered

    def __getattr__(self, name):
        raise Entered


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--framework", default="nanotron-2026-04")
    given = parser.parse_args()
    checkouts = [given.checkout.resolve()]
    nanotron = Nanotron(checkouts[0])
    if given.table is None:
        sys.exit(1 if tables.answer(nanotron.judge, checkouts) else 0)

    def options(framework, facts):
        return nanotron.yaml.safe_dump(rules.nested(framework, facts), sort_keys=False)

    framework, found = rules.load(given.framework), edges(random.Random(given.seed))
    sys.exit(1 if tables.tabulate(framework, given.seed, found, options, nanotron.judge, checkouts, given.table) else 0)


if __name__ == "__main__":
    main()
