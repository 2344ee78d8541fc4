"""Layouts at the edges of DeepSpeed's and Megatron-DeepSpeed's rules."""

from tables import layout, split


def edges(random, has_arguments):
    """Returns layouts: some that hold, and some just beyond a rule. `has_arguments`: for Megatron-DeepSpeed."""
    pick = random.choice
    found = []
    for zero in range(4):
        for p in [1, 2, 4]:
            for precision in ["bf16", "fp16", "fp32"]:
                found.append(layout(random, p, 1, pick([1, 2, p]), pick([1, 2]), pick([1, 2]), 2048, zero=zero, precision=precision))
    for _ in range(16):
        p = pick([2, 3, 4, 5, 8])
        layers = p * pick([1, 2, 3]) + pick([0, 1, p - 1, p // 2])
        own = layout(random, p, 1, pick([1, p, 2 * p]), 1, pick([1, 2]), 2048, layers=layers)
        if pick([True, False]):
            own["stage_layers"] = sorted(split(layers, p), reverse=True)
        found.append(own)
    for _ in range(16):
        own = layout(random, pick([1, 2]), 1, pick([1, 2, 4]), pick([1, 2]), pick([1, 2, 4]), 2048)
        own["batch"] += pick([0, 1, own["b"], own["dp"]])
        own["m"] = own["batch"] // (own["b"] * own["dp"]) if has_arguments else own["m"]
        found.append(own)
    for _ in range(12):
        found.append(layout(random, 1, 1, pick([1, 2, 4]), 1, pick([1, 2, 4]), 2048, tp=pick([1, 2, 4])))
        found.append(layout(random, pick([2, 4]), 1, pick([2, 4]), 1, pick([1, 2]), 2048, tp=pick([2, 4]),
                            recompute=pick(["none", "full"]), zero=pick([0, 1, 2])))
        found.append(layout(random, 1, 1, pick([1, 2, 4]), 1, pick([1, 2]), 2048, tp=2, zero=pick([0, 1, 2, 3]), heads=16, kv_heads=4, ffn=4096))
    if has_arguments:
        for _ in range(30):
            found.append(layout(random, pick([1, 2]), 1, 2, 1, pick([1, 2]), pick([2048, 2050, 2052]), tp=pick([2, 3, 4, 5, 6, 8]),
                                sequence_parallel=pick([True, False]), recompute=pick(["none", "full", "selective"])))
        for tp, heads, kv_heads, ffn in [(4, 24, 6, 2048), (2, 12, 3, 2048), (4, 16, 8, 2050), (8, 16, 16, 2052), (3, 24, 3, 2050),
                                         (5, 16, 8, 2560)]:
            found.append(layout(random, 1, 1, 2, 1, 1, 2048, tp=tp, heads=heads, kv_heads=kv_heads, ffn=ffn,
                                hidden=heads * 64))
        found.append(layout(random, 2, 1, 2, 1, 1, 2048, sequence_parallel=True, layers=4))
        for tp, seq in [(2, 2049), (4, 2050), (8, 2052)]:
            found.append(layout(random, 1, 1, 2, 1, 1, seq, tp=tp, heads=32, kv_heads=8, ffn=4096, hidden=2048, sequence_parallel=True))
        for _ in range(10):
            found.append(layout(random, pick([2, 4]), 1, 8, 1, 1, 2048, tp=2, kv_heads=4, schedule="zb-h1",
                                sequence_parallel=pick([True, False]), layers=8, heads=16, ffn=4096))
    return found
