"""Layouts at the edges of nanotron's rules."""

from tables import layout


def built(facts):
    """Returns the layers per stage that nanotron builds: blocks are dealt by cost, with the head's."""
    hidden, tp, p = facts["hidden"], facts["tp"], facts["p"]
    each = 4 * facts["heads"] * (hidden // facts["heads"]) * hidden + 3 * facts["ffn"] * hidden
    thresholds = [(each * facts["layers"] + -(-facts["vocab"] // tp) * tp * hidden) * (rank + 1) / p for rank in range(p)]
    found, rank = [0] * p, 0
    for number in range(facts["layers"]):
        found[rank] += 1
        rank += each * (number + 1) > thresholds[rank]
    return found


def edges(random):
    """Returns layouts: some that hold, and some just beyond a rule."""
    pick = random.choice
    found = []
    for p in [1, 2, 3, 4, 8]:
        for m in sorted({1, max(1, p - 2), max(1, p - 1), p, p + 1, 2 * p}):
            for schedule in ["1f1b", "gpipe"]:
                found.append(layout(random, p, 1, m, pick([1, 2]), pick([1, 2]), 2048, layers=4 * p, schedule="" if p == 1 else schedule))
    for _ in range(40):
        found.append(layout(random, pick([1, 2]), 1, 4, 1, pick([1, 2]), pick([2048, 2050, 2052, 2047]), layers=8,
                            tp=pick([2, 3, 4, 5, 6, 8]), sequence_parallel=pick([True, False]), recompute=pick(["none", "full"])))
    for tp, heads, kv_heads, ffn in [(4, 24, 6, 2048), (2, 12, 3, 2048), (4, 16, 2, 2048), (8, 16, 4, 2048), (4, 16, 8, 2050),
                                     (8, 16, 16, 2052), (3, 24, 3, 2050), (6, 24, 6, 2052), (4, 24, 4, 2054)]:
        found.append(layout(random, 1, 1, 2, 1, 1, 2048, layers=2, tp=tp, heads=heads, kv_heads=kv_heads, ffn=ffn, hidden=heads * 64))
    for _ in range(10):
        found.append(layout(random, 1, 1, 4, 1, pick([1, 2]), 2048, cp=pick([1, 2, 4]), layers=2))
        found.append(layout(random, 1, 1, 4, 1, 4, 2048, ep=pick([1, 2, 4]), layers=2))
        found.append(layout(random, pick([1, 2]), 1, 4, 1, pick([2, 4]), 2048, layers=4, zero=pick([0, 1, 2, 3])))
    for _ in range(24):
        found.append(layout(random, pick([2, 3, 4, 8]), 1, 8, 1, 1, 2048, layers=pick([8, 12, 16, 22, 32])))
    for facts in found:
        if random.random() < 0.7:
            facts["stage_layers"] = built(facts)
    return found
