//! Jobs of torchtitan: TOML up to version 0.2, later a registered configuration with overrides.

use crate::config::document::Document;
use crate::config::framework::{Framework, follow};
use crate::error::JobError;
use crate::job::{Job, Unknown};
use pipesim_schedule::nearest::nearest;
use serde_json::Value;

/// Schedules with one stage per rank, in lower case.
const SINGLE: [&str; 4] = ["1f1b", "schedule1f1b", "gpipe", "schedulegpipe"];

/// Reads a job file.
///
/// # Errors
/// A value is not of its field's type, or the degrees do not fit the number of GPUs.
pub(crate) fn read(document: Document, gpus: Option<u32>) -> Result<Job, JobError> {
    let framework = Framework::of("torchtitan");
    let (model, flavor) = (document.text("model.name"), document.text("model.flavor"));
    let model = model.unwrap_or_else(|| "llama3".to_string());
    finish(&framework, document, &model, &flavor.unwrap_or_else(|| "debugmodel".to_string()), gpus, "0.2")
}

/// Reads a registered configuration, `module` and `name`, with overrides.
///
/// # Errors
/// As [`read`].
pub(crate) fn registered(mut document: Document, module: &str, name: &str, gpus: Option<u32>) -> Result<Job, JobError> {
    let framework = Framework::of("torchtitan");
    let short = module.rsplit('.').find(|part| *part != "config_registry").unwrap_or(module);
    let all = framework.configurations.get(short);
    let Some(known) = all.and_then(|all| all.get(name)) else {
        let names: Vec<&str> = match all {
            Some(all) => all.keys().map(String::as_str).collect(),
            None => framework.configurations.keys().map(String::as_str).collect(),
        };
        let nearest = nearest(if all.is_some() { name } else { short }, &names).into_iter().next().unwrap_or_default();
        let why = format!(
            "expected a module and a configuration of torchtitan's registry, found {module} and {name}; the nearest name is {nearest}"
        );
        return Err(JobError::File { place: format!("{}:1", document.name), why });
    };
    let text = |key: &str| known.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
    for (name, value) in known.iter().filter(|(name, _)| name.contains('.')) {
        document.fill(name, value);
    }
    // names of its own: rows of tokens rather than sequences
    let seq = document.count("training.max_context_length")?.or(document.count("training.seq_len")?).unwrap_or(2048);
    for (tokens, sequences) in [
        ("training.num_tokens_per_microbatch_per_dp_rank", "training.local_batch_size"),
        ("training.num_tokens_per_train_step", "training.global_batch_size"),
    ] {
        if document.get(tokens).is_some_and(|value| value.as_i64() != Some(-1)) {
            let count = document.count(tokens)?.unwrap_or(seq).div_ceil(seq);
            document.fill(sequences, &Value::from(count));
        }
    }
    let (model, flavor) = (text("model"), text("flavor"));
    finish(&framework, document, &model, &flavor, gpus, "2026-08")
}

fn finish(
    framework: &Framework,
    mut document: Document,
    model: &str,
    flavor: &str,
    gpus: Option<u32>,
    version: &str,
) -> Result<Job, JobError> {
    let mut job = framework.begin("torchtitan", &mut document)?;
    job.framework_version = Some(version.to_string());
    job.stack = Some("torchtitan".to_string());
    job.model = Some(format!("{model} {flavor}"));
    size(framework, &mut job, &document, model, flavor);
    let reading = &mut job.reading;
    reading.gated = reading.layers.map(|_| true);
    reading.tied = reading.layers.map(|_| job.shape.remove("tied").is_some_and(|tied| tied == Value::Bool(true)));
    reading.etp = reading.etp.filter(|_| reading.experts.is_some());
    reading.recompute = reading.recompute.take().filter(|mode| mode != "none");
    // a number chooses layers, `op` operations
    let option = document.text("activation_checkpoint.selective_ac_option").and_then(|option| option.parse().ok());
    if reading.recompute.as_deref() == Some("selective") && option.is_some() {
        (reading.recompute_method, reading.recompute_layers) = (Some("every".to_string()), option);
    }
    reading.zero = Some(if reading.dp_shard == Some(1) { 0 } else { 3 });
    reading.sequence_parallel = Some(
        reading.tp.is_some_and(|tp| tp > 1)
            && document.text("parallelism.enable_sequence_parallel").is_none_or(|on| on == "true"),
    );
    precision(&mut job, &document)?;
    let passes = pipeline(&mut job, &document)?;
    let batch = document.get("training.global_batch_size").filter(|batch| batch.as_i64() != Some(-1));
    job.reading.global_batch = batch.and(document.count("training.global_batch_size")?);
    job.unsaid = match job.reading.dp_shard {
        Some(-1) if job.reading.global_batch.is_none() => vec!["dp", "global_batch"],
        Some(-1) => vec!["dp"],
        _ => Vec::new(),
    };
    degrees(&mut job, gpus)?;
    follow(&mut job, gpus, Some(passes))?;
    job.share(job.reading.dp_replicate.filter(|_| job.reading.zero == Some(3)));
    let reading = &job.reading;
    if let (Some(all), Some(passes)) = (reading.num_microbatches, Some(passes).filter(|_| reading.pp > Some(1)))
        && all > passes
        && all % passes == 0
    {
        job.further.insert("rounds".to_string(), (all / passes).to_string());
    }
    framework.sort("torchtitan", &document, &mut job);
    Ok(job)
}

/// Looks up the model's sizes; variants of a family, such as `llama3_simple_fsdp`, have the family's.
fn size(framework: &Framework, job: &mut Job, document: &Document, model: &str, flavor: &str) {
    let family =
        framework.models.keys().filter(|family| model.contains(family.as_str())).max_by_key(|family| family.len());
    let found = family.is_some_and(|family| framework.model(job, family, flavor));
    if found {
        return;
    }
    let names: Vec<&str> = match family {
        Some(family) => framework.models[family].keys().map(String::as_str).collect(),
        None => framework.models.keys().map(String::as_str).collect(),
    };
    let (name, value) = if family.is_some() { ("model.flavor", flavor) } else { ("model.name", model) };
    job.unknown.push(Unknown {
        option: format!("{name} = {value}"),
        nearest: nearest(value, &names).into_iter().next().map(str::to_string),
        place: document.place(name),
    });
}

/// Products are in the precision of the parameters, unless a converter replaces them by 8-bit ones.
fn precision(job: &mut Job, document: &Document) -> Result<(), JobError> {
    let name = "training.mixed_precision_param";
    let precision = match document.text(name).unwrap_or_default().as_str() {
        "bfloat16" => "bf16",
        "float16" => "fp16",
        "float32" => "fp32",
        _ => return Err(document.wrong(name, "bfloat16 or float32")),
    };
    job.reading.precision = Some(precision.to_string());
    let mut converters = document.list("model.converters");
    if document.is_on("float8.enable_float8_linear") || document.is_on("training.fp8_linear") {
        converters.push("float8".to_string());
    }
    let products = converters.iter().find_map(|one| match one.split('.').next_back()?.to_lowercase().as_str() {
        "float8" => Some("fp8"),
        "mx" | "mxfp8" => Some("mxfp8"),
        "nvfp4" => Some("nvfp4"),
        _ => None,
    });
    if let Some(products) = products {
        job.further.insert("precision".to_string(), products.to_string());
    }
    job.reading.converters = Some(converters);
    Ok(())
}

/// Reads stages and micro-batches; returns the micro-batches of one pass.
fn pipeline(job: &mut Job, document: &Document) -> Result<u32, JobError> {
    let reading = &mut job.reading;
    let (local, pp) = (reading.local_batch.unwrap_or(1), reading.pp.unwrap_or(1));
    reading.vp = Some(1);
    reading.micro_batch = Some(local);
    if pp == 1 {
        return Ok(1);
    }
    let one = |name: &str| document.count(&format!("parallelism.{name}"));
    let is_single = reading.schedule.as_ref().is_some_and(|name| SINGLE.contains(&name.to_lowercase().as_str()));
    let less = |end: &str| {
        document.get(&format!("parallelism.pipeline_parallel_{end}_stage_less_layers")).and_then(Value::as_u64)
    };
    let (first, last) = (less("first").unwrap_or(1), less("last").unwrap_or(1));
    let points = document.list("parallelism.pipeline_parallel_split_points").len();
    // on a command line, commas separate the modules of a part
    let part = |part: &Value| match part {
        Value::String(names) => names.split(',').map(Value::from).collect(),
        other => other.clone(),
    };
    let modules = document.get("parallelism.module_fqns_per_model_part").and_then(Value::as_array);
    let modules = modules.map(|parts| Value::Array(parts.iter().map(part).collect()));
    let stages = match (
        modules.as_ref().and_then(Value::as_array),
        one("pipeline_parallel_layers_per_stage")?,
        reading.layers,
    ) {
        (Some(parts), ..) => Some(parts.len() as u64),
        _ if points > 0 => Some(points as u64 + 1),
        (None, Some(each), Some(layers)) => Some((u64::from(layers) + first + last).div_ceil(each.into())),
        _ => None,
    };
    reading.layers_per_stage = one("pipeline_parallel_layers_per_stage")?;
    let usual = if is_single { 1 } else { 2 };
    let vp = stages.map_or(usual, |stages| u32::try_from(stages / u64::from(pp)).unwrap_or(u32::MAX).max(1));
    reading.vp = Some(vp);
    let layout = modules.as_ref().map_or_else(
        || if points > 0 { String::new() } else { format!("torchtitan:{first},{last}") },
        Value::to_string,
    );
    if !layout.is_empty() {
        job.further.insert("layout".to_string(), layout);
    }
    if let Some(path) = document.text("parallelism.pipeline_parallel_schedule_csv").filter(|path| !path.is_empty()) {
        job.further.insert("schedule".to_string(), path);
    }
    if document.get("training.num_tokens_per_microbatch_per_dp_rank").is_some() {
        return Ok(one("num_pp_microbatches")?.unwrap_or(1)); // the local batch is that of a micro-batch
    }
    let micro = match (one("pipeline_parallel_microbatch_size")?, one("pipeline_parallel_microbatches")?) {
        (Some(size), _) => size,
        (None, Some(count)) => (local / count).max(1),
        // up to March 2025, the default was a micro-batch per stage
        _ if document.is_old() => (local / pp.saturating_mul(vp)).max(1),
        _ => 1,
    };
    job.reading.micro_batch = Some(micro);
    Ok((local / micro).max(1))
}

/// Fills in degrees of data parallelism: -1 takes all GPUs that are left.
fn degrees(job: &mut Job, gpus: Option<u32>) -> Result<(), JobError> {
    let reading = &mut job.reading;
    let shard = reading.dp_shard.and_then(|shard| u32::try_from(shard).ok());
    if let (None, Some(shard)) = (gpus, shard) {
        reading.dp = shard.checked_mul(reading.dp_replicate.unwrap_or(1));
    }
    Ok(())
}
