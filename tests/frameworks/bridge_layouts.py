"""Layouts at the edges of Megatron-Bridge's rules."""

from tables import layout

PARTS = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]


def edges(random):
    """Returns layouts: some that hold, and some just beyond a rule."""
    pick = random.choice
    found = []
    for p, v in [(2, 2), (4, 2), (4, 3), (3, 2), (6, 2)]:
        for m in sorted({1, p - 1, p, p + 1, 2 * p - 1, 2 * p, 2 * p + 1, 3 * p - 1}):
            found.append(layout(random, p, v, m, pick([1, 2]), pick([1, 2]), 2048))
        for group in [p - 1, p, p + 1, 2 * p]:
            found.append(layout(random, p, v, pick([2, 3, 4]) * p + pick([0, 1]), 1, 1, 2048, group=group))
    for _ in range(6):
        found.append(layout(random, 1, 2, 4, 1, pick([1, 2]), 2048))
        found.append(layout(random, pick([2, 4]), 1, pick([1, 2, 3, 8]), 1, 2, 2048))
    for _ in range(24):
        p, v = pick([2, 4, 8]), pick([1, 2])
        layers = p * v * 2 + pick([-2, -1, 0, 1, 2])
        found.append(layout(random, p, v, 2 * p, 1, 1, 2048, layers=layers, uneven=pick([True, False]), prediction_layers=pick([0, 0, 1])))
    for _ in range(28):
        found.append(layout(random, pick([1, 2]), 1, 4, 1, pick([1, 2]), 2048, tp=pick([2, 3, 4, 5, 6, 8])))
    for _ in range(24):
        cp, tp = pick([1, 2, 4, 8]), pick([2, 4, 8])
        seq = cp * tp * 256 + pick([0, 0, 1, cp, 2 * cp, tp])
        found.append(layout(random, 1, 1, 4, pick([1, 2]), 1, seq, tp=tp, cp=cp, sequence_parallel=True))
        found.append(layout(random, 1, 1, 4, pick([1, 2]), 1, seq, cp=cp))
    for _ in range(36):
        p, tp, etp = pick([1, 2]), pick([1, 2, 4]), pick([1, 1, 2, 4, 8])
        found.append(layout(random, p, 1, 4, 1, pick([1, 2, 4, 8]), 2048, tp=tp, ep=pick([1, 2, 3, 4, 6, 8]), etp=etp,
                            experts=pick([8, 12, 60, 64]), dispatcher=pick(["alltoall", "deepep", "hybridep"])))
    found += [layout(random, 1, 1, 4, 1, 4, 2048, ep=2), layout(random, 1, 1, 4, 1, 4, 2048, tp=2, ep=4)]
    for _ in range(30):
        parts = random.sample(PARTS, pick([1, 1, 2, 3]))
        found.append(layout(random, pick([1, 2]), 1, 4, 1, 4, 2048, experts=pick([0, 8]), mla=pick([True, False]), recompute="parts",
                            recompute_modules=sorted(parts, key=PARTS.index), precision=pick(["bf16", "fp8", "mxfp8"])))
    for recompute in ["selective", "full"]:
        for precision in ["bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"]:
            found.append(layout(random, 2, pick([1, 2]), 4, 1, 2, 2048, recompute=recompute, precision=precision))
    for _ in range(36):
        p, v = pick([(1, 1), (2, 1), (2, 2), (4, 2)])
        recompute = pick(["none", "none", "selective", "full", "parts"])
        modules = random.sample(["layernorm", "moe", "moe_act"], 1) if recompute == "parts" else []
        found.append(layout(random, p, v, 2 * p, 1, 4, 2048, ep=pick([1, 4]), experts=8, prediction_layers=pick([0, 0, 1, 2]),
                            recompute=recompute, recompute_modules=modules, moe_overlap=pick([True, True, False]),
                            delay_wgrad=pick([True, False]), precision=pick(["bf16", "bf16", "fp16", "fp32"]),
                            cuda_graph=pick(["none", "none", "partial"]), dispatcher=pick(["alltoall", "hybridep"])))
    for _ in range(14):
        found.append(layout(random, pick([1, 2]), 1, 4, 1, 4, 2048, experts=pick([0, 8]), cuda_graph=pick(["partial", "full"]),
                            recompute=pick(["none", "full", "selective"])))
        found.append(layout(random, 1, 1, 4, 1, 4, 2048, experts=pick([0, 8]), cuda_graph="partial", recompute="parts",
                            recompute_modules=pick([["moe"], ["layernorm"]])))
    for architecture, hardware in [("blackwell", "b200-sxm"), ("blackwell", "gb200-nvl72"), ("ampere", "a100-sxm"), ("hopper", "h100-sxm")]:
        for dispatcher in ["deepep", "hybridep"]:
            found.append(layout(random, 1, 1, 4, 1, 8, 2048, ep=4, experts=8, dispatcher=dispatcher, architecture=architecture,
                                hardware=hardware))
    for tp, heads, kv_heads in [(4, 24, 6), (6, 24, 8), (6, 48, 8), (3, 24, 8), (8, 32, 4), (2, 12, 3)]:
        found.append(layout(random, 1, 1, 4, 1, 1, 2048, tp=tp, heads=heads, kv_heads=kv_heads, head_dim=128, hidden=1024, ffn=tp * 512))
    for etp, width in [(8, 1492), (8, 1496), (4, 1490), (2, 1491)]:
        found.append(layout(random, 1, 1, 4, 1, etp, 2048, experts=8, etp=etp, moe_ffn=width))
    for ep, experts in [(3, 8), (6, 8), (8, 12), (4, 6), (6, 12)]:
        found.append(layout(random, 1, 1, 4, 1, ep, 2048, experts=experts, ep=ep))
    for part in ["moe", "layernorm", "mlp"]:
        for precision in ["bf16", "fp32"]:
            found.append(layout(random, 2, 2, 4, 1, 4, 2048, experts=8, ep=4, moe_overlap=True, recompute="parts", recompute_modules=[part],
                                precision=precision))
    found += [layout(random, p, 1, 4, 1, 1, 2048, sequence_parallel=True) for p in [1, 2]]
    for _ in range(8):
        own = layout(random, 2, 1, 4, 2, 2, 2048)
        own["batch"] += pick([0, 1, 2, 4])
        own["m"] = own["batch"] // (own["b"] * own["dp"])
        found.append(own)
    return found
