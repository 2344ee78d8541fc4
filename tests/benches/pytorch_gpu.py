#!/usr/bin/env python3
"""Tokens per second of training GPT-2 124M on one GPU: PyTorch eager, PyTorch compiled and pipesim, in turn.

The PyTorch side is what a careful user runs: parameters, gradients and moments in float32, the forward and backward pass
under bfloat16 autocast, causal attention by scaled_dot_product_attention, fused AdamW, the vocabulary padded to 50304 rows;
compiled means torch.compile of the model with the loss in it. Which attention PyTorch took (flash, cuDNN, ..) and the type of
the residual stream are asked of PyTorch and written down. pipesim (if --pipesim names it) trains the same model on the same
tokens with bfloat16 activations, the residual stream among them, and float32 parameters, gradients and moments, on the whole
GPU.

First eager PyTorch and pipesim are measured in rounds of alternate order, then compiled PyTorch and pipesim; nothing is
profiled before all is timed. Every measurement is of whole training steps of the same batch: micro-batches with accumulated
gradients, then the update. All are timed by the host's clock, from the tokens in its memory to the loss back there. TFLOP/s
are by llm.c's arithmetic: 6 N + 6 L C T operations a token. Both programs get every size and report the work of a step (see
same_work.py); unless it is the same, no ratio is written. PyTorch's attention alone is timed at the end.
Prints a table, and writes JSON after every measurement. Exit code 5: no PyTorch or no GPU here.
"""

import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from same_work import require_same_work, torch_work

LAYERS, HEADS, CHANNELS, VOCABULARY, PADDED_VOCABULARY = 12, 12, 768, 50257, 50304
ROUNDS, WARMUP_STEPS = 2, 3
ADAMW = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}


def build(torch, tokens):
    """The model as a torch.nn.Module that maps inputs and targets to the mean loss."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = HEADS
            self.ln1 = nn.LayerNorm(CHANNELS)
            self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
            self.attention_projection = nn.Linear(CHANNELS, CHANNELS)
            self.ln2 = nn.LayerNorm(CHANNELS)
            self.fc = nn.Linear(CHANNELS, 4 * CHANNELS)
            self.fc_projection = nn.Linear(4 * CHANNELS, CHANNELS)

        def forward(self, x):
            batch, length, _ = x.shape
            heads = (batch, length, self.heads, CHANNELS // self.heads)
            q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(CHANNELS, dim=2))
            attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attention_projection(attention.transpose(1, 2).reshape(batch, length, CHANNELS))
            return x + self.fc_projection(functional.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(PADDED_VOCABULARY, CHANNELS)
            self.wpe = nn.Embedding(tokens, CHANNELS)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.lnf = nn.LayerNorm(CHANNELS)
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    std = 0.02 / (2 * LAYERS) ** 0.5 if "projection" in name else 0.02
                    nn.init.normal_(parameter, std=std)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

        def forward(self, inputs, targets):
            x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1], device=inputs.device))
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.lnf(x), self.wte.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return GPT2().cuda()


class PyTorch:
    """One way of training by PyTorch; its model and optimizer are shared with the other ways."""

    def __init__(self, torch, model, optimizer, call, micro):
        self.torch, self.model, self.optimizer, self.call, self.micro = torch, model, optimizer, call, micro

    def step(self, batch):
        """One training step on a batch in the host's memory; returns the seconds until the loss is back there."""
        start = time.perf_counter()
        batch = batch.to("cuda", non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for microbatch in batch.chunk(self.micro):
            with self.torch.autocast("cuda", dtype=self.torch.bfloat16):
                loss = self.call(microbatch[:, :-1], microbatch[:, 1:]) / self.micro
            loss.backward()
            losses.append(loss.detach())
        self.optimizer.step()
        self.loss = self.torch.stack(losses).sum().item()
        self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def attention(self, batch):
        """Returns the names of the attention operators that a step called."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            self.step(batch)
        return attention_named({event.key for event in seen.key_averages()})

    def measure(self, batch, steps):
        """Returns the seconds of each of `steps` steps after a warm-up."""
        for _ in range(WARMUP_STEPS):
            self.step(batch)
        return [self.step(batch) for _ in range(steps)]


def attention_named(operators):
    """Returns the backends of scaled_dot_product_attention among profiled operators and kernels."""
    backends = {
        "cuDNN": "scaled_dot_product_cudnn_attention",
        "flash": "scaled_dot_product_flash_attention",
        "memory-efficient": "scaled_dot_product_efficient_attention",
        "math": "scaled_dot_product_attention_math",
    }
    found = [name for name, part in backends.items() if any(part in operator for operator in operators)]
    return ", ".join(found) or "none that this program knows"


def residual_type(torch, model, batch):
    """Returns the type of a block's output under the autocast of a step."""
    types = []
    hook = model.blocks[0].register_forward_hook(lambda _module, _inputs, output: types.append(str(output.dtype)))
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        model(batch[:1, :-1].cuda(), batch[:1, 1:].cuda())
    hook.remove()
    return types[0].removeprefix("torch.")


def token_flops(length):
    """Returns the operations of a token's forward and backward as llm.c counts them: six per parameter (including the position
    embedding, biases and LayerNorm), and causal attention."""
    block = 12 * CHANNELS * CHANNELS + 13 * CHANNELS
    parameters = (PADDED_VOCABULARY + length) * CHANNELS + LAYERS * block + 2 * CHANNELS
    return 6 * parameters + 6 * LAYERS * CHANNELS * length


def write_tokens(path, ids):
    """llm.c's token file: a header of 256 words (magic, version, count), then 16 bits per token."""
    header = array.array("i", [20240520, 1, len(ids)] + [0] * 253)
    with open(path, "wb") as file:
        file.write(header.tobytes() + array.array("H", ids).tobytes())


def run_pipesim(arguments, sequences, folder, tokens_file):
    """Median tokens per second and wall time of a step in ms of one run of pipesim, and the work of a step."""
    command = [arguments.pipesim, "run", "--device", "cuda", "--precision", "bfloat16", "--stages", "1"]
    command += ["--micro", str(arguments.micro), "--batch", str(arguments.micro * sequences), "--schedule", "1f1b"]
    command += ["--model", "gpt2", "--blocks", str(LAYERS), "--heads", str(HEADS), "--channels", str(CHANNELS)]
    command += ["--vocabulary", str(VOCABULARY), "--seq", str(arguments.seq), "--max-sequence", str(arguments.seq)]
    command += ["--data", tokens_file, "--steps", str(arguments.steps), "--warmup", str(WARMUP_STEPS)]
    command += ["--format", "json", "--quiet", "--output", os.path.join(folder, f"pipesim-{sequences}") + os.sep]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"pipesim exited with {done.returncode}: {done.stderr.strip()[-600:]}")
    run = json.loads(done.stdout)["runs"][0]
    return run["tokens_per_second"], run["wall_ms"]["median"], run["work"]


class Comparison:
    """All programs at one micro-batch size; `result` has what is known so far, and `save` writes it."""

    def __init__(self, torch, arguments, model, optimizer, sequences, files, save):
        self.torch, self.arguments, self.model, self.optimizer = torch, arguments, model, optimizer
        self.folder, self.tokens_file, ids = files
        self.save, length = save, arguments.seq
        count = arguments.micro * sequences
        self.step_tokens = count * length
        work = torch_work(model, len(model.blocks), model.blocks[0].heads, length, count, VOCABULARY)
        self.batch = torch.tensor([ids[row * length : (row + 1) * length + 1] for row in range(count)]).pin_memory()
        self.ways = {"eager": PyTorch(torch, model, optimizer, model, arguments.micro)}
        self.seconds, self.speeds = {}, []
        self.result = {
            "sequences": sequences,
            "microbatches": arguments.micro,
            "step_tokens": self.step_tokens,
            "work": work,
            "pipesim_residual": "bfloat16",
            "notes": [],
        }

    def compile(self):
        """Adds the compiled model to the ways; a compiler that fails is a result, not the end."""
        compiled = PyTorch(
            self.torch, self.model, self.optimizer, self.torch.compile(self.model, dynamic=False), self.arguments.micro
        )
        start = time.perf_counter()
        try:
            compiled.step(self.batch)
            self.result["compile_seconds"] = round(time.perf_counter() - start, 1)
            self.ways["compiled"] = compiled
        except Exception as error:
            self.note(f"torch.compile failed: {type(error).__name__}", error)

    def note(self, what, error):
        self.result["notes"].append(f"{what}: {' '.join(str(error).split())[:600]}")
        self.save()

    def rounds(self, name, is_late):
        """Measures a way and pipesim in alternate order; after the first round, only unless it is late."""
        for number in range(ROUNDS if name in self.ways else 0):
            if number > 0 and is_late():
                self.result["notes"].append(f"{name}: {number} of {ROUNDS} rounds, no time for more")
                break
            for program in [name, "pipesim"][:: -1 if number % 2 else 1]:
                self.measure(program)

    def measure(self, program):
        if program != "pipesim":
            self.seconds.setdefault(program, []).extend(self.ways[program].measure(self.batch, self.arguments.steps))
        elif self.arguments.pipesim:
            self.torch.cuda.empty_cache()
            try:
                speed, ms, work = run_pipesim(self.arguments, self.result["sequences"], self.folder, self.tokens_file)
            except RuntimeError as error:
                return self.note("pipesim", error)
            require_same_work(work, self.result["work"])
            self.speeds.append((speed, ms))
        self.summarise()
        return self.save()

    def summarise(self):
        result = self.result
        for name, values in self.seconds.items():
            median = statistics.median(values)
            result[name] = {
                "tokens_per_second": round(self.step_tokens / median, 1),
                "step_ms": round(median * 1e3, 3),
                "step_ms_quartiles": [round(q * 1e3, 3) for q in statistics.quantiles(values, n=4)[::2]],
            }
        if self.speeds:
            result["pipesim"] = {
                "tokens_per_second": round(statistics.median(speed for speed, _ in self.speeds), 1),
                "step_ms": round(statistics.median(ms for _, ms in self.speeds), 3),
                "rounds": [round(speed, 1) for speed, _ in self.speeds],
            }
            for name in self.seconds:
                ratio = result["pipesim"]["tokens_per_second"] / result[name]["tokens_per_second"]
                result[f"pipesim_over_{name}"] = round(ratio, 4)
        for name in [*self.seconds, "pipesim"]:
            if name in result:
                flops = result[name]["tokens_per_second"] * token_flops(self.arguments.seq)
                result[name]["tflops"] = round(flops / 1e12, 1)

    def look(self):
        """Asks PyTorch what it did, once everything is timed."""
        for name, way in self.ways.items():
            self.result[f"{name}_attention"] = way.attention(self.batch)
        self.result["pytorch_residual"] = residual_type(self.torch, self.model, self.batch)
        self.save()
        try:
            self.result["attention_ms"] = attention_alone(self.torch, self.result["sequences"], self.arguments.seq)
        except Exception as error:  # a backend that this version lacks
            self.note("PyTorch's attention alone", error)
        self.save()


def attention_alone(torch, sequences, length):
    """Milliseconds of causal attention, forward and backward, of one layer by each of PyTorch's fast backends."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = (sequences, HEADS, length, CHANNELS // HEADS)
    q, k, v, slope = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    for operand in (q, k, v):
        operand.requires_grad_()
    found = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        times = []
        with sdpa_kernel([backend]):
            for _ in range(8):
                q.grad = k.grad = v.grad = None
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
                marks[0].record()
                out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                marks[1].record()
                out.backward(slope)
                marks[2].record()
                torch.cuda.synchronize()
                times.append([marks[i].elapsed_time(marks[i + 1]) for i in range(2)])
        found[name] = [round(statistics.median(column), 4) for column in zip(*times[3:])]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipesim", help="the program to compare with")
    parser.add_argument("--sequences", default="32", help="sequences per micro-batch, sizes separated by commas")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches a step")
    parser.add_argument("--seq", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each program in each round")
    parser.add_argument("--seconds", type=float, default=140.0, help="no further size or round begins after so long")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--output", default="throughput.json", help="where the JSON goes")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    try:
        import torch
    except ImportError as error:
        print(f"expected PyTorch, found none ({error}); install torch with CUDA", file=sys.stderr)
        return 5
    if not torch.cuda.is_available():
        print(f"expected a GPU that PyTorch can use, found none (torch {torch.__version__})", file=sys.stderr)
        return 5
    sizes = [int(size) for size in arguments.sequences.split(",")]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = build(torch, arguments.seq)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)
    generator = random.Random(0)
    ids = [generator.randrange(VOCABULARY) for _ in range(max(sizes) * arguments.micro * arguments.seq + 1)]
    report = {
        "schema_version": 1,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": f"GPT-2 of {LAYERS} blocks, {HEADS} heads, {CHANNELS} channels, vocabulary {VOCABULARY}",
        "seq": arguments.seq,
        "pytorch_precision": "parameters, gradients, moments float32; bfloat16 autocast; fused AdamW; "
        f"vocabulary padded to {PADDED_VOCABULARY}",
        "pipesim_precision": "parameters, gradients, moments float32; activations bfloat16",
        "sizes": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        tokens_file = os.path.join(folder, "tokens.bin")
        write_tokens(tokens_file, ids)
        slowest = 0.0

        def is_late():
            return time.perf_counter() - begun > arguments.seconds

        def save():
            with open(f"{arguments.output}.new", "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)
            os.replace(f"{arguments.output}.new", arguments.output)

        for sequences in sizes:
            start = time.perf_counter()
            if report["sizes"] and start - begun + slowest > arguments.seconds:
                print(f"micro-batches of {sequences} sequences: left out, no time", flush=True)
                continue
            files = (folder, tokens_file, ids)
            comparison = Comparison(torch, arguments, model, optimizer, sequences, files, save)
            result = comparison.result
            report["sizes"].append(result)
            comparison.rounds("eager", is_late)
            if not arguments.no_compile and not is_late():
                comparison.compile()
                comparison.rounds("compiled", is_late)
            comparison.look()
            slowest = max(slowest, time.perf_counter() - start)
            names = [name for name in ("eager", "compiled", "pipesim") if name in result]
            speeds = ", ".join(f"{name} {result[name]['tokens_per_second']:,.0f}" for name in names)
            print(f"micro-batches of {sequences} x {arguments.seq}: {speeds} tokens/s", flush=True)
            attention = {name: result[f"{name}_attention"] for name in names if f"{name}_attention" in result}
            attention = ", ".join(f"{name} {used}" for name, used in attention.items())
            print(f"  attention: {attention}; residual: PyTorch {result['pytorch_residual']}, pipesim bfloat16", flush=True)
            for note in result["notes"]:
                print(f"  {note}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
