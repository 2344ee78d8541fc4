"""The work of a training step as both sides of a comparison report it, and the check that it is the same."""

import sys

KEYS = ("blocks", "heads", "channels", "vocabulary", "parameters", "sequence_tokens", "sequences", "flops_per_token")


def torch_work(model, blocks, heads, sequence_tokens, sequences, vocabulary):
    """The work of a step with a GPT-2 in PyTorch, by the tensors that the model has. Its rows of the embedding beyond `vocabulary`
    are padding, which does not count."""
    channels = model.wte.weight.shape[1]
    padding = (model.wte.weight.shape[0] - vocabulary) * channels
    parameters = sum(parameter.numel() for parameter in model.parameters()) - padding
    weights = [module.weight.numel() for module in model.modules() if type(module).__name__ == "Linear"]
    # one product in the forward and two in the backward pass, with each weight and with the embedding as the head's
    products = 6 * (sum(weights) + vocabulary * channels)
    attention = 3 * 4 * blocks * sequence_tokens * channels
    values = (blocks, heads, channels, vocabulary, parameters, sequence_tokens, sequences, products + attention)
    return dict(zip(KEYS, values))


def require_same_work(ours, theirs, keys=KEYS):
    """Ends the program unless both sides say that they did the same: without that no ratio of their times means anything."""
    differ = [f"{key} {ours.get(key)} and {theirs.get(key)}" for key in keys if ours.get(key, -1) != theirs.get(key, -2)]
    if differ:
        print(f"expected the same work on both sides, found {', '.join(differ)}; no ratio is printed", file=sys.stderr)
        sys.exit(1)


def in_words(work):
    """The work in a heading."""
    return (
        f"{work['blocks']} blocks, {work['channels']} channels, {work['heads']} heads, vocabulary {work['vocabulary']}, "
        f"{work['sequences']} x {work['sequence_tokens']} tokens, {work['flops_per_token'] / 1e6:.1f} MFLOP per token"
    )
