"""Asks the real Megatron-LM whether it accepts a layout. Run by hand; needs PyTorch (CPU), `packaging` and a checkout, fetches nothing.

    python tests/frameworks/megatron.py --checkout ../Megatron-LM < questions.jsonl

Each line of the input is an object: `world` (GPUs), `model` (words, or options of Megatron-LM by name: the model's own, which a user has), `arguments` (text: the options to check), and optionally `environment`
(variables by name) and `architecture` (hopper). Each line of the output is the verdict: `{"accepted": true}` and the layers of each stage, or `error` (Megatron-LM's text), `at` (its file and line) and `step` (where training would have ended).

The steps are Megatron-LM's own code, in the order in which training runs it: see `STEPS`. What is replaced is listed in `megatron_stubs.py`. Transformer Engine's kernels are not run: what they refuse is not seen here.
With `--table` it writes the table that the rules are tested with, see `megatron_table.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
import traceback
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import megatron_stubs as stubs
from megatron_table import table


class Reached(Exception):
    """A schedule got past its own checks."""


class Training:
    """One start of training, step by step."""

    def __init__(self, question: dict):
        self.question = question
        self.args = None
        self.config = None
        self.layers = []

    def parse(self) -> None:
        """Reads the options."""
        from megatron.training.arguments import parse_args

        sys.argv = ["pretrain_gpt.py", *words(self.question.get("model", {})), *shlex.split(self.question["arguments"])]
        self.args = parse_args()

    def validate(self) -> None:
        """Checks the options."""
        from megatron.training.arguments import validate_args

        validate_args(self.args, {"tokenizer_type": "GPT2BPETokenizer"})

    def configure(self) -> None:
        """Makes the model's configuration."""
        from megatron.training.arguments import core_transformer_config_from_args

        self.config = core_transformer_config_from_args(self.args)

    def count_micro_batches(self) -> None:
        """Divides the batch (megatron/training/global_vars.py)."""
        from megatron.core import num_microbatches_calculator as calculator

        a = self.args
        calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = None
        named = {"rank": 0, "global_batch_size": a.global_batch_size, "micro_batch_size": a.micro_batch_size}
        named |= {"data_parallel_size": a.data_parallel_size, "decrease_batch_size_if_needed": False}
        named["rampup_batch_size"] = None
        taken = signature(calculator.init_num_microbatches_calculator).parameters
        calculator.init_num_microbatches_calculator(**{name: value for name, value in named.items() if name in taken})

    def make_groups(self) -> None:
        """Makes the process groups (megatron/training/initialize.py)."""
        from megatron.core import parallel_state

        a = self.args
        stubs.start_world(self.question["world"])
        parallel_state.initialize_model_parallel(
            a.tensor_model_parallel_size,
            a.pipeline_model_parallel_size,
            a.virtual_pipeline_model_parallel_size,
            context_parallel_size=a.context_parallel_size,
            expert_model_parallel_size=a.expert_model_parallel_size,
            expert_tensor_parallel_size=a.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )

    def split_layers(self) -> None:
        """Counts the layers of each stage."""
        from megatron.core import parallel_state
        from megatron.core.transformer.transformer_block import get_num_layers_to_build

        chunks = self.config.virtual_pipeline_model_parallel_size
        self.layers = []
        for chunk in range(chunks or 1):
            for device in range(self.config.pipeline_model_parallel_size):
                parallel_state.set_pipeline_model_parallel_rank(device)
                self.layers.append(get_num_layers_to_build(self.config, chunk if chunks else None))
        parallel_state.set_pipeline_model_parallel_rank(None)

    def build_layers(self) -> None:
        """Divides the weights of the embedding and of each kind of layer among tensor-parallel ranks."""
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import ColumnParallelLinear, VocabParallelEmbedding
        from megatron.training.vocab_utils import calculate_padded_vocab_size

        c, a = self.config, self.args
        groups = {"ep": parallel_state.get_expert_tensor_parallel_group, "tp": parallel_state.get_tensor_model_parallel_group}
        widths = [(c.ffn_hidden_size, "tp")] if self.has_dense_layers() else []
        if c.num_moe_experts:
            widths += [(c.moe_ffn_hidden_size, "ep"), (c.moe_shared_expert_intermediate_size or 0, "tp")]
        c.perform_initialization = False
        with on_meta():
            vocabulary = calculate_padded_vocab_size(
                a.vocab_size, a.make_vocab_size_divisible_by, c.tensor_model_parallel_size, logging_enabled=False
            )
            VocabParallelEmbedding(vocabulary, c.hidden_size, init_method=stubs.present, config=c)
            if not c.multi_latent_attention:
                self.build_attention()
            named = {"config": c, "init_method": stubs.present, "bias": False, "skip_bias_add": True, "gather_output": False}
            for width, group in widths:
                columns = width * (2 if c.gated_linear_unit else 1)
                ColumnParallelLinear(c.hidden_size, columns, is_expert=group == "ep", tp_group=groups[group](), **named)

    def has_dense_layers(self) -> bool:
        """Returns whether a layer has no experts."""
        layers = self.config.moe_layer_freq
        return not self.config.num_moe_experts or (isinstance(layers, list) and 0 in layers)

    def build_attention(self) -> None:
        """Divides the heads."""
        import torch
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
        from megatron.core.transformer.enums import AttnMaskType

        core = lambda **_: torch.nn.Identity()
        parts = SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear, core_attention=core, linear_proj=RowParallelLinear
        )
        SelfAttention(self.config, parts, layer_number=1, attn_mask_type=AttnMaskType.causal)

    def dispatch_tokens(self) -> None:
        """Starts the mixture's token dispatcher and the forward pass of its layer."""
        from megatron.core import parallel_state
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.transformer.moe import moe_layer, token_dispatcher

        if not self.config.num_moe_experts:
            return
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp", "ep", "expt_tp", "tp_ep"])
        here = self.config.num_moe_experts // self.config.expert_model_parallel_size
        if self.config.moe_token_dispatcher_type == "flex":
            flex = token_dispatcher.MoEFlexTokenDispatcher
            flex(here, list(range(here)), config=self.config, pg_collection=groups)
        group = parallel_state.get_tensor_model_parallel_group()
        layer = SimpleNamespace(training=True, config=self.config, attn_tp_group=group, tp_group=group)
        with contextlib.suppress(AttributeError):
            moe_layer.MoELayer.forward(layer, None)

    def split_sequence(self) -> None:
        """Splits the embedded tokens among tensor-parallel ranks."""
        import torch
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import mappings

        if self.config.sequence_parallel:
            tokens = self.args.seq_length // self.config.context_parallel_size
            embedded = torch.empty(tokens, self.args.micro_batch_size, 1, device="meta")
            mappings._split_along_first_dim(embedded, parallel_state.get_tensor_model_parallel_group())

    def schedule(self) -> None:
        """Enters the schedule that Megatron-LM chooses, until its own checks are passed."""
        import torch
        from megatron.core import num_microbatches_calculator as calculator
        from megatron.core.pipeline_parallel import schedules

        def reached(*_: object) -> None:
            raise Reached

        schedules.get_model_type = reached
        schedules.clear_embedding_activation_buffer = stubs.present
        chunks = self.config.virtual_pipeline_model_parallel_size or 1
        models = [torch.nn.Module() for _ in range(chunks)]
        for model in models:
            model.config = self.config
            model.set_input_tensor = reached
        run = schedules.get_forward_backward_func()
        with contextlib.suppress(Reached):
            run(
                forward_step_func=None,
                data_iterator=[None] * chunks,
                model=models,
                num_microbatches=calculator.get_num_microbatches(),
                seq_length=self.args.seq_length,
                micro_batch_size=self.args.micro_batch_size,
            )


STEPS = [
    Training.parse,
    Training.validate,
    Training.configure,
    Training.count_micro_batches,
    Training.make_groups,
    Training.split_layers,
    Training.build_layers,
    Training.dispatch_tokens,
    Training.split_sequence,
    Training.schedule,
]


FORK_STEPS = [Training.parse, Training.validate, Training.configure, Training.count_micro_batches]
"""Steps for the zero-bubble fork, whose other code does not run with today's PyTorch and without GPUs."""


def words(model: dict | list) -> list[str]:
    """Returns the words of options by name; `true` is a flag."""
    if isinstance(model, list):
        return [str(word) for word in model]
    found = []
    for name, value in model.items():
        found += ["--" + name] if value is True else ["--" + name, str(value)]
    return found


@contextlib.contextmanager
def on_meta():
    """Makes weights without memory."""
    import torch

    current = torch.cuda.current_device
    torch.cuda.current_device = lambda: "meta"
    yield
    torch.cuda.current_device = current


def end_world() -> None:
    """Forgets the process groups."""
    import torch.distributed as distributed
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def place(error: BaseException, checkout: Path) -> str:
    """Returns file and line in the checkout where the error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(checkout)]
    if not inside:
        return ""
    return f"{Path(inside[-1].filename).relative_to(checkout)}:{inside[-1].lineno}"


def judge(question: dict, checkout: Path) -> dict:
    """Returns Megatron-LM's verdict."""
    stubs.Machine.set(question.get("architecture", ""))
    os.environ["WORLD_SIZE"] = str(question["world"])
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(question.get("environment", {}))
    training = Training(question)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
            for step in FORK_STEPS if stubs.is_fork(checkout) else STEPS:
                step(training)
    except SystemExit:
        said = printed.getvalue().strip().splitlines() or ["exit"]
        return {"accepted": False, "error": said[-1], "at": "", "step": step.__name__}
    except Exception as error:
        text = str(error) or traceback.extract_tb(error.__traceback__)[-1].line
        return {"accepted": False, "error": text, "at": place(error, checkout), "step": step.__name__}
    finally:
        end_world()
    return {"accepted": True, "layers": training.layers}


def main() -> None:
    """Answers each line of the input, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of Megatron-LM's sources")
    parser.add_argument("--table", type=int, metavar="N", help="write a table of N layouts instead of reading questions")
    parser.add_argument("--seed", type=int, default=1, help="seed of the table's layouts")
    parser.add_argument("--framework", default="megatron-core-2026-08", help="file of `frameworks` whose options the table has")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    stubs.before_import(checkout)
    import megatron.training.arguments  # noqa: F401
    import megatron.core.pipeline_parallel.schedules  # noqa: F401
    import megatron.core.transformer.moe.moe_layer  # noqa: F401

    stubs.after_import()
    if options.table:
        return print(table(options.table, options.seed, options.framework, lambda question: judge(question, checkout)))
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(judge(json.loads(line), checkout)), flush=True)


if __name__ == "__main__":
    main()
