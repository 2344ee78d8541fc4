"""What Megatron-LM needs besides its own sources, replaced so that its checks run on a machine without GPUs.

Megatron-LM's own code is never changed, only what it asks of the machine and of other packages:

- `typing.override` of Python before 3.12.
- the version of Transformer Engine (`get_te_version`), and its fused rotary embedding and permutations, which are only tested for being there.
- Apex's fused gradient accumulation, which is only tested for being there.
- DeepEP and HybridEP (`fused_dispatch`, `hybrid_ep_dispatch`), which are only tested for being there.
- Packages that only the zero-bubble fork imports: see `IMPORTED_BY_FORK`.
- CUDA: device properties (the major version is the architecture asked for), the current device, and tensors made on `cuda`, which are made on the CPU.
- NCCL: process groups are PyTorch's `fake` ones, so one process is rank 0 of a world of any size.
"""

from __future__ import annotations

import logging
import os
import sys
import types
import typing
import warnings
from pathlib import Path

MAJOR = {"": 9, "ampere": 8, "ada": 8, "hopper": 9, "blackwell": 10}
"""CUDA's major version of each architecture; Hopper where none is given."""

TRANSFORMER_ENGINE = "2.17.0"
"""Version of Transformer Engine that is pretended to be installed."""

IMPORTED_BY_FORK = ["six", "pynvml", "flash_attn", "flash_attn.flash_attn_interface", "apex", "apex.optimizers"]
"""Packages that the zero-bubble fork imports, and whose code its checks do not run."""


def is_fork(checkout: Path) -> bool:
    """Returns whether the sources are those of the zero-bubble fork."""
    return (checkout / "megatron/core/zbpp_utils.py").exists()


class Machine:
    """The GPU that Megatron-LM is told it runs on."""

    major = 9

    @classmethod
    def set(cls, architecture: str) -> None:
        """Sets the architecture of the GPU."""
        cls.major = MAJOR[architecture]


class Missing(types.ModuleType):
    """A package that is imported and not used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return present


def present(*_: object, **__: object) -> None:
    """Stands for a function of a package that is only tested for being there."""


def on_cpu(function):
    """Returns a function that makes tensors on the CPU where it is told `cuda`."""

    def call(*arguments, **named):
        if str(named.get("device", "")).startswith("cuda"):
            named["device"] = "cpu"
        return function(*arguments, **named)

    return call


def before_import(checkout: Path) -> None:
    """Prepares the import of Megatron-LM from `checkout`."""
    os.environ["NO_VCS_VERSION"] = "1"
    os.environ["RANK"] = "0"
    if not hasattr(typing, "override"):
        typing.override = lambda function: function
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # this folder has a file named as Megatron-LM's package
    sys.path[:] = [str(checkout), *(folder for folder in sys.path if Path(folder).resolve() != Path(__file__).parent)]
    import torch

    for name in IMPORTED_BY_FORK if is_fork(checkout) else []:
        sys.modules.setdefault(name, Missing(name))
    properties = lambda *_: types.SimpleNamespace(major=Machine.major, minor=0, multi_processor_count=132)
    torch.cuda.get_device_properties = properties
    torch.cuda.get_device_capability = lambda *_: (Machine.major, 0)
    torch.cuda.current_device = lambda: "cpu"
    torch.zeros = on_cpu(torch.zeros)
    torch.tensor = on_cpu(torch.tensor)


def after_import() -> None:
    """Replaces what the imported modules test for, in every module that imported it by name."""
    from packaging.version import Version

    version = Version(TRANSFORMER_ENGINE)
    replaced = {"get_te_version": lambda: version, "_grad_accum_fusion_available": True}
    if "megatron.core" in sys.modules:
        for name in [
            "fused_apply_rotary_pos_emb",
            "fused_apply_rotary_pos_emb_thd",
            "fused_permute",
            "fused_permute_with_probs",
            "fused_sort_chunks_by_index",
            "fused_sort_chunks_by_index_with_probs",
            "fused_unpermute",
            "fused_dispatch",
            "hybrid_ep_dispatch",
            "set_deepep_num_sms",
        ]:
            replaced[name] = present
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron."):
            for attribute, value in replaced.items():
                if hasattr(module, attribute):
                    setattr(module, attribute, value)


def start_world(size: int) -> None:
    """Makes this process rank 0 of `size` ranks that do not exist."""
    import torch.distributed as distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
