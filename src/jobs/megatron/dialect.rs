//! Forks of Megatron-LM with names and defaults of their own.

use super::names;
use super::options::Options;
use crate::error::JobError;
use crate::job::Job;
use crate::model::built_in;
use crate::setting::{Setting, Settings};
use pipesim_models::model_spec::transformer::{Activation, Config, QkNorm};

/// Whose names and defaults a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Megatron-LM, also with the patches of others.
    Megatron,
    /// ms-swift.
    Swift,
    /// Megatron-DeepSpeed.
    DeepSpeed,
    /// The zero-bubble fork.
    ZeroBubble,
    /// Primus.
    Primus,
}

/// Options that only scripts of before Megatron's core have.
const BEFORE_CORE: [&str; 7] = [
    "DDP-impl",
    "checkpoint-activations",
    "activations-checkpoint-method",
    "model-parallel-size",
    "use-legacy-models",
    "no-contiguous-buffers-in-local-ddp",
    "no-query-key-layer-scaling",
];

impl Dialect {
    /// Returns the dialect of a program and its options.
    pub fn of(program: &str, settings: &Settings) -> Dialect {
        let first = program.split_whitespace().next().unwrap_or("");
        let of_zero_bubble =
            ["enable-zero-bubble", "zero-bubble-v-schedule", "enable-1f1b-v", "zero-bubble-max-pending-backward"];
        match () {
            () if first.ends_with("megatron") || program.contains("swift") => Dialect::Swift,
            () if settings.get("deepspeed_config").is_some() || settings.has("deepspeed") => Dialect::DeepSpeed,
            () if of_zero_bubble.iter().any(|name| settings.get(name).is_some()) => Dialect::ZeroBubble,
            () => Dialect::Megatron,
        }
    }

    /// Whether its options go to Megatron's own parser, as they are.
    pub fn is_megatrons(self) -> bool {
        matches!(self, Dialect::Megatron | Dialect::ZeroBubble)
    }

    /// Returns the vocabularies of its options: files of jobs/.
    pub fn vocabularies(self) -> &'static [&'static str] {
        match self {
            Dialect::Megatron | Dialect::ZeroBubble => &["megatron", "megatron-forks"],
            Dialect::Swift => &["megatron-swift", "megatron"],
            Dialect::DeepSpeed => &["megatron-deepspeed", "megatron", "megatron-forks"],
            Dialect::Primus => &["primus", "megatron"],
        }
    }

    /// Returns the options with Megatron's names, after the dialect's own defaults.
    pub fn in_megatrons_names(self, given: &Settings) -> Settings {
        let section = match self {
            Dialect::Swift => "swift",
            Dialect::DeepSpeed => "deepspeed",
            Dialect::Megatron | Dialect::ZeroBubble | Dialect::Primus => return given.clone(),
        };
        let mut all = names::renamed(section, given);
        if self == Dialect::Swift {
            let of_model = all.value("model").and_then(built_in).map(|(_, model)| sizes(&model)).unwrap_or_default();
            all.0.splice(0..0, of_model);
        }
        all
    }

    /// Adds framework and stack, and what only the dialect's options say.
    ///
    /// # Errors
    /// A value that is no number.
    pub fn complete(self, options: &Options<'_>, job: &mut Job) -> Result<(), JobError> {
        let old = BEFORE_CORE.iter().any(|name| options.0.get(name).is_some());
        let (framework, stack) = match self {
            Dialect::DeepSpeed => ("megatron-deepspeed", "megatron-deepspeed"),
            Dialect::ZeroBubble => ("zero-bubble", "megatron-zb"),
            _ if old => ("megatron-core", "megatron-lm"),
            _ if options.flag("grad-reduce-in-bf16") => ("megatron-core", "megatron-core-bf16-gradients"),
            _ => ("megatron-core", "megatron-core"),
        };
        job.framework = framework.to_string();
        job.stack = Some(stack.to_string());
        match self {
            Dialect::Swift => swift(options, job),
            Dialect::DeepSpeed => deepspeed(options, job)?,
            Dialect::ZeroBubble => job.reading.schedule = zero_bubble(options),
            _ => {}
        }
        Ok(())
    }
}

/// Returns options with the sizes of a built-in model before them, if they have none of their own.
pub(super) fn sized(settings: &Settings, model: Option<&str>) -> Settings {
    let mut all = settings.clone();
    let has_own = ["num-layers", "encoder-num-layers", "model"].iter().any(|name| settings.get(name).is_some());
    if let Some((_, model)) = model.filter(|_| !has_own).and_then(built_in) {
        let name = "max-position-embeddings".to_string();
        let positions = Setting { name, values: vec![u32::MAX.to_string()], ..Setting::default() };
        all.0.splice(0..0, sizes(&model).into_iter().chain([positions]));
    }
    all
}

/// Returns a built-in model's sizes as options.
fn sizes(model: &Config) -> Vec<Setting> {
    let option =
        |name: &str, value: String| Setting { name: name.to_string(), values: vec![value], ..Setting::default() };
    let mut all = vec![
        option("num-layers", model.layers.to_string()),
        option("hidden-size", model.channels.to_string()),
        option("num-attention-heads", model.heads.to_string()),
        option("ffn-hidden-size", model.mlp.to_string()),
        option("vocab-size", model.vocabulary.to_string()),
    ];
    if model.groups != model.heads {
        all.push(option("group-query-attention", "true".to_string()));
        all.push(option("num-query-groups", model.groups.to_string()));
    }
    let flags =
        [("swiglu", model.activation == Activation::Gated), ("untie-embeddings-and-output-weights", !model.tied)];
    all.extend(flags.into_iter().filter(|(_, on)| *on).map(|(name, _)| option(name, "true".to_string())));
    all.push(option("kv-channels", model.head_size.to_string()));
    if model.qk_norm != QkNorm::None {
        all.push(option("qk-layernorm", "true".to_string()));
    }
    if let Some(experts) = model.experts {
        let layers = model.layers.saturating_sub(experts.dense_first);
        all.push(option("moe-layer-freq", format!("([0]*{}+[1]*{layers})", experts.dense_first)));
        all.push(option("moe-shared-expert-intermediate-size", experts.shared_width.to_string()));
        all.push(option("num-experts", experts.count.to_string()));
        all.push(option("moe-router-topk", experts.top_k.to_string()));
        all.push(option("moe-ffn-hidden-size", experts.width.to_string()));
    }
    all
}

/// The model of ms-swift is a checkpoint, whose name is all that the job says.
fn swift(options: &Options<'_>, job: &mut Job) {
    let model = options.text("model").or(options.text("mcore_model"));
    job.model = model.map(str::to_string);
    if let Some((name, _)) = model.and_then(built_in) {
        // the name has all sizes, and parts that options cannot say
        job.model = Some(name);
    }
    match options.text("tuner-type").or(options.text("train-type")) {
        Some("lora") => {
            // all-linear, the default, is Megatron's four products
            let targets = options.list("target-modules").unwrap_or_default();
            let targets = if targets.iter().any(|name| name == "all-linear") { Default::default() } else { targets };
            let rank = options.text("lora-rank").unwrap_or("8");
            job.further
                .insert("lora".to_string(), [rank, &targets.join(",")].join(":").trim_end_matches(':').to_string());
        }
        Some("full") | None => {}
        Some(_) => {
            job.shape.insert("lora".to_string(), true.into());
        }
    }
}

/// Megatron-DeepSpeed counts micro-batches and shards by its own options.
fn deepspeed(options: &Options<'_>, job: &mut Job) -> Result<(), JobError> {
    let read = &mut job.reading;
    let stage = options.number("zero-stage")?.unwrap_or(1);
    read.zero = Some(stage);
    read.distributed_optimizer = Some(false);
    read.kv_heads = options.number("num-key-value-heads")?.or(read.kv_heads);
    read.experts = read.experts.filter(|&count| count > 1);
    if read.experts.is_none() {
        (read.top_k, read.moe_ffn, read.etp, read.dispatcher) = (None, None, None, None);
    }
    if options.flag("checkpoint-activations") || options.flag("deepspeed-activation-checkpointing") {
        read.recompute = Some("full".to_string());
        read.recompute_method = Some("uniform".to_string());
        read.recompute_layers = Some(options.number("checkpoint-num-layers")?.unwrap_or(1));
    }
    Ok(())
}

/// Returns the schedule of the zero-bubble fork, in the words of its options.
fn zero_bubble(options: &Options<'_>) -> Option<String> {
    let of_v = |setup: &str| Some(format!("--zero-bubble-v-schedule-mem-setup {setup}"));
    match options.text("zero-bubble-v-schedule-mem-setup") {
        _ if options.flag("enable-1f1b-v") => Some("--enable-1f1b-v".to_string()),
        Some(setup @ ("half" | "min")) if options.flag("zero-bubble-v-schedule") => of_v(setup),
        _ if options.flag("zero-bubble-v-schedule") => Some("--zero-bubble-v-schedule".to_string()),
        _ if options.flag("enable-zero-bubble") => Some("--zero-bubble-max-pending-backward p".to_string()),
        _ => None,
    }
}
