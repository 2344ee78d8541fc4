//! Jobs of Megatron-Bridge and NeMo, whose models are Megatron's.

use crate::config::document::Document;
use crate::config::framework::{Framework, follow};
use crate::error::JobError;
use crate::job::Job;
use serde_json::Value;

/// Keys of latent attention, which Megatron and shape files name alike but for the last two.
const LATENT: [(&str, &str); 5] = [
    ("q_lora_rank", "q_lora_rank"),
    ("kv_lora_rank", "kv_lora_rank"),
    ("qk_head_dim", "qk_nope_head_dim"),
    ("qk_pos_emb_head_dim", "qk_rope_head_dim"),
    ("v_head_dim", "v_head_dim"),
];

/// Where NeMo 2 has what Bridge has elsewhere, in this order.
const NEMO: [(&str, &str); 5] = [
    ("model.config.", "model."),
    ("trainer.strategy.ddp.", "ddp."),
    ("trainer.strategy.", "model."),
    ("trainer.plugins.", "mixed_precision."),
    ("optim.config.", "optimizer."),
];

/// Reads a configuration of Megatron-Bridge, NeMo 2 or NeMo 1.
///
/// # Errors
/// A value is not of its field's type, or the degrees do not fit the number of GPUs.
pub(crate) fn read(mut document: Document, gpus: Option<u32>) -> Result<Job, JobError> {
    let framework = Framework::of("bridge");
    for (start, place) in NEMO {
        let names: Vec<String> = document.values.keys().filter(|name| name.starts_with(start)).cloned().collect();
        for name in names {
            document.rename(&name, &format!("{place}{}", &name[start.len()..]));
        }
    }
    let mut job = framework.begin("megatron-bridge", &mut document)?;
    job.stack = Some("megatron-bridge".to_string());
    model(&mut job, &document)?;
    layout(&mut job, &document)?;
    optimizer(&mut job, &document);
    options(&mut job, &document);
    if document.text("peft._target_").is_some_and(|target| target.ends_with(".LoRA")) {
        let (rank, targets) = (document.count("peft.dim")?.unwrap_or(32), document.list("peft.target_modules"));
        let targets = if targets.is_empty() { String::new() } else { format!(":{}", targets.join(",")) };
        job.further.insert("lora".to_string(), format!("{rank}{targets}"));
    }
    job.reading.precision = Some(precision(&document));
    let name = "trainer.devices";
    let devices = document
        .count(name)
        .or_else(|error| if document.text(name).is_some_and(|n| n == "-1") { Ok(None) } else { Err(error) })?;
    let nodes = document.count("trainer.num_nodes")?.unwrap_or(1);
    let gpus = gpus.or(devices.and_then(|devices| devices.checked_mul(nodes)));
    follow(&mut job, gpus, None)?;
    job.share(document.count("ddp.num_distributed_optimizer_instances").unwrap_or(None));
    framework.sort("bridge", &document, &mut job);
    Ok(job)
}

fn of_model<'a>(document: &'a Document, name: &str) -> Option<&'a Value> {
    document.get(&format!("model.{name}"))
}

fn is_on(document: &Document, name: &str) -> bool {
    document.is_on(&format!("model.{name}"))
}

fn model(job: &mut Job, document: &Document) -> Result<(), JobError> {
    let target = document.text("model._target_");
    let reading = &mut job.reading;
    if reading.layers.is_none() {
        job.model = target.map(|target| target.rsplit('.').next().unwrap_or_default().to_string());
    }
    reading.ffn = reading.ffn.or(reading.hidden.and_then(|hidden| hidden.checked_mul(4)));
    match reading.experts {
        Some(_) => {
            reading.moe_ffn = reading.moe_ffn.or(reading.ffn);
            reading.top_k = reading.top_k.or(Some(2));
            reading.dispatcher = reading.dispatcher.take().or(Some("allgather".to_string()));
        }
        None => (reading.moe_ffn, reading.top_k, reading.dispatcher) = (None, None, None),
    }
    let activation = document.text("model.activation").unwrap_or_default();
    if reading.layers.is_some() {
        reading.gated = reading.gated.or(Some(activation.contains("glu")));
        reading.tied = reading.tied.or(Some(true));
    }
    reading.mtp_layers = reading.mtp_layers.filter(|&layers| layers > 0);
    if is_on(document, "multi_latent_attention") {
        job.shape.insert("attention".to_string(), Value::from("mla"));
        job.shape.remove("head_dim");
        for (name, key) in LATENT {
            if let Some(size) = of_model(document, name) {
                job.shape.insert(key.to_string(), size.clone());
            }
        }
    }
    if let Some(Value::Array(layers)) = of_model(document, "moe_layer_freq") {
        let dense = layers.iter().take_while(|one| one.as_u64() == Some(0)).count();
        job.shape.insert("dense_first".to_string(), Value::from(dense));
    }
    if let Some(every) = of_model(document, "moe_layer_freq").and_then(Value::as_u64).filter(|&every| every > 1) {
        job.shape.insert("moe_every".to_string(), Value::from(every));
    }
    let norm = of_model(document, "normalization").and_then(Value::as_str).unwrap_or_default().to_lowercase();
    if !norm.is_empty() {
        job.shape.insert("arch".to_string(), Value::from(if norm.contains("rms") { "llama" } else { "gpt" }));
    }
    Ok(())
}

fn layout(job: &mut Job, document: &Document) -> Result<(), JobError> {
    let reading = &mut job.reading;
    for size in [&mut reading.tp, &mut reading.pp, &mut reading.cp, &mut reading.ep, &mut reading.vp] {
        *size = size.or(Some(1));
    }
    let is_mixture = reading.experts.is_some() || reading.ep > Some(1);
    reading.etp = reading.etp.or(reading.tp).filter(|_| is_mixture);
    reading.sequence_parallel = Some(is_on(document, "sequence_parallel") && reading.tp > Some(1));
    reading.layout = match of_model(document, "pipeline_model_parallel_layout") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(list @ Value::Array(_)) => Some(list.to_string()),
        _ => None,
    };
    let edge = |end: &str| document.count(&format!("model.num_layers_in_{end}_pipeline_stage"));
    let edges = [edge("first")?, edge("last")?];
    reading.first_last_layers = (edges != [None, None]).then_some(edges);
    let counts = |part: &str| is_on(document, &format!("account_for_{part}_in_pipeline_split"));
    reading.account_for = Some([counts("embedding"), counts("loss")]);
    let modules = document.list("model.recompute_modules");
    match reading.recompute.as_deref() {
        Some("selective") => {
            let mut parts = if modules.is_empty() { vec!["core_attn".to_string()] } else { modules };
            parts.sort();
            reading.recompute = Some(parts.join(","));
            (reading.recompute_method, reading.recompute_layers) = (None, None);
        }
        Some("full") => {}
        _ => (reading.recompute, reading.recompute_method, reading.recompute_layers) = (None, None, None),
    }
    Ok(())
}

/// Reads what changes the time of a step and not its layout: dispatcher, overlap of the experts' communication, and CUDA graphs.
fn options(job: &mut Job, document: &Document) {
    let further = &mut job.further;
    let mut set = |name: &str, value: &str| further.insert(name.to_string(), value.to_string());
    let is_on = |name: &str| ["model", "comm_overlap"].iter().any(|part| document.is_on(&format!("{part}.{name}")));
    if is_on("overlap_moe_expert_parallel_comm") {
        set("moe-overlap", "true");
        if is_on("delay_wgrad_compute") {
            set("delay-wgrad", "true");
        }
    }
    let text = |name: &str| of_model(document, name).and_then(Value::as_str);
    if text("cuda_graph_impl").is_some_and(|name| !["none", "None"].contains(&name)) {
        set("cuda-graph", if text("cuda_graph_impl") == Some("full_iteration") { "full" } else { "partial" });
    }
    // the model itself may be named elsewhere
    let is_mixture = job.reading.experts.is_some() || job.reading.ep > Some(1);
    if is_mixture && text("moe_token_dispatcher_type") == Some("flex") {
        let is_hybrid = text("moe_flex_dispatcher_backend") == Some("hybridep");
        set("dispatcher", if is_hybrid { "hybridep" } else { "deepep" });
    }
}

fn optimizer(job: &mut Job, document: &Document) {
    let name = document.text("model.optim.name").unwrap_or_default();
    let is_distributed = name.contains("distributed")
        || document.is_on("optimizer.use_distributed_optimizer")
        || document.is_on("ddp.use_distributed_optimizer");
    let strategy = document.text("ddp.data_parallel_sharding_strategy").unwrap_or_default();
    let is_fsdp = document.is_on("ddp.use_megatron_fsdp")
        || document.is_on("ddp.use_custom_fsdp")
        || document.is_on("dist.use_torch_fsdp2");
    if document.is_on("optimizer.optimizer_cpu_offload") {
        let share = document.text("optimizer.optimizer_offload_fraction").unwrap_or_else(|| "0.0".to_string());
        job.further.insert("optimizer-offload".to_string(), share);
    }
    job.reading.distributed_optimizer = Some(is_distributed);
    job.reading.zero = Some(match (is_fsdp, strategy.as_str()) {
        (true, _) if document.is_on("dist.use_torch_fsdp2") => 3,
        (true, "optim_grads_params") => 3,
        (true, "optim_grads") => 2,
        _ => u32::from(is_distributed),
    });
}

/// Returns the precision of products, with format and recipe of 8-bit ones.
fn precision(document: &Document) -> String {
    let mixed = document.text("mixed_precision").unwrap_or_default();
    let text = |name: &str| {
        of_model(document, name)
            .and_then(Value::as_str)
            .map(str::to_string)
            .or_else(|| document.text(&format!("mixed_precision.{name}")))
    };
    let format = text("fp8").or_else(|| document.is_on("model.fp8_hybrid").then(|| "hybrid".to_string()));
    let format = format.filter(|format| !crate::setting::is_false(format)).map(|format| {
        match document.is_on("model.fp8_e4m3") {
            true => "e4m3".to_string(),
            false if format == "true" => "hybrid".to_string(),
            false => format,
        }
    });
    let named = [
        ("mxfp8", "e4m3-mxfp8"),
        ("subchannel", "hybrid-blockwise"),
        ("current_scaling", "hybrid-tensorwise"),
        ("delayed", "hybrid-delayed"),
    ];
    match (format, named.iter().find(|(part, _)| mixed.contains("fp8") && mixed.contains(part))) {
        (Some(format), _) => format!("fp8-{format}-{}", text("fp8_recipe").unwrap_or_else(|| "delayed".to_string())),
        (None, Some((_, name))) => format!("fp8-{name}"),
        (None, None) if mixed.contains("fp8") => "fp8-hybrid-delayed".to_string(),
        (None, None) => {
            let trainer = document.text("trainer.precision").unwrap_or_default();
            let is = |name: &str, short: &str| {
                is_on(document, name)
                    || document.is_on(&format!("mixed_precision.{name}"))
                    || mixed.contains(name)
                    || trainer.starts_with(short)
            };
            if is("bf16", "bf16") {
                "bf16"
            } else if is("fp16", "16") {
                "fp16"
            } else {
                "fp32"
            }
            .to_string()
        }
    }
}
