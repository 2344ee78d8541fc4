"""Gives layouts to torchtitan's own parser and trainer on CPU and says what they accept.

    python tests/frameworks/torchtitan.py --checkout DIR < layouts.jsonl > verdicts.jsonl
    python tests/frameworks/torchtitan.py --checkout DIR --table 2026-08 --seed 1      # into torchtitan.json

DIR is a checkout of torchtitan (0.2.2, 0.3.0 or newer) whose requirements.txt is installed next to PyTorch.
A layout is one JSON object per line: `world` (number of GPUs), `arguments` (the words after `--module` and `--config`) or `toml` (text of
a job file, torchtitan 0.2 only), `model` (layers, heads, kv_heads, experts, top_k, dense_layers, mla, tied, prediction_layers, ffn, vocab, model (its name);
a small default for each) and `csv` (text of a schedule file, which the arguments name as schedule.csv).
A verdict is {"verdict": "accepted"}, {"verdict": "refused", "error", "at"} with file and line, or {"verdict": "silent", "error"} if the
trainer is built, but the parts that it builds are not those that its schedule runs, or a module of the model is in no part.

The real code runs from the command line to the end of the parallelization: ConfigManager, Trainer.__init__ with ParallelDims, the model on
the meta device, pipeline_llm with stages, schedule and _load_csv, and parallelize_* of the model, on the first and the last rank, in a
process group of PyTorch's fake backend.

Stubs:
- the device is the CPU (`torch._utils._get_available_device_type`)
- the job's process group is the fake one (`comm.mode fake_backend`), made here, with this rank
- metrics, tokenizer and data loader are not built
- `fully_shard` and its prefetching do nothing (PyTorch 2.15 compares meshes by identity, and torchtitan builds them twice), 0.3 and later
- parts of the model stay on the meta device: `to_empty` and `init_weights` of built parts do nothing
- the trainer ends before it asks for the speed of the GPU (`get_peak_flops`)
- `torch.cuda.get_device_capability` answers 9.0, so that a Hopper GPU's branches are taken
"""

import argparse
import contextlib
import copy
import dataclasses
import io
import json
import logging
import os
import re
import shlex
import sys
import tempfile
import traceback
import types

import torch
import torch._utils

MODEL = {
    "layers": 6, "heads": 16, "kv_heads": 16, "experts": 0, "top_k": 2, "dense_layers": 0, "mla": False, "tied": False,
    "prediction_layers": 0, "ffn": 1024, "vocab": 2048, "head_dim": 16,
}


class Built(BaseException):
    """The trainer has passed everything that is checked here."""


def words(text):
    return shlex.split(text)


def shape_of(given):
    """Returns all sizes of a model of which some are given."""
    model = {**MODEL, **given}
    model.setdefault("hidden", model["heads"] * model["head_dim"])
    model.setdefault("moe_ffn", model["ffn"])
    return model


def plain(printed):
    """Returns tyro's error box as one line."""
    text = " ".join(printed.translate({ord(mark): " " for mark in "│╭╮╰╯─"}).split())
    text = text.split(" For full helptext", 1)[0].replace(" -" + "-" * 77, "")
    return re.sub(r" (Available subcommands|Perhaps you meant|Similar options?):.*", "", text)


def place(error, root):
    """Returns file and line inside the checkout or PyTorch that raised the error."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(root):
            return f"{os.path.relpath(frame.filename, root)}:{frame.lineno}"
        if "/site-packages/torch/" in frame.filename:
            return f"torch/{frame.filename.split('/site-packages/torch/')[1]}:{frame.lineno}"
    return ""


def faults(parts, schedule):
    """Returns what the parts and the schedule of one rank have wrong without an error, or None."""
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    built = sorted(stage.stage_index for stage in stages)
    order = getattr(schedule, "pipeline_order", None) or {}
    group, runs = stages[0].group_rank, set()
    for action in order.get(group, []):
        for one in (action.sub_actions or (action,)) if action is not None else ():
            runs.add(one.stage_index)
    if runs and sorted(runs) != built:
        return f"rank {group} of the pipeline builds the stages {built}, and its schedule runs {sorted(runs)}"
    if len(parts) != len(stages):
        return f"rank {group} of the pipeline builds {len(parts)} stages, and its schedule runs {len(stages)}"
    for stage, part in zip(stages, parts, strict=True):
        head = "lm_head" if hasattr(part, "lm_head") else "output"
        if stage.is_last and (getattr(part, head) is None or part.norm is None):
            return f"the last stage is built without {head} or norm"
        if stage.is_first and part.tok_embeddings is None:
            return "the first stage is built without tok_embeddings"
    return None


def still(part):
    """Keeps a part on the meta device."""
    part.to_empty = lambda **_: part
    part.init_weights = lambda **_: None
    return part


def metrics():
    """Returns what stands for torchtitan's metrics."""
    color = types.SimpleNamespace(red="", reset="", blue="", yellow="")
    memory = types.SimpleNamespace(device_name="H100")
    return types.SimpleNamespace(color=color, device_memory_monitor=memory)


def end(*_):
    raise Built()


class Newer:
    """torchtitan 0.3 and later: `--module`, `--config` and arguments."""

    def __init__(self, root):
        import torchtitan.trainer as trainer
        from torchtitan.components.metrics import MetricsProcessor
        from torchtitan.config.manager import ConfigManager
        self.trainer, self.manager = trainer, ConfigManager
        MetricsProcessor.Config.build = lambda *_, **__: metrics()
        trainer.utils.get_peak_flops = end
        import torchtitan.distributed.fsdp as fsdp
        fsdp.fully_shard = lambda module, **_: module
        torch.nn.Module.set_modules_to_forward_prefetch = lambda *_: None
        torch.nn.Module.set_modules_to_backward_prefetch = lambda *_: None

    def parse(self, layout, model):
        registry = types.ModuleType("layout")
        registry.layout = lambda: self.job(model)
        sys.modules["layout"] = registry
        fixed = ["--module", "layout", "--config", "layout", "--comm.mode", "fake_backend"]
        return self.manager().parse_args(fixed + words(layout["arguments"]))

    def job(self, model):
        """Returns torchtitan's own debug job with a model of this shape."""
        if model["mla"]:
            from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel as job
        elif model["experts"]:
            from torchtitan.models.qwen3.config_registry import qwen3_moe_debug as job
        else:
            from torchtitan.models.llama3.config_registry import llama3_debugmodel as job
        config = job()
        self.shape(config.model_spec.model, model)
        return config

    def shape(self, whole, model):
        """Gives the model this shape with torchtitan's own functions."""
        heads, kv_heads, hidden = model["heads"], model["kv_heads"], model["hidden"]
        first = whole.layers[0].attention
        length = "max_context_length" if hasattr(first.rope, "max_context_length") else "max_seq_len"
        setattr(first.rope, length, 1 << 24)
        all_layers = {"n_layers": model["layers"], "dim": hidden, "n_heads": heads, "attn_backend": "flex", "rope": first.rope}
        experts = {"num_experts": model["experts"], "moe_comm_backend": "standard", "non_blocking_capacity_factor": None}
        if model["mla"]:
            from torchtitan.models.deepseek_v3 import _build_dsv3_layers, _build_mtp_layers
            whole.layers = _build_dsv3_layers(
                n_dense_layers=model["dense_layers"], q_lora_rank=0, kv_lora_rank=first.kv_lora_rank,
                qk_nope_head_dim=first.qk_nope_head_dim, qk_rope_head_dim=first.qk_rope_head_dim, v_head_dim=first.v_head_dim,
                mscale=first.mscale, dense_hidden_dim=model["ffn"], moe_hidden_dim=model["moe_ffn"], num_shared_experts=2,
                router_top_k=model["top_k"], router_score_func="softmax", **experts, **all_layers)
            whole.mtp_layers = _build_mtp_layers(whole.layers[-1], dim=hidden, num_mtp_layers=model["prediction_layers"])
        elif model["experts"]:
            from torchtitan.models.qwen3 import _build_qwen3_moe_layers
            whole.layers = _build_qwen3_moe_layers(
                n_kv_heads=kv_heads, head_dim=model["head_dim"], moe_hidden_dim=model["moe_ffn"], top_k=model["top_k"], **experts,
                **all_layers)
        else:
            from torchtitan.models.llama3 import _build_llama3_layers
            whole.layers = _build_llama3_layers(n_kv_heads=kv_heads, hidden_dim=model["ffn"], **all_layers)
        whole.dim, whole.vocab_size, whole.enable_weight_tying = hidden, model["vocab"], model["tied"]
        whole.tok_embeddings = dataclasses.replace(whole.tok_embeddings, num_embeddings=model["vocab"], embedding_dim=hidden)
        whole.norm = dataclasses.replace(whole.norm, normalized_shape=hidden)
        whole.lm_head = dataclasses.replace(whole.lm_head, in_features=hidden, out_features=model["vocab"])

    def build(self, config):
        spec, found = config.model_spec, []

        def pipelining(*args, **named):
            schedule, parts, first, last = spec.pipelining_fn(*args, **named)
            found.append(faults(parts, schedule))
            return schedule, [still(part) for part in parts], first, last

        parallelize = lambda *args, **named: still(spec.parallelize_fn(*args, **named))
        inner = spec.parallelize_fn if config.parallelism.pipeline_parallel_degree > 1 else parallelize
        config.model_spec = dataclasses.replace(spec, pipelining_fn=pipelining, parallelize_fn=inner)
        with contextlib.suppress(Built):
            self.trainer.Trainer(config)
        return next((fault for fault in found if fault), None)


class Older:
    """torchtitan 0.2: a job file or arguments."""

    def __init__(self, root):
        import torchtitan.train as train
        from torchtitan.config import ConfigManager
        self.train, self.manager = train, ConfigManager
        train.utils.get_peak_flops = end
        self.specs = train.train_spec_module
        self.get = self.specs.get_train_spec

    def parse(self, layout, model):
        is_qwen = model["tied"] or model.get("name", model.get("model", "")).startswith("qwen3")
        named = "qwen3" if is_qwen else "llama4" if model["experts"] else "llama3"
        name = "deepseek_v3" if model["mla"] else named
        self.model = model
        fixed = ["--model.name", name, "--model.flavor", "layout", "--comm.mode", "fake_backend"]
        if "toml" in layout:
            with open("job.toml", "w") as file:
                file.write(layout["toml"])
            fixed += ["--job.config_file", "job.toml"]
        return self.manager().parse_args(fixed + words(layout.get("arguments", "")))

    def shape(self, name, spec):
        model = self.model
        flavor = "debugmodel_moe" if name == "qwen3" and model["experts"] else "debugmodel"
        shape = copy.deepcopy(spec.model_args[flavor])
        shape.n_layers, shape.dim, shape.vocab_size, shape.n_heads = model["layers"], model["hidden"], model["vocab"], model["heads"]
        shape.max_seq_len = 1 << 24
        if name == "deepseek_v3":
            shape.inter_dim, shape.moe_inter_dim, shape.n_dense_layers = model["ffn"], model["moe_ffn"], model["dense_layers"]
        else:
            shape.n_kv_heads = model["kv_heads"]
        if name == "qwen3":
            shape.head_dim, shape.enable_weight_tying = model["head_dim"], model["tied"]
        if name == "llama4":
            shape.interleave_moe_layer_step = 1
        if model["experts"]:
            shape.moe_args.num_experts, shape.moe_args.top_k = model["experts"], model["top_k"]
        return shape

    def build(self, config):
        name, found = config.model.name, []
        spec = self.get(name)

        def pipelining(*args, **named):
            schedule, parts, first, last = spec.pipelining_fn(*args, **named)
            found.append(faults(parts, schedule))
            return schedule, [still(part) for part in parts], first, last

        parallelize = lambda *args, **named: still(spec.parallelize_fn(*args, **named))
        inner = spec.parallelize_fn if config.parallelism.pipeline_parallel_degree > 1 else parallelize
        changed = dataclasses.replace(
            spec, model_args={"layout": self.shape(name, spec)}, pipelining_fn=spec.pipelining_fn and pipelining, parallelize_fn=inner,
            build_tokenizer_fn=None, build_dataloader_fn=None, build_metrics_processor_fn=lambda *_: metrics())
        self.specs.get_train_spec = lambda _: changed
        with contextlib.suppress(Built):
            self.train.Trainer(config)
        return next((fault for fault in found if fault), None)


class Checkout:
    """One version of torchtitan, asked again and again."""

    def __init__(self, root):
        self.root = os.path.abspath(root)
        sys.path.insert(0, self.root)
        sys.argv[0] = "torchtitan"
        logging.disable(logging.CRITICAL)
        torch._utils._get_available_device_type = lambda: "cpu"
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        os.chdir(tempfile.mkdtemp(prefix="torchtitan-check-"))
        newer = os.path.exists(os.path.join(self.root, "torchtitan", "trainer.py"))
        self.version = (Newer if newer else Older)(self.root)

    def once(self, layout, rank):
        """Returns the silent fault of one rank, or raises what torchtitan raises."""
        world = layout["world"]
        model = shape_of(layout.get("model", {}))
        os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), NGPU=str(world))
        if "csv" in layout:
            with open("schedule.csv", "w") as file:
                file.write(layout["csv"])
        config = self.version.parse(layout, model)
        torch.distributed.init_process_group("fake", rank=rank, world_size=world)
        try:
            return self.version.build(config)
        finally:
            torch.distributed.destroy_process_group()

    def verdict(self, layout):
        printed = io.StringIO()
        for rank in {0, layout["world"] - 1}:
            try:
                with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
                    fault = self.once(layout, rank)
            except SystemExit:
                return {"verdict": "refused", "error": plain(printed.getvalue()), "at": "torchtitan/config/manager.py"}
            except Exception as error:
                at, text = place(error, self.root), " ".join(str(error).split())
                return {"verdict": "refused", "error": f"{type(error).__name__}: {text}", "at": at}
            if fault:
                return {"verdict": "silent", "error": fault}
        return {"verdict": "accepted"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--checkout", required=True, metavar="DIR")
    arguments.add_argument("--table", metavar="VERSION", help="make a table of layouts with the rules of frameworks/torchtitan-VERSION.toml")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--count", type=int, default=150)
    chosen = arguments.parse_args()
    out = os.fdopen(os.dup(1), "w")
    import torchtitan_layouts as layouts
    checkout = Checkout(chosen.checkout)
    if chosen.table:
        rows = layouts.of_torchtitan(chosen.table, chosen.seed, chosen.count)
        layouts.write("torchtitan", chosen.table, chosen.seed, ({**row, **checkout.verdict(row["given"])} for row in rows))
        return
    for line in sys.stdin:
        layout = json.loads(line)
        print(json.dumps({**layout, **checkout.verdict(layout)}), file=out, flush=True)


if __name__ == "__main__":
    main()
