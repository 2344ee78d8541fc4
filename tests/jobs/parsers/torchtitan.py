"""Reads job files of torchtitan with its own parser and its own registry of models, as Reading in src/jobs has it.

    python tests/jobs/parsers/torchtitan.py --checkout DIR FILE...            # one JSON object per file
    python tests/jobs/parsers/torchtitan.py --checkout DIR --table VERSION --seed 1 > rows.jsonl
    python tests/jobs/parsers/torchtitan.py --checkout DIR --models           # sizes of all flavors, for jobs/torchtitan.toml

DIR is a checkout of torchtitan between June 2024 and 0.2.2. PyTorch and its requirements.txt are needed; no GPU. `--table` writes jobs of
its own, in the form that this version's parser has, and what it reads.

Real: JobConfig or ConfigManager, the registry of models, the width of the MLP as the model on the meta device has it, and from
`pipeline_llm` the class of the schedule. Stubs: packages that only data loading needs (`STUBS`).
"""

import argparse
import importlib
import importlib.abc
import importlib.machinery
import json
import random
import sys
import tempfile
import types
from pathlib import Path

STUBS = ["torchdata", "tiktoken", "tokenizers", "datasets", "torchao", "einops", "tensorboard", "sentencepiece", "torchvision", "PIL", "grain"]
DENSE = dict.fromkeys(["experts", "top_k", "moe_ffn"])


class Empty(types.ModuleType):
    """A package of which every name is an empty class."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs where the package is missing."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STUBS else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def parse(arguments):
    """Returns the configuration that torchtitan's parser makes of its arguments."""
    for path in ["torchtitan.config", "torchtitan.config_manager"]:
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "ConfigManager"):
            return module.ConfigManager().parse_args(arguments)
        config = module.JobConfig()
        config.parse_args(arguments)
        return config
    raise SystemExit("no parser in this checkout")


def registry(name):
    """Returns arguments of the model by flavor, and its class."""
    try:
        specs = importlib.import_module("torchtitan.protocols.train_spec")
    except ModuleNotFoundError:
        try:
            specs = importlib.import_module("torchtitan.train_spec")
            importlib.import_module("torchtitan.models")
        except ModuleNotFoundError:
            models = importlib.import_module("torchtitan.models")
            return models.models_config[name], models.model_name_to_cls[name]
    for package in ["torchtitan.models", "torchtitan.experiments"]:
        try:
            importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError:
            pass
    spec = specs.get_train_spec(name)
    flavors = next(getattr(spec, key) for key in ["model_args", "config", "model_config"] if hasattr(spec, key))
    return flavors, getattr(spec, "model_cls", None) or spec.cls


def width(args):
    """Returns the width of a dense MLP by the arithmetic of the model's FeedForward."""
    model = sys.modules[type(args).__module__.replace(".args", ".model")]
    feed = model.FeedForward(args.dim, 4 * args.dim, args.multiple_of, args.ffn_dim_multiplier)
    return feed.w1.out_features


def sizes(args):
    """Returns the sizes of a model, and what else a shape file says of it."""
    import torch

    get = lambda name, other=None: getattr(args, name, other)
    has_experts = get("moe_enabled", get("moe_args") is not None or get("num_experts") is not None)
    moe = get("moe_args") if get("moe_args") is not None else args
    found = {"layers": args.n_layers, "hidden": args.dim, "heads": args.n_heads, "kv_heads": get("n_kv_heads") or args.n_heads}
    found["ffn"] = get("hidden_dim") or get("inter_dim")
    if found["ffn"] is None and get("multiple_of"):
        with torch.device("meta"):
            found["ffn"] = width(args)
    vocab = get("vocab_size")
    found["vocab"] = vocab if vocab is not None and vocab > 0 else None
    found.update(DENSE)
    if has_experts:
        found.update(experts=moe.num_experts, top_k=moe.top_k, moe_ffn=get("moe_inter_dim"))
    shape = {}
    if get("head_dim"):
        shape["head_dim"] = args.head_dim
    if get("kv_lora_rank"):
        shape["attention"] = "mla"
        for key in ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]:
            shape[key] = getattr(args, key) or None
    if get("qk_norm"):
        shape["qk_norm"] = True
    if get("enable_weight_tying"):
        shape["tied"] = True
    if has_experts:
        shared = get("num_shared_experts", getattr(moe, "num_shared_experts", 0)) or 0
        step = get("interleave_moe_layer_step")
        inner = get("moe_inter_dim")
        if step is not None:
            block = sys.modules[type(args).__module__.replace(".args", ".model")].TransformerBlock
            with torch.device("meta"):
                moe_layer = block(step - 1, args).moe
            experts = moe_layer.experts
            inner = next(p.shape for n, p in experts.named_parameters() if n.startswith("w1"))
            inner = next(size for size in reversed(inner) if size != args.dim)
            shape["moe_ffn"] = inner
            shape["moe_every"] = step
        if get("n_dense_layers"):
            shape["dense_first"] = args.n_dense_layers
        if shared:
            shape.update(shared_experts=shared, shared_ffn=inner * shared)
        if getattr(moe, "num_expert_groups", None):
            shape.update(router_groups=moe.num_expert_groups, router_group_top_k=moe.num_limited_groups)
        if get("sliding_window_size"):
            shape.update(sliding_window=args.sliding_window_size, sliding_every=2)
    return found, shape


def look(config, *names):
    """Returns the first of several fields that this version has."""
    for name in names:
        section, key = name.rsplit(".", 1)
        value = config
        for part in section.split("."):
            value = getattr(value, part, None)
        if value is not None and hasattr(value, key):
            return getattr(value, key)
    return None


def several(name):
    """Whether a schedule has several stages per rank, by PyTorch's own class."""
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

    return issubclass(get_schedule_class(name), PipelineScheduleMulti)


def per_stages():
    """Whether the usual number of micro-batches is that of all stages; before 2025 it was that of the ranks."""
    return "num_total_stages" in "".join(path.read_text() for path in Path(sys.path[0]).rglob("pipelin*.py"))


def reading(config, world=None):
    """Returns what a configuration says."""
    name, flavor = config.model.name, config.model.flavor
    flavors, _ = registry(name)
    found, _ = sizes(flavors[flavor])
    degree = lambda name, other=1: look(config, f"parallelism.{name}", f"experimental.{name}", f"training.{name}") or other
    tp, pp, cp = degree("tensor_parallel_degree"), degree("pipeline_parallel_degree"), degree("context_parallel_degree")
    shard = look(config, *(f"{one}.data_parallel_shard_degree" for one in ["parallelism", "training"]), "training.data_parallel_degree")
    replicate = degree("data_parallel_replicate_degree")
    local = look(config, "training.local_batch_size", "training.batch_size")
    schedule = degree("pipeline_parallel_schedule", None)
    per_stage, vp = degree("pipeline_parallel_layers_per_stage", None), 1
    is_per_stage = per_stages()
    points = degree("pipeline_parallel_split_points", None)
    if pp > 1:
        vp = 2 if several(schedule) else 1
        if points:
            vp = (len(points) + 1) // pp
        elif per_stage:
            first, last = (degree(f"pipeline_parallel_{end}_stage_less_layers") for end in ["first", "last"])
            vp = -(-(found["layers"] + first + last) // per_stage) // pp
    micro = local
    count = look(config, "experimental.pipeline_parallel_microbatches")
    if pp > 1:
        micro = degree("pipeline_parallel_microbatch_size", None) or local // (count or (pp * vp if is_per_stage else pp))
    dp = world // (tp * pp * cp) if world else shard * replicate if shard > 0 else None
    batch = look(config, "training.global_batch_size")
    batch = batch if batch and batch > 0 else (local * dp if dp else None)
    converters = look(config, "model.converters")
    if converters is None:
        is_float8 = look(config, "float8.enable_float8_linear") or look(config, "training.fp8_linear")
        converters = ["float8"] if is_float8 else []
    mode = config.activation_checkpoint.mode
    compiled = look(config, "compile.enable")
    found.update(
        tp=tp, pp=pp, cp=cp, dp=dp, dp_shard=shard, dp_replicate=replicate, ep=degree("expert_parallel_degree"),
        etp=degree("expert_tensor_parallel_degree") if found["experts"] else None, vp=vp, schedule=schedule, local_batch=local,
        micro_batch=micro, global_batch=batch, seq=config.training.seq_len, recompute=None if mode == "none" else mode,
        precision={"bfloat16": "bf16", "float32": "fp32"}[config.training.mixed_precision_param], converters=list(converters),
        zero=0 if shard == 1 else 3,
        reshard=degree("fsdp_reshard_after_forward", "default"),
        sequence_parallel=tp > 1, compile=bool(look(config, "training.compile") if compiled is None else compiled))
    if found["vocab"] is None:
        del found["vocab"]  # the tokenizer has it
    if dp:
        found["num_microbatches"] = batch // (dp * micro)
    return found


def models():
    """Returns sizes by model and flavor."""
    table = {}
    for name in ["llama", "llama2", "llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss", "llama3_ft", "llama3_simple_fsdp"]:
        try:
            flavors, _ = registry(name)
        except (KeyError, ValueError, ModuleNotFoundError):
            continue
        for flavor, args in flavors.items():
            found, shape = sizes(args)
            table.setdefault(name, {})[flavor] = {**{key: value for key, value in found.items() if value is not None}, "shape": shape}
    return table


def jobs(generator, section, has_experts):
    """Writes a job in the dialect of a version, whose field names `section` gives."""
    pick = generator.choice
    family = pick(["llama3", "deepseek_v3", "qwen3", "llama4"]) if has_experts else "llama3"
    flavors = {"llama3": ["8B", "70B", *(["debugmodel", "405B"] if has_experts else [])], "deepseek_v3": ["debugmodel", "16B", "671B"],
               "qwen3": ["0.6B", "32B", "30B-A3B"], "llama4": ["17bx16e", "17bx128e"]}
    text = {"model.name": family, "model.flavor": pick(flavors[family])}
    degrees = {name: pick([1, 2, 4, 8]) for name in ["tensor_parallel_degree", "pipeline_parallel_degree"]}
    text.update({section(name): degree for name, degree in degrees.items() if pick([True, True, False])})
    text[section("data_parallel_shard_degree")] = pick([-1, -1, 1, 4])
    text[section("pipeline_parallel_schedule")] = pick(["1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble", "InterleavedZeroBubble"])
    text[section("local_batch_size")] = pick([4, 8, 16, 32])
    text["training.seq_len"] = pick([2048, 4096, 8192])
    text["activation_checkpoint.mode"] = pick(["none", "selective", "full"])
    text["activation_checkpoint.selective_ac_option"] = pick(["op", "2"])
    text[section("compile")] = pick([True, False])
    if not has_experts and section("data_parallel_shard_degree").startswith("training."):
        text["experimental.pipeline_parallel_microbatches"] = pick([2, 4])  # the usual number changed in January 2025
    if has_experts and family != "llama3":
        text["parallelism.expert_parallel_degree"] = pick([1, 2, 8])
    if pick([True, False]):
        text["training.mixed_precision_param"] = pick(["bfloat16", "float32"])
    converters = section("converters")
    if converters and pick([True, False]):
        text[converters] = ["float8"] if converters.startswith("model") else True
    return {key: value for key, value in text.items() if key}


def dialect(version):
    """Returns the name of each field in a version, by date."""
    old, parts = version < "2025-04", "parallelism."
    names = {"converters": "model.converters" if version > "2025-02" else "float8.enable_float8_linear" if version > "2024-08" else None,
             "local_batch_size": "training.local_batch_size" if version > "2025-05" else "training.batch_size",
             "compile": "compile.enable" if version > "2025-09" else "training.compile",
             "data_parallel_shard_degree": parts + "data_parallel_shard_degree"}
    if old:
        names.update(tensor_parallel_degree="training.tensor_parallel_degree",
                     data_parallel_shard_degree="training.data_parallel_shard_degree" if version > "2024-08" else "training.data_parallel_degree")
        parts = "experimental."
    return lambda name: names.get(name, parts + name)


def table(version, seed):
    """Writes jobs of a version with what its parser reads."""
    generator, section = random.Random(seed), dialect(version)
    written = 0
    while written < 16:
        fields, world = jobs(generator, section, version > "2025-09"), generator.choice([None, 64, 256])
        if version < "2024-08":  # no others then
            fields[section("pipeline_parallel_schedule")] = generator.choice(["1f1b", "gpipe"])
        sections = {}
        for key, value in fields.items():
            sections.setdefault(key.rsplit(".", 1)[0], []).append((key.rsplit(".", 1)[1], value))
        lines = []
        for head, pairs in sections.items():
            lines += [f"[{head}]", *(f"{key} = {json.dumps(value)}" for key, value in pairs), ""]
        extra = generator.choice([[], ["--training.seq_len", "1024"], ["--training.steps", "5"], ["--activation_checkpoint.mode", "full"]])
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("\n".join(lines))
            file.flush()
            try:
                read = reading(parse(["--job.config_file", file.name, *extra]), world)
                assert read["micro_batch"] and read["dp"] != 0, "refused later"
            except Exception as error:
                print(repr(error)[:200], file=sys.stderr)
                continue
        print(json.dumps({"form": f"torchtitan-{version}", "name": "job.toml", "text": "\n".join(lines), "arguments": extra, "gpus": world, "reading": read}))
        written += 1


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkout", required=True)
    options.add_argument("--models", action="store_true")
    options.add_argument("--table")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("files", nargs="*")
    given = options.parse_args()
    sys.path = [given.checkout, *(path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent)]
    sys.meta_path.append(Finder())
    from torch.distributed.tensor.experimental import _attention

    if not hasattr(_attention, "create_cp_block_mask"):
        _attention.create_cp_block_mask = None  # newer versions of PyTorch have it no longer
    if given.models:
        print(json.dumps(models(), indent=1))
    if given.table:
        table(given.table, given.seed)
    for file in given.files:
        try:
            print(json.dumps({"file": file, "reading": reading(parse(["--job.config_file", file]))}))
        except (Exception, SystemExit) as error:
            print(json.dumps({"file": file, "error": repr(error)[:300]}))


main()
