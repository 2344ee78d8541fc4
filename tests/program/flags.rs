//! Every verb honours or refuses every option: tried one by one, in every setting, against the same command without it.
//!
//! Verbs and options are those of the command line itself: one that is new fails here until the tables have a line for it.

use crate::support::{PROGRAM, golden_path};
use assert_cmd::Command;
use clap::error::ErrorKind;
use pipesim::internals::cli;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What an option is given; nothing for a flag. `$D` is the folder of [`prepare`], `$G` that of the golden model.
const VALUES: &[(&str, &str)] = &[
    ("after", "$D/predicted.json"),
    ("again", "steps.json.gz"),
    ("all", ""),
    ("all-steps", ""),
    ("ascii", ""),
    ("attention", "plain"),
    ("back-to-back", "2"),
    ("balance", ""),
    ("baseline", ""),
    ("batch", "8"),
    ("before", "$D/predicted.json"),
    ("beta1", "0.1"),
    ("beta2", "0.1"),
    ("blocks", "5"),
    ("calibrate", "gpipe"),
    ("calibrate-batch", "1,2"),
    ("calibrate-micro", "2"),
    ("channels", "16"),
    ("checkpoint", "$G/model.bin"),
    ("chunks", "4"),
    ("clip", "0.000001"),
    ("collapse", ""),
    ("columns", "bubble"),
    ("color", "always"),
    ("contention", "1,1.1"),
    ("cores", "1"),
    ("costs", "F=3,I=1,W=0.5"),
    ("costs-per", "model"),
    ("cp", "2"),
    ("cuda-graph", "full"),
    ("data", "$D/other-text"),
    ("days", "1"),
    ("defer-reduce-grad-wait", ""),
    ("delay-wgrad", ""),
    ("delivery", "channel"),
    ("device", "cuda"),
    ("dispatcher", "deepep"),
    ("dp", "4"),
    ("effort", "2"),
    ("ep", "2"),
    ("epochs", "0.02"),
    ("eps", "1"),
    ("etp", "2"),
    ("exact", "1000"),
    ("fail-if", "makespan>0"),
    ("font-size", "14"),
    ("fix", "tp=2"),
    ("format", "md"),
    ("framework", "pytorch"),
    ("framework-version", "0.18"),
    ("from", "$D/measured.json"),
    ("gpus", "4"),
    ("hardware", "h100-sxm"),
    ("heads", "2"),
    ("held-out", "20%"),
    ("host-link-devices", "2"),
    ("inject", "die@1:1"),
    ("jitter", "0.2"),
    ("jitter-seed", "7"),
    ("json", ""),
    ("job", "$D/job.sh"),
    ("job-args", "2"),
    ("job-env", "SEQ=512"),
    ("job-file", "$D/of/the/job/settings.sh"),
    ("label", "PP:0WAIT_SEND_F(\\d+)=W"),
    ("last", ""),
    ("layers", "3,1"),
    ("layout", "Et*5|t*7L"),
    ("link", "nccl"),
    ("link-contention", "1,1.2"),
    ("link-scope", "egress"),
    ("lora", "8"),
    ("lr", "0.1"),
    ("lr-schedule", "cosine"),
    ("max-active-stages", "2"),
    ("max-ops", "1"),
    ("max-sequence", "16"),
    ("max-ticks", "1"),
    ("measured", "9.6s"),
    ("memory-cap", "0.5"),
    ("micro", "8"),
    ("micro-batch-size", "2"),
    ("min-lr", "0.0001"),
    ("model", "small"),
    ("mine", "tp=4"),
    ("moe-overlap", ""),
    ("need", "nvshmem"),
    ("no-cut", ""),
    ("no-memory", ""),
    ("no-notes", ""),
    ("no-open", ""),
    ("no-shared-memory", ""),
    ("no-waits", ""),
    ("objective", "tokens-per-gpu"),
    ("output", "x.html"),
    ("overlap", "serial"),
    ("overlap-slowdown", "1.5"),
    ("packed", "64"),
    ("optimizer-offload", "0.5"),
    ("overlap-optimizer-offload", ""),
    ("palette", "grey"),
    ("pipeline", "1"),
    ("port", "8080"),
    ("precision", "bf16"),
    ("probe", "driver"),
    ("profile", "$D/other-costs.json"),
    ("program", "$D/none.wasm"),
    ("prompt", "dog"),
    ("question", "$D/question.toml"),
    ("quiet", ""),
    ("ranks", "3"),
    ("recompute", "full"),
    ("record", "steps.json.gz"),
    ("repeat-batch", ""),
    ("resume", "$D/none"),
    ("risk", "even"),
    ("rounds", "2"),
    ("row-height", "24"),
    ("routing", "natural"),
    ("sample-every", "2"),
    ("sample-prompt", "dog"),
    ("sample-seed", "7"),
    ("sample-tokens", "2"),
    ("samples", "30"),
    ("save-every", "3"),
    ("save-question", "saved.toml"),
    ("schedule", "gpipe"),
    ("schedules", "1f1b"),
    ("seed", "7"),
    ("seq", "8"),
    ("sequence-parallel", ""),
    ("shard", "2"),
    ("set", "v=4"),
    ("sharing", "fair"),
    ("gpu-slices", "2"),
    ("products", "timed"),
    ("cuda-graphs", "on"),
    ("slice-lengths", "3:1"),
    ("slots", "1"),
    ("slow-link", "0-1=3"),
    ("stack", "megatron-lm"),
    ("stages", "4"),
    ("step", "3"),
    ("steps", "3"),
    ("straggler", "1=3"),
    ("tables", ""),
    ("temperature", "0.01"),
    ("time-limit", "20"),
    ("timeout", "25"),
    ("title", "Mine"),
    ("to", "dot"),
    ("tokenizer", "gpt2"),
    ("tokens", "1B"),
    ("top", "3"),
    ("top-k", "2"),
    ("torch", "2.11"),
    ("tp", "4"),
    ("transfer", "0.3"),
    ("transfer-to", "seq=2"),
    ("unit-ms", "2"),
    ("unshard-lookahead", "auto"),
    ("until", "1%"),
    ("validate-every", "2"),
    ("validation-batches", "3"),
    ("verbose", ""),
    ("vocabulary", "400"),
    ("warmup", "1"),
    ("warmup-steps", "2"),
    ("weight-decay", "100"),
    ("width", "800"),
    ("window", "0..4"),
    ("zero", "1"),
];

/// A command that works by itself, and what options do there. An option that stands in neither list must show.
struct Setting {
    command: &'static str,
    /// Options that are refused, with exit code 2 and by name.
    refused: &'static str,
    /// Options of which nothing is to be seen, and why.
    same: &'static [(&'static str, &'static str)],
}

const COLOR: (&str, &str) = ("color", "only what is drawn has colours, and asking for some elsewhere does no harm");
const SENTENCES: (&str, &str) = ("ascii", "the sentences are ASCII");
const QUIET: (&str, &str) = ("quiet", "there is nothing to say");
const WARMUP: (&str, &str) = ("warmup", "steps that leave no trace; that they are made is tested by their time");
const TIMEOUT: (&str, &str) = ("timeout", "nobody waits so long");
const APART: (&str, &str) = ("no-shared-memory", "hidden; for ranks that mpirun started");
const DETAILS: (&str, &str) = ("verbose", "there is no more to say on a machine like this");
const VERDICTS: &str = "the verdicts are the same";
const NO_MESSAGES: (&str, &str) = ("overlap-slowdown", "messages take no time");
const ENOUGH_SLOTS: (&str, &str) = ("slots", "one is enough");
const SIZES_SAY_ALL: (&str, &str) = ("model", "the sizes say all");
const TIMED_STEPS: (&str, &str) = ("steps", "every step lasts as long; that they are made is tested by their time");

/// What a written picture shows; that it does is seen where one is written by a command that measures nothing.
const PALETTE: (&str, &str) = ("palette", "nothing is coloured");
const NO_CUT: (&str, &str) = ("no-cut", "no schedule is much slower than another");
const PICTURED: &str = "the pictures show times, and those are left out";
/// Stands for all options of the look of pictures.
const LOOK: (&str, &str) = ("look", PICTURED);
const OF_LOOK: [&str; 12] = [
    "title",
    "width",
    "font-size",
    "row-height",
    "columns",
    "palette",
    "no-memory",
    "no-waits",
    "no-notes",
    "window",
    "collapse",
    "no-cut",
];

const OWN: (&str, &str) = ("hardware", "the one that is given");
const DP: (&str, &str) = ("dp", "the job's own");
const BF16: (&str, &str) = ("precision", "the job's own");
const VERSION: (&str, &str) = ("framework-version", "both versions run it");
const THE_JOB: (&str, &str) = ("job", "the one that is given");

const SETTINGS: &[Setting] = &[
    Setting {
        command: "predict --stages 2 --micro 4 --schedule interleaved-1f1b",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait title width font-size row-height columns no-memory no-waits no-notes \
                  effort slice-lengths overlap layers balance sharing link-scope link-contention samples jitter-seed \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[PALETTE, NO_CUT, NO_MESSAGES, ENOUGH_SLOTS],
    },
    Setting {
        command: "predict --stages 2 --micro 4 --schedule 1f1b --costs F=2,comm=3 --format json",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort balance ascii chunks set slice-lengths overlap profile sharing link-scope link-contention samples jitter-seed \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[COLOR, QUIET],
    },
    Setting {
        command: "predict --stages 2 --micro 4 --schedule 1f1b --profile $D/costs.json --format csv",
        refused: "tables host-link-devices max-active-stages unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort ascii chunks set slice-lengths overlap costs costs-per straggler sharing link-scope link-contention samples jitter-seed \
                  framework-version model hardware tp dp cp batch seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora layout",
        same: &[COLOR, QUIET, ENOUGH_SLOTS, ("balance", "the even split is the best")],
    },
    Setting {
        command: "predict --stages 2 --micro 6 --schedule dualpipe --format md",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort chunks set slice-lengths layers balance sharing link-scope link-contention samples jitter-seed \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[
            ("layout", "both directions together are as long"),
            COLOR,
            ("ascii", "it is in ASCII as it is"),
            NO_MESSAGES,
            ENOUGH_SLOTS,
        ],
    },
    Setting {
        command: "predict --stages 4 --micro 8 --schedule chimera --straggler 2=4 --transfer 1 --jitter 0.1 --samples 20 --format json",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort ascii set slice-lengths overlap layers balance profile \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora layout",
        same: &[COLOR],
    },
    Setting {
        command: "predict --stages 2 --micro 4 --schedule $D/1f1b.csv --format csv",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort ascii chunks set slice-lengths overlap layers balance max-ticks sharing link-scope link-contention samples jitter-seed stages micro \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[("max-active-stages", "the collectives take no time"), COLOR, NO_MESSAGES, ENOUGH_SLOTS],
    },
    Setting {
        command: "predict --stages 2 --micro 4 --schedule 1f1b --model gpt2 --hardware a100-sxm-80gb --tp 2 --dp 2 --seq 256 --format json",
        refused: "tables host-link-devices max-active-stages unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort ascii chunks set slice-lengths overlap costs costs-per profile sharing link-scope link-contention samples jitter-seed \
                  ep etp dispatcher routing moe-overlap delay-wgrad shard overlap-optimizer-offload",
        same: &[COLOR, QUIET, ENOUGH_SLOTS],
    },
    Setting {
        command: "explain --stages 2 --micro 2 --schedule zb-h1",
        refused: "unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort chunks set slice-lengths overlap layers balance framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[SENTENCES, ("max-active-stages", "the collectives take no time"), QUIET],
    },
    Setting {
        command: "explain --stages 2 --micro 4 --schedule 1f1b --profile $D/costs.json --format json",
        refused: "tables max-active-stages unshard-lookahead defer-reduce-grad-wait palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  effort ascii chunks set slice-lengths overlap costs costs-per straggler \
                  framework-version model hardware tp dp cp batch seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora layout",
        same: &[QUIET],
    },
    Setting {
        command: "plan --model gpt2 --hardware a100-sxm-80gb --gpus 4,8 --batch 16 --seq 256",
        refused: "mine days",
        same: &[QUIET, ("schedules", "plan 1 has no pipeline")],
    },
    Setting {
        command: "plan --model gpt2 --hardware a100-sxm-80gb --gpus 8 --batch 16 --seq 256 --format json",
        refused: "ascii to tables days",
        same: &[QUIET, ("objective", "the number of GPUs is one"), ("risk", "plan 1 is the fastest as it is")],
    },
    Setting {
        command: "check --stages 2 --micro 4 --schedule 1f1b",
        refused: "framework-version effort balance chunks set slice-lengths overlap layers costs costs-per profile straggler",
        same: &[("layout", VERDICTS), ("stages", VERDICTS), ("micro", VERDICTS)],
    },
    Setting {
        command: "check --stages 2 --micro 4 --schedule zb-1p --format json",
        refused: "framework-version balance ascii chunks set slice-lengths overlap layers",
        same: &[("effort", "the order is as good at once"), ("costs-per", "all costs shrink alike")],
    },
    Setting {
        command: "check --stages 2 --micro 6 --schedule dualpipe --format csv",
        refused: "framework-version effort balance ascii chunks set slice-lengths layers costs costs-per profile straggler",
        same: &[("job", VERDICTS), ("layout", VERDICTS), ("overlap", VERDICTS), ("micro", VERDICTS)],
    },
    Setting {
        command: "export --stages 2 --micro 4 --schedule 1f1b --to json",
        refused: "max-active-stages unshard-lookahead defer-reduce-grad-wait effort balance chunks set slice-lengths overlap layers costs costs-per profile straggler torch",
        same: &[("layout", "the order is the same"), QUIET],
    },
    Setting {
        command: "export --stages 2 --micro 6 --schedule zb-1p --costs comm=0.5 --to json",
        refused: "max-active-stages unshard-lookahead defer-reduce-grad-wait balance chunks set slice-lengths overlap profile torch",
        same: &[("effort", "the order is as good at once"), QUIET],
    },
    Setting {
        command: "export --stages 2 --micro 6 --schedule dualpipe --to json",
        refused: "max-active-stages unshard-lookahead defer-reduce-grad-wait effort balance chunks set slice-lengths layers costs costs-per profile straggler torch",
        same: &[("layout", "the order is the same"), QUIET],
    },
    Setting {
        command: "export --stages 2 --micro 4 --schedule 1f1b --to pytorch-csv-comms",
        refused: "unshard-lookahead defer-reduce-grad-wait effort balance chunks set slice-lengths overlap layers costs costs-per profile straggler",
        same: &[("layout", "the order is the same"), ("max-active-stages", "one stage per device is gathered once")],
    },
    Setting {
        command: "export --stages 2 --micro 4 --schedule 1f1b --to pytorch-csv",
        refused: "max-active-stages unshard-lookahead defer-reduce-grad-wait effort balance chunks set slice-lengths overlap layers costs costs-per profile straggler",
        same: &[("layout", "the order is the same")],
    },
    Setting {
        command: "compare $D/predicted.json",
        refused: "before after title width font-size row-height columns no-memory no-waits no-notes",
        same: &[PALETTE, NO_CUT, QUIET],
    },
    Setting { command: "compare $D/predicted.json --output x.svg", refused: "before after", same: &[NO_CUT] },
    Setting {
        command: "import $G/../kineto/dp2_interleaved_p2_m4 --step 4",
        refused: "steps all-steps title width font-size row-height columns no-memory no-waits no-notes",
        same: &[PALETTE, NO_CUT],
    },
    Setting {
        command: "import $G/../kineto/dp2_interleaved_p2_m4 --all-steps",
        refused: "step all-steps title width font-size row-height columns no-memory no-waits no-notes",
        same: &[PALETTE, NO_CUT],
    },
    Setting {
        command: "predict --stages 2 --micro 4 --schedule 1f1b --costs F=2,comm=3 --output x.svg",
        refused: "tables host-link-devices unshard-lookahead defer-reduce-grad-wait effort balance chunks set slice-lengths overlap profile sharing link-scope link-contention samples jitter-seed \
                  framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[NO_CUT],
    },
    Setting {
        command: "explain --stages 2 --micro 2 --schedule zb-h1 --output x.svg",
        refused: "unshard-lookahead defer-reduce-grad-wait effort chunks set slice-lengths overlap layers balance framework-version model hardware tp dp cp batch micro-batch-size seq precision recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel attention stack ep etp dispatcher routing cuda-graph moe-overlap delay-wgrad rounds slow-link packed lora",
        same: &[SENTENCES, NO_CUT, ("max-active-stages", "the collectives take no time")],
    },
    Setting {
        command: "compare $D/predicted.json --format json",
        refused: "before after palette window collapse no-cut title width font-size row-height columns no-memory no-waits no-notes \
                  ascii",
        same: &[COLOR, QUIET],
    },
    Setting {
        command: "run --stages 2 --micro 4 --schedule 1f1b --device timed --unit-ms 1 --steps 1 --warmup 0 --format json",
        refused: "layout tp dp sequence-parallel zero effort balance ascii chunks set slice-lengths overlap layers link gpu-slices precision products cuda-graphs attention device baseline batch beta1 beta2 blocks calibrate channels checkpoint \
                  clip data eps heads lr max-sequence model profile repeat-batch seed seq tokenizer until vocabulary weight-decay",
        same: &[LOOK, COLOR, WARMUP, TIMEOUT, APART, DETAILS, TIMED_STEPS],
    },
    Setting {
        command: "run --stages 2 --micro 4 --schedule 1f1b --device timed --profile $D/costs.json --steps 1 --warmup 0 --format json",
        refused: "layout tp dp sequence-parallel zero effort balance ascii chunks set slice-lengths overlap link gpu-slices precision products cuda-graphs attention baseline batch beta1 beta2 blocks calibrate channels checkpoint \
                  clip data eps heads lr max-sequence model repeat-batch seed seq tokenizer until vocabulary weight-decay costs costs-per straggler unit-ms",
        same: &[LOOK, COLOR, WARMUP, TIMEOUT, APART, DETAILS, TIMED_STEPS],
    },
    Setting {
        command: "run --stages 2 --micro 4 --schedule 1f1b --device cpu $M --steps 4 --warmup 0 --format json",
        refused: "layout tp sequence-parallel zero effort balance ascii chunks set slice-lengths overlap costs costs-per straggler unit-ms checkpoint tokenizer link gpu-slices precision products cuda-graphs attention",
        same: &[LOOK, COLOR, WARMUP, TIMEOUT, APART, DETAILS, SIZES_SAY_ALL],
    },
    Setting {
        command: "run --stages 2 --micro 4 --schedule 1f1b --device cpu $M --profile $D/costs.json --data $D/text --steps 4 --warmup 0",
        refused: "layout tp dp sequence-parallel zero effort balance chunks set slice-lengths overlap costs costs-per straggler unit-ms checkpoint calibrate link gpu-slices precision products cuda-graphs attention tokenizer until",
        same: &[
            LOOK,
            WARMUP,
            TIMEOUT,
            APART,
            DETAILS,
            SIZES_SAY_ALL,
            ("profile", "it predicts times, and those are left out"),
        ],
    },
    Setting {
        command: "run --stages 2 --micro 2 --schedule 1f1b --device cpu --checkpoint $G/model.bin --seq 4 --steps 4 --warmup 0 --format json",
        refused: "layout sequence-parallel zero effort balance ascii chunks set slice-lengths overlap costs costs-per straggler unit-ms model blocks heads channels vocabulary max-sequence seed tokenizer link \
                  gpu-slices precision products cuda-graphs attention",
        same: &[LOOK, COLOR, WARMUP, TIMEOUT, APART, DETAILS],
    },
    Setting {
        command: "profile --stages 2 --micro 4 --schedule 1f1b --device cpu $M --steps 4 --warmup 0",
        refused: "from tp sequence-parallel zero chunks set slice-lengths overlap checkpoint tokenizer link gpu-slices precision products cuda-graphs attention hardware",
        same: &[WARMUP, TIMEOUT, DETAILS, SIZES_SAY_ALL],
    },
    Setting {
        command: "train --stages 2 --micro 4 --schedule 1f1b --device cpu $M --steps 4 --output out",
        refused: "tp sequence-parallel zero chunks set slice-lengths overlap checkpoint tokenizer link gpu-slices precision products cuda-graphs attention resume min-lr held-out validation-batches sample-tokens \
                  sample-prompt temperature top-k sample-seed profile epochs",
        same: &[TIMEOUT, DETAILS, SIZES_SAY_ALL, APART],
    },
    Setting {
        command: "train --stages 2 --micro 4 --schedule 1f1b --device cpu $M --steps 4 --lr-schedule linear --data $D/text \
                  --validate-every 4 --sample-every 4 --sample-prompt cat --sample-tokens 4 --temperature 1 --output out",
        refused: "tp sequence-parallel zero chunks set slice-lengths overlap checkpoint tokenizer link gpu-slices precision products cuda-graphs attention resume profile epochs",
        same: &[TIMEOUT, DETAILS, SIZES_SAY_ALL, APART],
    },
    Setting {
        command: "report accuracy --stages 2 --micro 4 --schedule gpipe --calibrate 1f1b --calibrate-micro 4 --device cpu $M --steps 4 --warmup 0 --verbose",
        refused: "tp sequence-parallel zero again batch checkpoint tokenizer link gpu-slices precision products cuda-graphs attention quiet",
        same: &[
            LOOK,
            WARMUP,
            TIMEOUT,
            SIZES_SAY_ALL,
            ("verbose", "it is as verbose as it can be"),
            ("calibrate-batch", "it predicts times, and those are left out"),
        ],
    },
    Setting {
        command: "watch $G/../record/interleavedzb_p2_m4 --steps 4",
        refused: "last format pipeline",
        same: &[COLOR, SENTENCES, QUIET],
    },
    Setting {
        command: "watch $G/../record/interleavedzb_p2_m4 --last",
        refused: "steps pipeline last",
        same: &[QUIET],
    },
    Setting { command: "schedules", refused: "", same: &[] },
    Setting { command: "schedules 1f1b", refused: "json", same: &[] },
    Setting { command: "man", refused: "", same: &[] },
    Setting { command: "generate $D/run --tokens 8", refused: "top-k sample-seed", same: &[] },
    Setting { command: "generate $D/run --tokens 8 --prompt cat --temperature 9", refused: "", same: &[] },
    Setting { command: "tour", refused: "", same: &[QUIET, ("all", "only a terminal pauses")] },
    Setting { command: "tour -o tour.html", refused: "ascii output all", same: &[] },
    Setting {
        command: "explore --output explorer.html --program $D/explorer.wasm",
        refused: "port no-open job question hardware",
        same: &[],
    },
    Setting { command: "doctor", refused: "", same: &[("time-limit", "nothing takes so long")] },
    Setting {
        command: "predict --job $D/job.sh --hardware h100-sxm",
        refused: "chunks set slice-lengths overlap effort costs costs-per profile layout shard overlap-optimizer-offload ep etp dispatcher routing moe-overlap \
                  delay-wgrad max-active-stages unshard-lookahead defer-reduce-grad-wait sharing link-scope link-contention \
                  host-link-devices samples jitter-seed title width font-size row-height columns no-memory no-waits no-notes question micro",
        same: &[
            QUIET,
            OWN,
            DP,
            BF16,
            VERSION,
            ENOUGH_SLOTS,
            PALETTE,
            NO_CUT,
            ("packed", "no time changes by a digit"),
            THE_JOB,
        ],
    },
    Setting {
        command: "check --job $D/job.sh",
        refused: "chunks set slice-lengths overlap effort costs costs-per profile straggler layers balance framework-version",
        same: &[("stages", VERDICTS), ("micro", VERDICTS), ("layout", VERDICTS), ("hardware", VERDICTS), THE_JOB],
    },
    Setting {
        command: "explain --job $D/job.sh --hardware h100-sxm",
        refused: "chunks set slice-lengths overlap effort costs costs-per profile layout shard overlap-optimizer-offload ep etp dispatcher routing moe-overlap \
                  delay-wgrad max-active-stages unshard-lookahead defer-reduce-grad-wait title width font-size row-height columns palette no-memory no-waits \
                  no-notes window collapse no-cut question micro",
        same: &[
            QUIET,
            OWN,
            DP,
            BF16,
            VERSION,
            ("attention", "no time changes"),
            ("packed", "no time changes"),
            THE_JOB,
        ],
    },
    Setting {
        command: "plan --job $D/job.sh --hardware h100-sxm",
        refused: "question days",
        same: &[QUIET, OWN, ("objective", "of one number of GPUs, the best layout is the same"), THE_JOB],
    },
];

/// Values that settings need others for.
const OTHERS: &[(&str, &str, &str)] = &[
    ("run", "layers", "3,2"), // the losses do not tell how blocks are split, a sum that is wrong does
    ("profile", "layers", "3,2"),
    ("run", "attention", "cudnn"),
    ("profile", "attention", "cudnn"),
    ("train", "attention", "cudnn"),
    ("report accuracy", "attention", "cudnn"),
    ("run --stages 2 --micro 4 --schedule 1f1b --device timed --profile", "layers", "3,1"),
    ("predict --stages 2 --micro 6 --schedule dualpipe", "format", "csv"),
    ("predict --stages 2 --micro 6 --schedule dualpipe", "overlap", "max"),
    ("predict --stages 4 --micro 8", "stages", "2"),
    ("predict --stages 4 --micro 8", "micro", "16"),
    ("predict --stages 2 --micro 4 --schedule 1f1b --model", "batch", "16"),
    ("predict --stages 2 --micro 4 --schedule 1f1b --model", "precision", "fp32"),
    ("run --stages 2 --micro 2", "checkpoint", "$D/none"),
    ("report accuracy", "stages", "5"),
    ("doctor", "format", "json"),
    ("report accuracy", "schedule", "naive"),
    ("report accuracy", "output", "elsewhere"),
    ("profile", "output", "costs.json"),
    ("import", "costs", "costs.json"),
    ("train", "output", "elsewhere"),
    ("generate", "tokens", "3"),
    ("generate", "temperature", "5"),
    ("profile", "hardware", ""),
    ("check", "framework-version", "2.11"),
    ("predict", "calibrate", "$D/runs.csv"),
    ("plan", "calibrate", "$D/runs.csv"),
    ("plan", "model", "gpt2-medium"),
    ("plan", "batch", "32"),
    ("plan", "seq", "512"),
    ("plan", "memory-cap", "5GiB"),
    ("plan", "precision", "fp16"),
    ("plan", "stack", "torchtitan"),
    ("plan", "to", "deepspeed"),
    ("plan", "resume", "plan.journal"),
    ("export", "output", "x.out"),
];

/// A model that trains in milliseconds.
const SIZES: &str = "--blocks 4 --heads 1 --channels 8 --vocabulary 300 --max-sequence 8 --seq 4";

/// A job that takes something from a file, the environment and its arguments.
const JOB: &str = "source settings.sh
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers ${LAYERS:-8} --hidden-size 512 --num-attention-heads 8 --bf16 \\
    --max-position-embeddings 4096 --seq-length ${SEQ:-256} --micro-batch-size ${1:-1} --global-batch-size 16 \\
    --pipeline-model-parallel-size 2 --data-path text";

/// Files that settings read.
fn prepare() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("text", &"Once there was a cat. ".repeat(200));
    write("explorer.wasm", "\0asm");
    write("question.toml", "version = 1\nmemory-cap = 0.5\n");
    write("other-text", &"A dog sat on a log, the dog. ".repeat(200));
    for (name, block) in [("costs.json", 100_000), ("other-costs.json", 300_000)] {
        write(name, &costs(block));
    }
    write("job.sh", JOB);
    write("runs.csv", "measured\n0.5\n");
    std::fs::create_dir_all(folder.path().join("of/the/job")).unwrap();
    write("of/the/job/settings.sh", "LAYERS=16\n");
    let made = [
        "export --stages 2 --micro 4 --schedule 1f1b --to pytorch-csv --output $D/1f1b.csv",
        "predict --stages 2 --micro 4 --schedule 1f1b --output $D/predicted.json",
        "import $G/../kineto/dp2_interleaved_p2_m4 --output $D/measured.json",
        "train --stages 2 --micro 4 --schedule 1f1b --device cpu $M --steps 2 --quiet --output $D/run",
    ];
    for line in made {
        let (seen, _) = tried(&words(line, folder.path()));
        assert_eq!(seen.code, 0, "{line}: {}", seen.told);
    }
    folder
}

/// A cost file for a model of 4 blocks.
fn costs(block_ns: u64) -> String {
    let part = |part: &str, kind: &str, ns: u64| json!({"part": part, "kind": kind, "sequences": 1, "tokens": 4, "duration_ns": ns, "samples": 9});
    let parts = ["embedding", "block", "head"].map(|name| ["F", "I", "W"].map(|kind| part(name, kind, block_ns)));
    let rates = ["optimizer_embedding_ns", "optimizer_block_ns", "norm_block_ns", "reduce_put_ns", "reduce_add_ns"];
    let rates: serde_json::Map<String, Value> =
        rates.map(|rate| (rate.to_string(), Value::from(5000))).into_iter().collect();
    json!({"schema_version": 1, "provenance": {}, "layers": 4, "parts": parts.as_flattened(),
        "op_overhead_ns": {"F": 1000, "I": 1000, "W": 1000}, "gap_ns": 2000, "keep": 1.0, "step": rates,
        "link": {"put_ns": 20_000, "bytes": 128, "latency_ns": 30_000}})
    .to_string()
}

/// The words of a command.
fn words(line: &str, folder: &Path) -> Vec<String> {
    let golden = golden_path("gpt2");
    let line = line.replace("$M", SIZES).replace("$D", &folder.display().to_string()).replace("$G", &golden);
    line.split_whitespace().map(str::to_string).collect()
}

/// The command with one more option, or with another value for one that it has.
fn with(mut words: Vec<String>, option: &str, value: &str) -> Vec<String> {
    let flag = format!("--{option}");
    match words.iter().position(|word| *word == flag) {
        Some(at) if !value.is_empty() => words[at + 1] = value.to_string(),
        _ => words.extend([flag, value.to_string()].into_iter().filter(|word| !word.is_empty())),
    }
    words
}

/// What is seen of a command, but for times and what follows from them.
#[derive(Debug, PartialEq)]
struct Seen {
    code: i32,
    printed: String,
    told: String,
    files: BTreeSet<String>,
}

/// Whether a line says how far something is that takes long.
fn goes_on(line: &str) -> bool {
    line.ends_with(" s so far") || line.ends_with(" s") && line.contains(" of ") && line.contains(" after ")
}

/// Runs a command in a folder of its own; what is seen of it, and how long it took.
fn tried(words: &[String]) -> (Seen, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(words).current_dir(folder.path()).timeout(Duration::from_secs(60)).env_remove("NO_COLOR");
    let begin = Instant::now();
    let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
    let took = begin.elapsed();
    let [printed, told] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    // what is said only because a machine is slow
    let told: String = told.lines().filter(|line| !goes_on(line)).map(|line| format!("{line}\n")).collect();
    let fault = told.contains("panicked") && !told.contains("injected fault") || told.contains("a bug");
    assert!(!fault, "{words:?}: {told}");
    let (printed, told) = match words[0].as_str() {
        "run" | "profile" | "report" => (measured(&printed), untimed(&told)),
        "train" => (printed, untimed(&told)),
        "doctor" => (printed.chars().take(9).collect(), told),
        _ => (printed, told),
    };
    let mut files = BTreeSet::new();
    list(folder.path(), &mut files);
    if words[0] == "train" {
        files.extend(trained(folder.path()));
    }
    // A picture of what was computed is seen, one of what was measured shows times.
    if ["predict", "plan", "explain", "compare"].contains(&words[0].as_str()) {
        files.extend(std::fs::read_to_string(folder.path().join("x.svg")));
    }
    (Seen { code: output.status.code().unwrap_or(-1), printed, told, files }, took)
}

/// What a training logged and saved, without times.
fn trained(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for run in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        for line in std::fs::read_to_string(run.join("log.jsonl")).unwrap_or_default().lines() {
            let mut line: Value = serde_json::from_str(line).unwrap();
            for time in ["tokens_per_second", "bubble"] {
                line[time].take();
            }
            found.push(line.to_string());
        }
        let checkpoints = std::fs::read_dir(&run).into_iter().flatten().map(|entry| entry.unwrap().path());
        found.extend(checkpoints.filter_map(|path| std::fs::read_to_string(path.join("training.json")).ok()));
    }
    found
}

/// Names of the files below `folder`.
fn list(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, names);
        }
        names.insert(path.file_name().unwrap().to_string_lossy().into_owned());
    }
}

/// What a measuring command printed, without what differs from one time to the next.
fn measured(printed: &str) -> String {
    let Ok(mut found) = serde_json::from_str::<Value>(printed) else {
        let rows = printed.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
        let rows: Vec<&str> = rows.chain(printed.lines().filter(|line| line.contains("calibrated on"))).collect();
        return format!("coloured: {}, ASCII: {}, rows: {rows:?}", printed.contains('\u{1b}'), printed.is_ascii());
    };
    let given = found["calibrated_on"].get("schedule").is_none();
    for run in found["runs"].as_array_mut().into_iter().flatten() {
        let kept = ["schedule", "devices", "microbatches", "device_kind", "link", "losses"].map(|key| run[key].take());
        let back_to_back = run.get("period_ms").is_some();
        *run = json!([kept, back_to_back, if given { run["predicted"].take() } else { Value::Null }]);
    }
    if let Some(baseline) = found.get_mut("baseline") {
        *baseline = Value::Null;
    }
    for key in ["verdict", "op_overhead_ns", "gap_ns", "link", "step", "speeds", "contention", "memory"] {
        found.as_object_mut().unwrap().remove(key);
    }
    for part in found["parts"].as_array_mut().into_iter().flatten() {
        *part = json!([part["part"], part["kind"], part["sequences"], part["tokens"]]);
    }
    found.to_string()
}

/// What a measuring command told, without times: of a step its loss.
fn untimed(told: &str) -> String {
    let lines = told.lines().filter(|line| !line.starts_with("drift"));
    let lines: Vec<&str> = lines.map(|line| line.split(" ms ").next().unwrap_or(line)).collect();
    let without_time = |line: &&str| match line.split_once(" loss ") {
        Some((step, loss)) => format!("{step} {}", loss.split_whitespace().next().unwrap_or_default()),
        None => line.to_string(),
    };
    lines.iter().map(without_time).collect::<Vec<_>>().join("\n")
}

/// The verbs, each with the names of its options.
fn verbs() -> BTreeMap<String, Vec<String>> {
    let program = cli::command();
    let mut verbs = BTreeMap::new();
    let options = |verb: &clap::Command| -> Vec<String> {
        let long = verb.get_arguments().filter_map(|argument| argument.get_long());
        // --only chooses one of several results, and here is one; tests/python-parts tries it
        long.filter(|name| !["help", "version", "only"].contains(name)).map(str::to_string).collect()
    };
    for verb in program.get_subcommands().filter(|verb| verb.get_name() != "help") {
        if verb.has_subcommands() {
            for inner in verb.get_subcommands().filter(|inner| inner.get_name() != "help") {
                verbs.insert(format!("{} {}", verb.get_name(), inner.get_name()), options(inner));
            }
        } else {
            verbs.insert(verb.get_name().to_string(), options(verb));
        }
    }
    verbs
}

/// What `option` is given in `setting`.
fn value_of(setting: &Setting, option: &str) -> &'static str {
    let others = OTHERS.iter().filter(|(verb, name, _)| setting.command.starts_with(verb) && *name == option);
    let longest = others.max_by_key(|(verb, ..)| verb.len()).map(|(.., value)| *value);
    let usual = || VALUES.iter().find(|(name, _)| *name == option).map(|(_, value)| *value);
    longest
        .or_else(usual)
        .unwrap_or_else(|| panic!("--{option} is new: give it a value in VALUES, and say where it is refused"))
}

/// The verb of a setting.
fn verb_of<'a>(setting: &Setting, verbs: &'a BTreeMap<String, Vec<String>>) -> &'a String {
    let starts = verbs.keys().filter(|verb| setting.command.starts_with(*verb));
    starts.max_by_key(|verb| verb.len()).unwrap()
}

/// What an option does to a command that is seen to do `without` it.
fn effect(words: &[String], option: &str, without: &Seen) -> &'static str {
    let name = format!("--{option}");
    let arguments = ["pipesim".to_string()].into_iter().chain(words.iter().cloned());
    if let Err(refusal) = cli::parse(arguments) {
        return if refusal.to_string().contains(&name) { "refused" } else { "refused without its name" };
    }
    let seen = tried(words).0;
    match seen.code {
        2 if seen.told.contains(&name) => "refused",
        _ if seen == *without => "same",
        _ => "changed",
    }
}

/// What is not as a setting says.
fn wrong(setting: &Setting, verb: &str, options: &[String], folder: &Path) -> Vec<String> {
    let plain = words(setting.command, folder);
    let without = tried(&plain).0;
    if without.code != 0 {
        return vec![format!("{}: {} {}", setting.command, without.code, without.told)];
    }
    let refused: BTreeSet<&str> = setting.refused.split_whitespace().collect();
    let mut same: BTreeSet<&str> = setting.same.iter().map(|(option, _)| *option).collect();
    let of_jobs = ["job-args", "job-env", "job-file"].into_iter().chain((verb != "plan").then_some("gpus"));
    let of_jobs = of_jobs.chain((verb == "check").then_some("hardware"));
    let lacks_hardware = ["predict", "explain"].contains(&verb) && !setting.command.contains("--hardware ");
    let needing = ["job", "measured", "calibrate"].into_iter().filter(|_| lacks_hardware);
    let of_jobs = of_jobs.chain(needing).filter(|_| !setting.command.contains("--job "));
    let refused: BTreeSet<&str> =
        refused.into_iter().chain(of_jobs.filter(|one| options.iter().any(|own| own == one))).collect();
    if same.remove(LOOK.0) {
        same.extend(OF_LOOK);
    }
    let unknown = refused.union(&same).filter(|named| !options.iter().any(|option| option == *named));
    let mut wrong: Vec<String> = unknown.map(|option| format!("{verb} has no --{option}")).collect();
    for option in options {
        let value = words(value_of(setting, option), folder).concat();
        let expected = match (refused.contains(option.as_str()), same.contains(option.as_str())) {
            (true, _) => "refused",
            (_, true) => "same",
            _ => "changed",
        };
        let found = effect(&with(plain.clone(), option, &value), option, &without);
        if expected != found {
            wrong.push(format!("{} --{option} {value}: expected {expected}, found {found}", setting.command));
        }
    }
    wrong
}

#[test]
fn every_option_of_every_verb_is_honoured_or_refused() {
    let (folder, verbs) = (prepare(), verbs());
    let tried: BTreeSet<&String> = SETTINGS.iter().map(|setting| verb_of(setting, &verbs)).collect();
    let new: Vec<&String> =
        verbs.iter().filter(|(verb, own)| !own.is_empty() && !tried.contains(verb)).map(|(verb, _)| verb).collect();
    assert!(new.is_empty(), "{new:?} are new: give them a setting");
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8) {
            scope.spawn(|| {
                while let Some(setting) = SETTINGS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verb = verb_of(setting, &verbs);
                    all.lock().unwrap().extend(wrong(setting, verb, &verbs[verb], folder.path()));
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    assert!(all.is_empty(), "{} of them:\n{}", all.len(), all.join("\n"));
}

#[test]
fn options_of_other_verbs_are_refused_by_name() {
    let verbs = verbs();
    let all: BTreeSet<&String> = verbs.values().flatten().collect();
    for (verb, own) in &verbs {
        let is_alias = |option: &str| verb == "plan" && option == "schedule"; // of --schedules
        for option in all.iter().filter(|option| !own.contains(option) && !is_alias(option)) {
            let line = format!("pipesim {verb} --{option} 1");
            let refusal = cli::parse(line.split(' ')).err().unwrap_or_else(|| panic!("{line} is taken"));
            let (kind, text) = (refusal.kind(), refusal.to_string());
            assert!(kind == ErrorKind::UnknownArgument && text.contains(&format!("--{option}")), "{line}: {text}");
        }
    }
}

/// Steps and warm-up steps of timed devices show in nothing but their time.
#[test]
fn timed_steps_are_made() {
    let line = "run --stages 1 --micro 2 --schedule 1f1b --device timed --unit-ms 20 --steps 2 --warmup 3";
    let (seen, took) = tried(&words(line, Path::new("")));
    assert!(seen.code == 0 && took >= Duration::from_millis(5 * 2 * 3 * 20), "{took:?} {}", seen.told);
}

/// The limit of a wait is told where it is reached.
#[test]
fn a_timeout_is_honoured() {
    for seconds in ["1", "2"] {
        let line =
            format!("run --stages 2 --micro 2 --schedule 1f1b --device timed --inject hang@1:1 --timeout {seconds}");
        let (seen, took) = tried(&words(&line, Path::new("")));
        let limit = Duration::from_secs(seconds.parse().unwrap());
        assert!(seen.code == 6 && took >= limit, "{took:?} {} {}", seen.code, seen.told);
    }
}

/// Options that may have any text, or any of these numbers.
const ANY: &[(&str, &str)] = &[
    ("output", "a path"),
    ("save-question", "a path"),
    ("title", "a text"),
    ("prompt", "a text"),
    ("lr", "1e20 is a number"),
    ("temperature", "1e20 is a number"),
    ("eps", "1e20 is a number"),
    ("weight-decay", "1e20 is a number"),
    ("clip", "1e20 is a number"),
    ("timeout", "1e20 s is a time"),
    ("resume", "plan begins a journal at a path"),
];

#[test]
fn values_that_are_none_are_refused() {
    let (folder, verbs) = (prepare(), verbs());
    let flag = |option: &str| VALUES.iter().any(|(name, value)| *name == option && value.is_empty());
    let mut wrong = Vec::new();
    let mut settings: BTreeMap<&String, &Setting> = BTreeMap::new();
    for setting in SETTINGS {
        settings.entry(verb_of(setting, &verbs)).or_insert(setting);
    }
    for (verb, setting) in settings {
        for option in verbs[verb].iter().filter(|option| !flag(option)) {
            for value in ["", " ", "-1", "nan", "inf", "1e400", "100000000000000000000"] {
                let mut changed = words(setting.command, folder.path());
                let name = format!("--{option}");
                match changed.iter().position(|word| *word == name) {
                    Some(at) => changed[at + 1] = value.to_string(),
                    None => changed.extend([name.clone(), value.to_string()]),
                }
                let arguments = ["pipesim".to_string()].into_iter().chain(changed.clone());
                let refused = cli::parse(arguments).is_err() || ANY.iter().any(|(any, _)| any == option) || {
                    let seen = tried(&changed).0;
                    (1..=3).contains(&seen.code)
                };
                if !refused {
                    wrong.push(format!("{verb} {name} '{value}'"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "taken:\n{}", wrong.join("\n"));
}

#[test]
fn an_option_that_is_meant_once_is_refused_twice() {
    let program = cli::command();
    for verb in program.get_subcommands() {
        let once = verb
            .get_arguments()
            .filter(|argument| matches!(argument.get_action(), clap::ArgAction::Set | clap::ArgAction::SetTrue));
        for option in once.filter_map(|argument| argument.get_long()) {
            let value = VALUES.iter().find(|(name, _)| *name == option).map_or("", |(_, value)| *value);
            let given = if value.is_empty() { format!("--{option}") } else { format!("--{option}={value}") };
            let refusal = cli::parse(["pipesim", verb.get_name(), &given, &given]).err();
            let text = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
            let told =
                text.contains("multiple times") || text.contains("exclusive") || text.contains(&format!("--{option}"));
            assert!(told, "{} {given} {given}: {text}", verb.get_name());
        }
    }
    let twice = "pipesim predict -p 2 -m 2 --set v=2 --set v=3".split(' ');
    assert!(cli::parse(twice).err().is_some_and(|refusal| refusal.to_string().contains("--set gives v twice")));
}
