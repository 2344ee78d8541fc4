"""Gives options of Megatron-Bridge to its own parser and validation, without a GPU.

    bridge.py --checkout DIR --megatron DIR < lines                 lines: {"facts": {...}, "options": "model.seq_length=4096 ..."}
    bridge.py --checkout DIR --megatron DIR --table FILE --seed 1   writes tests/frameworks/megatron-bridge.json

DIR are checkouts of NVIDIA-NeMo/Megatron-Bridge and of the NVIDIA/Megatron-LM that its submodule names. Needed: PyTorch, hydra-core 1.3,
omegaconf, transformers 5.8 to 5.12, and what they need.

Real: the recipe of a GPT, parsing and merging of overrides, what `scripts/training/run_recipe.py` does to the configuration after it,
`runtime_config_update` with all validations, the numbers of micro-batches, the sizes of process groups, the layers of each stage, the
entry checks of the interleaved schedule, the divisions by tensor- and expert-parallel degrees.
Stubs: the packages in STUBS (empty classes); `typing.override` on Python 3.11; `megatron.bridge.recipes` without its __init__, which
imports all recipes; the properties of a GPU; process groups exchange nothing (PyTorch's `fake` backend); `torch.zeros` ignores devices.
"""

import argparse
import os
import random
import shlex
import sys
import types
import typing
from pathlib import Path

import rules
import stubs
import tables
from bridge_layouts import edges

sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

STUBS = dict.fromkeys(["transformer_engine", "diffusers", "modelopt", "nvidia_resiliency_ext", "megatron.energon", "wandb", "mlflow",
                       "comet_ml", "flash_attn", "causal_conv1d", "mamba_ssm", "fla", "timm", "open_clip", "torchvision",
                       "qwen_vl_utils", "PIL"], "2.9.0")
# compute capability and name of the GPU, by architecture
GPUS = {"ampere": (8, "NVIDIA A100"), "ada": (8, "NVIDIA L40S"), "hopper": (9, "NVIDIA H100"), "blackwell": (10, "NVIDIA B200")}


class Passed(Exception):
    """The entry checks of a schedule are behind."""


class Bridge:
    """A checkout, imported."""

    def __init__(self, checkout, megatron):
        sys.path[:0] = [str(checkout / "src"), str(megatron), str(checkout / "scripts" / "training")]
        import typing_extensions

        typing.override = getattr(typing, "override", typing_extensions.override)
        stubs.install(STUBS)
        import megatron.bridge
        import torch

        package = types.ModuleType("megatron.bridge.recipes")
        package.__path__ = [str(checkout / "src/megatron/bridge/recipes")]
        sys.modules[package.__name__] = package
        import recipe_runner
        from megatron.bridge.models.mla_provider import MLAModelProvider
        from megatron.bridge.recipes.gpt.h100 import vanilla_gpt
        from megatron.bridge.training.config import runtime_config_update
        from megatron.core import num_microbatches_calculator, parallel_state, utils
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.tensor_parallel import mappings
        from megatron.core.transformer import transformer_block
        from megatron.core.transformer.moe.moe_layer import BaseMoELayer
        from torch.testing._internal.distributed.fake_pg import FakeStore

        self.recipe, self.latent = vanilla_gpt.vanilla_gpt_pretrain_1gpu_h100_bf16_config, MLAModelProvider
        self.runner, self.update, self.torch = recipe_runner, runtime_config_update, torch
        self.parallel, self.schedules, self.mappings, self.block = parallel_state, schedules, mappings, transformer_block
        self.utils, self.micro_batches, self.store = utils, num_microbatches_calculator, FakeStore
        self.experts = BaseMoELayer
        zeros = torch.zeros
        torch.zeros = lambda *sizes, **more: zeros(*sizes, **{key: more[key] for key in more if key != "device"})

        def passed(*_, **__):
            raise Passed

        schedules.get_pp_rank_microbatches = passed

    def judge(self, facts, options):
        """Raises what Megatron-Bridge raises before or in the first step."""
        words = shlex.split(options)
        major, name = GPUS.get(facts["architecture"], (9, ""))
        name = "NVIDIA GB200" if facts.get("hardware", "").startswith("gb") else name
        self.torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=major, minor=0, name=name)
        os.environ.update(WORLD_SIZE=str(facts["world"]), RANK="0")
        config = self.recipe()
        self.describe(config, facts)
        config = self.runner.apply_cli_overrides(config, words)
        config = self.runner.sync_model_pipeline_layout(config, cli_overrides=words)
        config = self.runner.sync_model_dataset_sequence_length(config)
        self.update(config)
        self.step(config, facts)
        if facts.get("sequence_parallel") and not config.model.sequence_parallel:
            raise tables.Silent("sequence parallelism is switched off without tensor parallelism")

    def describe(self, config, facts):
        """Sets what a recipe says of its model."""
        if facts["mla"]:
            config.model = self.latent(multi_latent_attention=True)
        model = config.model
        model.num_layers, model.hidden_size, model.ffn_hidden_size = facts["layers"], facts["hidden"], facts["ffn"]
        model.num_attention_heads, model.num_query_groups, model.kv_channels = facts["heads"], facts["kv_heads"], facts["head_dim"]
        model.vocab_size, model.normalization = facts["vocab"], "RMSNorm" if facts.get("norm", "rms") == "rms" else "LayerNorm"
        model.position_embedding_type = "rope" if facts.get("rope", True) else "learned_absolute"
        model.share_embeddings_and_output_weights, model.mtp_num_layers = facts["tied"], facts.get("prediction_layers", 0) or None
        model.attention_dropout = model.hidden_dropout = 0.0
        if facts["gated"]:
            model.gated_linear_unit, model.activation_func, model.add_bias_linear = True, self.torch.nn.functional.silu, False
        if facts["experts"]:
            model.num_moe_experts, model.moe_router_topk, model.moe_ffn_hidden_size = facts["experts"], facts["top_k"], facts["moe_ffn"]
            model.moe_layer_freq = [0] * facts["dense_layers"] + [1] * (facts["layers"] - facts["dense_layers"])
            model.moe_shared_expert_intermediate_size = facts.get("shared_experts", 0) * facts["moe_ffn"] or None
            model.moe_router_pre_softmax = facts["top_k"] == 1

    def step(self, config, facts):
        """Runs the checks between the configuration and the first message."""
        model, parallel = config.model, self.parallel
        self.micro_batches.destroy_num_microbatches_calculator()
        train = config.train
        self.micro_batches.init_num_microbatches_calculator(
            0, None, train.global_batch_size, train.micro_batch_size, config.data_parallel_size, False)
        count = self.micro_batches.get_num_microbatches()
        distributed = self.torch.distributed
        try:
            distributed.init_process_group("fake", rank=0, world_size=facts["world"], store=self.store())
            parallel.initialize_model_parallel(
                tensor_model_parallel_size=model.tensor_model_parallel_size,
                pipeline_model_parallel_size=model.pipeline_model_parallel_size,
                virtual_pipeline_model_parallel_size=model.virtual_pipeline_model_parallel_size,
                context_parallel_size=model.context_parallel_size, expert_model_parallel_size=model.expert_model_parallel_size,
                expert_tensor_parallel_size=model.expert_tensor_parallel_size, create_gloo_process_groups=False)
            self.build(model, facts)
            if model.virtual_pipeline_model_parallel_size and model.pipeline_model_parallel_size > 1:
                self.enter(config, count)
        finally:
            parallel.destroy_model_parallel()
            distributed.destroy_process_group()

    def build(self, model, facts):
        """Divides layers, weights and sequences as the constructors of the model do."""
        tp, vp = model.tensor_model_parallel_size, model.virtual_pipeline_model_parallel_size
        layout, stages = model.pipeline_model_parallel_layout, [stage for stage in range(vp)] if vp else [None]
        if layout is None:
            ranks = range(model.pipeline_model_parallel_size)
            built = [self.block.get_num_layers_to_build(model, stage, rank) for stage in stages for rank in ranks]
        else:
            built = [row[stage or 0].count(type(row[stage or 0][0]).decoder) for stage in stages for row in layout.layout]
        if built != facts.get("stage_layers", built):
            raise tables.Silent(f"stages get {built} layers instead of {facts['stage_layers']}")
        if not facts["experts"] or facts["dense_layers"]:
            self.utils.divide(model.ffn_hidden_size, tp)
        if model.num_moe_experts:
            self.utils.divide(model.moe_ffn_hidden_size, model.expert_tensor_parallel_size)
            groups = types.SimpleNamespace(ep=self.parallel.get_expert_model_parallel_group(), tp=None, cp=None)
            type("Experts", (self.experts,), {"forward": None})(config=model, layer_number=1, pg_collection=groups)
        if model.sequence_parallel:
            tokens = self.torch.empty(model.seq_length // model.context_parallel_size, 1, 1, device="meta")
            self.torch.cuda.current_device = lambda: "meta"
            self.mappings._reduce_scatter_along_first_dim(tokens, self.parallel.get_tensor_model_parallel_group())

    def enter(self, config, count):
        """Enters the interleaved schedule."""
        chunks = [self.torch.nn.Identity() for _ in range(config.model.virtual_pipeline_model_parallel_size)]
        for chunk in chunks:
            chunk.config, chunk.model_type = config.model, None
        group = self.parallel.get_pipeline_model_parallel_group()
        exchange = types.SimpleNamespace(config=config.model, pp_group=group)
        groups = types.SimpleNamespace(tp=self.parallel.get_tensor_model_parallel_group(), cp=self.parallel.get_context_parallel_group())
        config.model.finalize_model_grads_func = None
        try:
            self.schedules.forward_backward_pipelining_with_interleaving(
                forward_step_func=None, data_iterator=[], model=chunks, num_microbatches=count, seq_length=config.model.seq_length,
                micro_batch_size=config.train.micro_batch_size, p2p_communicator=exchange, pg_collection=groups)
        except Passed:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--framework", default="megatron-bridge-0.6")
    given = parser.parse_args()
    checkouts = [given.checkout.resolve(), given.megatron.resolve()]
    bridge = Bridge(*checkouts)
    if given.table is None:
        sys.exit(1 if tables.answer(bridge.judge, checkouts) else 0)
    framework, found = rules.load(given.framework), edges(random.Random(given.seed))
    sys.exit(1 if tables.tabulate(framework, given.seed, found, rules.overrides, bridge.judge, checkouts, given.table) else 0)


if __name__ == "__main__":
    main()
