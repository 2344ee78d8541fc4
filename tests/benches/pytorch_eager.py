#!/usr/bin/env python3
"""One training step of the same GPT-2 in plain eager PyTorch: one thread, float32, micro-batches with accumulated gradients.

Prints one JSON line: the work of a step (see same_work.py); the median step in milliseconds and tokens per second, forward,
backward and AdamW included; the least processor time of a step, without what other programs took; and the rate of the best large
product.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from same_work import torch_work
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.attention_projection = nn.Linear(channels, channels)
        self.ln2 = nn.LayerNorm(channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.fc_projection = nn.Linear(4 * channels, channels)

    def forward(self, x):
        batch, tokens, channels = x.shape
        heads = (batch, tokens, self.heads, channels // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(channels, dim=2))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_projection(attention.transpose(1, 2).reshape(batch, tokens, channels))
        return x + self.fc_projection(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, channels, vocabulary, tokens):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, channels)
        self.wpe = nn.Embedding(tokens, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.lnf = nn.LayerNorm(channels)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                projection = "projection" in name
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if projection else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def product_gflops():
    """Rate of the best product of square matrices in GFLOP/s."""
    rates = []
    for side in (512, 1024):
        a, b = torch.randn(side, side), torch.randn(side, side)
        out = torch.empty(side, side)
        for _ in range(16 * 1024 // side):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            rates.append(2 * side**3 / (time.perf_counter() - start) / 1e9)
    return max(rates)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("blocks", "heads", "channels", "vocabulary", "seq", "batch", "micro", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT2(arguments.blocks, arguments.heads, arguments.channels, arguments.vocabulary, arguments.seq)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    if arguments.batch % arguments.micro != 0:
        parser.error(f"expected --batch to be a multiple of --micro {arguments.micro}, found {arguments.batch}; choose another")
    shape = (arguments.micro, arguments.batch // arguments.micro, arguments.seq + 1)
    tokens = torch.randint(arguments.vocabulary, shape)

    def step():
        optimizer.zero_grad()
        for microbatch in tokens:
            loss = model(microbatch[:, :-1], microbatch[:, 1:]) / arguments.micro
            loss.backward()
        optimizer.step()

    for _ in range(2):
        step()
    times, processor = [], []
    for _ in range(arguments.steps):
        start, start_processor = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    median = statistics.median(times)
    sequences, length = tokens.shape[0] * tokens.shape[1], tokens.shape[2] - 1
    work = torch_work(model, len(model.blocks), model.blocks[0].heads, length, sequences, arguments.vocabulary)
    print(
        json.dumps(
            {
                "program": f"pytorch {torch.__version__}",
                "work": work,
                "step_ms": round(median * 1e3, 3),
                "best_step_ms": round(min(times) * 1e3, 3),
                "cpu_ms": round(min(processor) * 1e3, 3),
                "product_gflops": round(product_gflops(), 2),
                "tokens_per_second": round(sequences * length / median, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
