//! Jobs of DeepSpeed, and of Hugging Face's Trainer with or without it.

use crate::config::document::Document;
use crate::config::framework::{Framework, follow};
use crate::error::JobError;
use crate::job::Job;

/// Reads a configuration of DeepSpeed, the options of Hugging Face's Trainer, or both as one table.
///
/// # Errors
/// A value is not of its field's type, or the degrees do not fit the number of GPUs.
pub(crate) fn read(mut document: Document, gpus: Option<u32>) -> Result<Job, JobError> {
    let framework = Framework::of("deepspeed");
    let has_deepspeed = ["train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization.stage", "deepspeed"]
        .iter()
        .any(|name| document.get(name).is_some());
    let is_trainer = ["per_device_train_batch_size", "gradient_checkpointing", "fsdp"]
        .iter()
        .any(|name| document.get(name).is_some());
    let mut job = framework.begin("deepspeed", &mut document)?;
    job.model = document.text("model_name_or_path");
    let reading = &mut job.reading;
    if is_trainer {
        reading.micro_batch = reading.micro_batch.or(Some(8)); // the Trainer's default
        // PyTorch's fused attention unless another one is asked for
        let is_plain = document.text("attn_implementation").is_some_and(|how| how == "eager");
        job.further.insert("attention".to_string(), if is_plain { "plain" } else { "flash" }.to_string());
    }
    reading.pp = Some(1);
    reading.cp = Some(1);
    reading.vp = Some(1);
    reading.tp = reading.tp.or(Some(1));
    let fsdp = document.text("fsdp").unwrap_or_default();
    let strategy = document.text("fsdp_config.fsdp_sharding_strategy").unwrap_or_default();
    let fsdp = format!("{fsdp} {strategy}").to_lowercase();
    let shards = match () {
        () if fsdp.contains("hybrid_shard") || fsdp.contains("full_shard") || strategy == "1" => Some(3),
        () if fsdp.contains("shard_grad_op") || strategy == "2" => Some(2),
        () => None,
    };
    job.stack = Some(if shards.is_some() { "fsdp" } else { "megatron-deepspeed" }.to_string());
    if !has_deepspeed {
        job.framework = "pytorch".to_string();
        job.stack = Some("fsdp".to_string());
    }
    reading.zero = shards.or(reading.zero).or(Some(0));
    reading.distributed_optimizer = None;
    let is_bf16 = ["bf16.enabled", "bfloat16.enabled", "bf16"].iter().any(|name| on(&document, name));
    let is_fp16 = ["fp16.enabled", "fp16"].iter().any(|name| on(&document, name));
    reading.precision = Some(
        if is_bf16 {
            "bf16"
        } else if is_fp16 {
            "fp16"
        } else {
            "fp32"
        }
        .to_string(),
    );
    let recomputes =
        on(&document, "gradient_checkpointing") || on(&document, "fsdp_config.fsdp_activation_checkpointing");
    reading.recompute = recomputes.then(|| "full".to_string());
    let name = "gradient_accumulation_steps";
    let passes = match document.text(name).as_deref() {
        Some("auto") => None,
        _ => document.count(name)?,
    };
    let divisor = reading.micro_batch.zip(passes).map(|(micro, passes)| u64::from(micro) * u64::from(passes));
    if let (None, Some(batch), Some(divisor)) = (gpus, reading.global_batch, divisor)
        && u64::from(batch) % divisor != 0
    {
        return Err(document.wrong(
            "train_batch_size",
            &format!("a multiple of micro-batch size times accumulation steps, {divisor}"),
        ));
    }
    if let (None, Some(batch), Some(passes), Some(gpus)) =
        (reading.micro_batch, reading.global_batch, passes.or(Some(1)), gpus)
    {
        // two of the three batch sizes give the third
        reading.micro_batch = gpus.checked_mul(passes).filter(|all| batch % all == 0).map(|all| batch / all);
    }
    let passes = match reading.global_batch {
        Some(_) => passes,
        None => passes.or(Some(1)),
    };
    follow(&mut job, gpus, passes)?;
    framework.sort("deepspeed", &document, &mut job);
    Ok(job)
}

/// Whether a value switches something on; `auto` leaves it to the Trainer.
fn on(document: &Document, name: &str) -> bool {
    document.text(name).is_some_and(|value| value != "auto") && document.is_on(name)
}
