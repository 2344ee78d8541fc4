"""Records what the real Megatron-LM's interleaved schedule sends and receives, and whether its step ends. Run by hand; needs PyTorch (CPU),
`packaging` and a checkout, fetches nothing.

    python tests/frameworks/megatron_sends.py --checkout ../Megatron-LM > tests/frameworks/megatron-sends.txt
    python tests/frameworks/megatron_sends.py --checkout ../Megatron-LM --show 4,2,16,8

`forward_backward_pipelining_with_interleaving` runs once per rank, with `overlap_p2p_comm`, the default with virtual stages. Order of all
calls, waits for their handles and choice of communicators are Megatron-LM's own (`schedules.py`, `p2p_communication.py`). Replaced are
`forward_step` and `backward_step`, which record, `torch.distributed.isend`, `irecv`, `get_backend` and `is_initialized`, and what needs a
GPU.

The output has a line per layout: devices p, chunks v, micro-batches m, micro-batches per group n, then `refused` and the type of the error,
or `runs` or `deadlocks` and a hash. The hash is 64-bit FNV-1a of the text that `--show` prints: a line per rank with its ops, as in `4F3`
(stage 4, micro-batch 3), and a line per rank and communicator with its entries in order of posting, as in `4SEND_F3` and `8RECV_F3`.

A step ends if all ranks get through their calls. A send and its receive complete together when both are at the heads of their
communicators' queues; a rank that waits for a handle goes on once that message is complete. Nothing is buffered.
"""

import argparse
import collections
import sys
import typing
from pathlib import Path
from types import SimpleNamespace


class Group:
    """A pipeline's process group, seen from one rank."""

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


class Rank:
    """The calls of one rank, in order: ("op", text, number of the receive that it uses), ("post", queue, entry), ("wait", number)."""

    def __init__(self, rank, p, v):
        self.rank, self.p, self.v = rank, p, v
        self.calls, self.posts = [], []

    def named(self, letter, chunk, micro, uses):
        """Records an op, and returns its output."""
        import torch

        stage = chunk * self.p + self.rank
        self.calls.append(("op", f"{stage}{letter}{micro}", getattr(uses, "post", None)))
        output = torch.empty(0)
        output.made = (letter, stage, micro)
        return output

    def post(self, peer, group, made):
        """Posts a send of what was made, or a receive, and returns its number."""
        # single calls use a communicator per pair of ranks in the group
        queue = (peer, group is None)
        self.posts.append((queue, made))
        self.calls.append(("post", len(self.posts) - 1))
        return len(self.posts) - 1

    def handle(self, number):
        return SimpleNamespace(wait=lambda: self.calls.append(("wait", number)))


class Megatron:
    """Megatron-LM's own schedule."""

    def __init__(self, checkout):
        sys.path.insert(0, str(checkout))
        if not hasattr(typing, "override"):
            typing.override = lambda function: function
        import torch
        from megatron.core.pipeline_parallel import p2p_communication, schedules

        zeros = torch.zeros
        torch.zeros = lambda *shape, **named: zeros(*shape, **{name: named[name] for name in named if name != "device"})
        torch.cuda.current_device = lambda: "cpu"
        torch.distributed.get_backend = lambda _: "nccl"
        torch.distributed.is_initialized = lambda: True
        p2p_communication.dist.get_global_rank = lambda _, rank: rank
        for name in ["get_model_type", "deallocate_output_tensor", "check_first_val_step"]:
            setattr(schedules, name, lambda *_: None)
        self.schedules, self.p2p, self.torch = schedules, p2p_communication, torch

    def record(self, rank, p, v, m, n):
        """Returns the calls of one rank, or raises what Megatron-LM raises."""
        own, torch = Rank(rank, p, v), self.torch

        def isend(tensor, dst, group):
            return own.handle(own.post(dst, group, tensor.made))

        def irecv(tensor, src, group):
            tensor.post = own.post(src, group, None)
            return own.handle(tensor.post)

        def forward_step(*arguments, current_microbatch, vp_stage, **_):
            return own.named("F", vp_stage, current_microbatch, arguments[4]), 1

        def backward_step(_, output, gradient, __):
            _, stage, micro = output.made
            return own.named("B", stage // p, micro, gradient)

        torch.distributed.isend, torch.distributed.irecv = isend, irecv
        self.schedules.forward_step, self.schedules.backward_step = forward_step, backward_step
        models = [torch.nn.Module() for _ in range(v)]
        for model in models:
            model.config = configuration(v, n, torch.float)
        one = Group(0, 1)
        self.schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=None,
            data_iterator=[None] * v,
            model=models,
            num_microbatches=m,
            seq_length=1,
            micro_batch_size=1,
            p2p_communicator=self.p2p.P2PCommunicator(Group(rank, p), models[0].config),
            pg_collection=SimpleNamespace(tp=one, cp=one),
        )
        return own

    def judge(self, p, v, m, n):
        """Returns verdict and text of a layout."""
        try:
            ranks = [self.record(rank, p, v, m, n) for rank in range(p)]
        except (ValueError, RuntimeError, AssertionError) as error:
            return f"refused {type(error).__name__}", str(error)
        text = described(ranks)
        return f"{'runs' if ends(ranks) else 'deadlocks'} {fnv(text):016x}", text


def configuration(v, n, dtype):
    """Returns the part of Megatron-LM's configuration that the schedule reads."""
    absent = ["param_sync_func", "grad_sync_func", "finalize_model_grads_func", "timers", "no_sync_func"]
    absent += ["num_microbatches_with_partial_activation_checkpoints"]
    off = ["overlap_moe_expert_parallel_comm", "overlap_p2p_comm_warmup_flush", "batch_p2p_comm", "batch_p2p_sync", "sequence_parallel"]
    off += ["variable_seq_lengths", "mtp_standalone", "use_ring_exchange_p2p"]
    return SimpleNamespace(
        **dict.fromkeys(absent),
        **dict.fromkeys(off, False),
        overlap_p2p_comm=True,
        deallocate_pipeline_outputs=True,
        pipeline_dtype=dtype,
        hidden_size=1,
        microbatch_group_size_per_vp_stage=n,
        virtual_pipeline_model_parallel_size=v,
    )


def messages(ranks):
    """Returns what each post of each rank transfers: a rank's receives are its peer's sends on the same communicator, in order."""
    sent = collections.defaultdict(collections.deque)
    for own in ranks:
        for (peer, world), made in own.posts:
            if made:
                sent[own.rank, peer, world].append(made)
    return [[made or sent[queue[0], own.rank, queue[1]].popleft() for queue, made in own.posts] for own in ranks]


def described(ranks):
    """Returns the text of a layout, and checks that every op uses the message that it is meant for."""
    lines, transferred = [], messages(ranks)
    last = ranks[0].p * ranks[0].v - 1
    for own, moved in zip(ranks, transferred):
        ops = [call for call in own.calls if call[0] == "op"]
        lines.append(f"{own.rank}: " + " ".join(text for _, text, _ in ops))
        for _, text, post in ops:
            letter = "F" if "F" in text else "B"
            stage, micro = map(int, text.split(letter))
            before = stage - 1 if letter == "F" else stage + 1
            expected = (letter, before, micro) if 0 <= before <= last else None
            found = None if post is None else moved[post]
            assert found == expected, f"{text} on rank {own.rank} uses {found}"
        queues = collections.defaultdict(list)
        for (queue, made), (letter, stage, micro) in zip(own.posts, moved):
            onward = 1 if letter == "F" else -1
            side = f"{stage}SEND_" if made else f"{stage + onward}RECV_"
            # two ranks: one communicator per direction
            holds = "both" if len(ranks) > 2 else "sends" if made else "receives"
            queues[queue[0], holds].append(f"{side}{letter}{micro}")
        lines += [f"{own.rank} {peer} {holds}: {' '.join(entries)}" for (peer, holds), entries in sorted(queues.items())]
    return "\n".join(lines) + "\n"


def ends(ranks):
    """Returns whether all ranks get through their calls."""
    transferred = messages(ranks)
    queues, complete = collections.defaultdict(collections.deque), set()
    at = [0] * len(ranks)
    moved = True
    while moved:
        moved = False
        for own in ranks:
            rank = own.rank
            while at[rank] < len(own.calls):
                call = own.calls[at[rank]]
                if call[0] == "wait" and (rank, call[1]) not in complete:
                    break
                if call[0] == "post":
                    peer, world = own.posts[call[1]][0]
                    queues[rank, peer, world].append(call[1])
                at[rank] += 1
                moved = True
        for (rank, peer, world), queue in list(queues.items()):
            other = queues[peer, rank, world]
            while queue and other:
                one, two = queue[0], other[0]
                opposite = bool(ranks[rank].posts[one][1]) != bool(ranks[peer].posts[two][1])
                if not opposite or transferred[rank][one] != transferred[peer][two]:
                    break
                complete |= {(rank, queue.popleft()), (peer, other.popleft())}
                moved = True
    return all(place == len(own.calls) for place, own in zip(at, ranks))


def fnv(text):
    """Returns the 64-bit FNV-1a hash of a text."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    return value


def main():
    """Prints the table, or one text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder of Megatron-LM's sources")
    parser.add_argument("--show", metavar="P,V,M,N", help="print one layout's verdict and text")
    options = parser.parse_args()
    megatron = Megatron(options.checkout.resolve())
    if options.show:
        verdict, text = megatron.judge(*map(int, options.show.split(",")))
        return print(verdict + "\n" + text)
    for p in range(2, 7):
        for v in range(2, 5):
            for m in range(1, 25):
                for n in range(p, 2 * p + 1):
                    print(p, v, m, n, megatron.judge(p, v, m, n)[0], flush=True)


if __name__ == "__main__":
    main()
