"""Options of jobs at the edges of Megatron-LM's parser and validation; written for this table."""

from __future__ import annotations

BASE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --max-position-embeddings 4096 --seq-length 2048 --micro-batch-size 2 --bf16"
MIXTURE = "--num-experts 16 --swiglu --ffn-hidden-size 2816 --disable-bias-linear --normalization RMSNorm --moe-grouped-gemm"
LATENT = "--multi-latent-attention --position-embedding-type rope --disable-bias-linear --normalization RMSNorm"

EDGES = [
    # sizes
    "", "--swiglu", "--swiglu --hidden-size 1000 --num-attention-heads 8", "--ffn-hidden-size 3000", "--quick-geglu", "--squared-relu",
    "--group-query-attention", "--group-query-attention --num-query-groups 4", "--num-query-groups 4", "--untie-embeddings-and-output-weights",
    "--vocab-size 50257", "--vocab-size 32000 --make-vocab-size-divisible-by 1024", "--kv-channels 128", "--num-layers 12 --num-layers 36",
    "--fp16", "--fp32-residual-connection", "--position-embedding-type rope --mtp-num-layers 1", "--position-embedding-type rope --mtp-num-layers 2 --untie-embeddings-and-output-weights",
    "--position-embedding-type rope --mtp-num-layers 0", "--use-rotary-position-embeddings", "--position-embedding-type none", "--no-position-embedding",
    # layout
    "--tensor-model-parallel-size 4", "--tensor-model-parallel-size 4 --sequence-parallel", "--sequence-parallel",
    "--pipeline-model-parallel-size 4", "--context-parallel-size 4", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --context-parallel-size 2",
    "--pipeline-model-parallel-size 5", "--tensor-model-parallel-size 3",
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1", "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 6",
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2", "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3",
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 1", "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication",
    "--pipeline-model-parallel-size 1 --num-virtual-stages-per-pipeline-rank 2", "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 4",
    "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 10", "--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 10",
    "--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 6 --num-virtual-stages-per-pipeline-rank 2",
    "--pipeline-model-parallel-size 4 --num-layers 22 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-size 4 --num-layers 22 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 3",
    "--pipeline-model-parallel-size 4 --num-layers 23 --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 2",
    "--pipeline-model-parallel-size 4 --num-layers 23 --account-for-embedding-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2",
    "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et*6|t*6|t*6|t*6L", "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ett|(tttt|)*2t*6|(tt|)*4L --num-layers 24",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*5|(t*6|)*2t*7L", "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t*12|t*12|L",
    "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ettt|(ttt|)*6tttL", "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Ettt,|(ttt|)*6,tttL",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*8|t*8|t*8L", "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|*2t*12|t*12L",
    "--pipeline-model-parallel-size 4 --num-layers 26", "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 4",
    # batch
    "--global-batch-size 64", "--global-batch-size 24", "--global-batch-size 7", "--micro-batch-size 1", "--micro-batch-size 4 --global-batch-size 256 --tensor-model-parallel-size 2", "--rampup-batch-size 16 16 5000 --global-batch-size 64",
    # recomputation
    "--recompute-activations", "--recompute-granularity selective", "--recompute-granularity selective --recompute-modules mlp core_attn", "--recompute-granularity selective --recompute-modules layernorm",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "--recompute-granularity full --recompute-method block --recompute-num-layers 6", "--recompute-granularity full --recompute-method uniform",
    "--recompute-method uniform --recompute-num-layers 2", "--recompute-granularity full", "--recompute-granularity selective --recompute-modules core_attn core_attn",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --distribute-saved-activations --tensor-model-parallel-size 2", "--recompute-modules mlp",
    # precision
    "--fp8-format hybrid", "--fp8-format e4m3 --fp8-recipe tensorwise", "--fp8-format e4m3 --fp8-recipe mxfp8", "--fp8-format hybrid --fp8-recipe blockwise", "--fp8-recipe blockwise",
    "--fp4-format e2m1", "--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer", "--fp4-format e2m1 --fp8-format hybrid",
    # optimizer
    "--use-distributed-optimizer", "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", "--overlap-param-gather", "--optimizer sgd --use-distributed-optimizer",
    "--optimizer muon --use-distributed-optimizer", "--optimizer dist_muon", "--freeze-all-layers --use-distributed-optimizer",
    "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --use-distributed-optimizer",
    # mixtures
    f"{MIXTURE}", f"{MIXTURE} --moe-router-topk 4", f"{MIXTURE} --moe-ffn-hidden-size 704", f"{MIXTURE} --expert-model-parallel-size 4", f"{MIXTURE} --expert-model-parallel-size 3",
    f"{MIXTURE} --tensor-model-parallel-size 2 --sequence-parallel", f"{MIXTURE} --tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1 --expert-model-parallel-size 8",
    f"{MIXTURE} --tensor-model-parallel-size 2 --expert-tensor-parallel-size 4 --sequence-parallel", f"{MIXTURE} --moe-token-dispatcher-type alltoall --moe-permute-fusion",
    f"{MIXTURE} --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", f"{MIXTURE} --moe-token-dispatcher-type flex --moe-enable-deepep", f"{MIXTURE} --num-experts 0",
    f"{MIXTURE} --moe-layer-freq ([0]*1+[1]*23)", f"{MIXTURE} --moe-layer-freq 2", f"{MIXTURE} --moe-layer-freq [0,1]*12", f"{MIXTURE} --moe-layer-freq ([1]*3+[0]*1)*6",
    f"{MIXTURE} --recompute-granularity selective --recompute-modules moe_act layernorm", f"{MIXTURE} --recompute-granularity selective --recompute-modules moe", f"{MIXTURE} --moe-layer-recompute",
    f"{MIXTURE} --moe-layer-recompute --recompute-granularity selective --recompute-modules layernorm", f"{MIXTURE} --moe-shared-expert-intermediate-size 1408 --moe-shared-expert-overlap --moe-token-dispatcher-type alltoall",
    f"{MIXTURE} --moe-expert-capacity-factor 1.25 --moe-token-dispatcher-type alltoall", f"{MIXTURE} --moe-router-force-load-balancing", "--num-experts 8", "--num-experts 8 --ffn-hidden-size 2048",
    # latent attention
    f"{LATENT}", f"{LATENT} --q-lora-rank 384 --kv-lora-rank 128 --qk-head-dim 64 --qk-pos-emb-head-dim 32 --v-head-dim 64", f"{LATENT} --group-query-attention --num-query-groups 4",
    f"{LATENT} --num-query-groups 4", f"{LATENT} --recompute-granularity selective --recompute-modules mla_up_proj",
    # unusual values
    "--num-layers 0x10", "--tensor-model-parallel-size 2 --tensor-model-parallel-size 1", "--no-such-option", "--global-batch-size 1_024", "--seq-length 2048 --encoder-seq-length 2048", "--window-size 128,0",
    "--tensor-model-parallel-size 2 --tp-comm-overlap --sequence-parallel", "--context-parallel-size 2 --cp-comm-type a2a", "--seq-length 2050 --context-parallel-size 2",
]  # fmt: skip

WORLDS = [1, 16, 64]
"""Numbers of GPUs of the plain job."""

FSDP = [
    "--use-torch-fsdp2 --untie-embeddings-and-output-weights --no-gradient-accumulation-fusion --ckpt-format torch_dist",
    "--use-torch-fsdp2 --untie-embeddings-and-output-weights --no-gradient-accumulation-fusion --ckpt-format torch_dist --use-distributed-optimizer",
    "--use-megatron-fsdp --ckpt-format fsdp_dtensor", "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim_grads",
    "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim", "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy no_shard",
    "--use-megatron-fsdp --ckpt-format fsdp_dtensor --megatron-fsdp-version 2", "--data-parallel-sharding-strategy optim_grads_params",
]  # fmt: skip

PRINTED = [
    "", "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope",
    f"{MIXTURE} --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall --moe-layer-freq ([0]*1+[1]*23)",
    "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer",
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3 --global-batch-size 64 --fp8-format hybrid --fp8-recipe tensorwise",
    f"{LATENT} --q-lora-rank 384 --recompute-granularity selective --recompute-modules core_attn mla_up_proj",
    "--pipeline-model-parallel-size 4 --num-layers 22 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
    "--recompute-activations --group-query-attention --num-query-groups 4 --kv-channels 128",
]  # fmt: skip
"""Jobs whose rows have the values that a log prints, too."""


def rows() -> list[dict]:
    """Returns the rows of the table."""
    plain = [{"world": 16, "arguments": f"{BASE} {edge}".split()} for edge in EDGES]
    plain += [{"world": world, "arguments": BASE.split()} for world in WORLDS]
    no_precision = BASE.replace(" --bf16", "")
    plain += [{"world": 8, "arguments": f"{no_precision} {edge}".split()} for edge in ["", "--fp16"]]
    several = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    fsdp = [{"world": 16, "arguments": f"{BASE} {edge}".split(), "environment": several} for edge in FSDP]
    printed = [{"world": 16, "arguments": f"{BASE} {edge}".split(), "printed": True} for edge in PRINTED]
    return plain + fsdp + printed
