"""Writes families.json: what `transformers` 5.24.0 counts in models of each family, and without each key of their files.

Run it beside models.json with PyTorch and transformers: models are built on PyTorch's meta device. Small models have sizes of our own.
Not counted: routers' correction biases, encoders, two numbers a layer of Apertus' activation, a norm after A.X-K1's mixtures.
"""

import copy
import dataclasses
import json
import os
import re
import sys
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
warnings.filterwarnings("ignore")
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LEFT_OUT = r"vision|visual|multi_modal|mm_proj|patch_|projector|audio|correction_bias|moe_statics|act_fn\.|mlp\.post_mlp_layernorm"
ROUTED = r"\.experts\.|ffn\.experts"
# types of remote code with the layers of another class
SAME = {"mimo": "qwen2", "kimi_k2": "deepseek_v3"}

SIZES = {
    "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 96, "ffn_dim": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": False, "num_local_experts": 8, "num_experts": 8, "n_routed_experts": 8,
    "moe_num_experts": 8, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "moe_intermediate_size": 40, "n_shared_experts": 1,
    "num_shared_experts": 1, "moe_num_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 20, "shared_intermediate_size": 56, "shared_expert_intermediate_size": 56, "intermediate_size_mlp": 72,
    "first_k_dense_replace": 2, "n_group": 2, "topk_group": 2, "sliding_window": 64, "n_embd": 128, "n_head": 8, "n_layer": 4, "n_inner": 96,
    "n_positions": 64, "interleave_moe_layer_step": 2, "attention_bias": True, "mlp_bias": True, "use_bias": True, "qkv_bias": True,
    "use_qkv_bias": True, "attention_out_bias": True, "lm_head_bias": True, "enable_bias": False, "word_embed_proj_dim": 128,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3,
    "mamba_num_heads": 6, "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 14, "conv_kernel": 3, "moe_shared_expert_intermediate_size": 56,
    "moe_latent_size": 36, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 14, "mamba_d_conv": 3,
    "mamba_proj_bias": True, "mamba_rms_norm": True, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
    "expert_layer_offset": 1, "mamba_dt_rank": 6, "conv_L_cache": 4, "num_dense_layers": 1, "block_multiple_of": 16, "index_topk": 32,
    "index_head_dim": 20, "index_n_heads": 3, "dense_intermediate_size": 88, "attention_k_eq_v": True, "enable_moe_block": True,
    "top_k_experts": 2, "hidden_size_per_layer_input": 0, "use_qk_norm": True, "norm_topk_prob": True, "max_position_embeddings": 2048, "moe_layer_start_index": 2, "use_post_norm": True,
}
TYPES = """llama mistral ministral ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe deepseek_v2 deepseek_v3 gpt_oss gemma gemma2 gemma3_text
llama4_text phi3 smollm3 olmo2 olmo3 exaone exaone4 olmoe flex_olmo glm glm4 glm4_moe glm4_moe_lite minimax_m2 gpt_neox opt gpt2 seed_oss
internlm3 ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe granite granitemoe granitemoeshared starcoder2 phimoe cohere cohere2 dots1 phi
stablelm nemotron arcee jais2 apertus vaultgemma mistral4 minicpm3 youtu axk1 sarvam_moe sarvam_mla solar_open exaone_moe hy_v3 iquestcoder
qwen3_vl_text qwen3_vl_moe_text qwen2_vl_text qwen2_5_vl_text glm4v_text glm4v_moe_text
mellum cohere2_moe hyperclovax
qwen3_next qwen3_5_text qwen3_5_moe_text kimi_linear nemotron_h falcon_h1 bamba granitemoehybrid jamba lfm2 lfm2_moe deepseek_v32 glm_moe_dsa
minimax_m3_vl_text mimo_v2_flash gemma4_text""".split()
# no field of some classes, and keys of their published files
EXTRA = {
    "nemotron_h": {"hybrid_override_pattern": "M-ME*EM"},
    "bamba": {"attn_layer_indices": [2]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"]},
    "falcon_h1": {"mamba_d_ssm": 64, "projectors_bias": True},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "glm_moe_dsa": {"index_topk_freq": 2, "index_skip_topk_offset": 1},
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3, 4], "head_dim": 12, "num_heads": 6, "short_conv_kernel_size": 3}},
    "minimax_m3_vl_text": {"moe_layer_freq": [0, 1, 1, 1], "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1, 1], "sparse_num_index_heads": 3, "sparse_index_dim": 20, "sparse_topk_blocks": 2, "sparse_block_size": 16}},
    "gemma4_text": {"global_head_dim": 40, "num_global_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
# some biases are refused
NO_BIAS = ["nemotron_h", "kimi_linear", "deepseek_v32", "glm_moe_dsa", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "mimo_v2_flash", "gemma4_text", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "minicpm3", "youtu", "axk1", "sarvam_mla", "phi3", "internlm3", "hy_v3", "ernie4_5_moe"]
OUTER = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe", "minimax_m3_vl_text": "minimax_m3_vl", "gemma4_text": "gemma4", "qwen3_vl_text": "qwen3_vl", "qwen3_vl_moe_text": "qwen3_vl_moe", "qwen2_vl_text": "qwen2_vl", "qwen2_5_vl_text": "qwen2_5_vl",
         "glm4v_text": "glm4v", "glm4v_moe_text": "glm4v_moe"}


def count(config):
    config = copy.deepcopy(config)
    kind = config.pop("model_type")
    if "text_config" in config and config["text_config"].get("model_type") in SAME:
        config["text_config"]["model_type"] = SAME[config["text_config"]["model_type"]]
    config.pop("vision_config", None)
    for part in [config, config.get("text_config", {})]:
        part.pop("auto_map", None)
    config.pop("quantization_config", None)
    (config.get("text_config") or config).setdefault("pad_token_id", 0)  # by default, some are beyond small vocabularies
    config = CONFIG_MAPPING[SAME.get(kind, kind)].from_dict(config)
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError as why:
            if "Unrecognized" not in str(why):
                raise
            model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    text = config.get_text_config()
    count.full = None
    if getattr(text, "layer_types", None) and (getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)):
        count.full = text.layer_types.count("full_attention")
    total = routed = 0
    for name, parameter in model.named_parameters():
        if not re.search(LEFT_OUT, name):
            total += parameter.numel()
            routed += parameter.numel() if re.search(ROUTED, name) else 0
    if not routed:
        return [total, total]

    def number(names):
        found = next(getattr(text, name) for name in names if isinstance(getattr(text, name, None), (int, list)))
        return found[0] if isinstance(found, list) else found

    experts = number(["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
    chosen = number(["num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"])
    return [total, total - routed + routed * chosen // experts]


def small(kind):
    known = {field.name for field in dataclasses.fields(CONFIG_MAPPING[kind])} | set(CONFIG_MAPPING[kind].attribute_map)
    # one name of each
    known -= {name for name, other in CONFIG_MAPPING[kind].attribute_map.items() if other in known}
    config = {key: value for key, value in SIZES.items() if key in known}
    if "kv_lora_rank" in known:
        config.update(num_key_value_heads=8)
        config.pop("head_dim", None)
    if kind in NO_BIAS:
        config = {key: value for key, value in config.items() if not key.endswith("_bias")}
    config = {"model_type": kind, **config, **EXTRA.get(kind, {})}
    if kind == "nemotron_h":
        config.pop("num_hidden_layers", None)
    return {"model_type": OUTER[kind], "tie_word_embeddings": False, "text_config": config} if kind in OUTER else config


def without(config, keys):
    """Counts without each key, if they differ; null: transformers refuses it."""
    whole, found = count(config), {}
    for path in keys:
        less = copy.deepcopy(config)
        place = less["text_config"] if path.startswith("text_config.") else less
        del place[path.split(".")[-1]]
        try:
            counted = count({"model_type": "", **less})
        except Exception as why:
            counted = None
        if counted != whole:
            found[path] = counted
    return whole, found


def paths(config, of=lambda key, value: True):
    inner = config.get("text_config")
    own = [key for key, value in config.items() if key != "text_config" and of(key, value)]
    return own + [f"text_config.{key}" for key, value in (inner or {}).items() if of(key, value)]


def main():
    found = {"transformers": "5.24.0", "small": {}, "published": {}}
    for kind in TYPES:
        config = small(kind)
        try:
            whole, less = without(config, paths(config))
        except Exception as why:
            print(kind, repr(why)[:200], file=sys.stderr)
            continue
        count(config)
        found["small"][kind] = {"config": config, "counts": whole, "full_layers": count.full, "without": less}
    published = json.load(open(os.path.join(os.path.dirname(__file__), "models.json"))) if "--small" not in sys.argv else {}
    for name, model in published.items():
        # others change no size
        of = lambda key, value: re.search(r"size|dim|head|layer|expert|bias|tie|rank|group|step|moe|norm|type|first|window|state|sparse|conv|expand|index|attn|linear|mamba|interval|eq_v|pattern|width|top_k", key)
        try:
            whole, less = without(model["config"], paths(model["config"], of))
        except Exception as why:
            print(name, repr(why)[:200], file=sys.stderr)
            continue
        print(name, whole == [model["parameters"], model["active_parameters"]], file=sys.stderr)
        found["published"][name] = less
    rows = lambda part: ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found[part].items())
    print(f'{{"transformers": "5.24.0",\n"small": {{\n{rows("small")}\n}},\n"published": {{\n{rows("published")}\n}}}}')


main()
