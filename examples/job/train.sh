#!/bin/bash
# Llama 3 8B on four nodes of eight GPUs, as one starts it on each of them.
NODES=${NODES:-4}
GPUS_PER_NODE=8

MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336
    --group-query-attention --num-query-groups 8
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --seq-length 8192 --max-position-embeddings 8192
    --vocab-size 128256 --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B
)
LAYOUT_ARGS=(
    --tensor-model-parallel-size 2 --sequence-parallel
    --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 256 --bf16 --use-flash-attn
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0
    --train-iters 2000 --data-path "$DATA" --split 990,10,0
    --log-interval 10 --log-throughput --timing-log-level 1 --save "$CHECKPOINTS" --save-interval 500
)

torchrun --nnodes "$NODES" --nproc_per_node "$GPUS_PER_NODE" --node_rank "$RANK" --master_addr "$MASTER_ADDR" \
    pretrain_gpt.py "${MODEL_ARGS[@]}" "${LAYOUT_ARGS[@]}" "${TRAINING_ARGS[@]}"
