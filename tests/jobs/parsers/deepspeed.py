"""Writes configurations of DeepSpeed with what DeepSpeedConfig reads, as Reading in src/jobs has it.

    python tests/jobs/parsers/deepspeed.py --checkout DIR --seed 1 > rows.jsonl

DIR is a checkout of deepspeedai/DeepSpeed. Needed: PyTorch and DeepSpeed's requirements; no GPU. Real: DeepSpeedConfig with its batch
sizes. Stubs: as tests/frameworks/deepspeed.py; the number of GPUs is given to it as `mpu`.
"""

import argparse
import json
import os
import random
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != here]
sys.path.insert(0, str(here.parents[1] / "frameworks"))
import stubs  # noqa: E402

sys.path.pop(0)


class World:
    """Stands for the process group of data parallelism."""

    def __init__(self, size):
        self.get_data_parallel_world_size = lambda: size


def job(generator):
    """Writes a configuration."""
    pick, micro, passes, world = generator.choice, generator.choice([1, 2, 4]), generator.choice([1, 2, 8]), generator.choice([8, 64])
    given = {"train_batch_size": micro * passes * world, "train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": passes}
    for name in generator.sample(sorted(given), generator.choice([0, 1])):
        del given[name]
    if pick([True, False]):
        given["zero_optimization"] = {"stage": pick([0, 1, 2, 3]), "overlap_comm": True, "contiguous_gradients": True}
    name = pick(["bf16", "fp16", None])
    if name:
        given[name] = {"enabled": pick([True, True, False])}
    given["gradient_clipping"] = 1.0
    return given, world


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkout", required=True)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    sys.path.insert(0, given.checkout)
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
    stubs.install({"apex": "0.1", "amp_C": "0.1"})
    from deepspeed.runtime import config as reader

    reader.dist.get_rank = lambda: 0

    generator = random.Random(given.seed)
    for _ in range(14):
        text, world = job(generator)
        config = reader.DeepSpeedConfig(dict(text), mpu=World(world))
        is_bf16, is_fp16 = config.bfloat16_config.enabled, config.float16_config.enabled
        read = {"world": world, "dp": world, "micro_batch": config.train_micro_batch_size_per_gpu, "global_batch": config.train_batch_size,
                "num_microbatches": config.gradient_accumulation_steps, "zero": int(config.zero_optimization_stage),
                "precision": "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32", "layers": None, "tp": 1, "pp": 1}
        print(json.dumps({"form": "deepspeed", "name": "ds.json", "text": json.dumps(text, indent=2), "arguments": [], "gpus": world, "reading": read}))


main()
