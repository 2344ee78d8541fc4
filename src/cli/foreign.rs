//! What other programs call the verbs, options and values of this one: what to write here instead.

/// What another program calls an option, and what there is here: options, the first of which that a verb has is named, each
/// with what it means. Where there is none, the note stands alone.
pub struct Flag {
    pub names: &'static [&'static str],
    pub here: &'static [(&'static str, &'static str)],
    pub note: &'static str,
}

const fn flag(names: &'static [&'static str], here: &'static [(&'static str, &'static str)]) -> Flag {
    Flag { names, here, note: "" }
}

const fn none(names: &'static [&'static str], note: &'static str) -> Flag {
    Flag { names, here: &[], note }
}

const MODEL: (&str, &str) = ("model", "names the model or a Hugging Face config.json, which has its sizes");
const DEVICES: (&str, &str) = ("stages", "is the number of devices in a pipeline");
const GPUS: (&str, &str) =
    ("stages", "is the number of devices in a pipeline; the GPUs are --stages x --tp x --cp x --dp");
const CHUNKS: (&str, &str) = ("chunks", "is the number of virtual stages per device");
const STEPS: (&str, &str) = ("steps", "is the number of measured training steps");
const WRITE: (&str, &str) =
    ("output", "writes a picture, a page or data: the name's ending says which, as in -o timeline.svg");
const COSTS: (&str, &str) = ("costs", "says how long ops and messages last, as in --costs F=1,B=2,comm=0.1");
const MIXTURES: &str = "mixture-of-experts models are not supported";

/// Options of other programs.
pub const FLAGS: &[Flag] = &[
    flag(
        &["num-layers-per-virtual-pipeline-stage", "layers-per-virtual-stage"],
        &[("chunks", "is the number of virtual stages per device: layers / (devices x layers per virtual stage)")],
    ),
    flag(
        &["world-size", "num-gpus", "gpus", "n-gpus", "ngpus", "num-nodes", "nnodes", "nodes", "nproc-per-node"],
        &[GPUS],
    ),
    none(&["gpus-per-node", "devices-per-node"], "a .toml file for --hardware says it: gpus_per_node = 8"),
    flag(
        &[
            "devices",
            "num-devices",
            "n-devices",
            "num-stages",
            "n-stages",
            "pipeline-depth",
            "pipeline-stages",
            "pp-size",
            "pp-degree",
        ],
        &[DEVICES],
    ),
    flag(
        &[
            "num-model-chunks",
            "model-chunks",
            "num-chunks",
            "n-chunks",
            "virtual-stages",
            "num-virtual-stages",
            "vp",
            "vp-size",
            "virtual-pipeline-size",
            "virtual-pipeline-parallel-size",
            "stages-per-rank",
            "stages-per-device",
            "stages-per-gpu",
            "interleave",
            "interleaving",
            "interleave-factor",
            "interleaving-factor",
            "virtual-pipeline-stages",
        ],
        &[CHUNKS],
    ),
    flag(
        &[
            "micro-batch",
            "microbatch",
            "mb",
            "n-microbatches",
            "n-micro",
            "num-micro",
            "gradient-accumulation-steps",
            "grad-accum",
            "gradient-accumulation",
            "accumulation-steps",
        ],
        &[("micro", "is the number of micro-batches per step; predict takes their size as --micro-batch-size")],
    ),
    flag(
        &["mbs", "microbatch-size", "micro-size", "per-device-train-batch-size", "train-micro-batch-size-per-gpu"],
        &[
            ("micro-batch-size", "is the number of sequences in a micro-batch"),
            ("batch", "is the number of sequences in a step, over all micro-batches"),
        ],
    ),
    flag(
        &["gbs", "batch-size", "train-batch-size", "global-batch"],
        &[("batch", "is the number of sequences in a step, over all micro-batches and pipelines")],
    ),
    flag(&["tp-size", "tp-degree", "tensor-parallel"], &[("tp", "is the tensor-parallel size")]),
    flag(&["dp-size", "dp-degree", "data-parallel", "replicas"], &[("dp", "is the data-parallel size")]),
    flag(&["cp-size", "cp-degree", "context-parallel"], &[("cp", "is the context-parallel size")]),
    none(
        &[
            "expert-model-parallel-size",
            "expert-parallel-size",
            "expert-tensor-parallel-size",
            "ep",
            "ep-size",
            "num-experts",
            "moe-router-topk",
        ],
        MIXTURES,
    ),
    flag(
        &["num-layers", "n-layers", "n-layer", "nlayers", "num-hidden-layers"],
        &[("blocks", "is the number of transformer blocks"), MODEL],
    ),
    flag(
        &["hidden-size", "d-model", "n-embd", "hidden", "hidden-dim"],
        &[("channels", "is the width of the hidden state"), MODEL],
    ),
    flag(
        &["num-attention-heads", "n-head", "n-heads", "num-heads"],
        &[("heads", "is the number of attention heads"), MODEL],
    ),
    flag(&["vocab-size", "vocab"], &[("vocabulary", "is the number of token ids"), MODEL]),
    flag(&["max-position-embeddings", "n-positions"], &[("max-sequence", "is the longest sequence"), MODEL]),
    flag(&["ffn-hidden-size", "num-query-groups", "swiglu", "normalization", "group-query-attention"], &[MODEL]),
    flag(
        &["sequence", "context-length", "block-size", "seqlen", "tokens"],
        &[("seq", "is the number of tokens per sequence")],
    ),
    flag(&["learning-rate"], &[("lr", "is the learning rate")]),
    flag(&["wd"], &[("weight-decay", "is the decoupled weight decay")]),
    flag(&["clip-grad", "grad-clip", "max-grad-norm"], &[("clip", "is the largest gradient norm")]),
    flag(
        &["train-iters", "iterations", "iters", "num-steps", "max-steps", "n-steps", "epochs", "repeats", "runs"],
        &[STEPS],
    ),
    flag(&["warmup-steps", "lr-warmup-iters"], &[("warmup", "is the number of steps before the measured ones")]),
    flag(&["load", "resume", "ckpt", "pretrained"], &[("checkpoint", "names an llm.c checkpoint to start from")]),
    flag(&["dataset", "data-path", "text"], &[("data", "names a token file of llm.c or a text file")]),
    flag(
        &["bf16", "fp16", "fp8", "fp32", "dtype", "amp", "mixed-precision"],
        &[("precision", "takes it as a value, as in --precision bf16")],
    ),
    flag(
        &["use-flash-attn", "flash-attention", "flash-attn", "flash"],
        &[("attention", "takes it as a value: --attention flash")],
    ),
    flag(
        &[
            "recompute-activations",
            "recompute-granularity",
            "activation-checkpointing",
            "gradient-checkpointing",
            "checkpoint-activations",
            "ac",
        ],
        &[("recompute", "says what is recomputed: none, selective or full")],
    ),
    flag(
        &["use-distributed-optimizer", "distributed-optimizer", "zero-stage", "fsdp", "zero1", "sharded-optimizer"],
        &[("zero", "shards the optimizer state (1), also gradients (2), also weights (3)")],
    ),
    flag(
        &["gpu", "gpu-type", "gpu-model", "accelerator", "hw", "machine-type"],
        &[
            ("hardware", "names the GPU, as in --hardware h100-sxm"),
            ("device", "says what computes: cpu, cuda or timed"),
        ],
    ),
    flag(
        &["nproc", "num-processes", "np", "num-ranks"],
        &[("ranks", "is the number of processes, as in -n 2"), DEVICES],
    ),
    flag(&["framework", "software"], &[("stack", "names the training software")]),
    flag(&["backend"], &[("device", "says what computes: cpu, cuda or timed")]),
    flag(
        &[
            "out",
            "output-dir",
            "output-file",
            "outfile",
            "save",
            "save-fig",
            "svg",
            "html",
            "png",
            "pdf",
            "plot",
            "draw",
            "gantt",
            "timeline",
            "trace",
            "chrome-trace",
            "report",
        ],
        &[WRITE],
    ),
    flag(
        &["json", "csv", "markdown", "latex", "output-format", "fmt"],
        &[("format", "says what is printed: table, json, csv, md or latex")],
    ),
    flag(
        &[
            "comm",
            "latency",
            "comm-cost",
            "p2p-latency",
            "forward",
            "backward",
            "forward-time",
            "backward-time",
            "fwd",
            "bwd",
            "tf",
            "tb",
            "durations",
            "times",
        ],
        &[COSTS],
    ),
    flag(&["bandwidth", "link-bandwidth"], &[("transfer", "is how long a message occupies its link")]),
    flag(&["cost-file", "costs-file", "measured"], &[("profile", "names a cost file that pipesim profile wrote")]),
    flag(
        &["memory", "mem", "memory-limit", "max-memory", "memory-budget", "gpu-memory", "vram", "mem-cap", "cap"],
        &[("memory-cap", "is the most that a device may hold")],
    ),
    flag(&["noise", "variance", "stddev"], &[("jitter", "is the standard deviation of durations, as in 0.05")]),
    flag(&["slowdown", "stragglers", "straggler"], &[("slow", "makes a device slower, as in --slow 2=1.3")]),
    flag(
        &["overlap-p2p-communication", "overlap-p2p-comm", "batch-p2p-comm"],
        &[("delivery", "says when sends complete, as in --delivery megatron")],
    ),
    flag(&["log", "log-level", "debug"], &[("verbose", "prints more to stderr")]),
    flag(&["silent"], &[("quiet", "prints nothing to stderr but errors")]),
    flag(
        &["theme", "colors", "colours"],
        &[("palette", "says which colours pictures have"), ("color", "says when to colour")],
    ),
    none(&["list", "list-schedules"], "`pipesim schedules` lists the schedules"),
    flag(
        &["sched", "algorithm", "strategy", "pipeline", "pipeline-parallel-schedule", "pipeline-schedule"],
        &[("schedule", "names a schedule, as in -s 1f1b")],
    ),
];

/// What other programs call verbs, and what to write here.
pub const VERBS: &[(&[&str], &str)] = &[
    (&["simulate", "sim", "simulation", "estimate", "forecast", "plan", "model"], "pipesim predict"),
    (&["train", "execute", "exec", "measure", "benchmark", "bench", "launch"], "pipesim run"),
    (&["list", "ls"], "pipesim schedules"),
    (&["calibrate"], "pipesim profile"),
    (&["validate", "verify", "lint", "deadlock"], "pipesim check"),
    (&["draw", "plot", "visualize", "visualise", "render", "gantt", "timeline"], "pipesim predict -o timeline.svg"),
    (&["diagnose", "env", "info", "devices", "gpus"], "pipesim doctor"),
    (&["why", "analyze", "analyse", "advise", "bottleneck"], "pipesim explain"),
    (&["diff"], "pipesim compare"),
    (&["convert", "write"], "pipesim export"),
    (&["autocomplete", "completion"], "pipesim completions"),
    (&["auto", "search", "optimize", "optimise", "tune", "best"], "pipesim predict -s auto"),
    (&["accuracy"], "pipesim report accuracy"),
    (&["version"], "pipesim --version"),
    (&["tutorial", "learn"], "pipesim tour"),
];

/// By option: what others call its values, and what to write or to know here.
pub const VALUES: &[(&str, &[&str], &str)] = &[
    (
        "device",
        &["gpu", "gpus", "nvidia", "cuda:0", "h100", "a100"],
        "cuda is the device kind of NVIDIA GPUs: --device cuda",
    ),
    (
        "device",
        &["simulated", "sim", "fake", "mock", "virtual", "dummy", "clock"],
        "ops that only take time: --device timed",
    ),
    ("device", &["threads", "host", "x86"], "threads on this machine: --device cpu"),
    (
        "device",
        &["rocm", "amd", "hip", "mps", "metal", "tpu", "xpu"],
        "only CPUs and NVIDIA GPUs can train here: --device cpu",
    ),
    ("need", &["gpu", "gpus"], "write --need cuda"),
    ("need", &["cpu"], "the CPU needs nothing: `pipesim run` always works on it"),
    ("link", &["nvlink", "p2p", "pcie", "peer", "cuda-ipc"], "copies between GPUs, over NVLink or PCIe: --link copy"),
    ("link", &["shm", "shared", "shared-memory", "threads"], "shared memory of this machine: --link local"),
    ("link", &["openmpi", "gloo", "tcp", "ethernet", "ib", "infiniband"], "between machines: --link mpi, under mpirun"),
    ("precision", &["amp", "mixed", "tf32", "auto"], "write --precision bf16"),
    ("recompute", &["yes", "true", "on", "1", "all", "block", "uniform", "layer"], "write --recompute full"),
    ("recompute", &["attention", "attn", "core-attn"], "write --recompute selective"),
    ("recompute", &["no", "false", "off", "0"], "write --recompute none"),
    ("zero", &["none", "off", "no"], "write --zero 0"),
    ("zero", &["os", "optimizer", "distributed-optimizer"], "write --zero 1"),
    ("zero", &["fsdp", "full"], "write --zero 3"),
    ("stack", &["pytorch", "torch"], "PyTorch's own pipelines: --stack torchtitan; its data parallelism: --stack fsdp"),
    ("stack", &["nemo", "mcore"], "NeMo trains with Megatron Core: --stack megatron-core"),
    ("stack", &["deepspeed"], "write --stack megatron-deepspeed"),
    (
        "attention",
        &["sdpa", "fused", "te", "tiled"],
        "attention in tiles, whose scores are not kept: --attention flash",
    ),
    (
        "attention",
        &["eager", "naive", "unfused", "standard", "math"],
        "attention that keeps its scores: --attention plain",
    ),
    ("format", &["text", "txt", "human", "plain", "pretty"], "write --format table"),
    ("format", &["yaml", "yml", "toml"], "write --format json"),
    ("format", &["svg", "png", "pdf", "html"], "pictures and pages go to files: -o timeline.svg"),
    ("color", &["yes", "true", "on", "1"], "write --color always"),
    ("color", &["no", "false", "off", "none", "0"], "write --color never"),
    ("sharing", &["fifo", "fcfs", "queue"], "write --sharing first-come"),
    ("sharing", &["equal", "processor-sharing", "ps"], "write --sharing fair"),
    ("sharing", &["none", "infinite"], "write --sharing unlimited"),
    ("link-scope", &["node", "bus", "host", "server"], "write --link-scope machine"),
    ("link-scope", &["nic", "sender", "port", "device"], "write --link-scope egress"),
    ("link-scope", &["link", "p2p", "peer"], "write --link-scope pair"),
    ("overlap", &["yes", "true", "full", "perfect", "on"], "perfect overlap: --overlap max"),
    ("overlap", &["no", "none", "off", "false"], "one after the other: --overlap serial"),
    ("to", &["csv", "pytorch", "torch"], "PyTorch's schedule file: --to pytorch-csv"),
    ("to", &["graphviz", "gv", "svg"], "write --to dot"),
    ("delivery", &["nccl"], "NCCL's sends and receives: --delivery channel, in groups --delivery batched"),
    ("delivery", &["nvshmem", "rdma", "put", "onesided", "async"], "write --delivery one-sided"),
    ("delivery", &["mpi", "eager", "buffered"], "eager MPI with a buffer per channel: --delivery 'buffered(1)'"),
    ("delivery", &["batch", "group", "batch-isend-irecv"], "write --delivery batched"),
    ("delivery", &["megatron-lm", "megatron-core", "mcore"], "write --delivery megatron"),
    ("delivery", &["torch", "torchtitan"], "write --delivery pytorch"),
];
