"""Prints lines of logs with the frameworks' own code: print.py FOLDER_OF_MIRRORS OUTPUT_FOLDER.

FOLDER_OF_MIRRORS has git directories OWNER+NAME/repo. The statements that build a line are cut out of each program and run with made-up
numbers in place of GPUs, so that the form of the lines is the program's, and the numbers are known.
"""

import ast
import contextlib
import io
import logging
import pathlib
import subprocess
import sys
import textwrap
import types
from datetime import datetime

MIRRORS, OUT = map(pathlib.Path, sys.argv[1:3])


def source(repository, revision, path):
    command = ["git", "-C", str(MIRRORS / repository / "repo"), "show", f"{revision}:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def between(text, first, last):
    lines = text.split("\n")
    start = next(at for at, line in enumerate(lines) if first in line)
    end = next(at for at, line in enumerate(lines) if last in line and at > start)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def definition(text, name):
    node = next(node for node in ast.walk(ast.parse(text)) if getattr(node, "name", None) == name)
    return textwrap.dedent("\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno]))


class Anything(dict):
    """Attributes that are false unless they are given."""

    def __getattr__(self, name):
        return self.get(name, False)


class Number(float):
    def item(self):
        return float(self)


def step_line(code, iteration, seconds, **names):
    torch = types.SimpleNamespace(
        tensor=lambda *_, **__: Number(0), float=None, cuda=types.SimpleNamespace(FloatTensor=lambda _: Number(0)), distributed=types.SimpleNamespace(get_rank=lambda: 0)
    )
    args = Anything(train_iters=20, consumed_train_samples=iteration * 64, consumed_train_tokens=iteration * 131072,
                    log_throughput=True, log_energy=True, world_size=8, num_experts=None)
    scope = dict(
        args=args, iteration=iteration, elapsed_time_per_iteration=seconds, total_iterations=1, throughput=410.5, datetime=datetime,
        energy_monitor=types.SimpleNamespace(lap=lambda: 8 * 300.0 * seconds), learning_rate=1e-4, batch_size=64, loss_scale=1.0,
        total_loss_dict={"lm loss": Number(9.5), "advanced": 1, "skipped": 0, "nan": 0}, advanced_iters_key="advanced",
        skipped_iters_key="skipped", nan_iters_key="nan", grad_norm=1.25, num_zeros_in_grad=None, params_norm=None, torch=torch,
        writer=None, wandb_writer=None, has_rl_utils=False, should_reset=False, moe_log_string="", get_telemetry=lambda: None,
        print_rank_last=print, is_last_rank=lambda: True, one_logger_utils=None, decoupled_learning_rate=None,
        get_accelerator=lambda: types.SimpleNamespace(FloatTensor=lambda _: Number(0)), seq_len=2048,
        samples_per_sec=64 / seconds, tokens_per_gpu_per_second=64 * 2048 / 8 / seconds, tflops=120.5, **names,
    )
    exec(code, scope)


def megatron(revision, path="megatron/training/training.py", first="log_string = f\" ["):
    text = source("NVIDIA+Megatron-LM", revision, path)
    code = between(text, first, "print_rank_last(log_string)")
    for iteration in range(1, 13):
        step_line(code, iteration, 9.0 if iteration == 1 else (499 + iteration) / 1000)


def timers_and_memory():
    scope = {"List": list, "torch": types.SimpleNamespace(distributed=types.SimpleNamespace(get_world_size=lambda: 2))}
    text = source("NVIDIA+Megatron-LM", "HEAD", "megatron/core/timers.py")
    names = ["forward-backward", "optimizer"]

    class Timers:
        def _get_global_min_max_time(self, *_):
            return {"forward-backward": (400.25, 410.5), "optimizer": (3.0, 4.5)}

        def _get_elapsed_time_all_ranks(self, *_):
            return {(0, 0): Number(7), (1, 0): Number(9), (0, 1): Number(1), (1, 1): Number(2)}

    for method in ["_get_global_min_max_time_string", "_get_all_ranks_time_string"]:
        exec(definition(text, method), scope)
        setattr(Timers, method, scope[method])
    print(Timers()._get_global_min_max_time_string(names, False, False, 1.0, False))
    print(Timers()._get_global_min_max_time_string(names, False, False, 1.0, True).replace("optimizer ", "all-grads-sync ").replace("forward-backward", "params-all-gather"))
    print(Timers()._get_all_ranks_time_string(["forward-compute", "backward-compute"], False, False, 1.0))
    cuda = types.SimpleNamespace(**{name: lambda size=size: size * 2**20 for name, size in
                                    dict(memory_allocated=1, max_memory_allocated=2048, memory_reserved=3, max_memory_reserved=4096).items()})
    scope = dict(get_args=lambda: Anything(), mpu=types.SimpleNamespace(get_data_parallel_rank=lambda: 0),
                 torch=types.SimpleNamespace(cuda=cuda, distributed=types.SimpleNamespace(get_rank=lambda: 3)))
    exec(definition(source("NVIDIA+Megatron-LM", "HEAD", "megatron/training/utils/common_utils.py"), "report_memory"), scope)
    scope["report_memory"]("(after 2 iterations)")


def arguments():
    module = types.ModuleType("megatron.training.utils")
    module.is_rank0 = lambda: True
    for name in ["megatron", "megatron.training"]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["megatron.training.utils"] = module
    scope = {}
    exec(definition(source("NVIDIA+Megatron-LM", "HEAD", "megatron/training/arguments.py"), "_print_args"), scope)
    values = types.SimpleNamespace(hidden_size=4096, recompute_modules=["core_attn", "mlp"], data_path=None, lr=1.5e-4,
                                   overlap_p2p_communication_warmup_flush_with_long_name=False)
    scope["_print_args"]("arguments", values)


def titan():
    text = source("pytorch+torchtitan", "HEAD", "torchtitan/components/metrics.py")
    code = between(text, 'mfu_str = f"{mfu', 'mfu: {mfu_str}{color.reset}"')
    color = types.SimpleNamespace(**{name: f"\x1b[{at + 31}m" for at, name in enumerate("red green orange turquoise blue cyan magenta reset".split())})
    for step in [1, 10, 20, 30, 40]:
        scope = dict(color=color, mfu=40.5, step=step, global_avg_loss=8.5, grad_norm=1.5, tps=1024.0 if step == 1 else 8192.0,
                     tflops=300.25, device_mem_stats=types.SimpleNamespace(max_reserved_gib=40.0, max_reserved_pct=50.0),
                     logger=types.SimpleNamespace(info=lambda text: print(f"[titan] 2026-08-01 10:00:00,000 - root - INFO - {text}")))
        exec(code + "\n)", scope)


def nanotron():
    text = source("huggingface+nanotron", "HEAD", "src/nanotron/logging/base.py")
    scope = {}
    exec(definition(text, "human_format"), scope)
    human = scope["human_format"]
    scope.update(log_rank=lambda text, **_: print(f"08/01/2026 10:00:00 [INFO|DP=0|PP=0]: {text}"), get_logger=lambda _: None,
                 logging=logging, List=list, Union=dict, LogItem=object, dataclass=None, __name__="nanotron")
    methods = definition(text, "add_scalar").replace(": Union[float, int]", ""), definition(text, "add_scalars_from_list").replace(": List[LogItem]", "")
    for method in methods:
        exec(method, scope)
    writer = types.SimpleNamespace(global_step=20)
    writer.add_scalar = lambda *values: scope["add_scalar"](writer, *values)
    item = lambda tag, value: types.SimpleNamespace(tag=tag, scalar_value=value, log_format="human_format")
    for step in range(1, 8):
        ms = 9000.0 if step == 1 else 1250.0
        scope["add_scalars_from_list"](writer, [item("consumed_tokens", step * 1048576), item("time_per_iteration_ms", ms),
            item("tokens_per_sec", 1048576 / ms * 1e3), item("tokens_per_sec_per_gpu", 104857.6), item("global_batch_size", 1048576),
            item("lm_loss", 9.5), item("lr", 1e-5), item("model_tflops_per_gpu", 410.0)], step)
    assert human(1250.0) == "1.25K"


def megatron_deepspeed():
    text = source("deepspeedai+Megatron-DeepSpeed", "HEAD", "megatron/training.py")
    code = between(text, "log_string = ' iteration", "print_rank_last(log_string)")
    for iteration in range(1, 8):
        step_line(code, iteration, 9.0 if iteration == 1 else 0.512)


def bridge():
    text = source("NVIDIA-NeMo+Megatron-Bridge", "HEAD", "src/megatron/bridge/training/utils/train_utils.py")
    code = between(text, 'log_string = f" [', "print_rank_last(log_string)")
    names = dict(train_config=Anything(train_iters=20), logger_config=Anything(log_throughput=True), num_flops=1.0, per_gpu_tf=410.5,
                 global_state=types.SimpleNamespace(train_state=Anything(consumed_train_samples=64)), get_world_size_safe=lambda: 8,
                 mlflow_logger=None, comet_logger=None, log_max_attention_logit=None)
    for iteration in range(1, 8):
        seconds = 9.0 if iteration == 1 else 0.512
        print(f"Step Time : {seconds:.2f}s GPU utilization: 410.5MODEL_TFLOP/s/GPU")
        step_line(code, iteration, seconds, **names)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    cases = {"megatron": lambda: (arguments(), megatron("HEAD"), timers_and_memory()), "torchtitan": titan,
             "megatron-2023": lambda: megatron("e4adfbc4f0ad", "megatron/training.py", "log_string = ' iteration"), "nanotron": nanotron,
             "megatron-deepspeed": megatron_deepspeed, "megatron-bridge": bridge}
    for name, case in cases.items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            case()
        (OUT / f"{name}.log").write_text(text.getvalue())


main()
