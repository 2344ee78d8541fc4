//! Jobs of nanotron.

use crate::config::document::Document;
use crate::config::framework::{Framework, follow};
use crate::error::JobError;
use crate::job::Job;
use serde_json::Value;

const MODEL: &str = "model.model_config";

/// Reads a configuration of nanotron.
///
/// # Errors
/// A value is not of its field's type, or the degrees do not fit the number of GPUs.
pub(crate) fn read(mut document: Document, gpus: Option<u32>) -> Result<Job, JobError> {
    let framework = Framework::of("nanotron");
    let defaults = &framework.models["defaults"];
    let is_mixture = document.values.iter().any(|(name, value)| {
        (name.starts_with("model.model_config.moe_config") || name.ends_with(".moe_num_experts")) && !value.is_null()
    });
    let given = |mark: &&String| document.is_on(&format!("{MODEL}.{mark}"));
    let class = defaults.keys().find(given).cloned().unwrap_or_else(|| "is_llama_config".to_string());
    for (name, value) in &defaults[&class] {
        document.fill(&format!("{MODEL}.{name}"), value);
    }
    let old_width = document.get("model.model_config.moe_num_experts").is_some();
    if is_mixture {
        for (name, value) in &defaults["moe_config"] {
            let own = if old_width && name == "moe_intermediate_size" {
                document.get("model.model_config.intermediate_size")
            } else {
                None
            };
            let value = own.unwrap_or(value).clone();
            let old = match name.as_str() {
                "num_experts" => "model.model_config.moe_num_experts",
                "top_k" => "model.model_config.num_experts_per_tok",
                _ => "",
            };
            if document.get(old).is_none() {
                document.fill(&format!("{MODEL}.moe_config.{name}"), &value);
            }
        }
    }
    let mut job = framework.begin("nanotron", &mut document)?;
    job.stack = Some("nanotron".to_string());
    let is_gpt = class == "is_starcoder2_config";
    job.shape.insert("arch".to_string(), Value::from(if is_gpt { "gpt" } else { "llama" }));
    let shared = document.count("model.model_config.moe_config.shared_expert_intermediate_size")?;
    if let (true, Some(width)) = (document.is_on("model.model_config.moe_config.enable_shared_expert"), shared) {
        job.shape.insert("shared_experts".to_string(), Value::from(1));
        job.shape.insert("shared_ffn".to_string(), Value::from(width));
    }
    if class == "is_mamba_config" {
        job.shape.insert("attention".to_string(), Value::from("mamba"));
    }
    let reading = &mut job.reading;
    if is_gpt {
        reading.ffn = reading.ffn.or(reading.hidden.and_then(|hidden| hidden.checked_mul(4)));
        reading.kv_heads = if document.is_on("model.model_config.multi_query") { Some(1) } else { reading.kv_heads };
    }
    reading.gated = Some(!is_gpt);
    reading.vp = Some(1);
    reading.etp = reading.experts.map(|_| 1);
    reading.zero = reading.zero.or(Some(0));
    reading.recompute = document.is_on("parallelism.recompute_layer").then(|| "full".to_string());
    let mode = document.text("parallelism.tp_mode").unwrap_or_default().to_lowercase();
    reading.sequence_parallel = Some(mode == "reduce_scatter" && reading.tp > Some(1));
    reading.precision = Some(match document.text("model.dtype").as_deref() {
        None | Some("bfloat16" | "torch.bfloat16") => "bf16".to_string(),
        Some("float16" | "torch.float16") => "fp16".to_string(),
        Some("float32" | "torch.float32") => "fp32".to_string(),
        Some(_) => return Err(document.wrong("model.dtype", "bfloat16, float16 or float32")),
    });
    let passes = document.count("tokens.batch_accumulation_per_replica")?;
    follow(&mut job, gpus, passes)?;
    framework.sort("nanotron", &document, &mut job);
    Ok(job)
}
