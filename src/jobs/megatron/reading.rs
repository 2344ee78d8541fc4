//! What Megatron's validation makes of the options: sizes, layout and batch.

use super::options::{Options, wrong};
use super::pattern;
use crate::error::JobError;
use crate::reading::Reading;

/// Reads the options as `parse_args` and `validate_args` do (megatron/training/arguments.py of d98e8a6). `world`: number of GPUs.
///
/// # Errors
/// A value that is no number, or above what a pattern may have.
pub(super) fn read(options: &Options<'_>, world: Option<u32>) -> Result<Reading, JobError> {
    let mut read = Reading { world, ..model(options)? };
    layout(options, &mut read)?;
    batch(options, &mut read)?;
    memory(options, &mut read)?;
    Ok(read)
}

fn model(options: &Options<'_>) -> Result<Reading, JobError> {
    let hidden = options.number("hidden-size")?;
    let heads = options.number("num-attention-heads")?;
    let gated = options.flag("swiglu");
    // with a gate, three matrices of 8/3 of the width have the parameters of two of four times the width
    let usual = |hidden: u32| match gated {
        true => (u64::from(hidden) * 8 / 3 / 64 * 64) as u32,
        false => hidden.saturating_mul(4),
    };
    let ffn = options.number("ffn-hidden-size")?.or(hidden.map(usual));
    let groups = match options.flag("group-query-attention") && !options.flag("multi-latent-attention") {
        true => Some(options.number("num-query-groups")?.unwrap_or(1)),
        false => heads,
    };
    let experts = options.number("num-experts")?.filter(|&count| count > 0);
    let of_mixture = |value: Option<u32>| experts.and(value);
    let hybrid = options.text("hybrid-layer-pattern").or(options.text("hybrid-override-pattern")).map(pattern::hybrid);
    let layers = match &hybrid {
        Some(hybrid) => Some(hybrid.layers),
        None => options.number("num-layers")?.or(options.number("encoder-num-layers")?),
    };
    Ok(Reading {
        layers,
        hidden,
        heads,
        kv_heads: groups,
        ffn,
        experts,
        top_k: of_mixture(Some(options.number("moe-router-topk")?.unwrap_or(2))),
        moe_ffn: of_mixture(options.number("moe-ffn-hidden-size")?.or(ffn)),
        vocab: options.number("vocab-size")?,
        gated: Some(gated || options.flag("quick-geglu")),
        tied: Some(!options.flag("untie-embeddings-and-output-weights")),
        mtp_layers: hybrid.and_then(|hybrid| hybrid.predictions).or(options.number("mtp-num-layers")?),
        dispatcher: experts.map(|_| options.text("moe-token-dispatcher-type").unwrap_or("allgather").to_string()),
        ..Reading::default()
    })
}

fn layout(options: &Options<'_>, read: &mut Reading) -> Result<(), JobError> {
    let tp = options.size("tensor-model-parallel-size", 1)?;
    let pp = options.size("pipeline-model-parallel-size", 1)?;
    let cp = options.size("context-parallel-size", 1)?;
    // shards of weights beyond tensor parallelism are an axis of their own
    let shards = options.number("tensor-parallel-num-weight-shards")?.unwrap_or(tp).max(tp) / tp;
    let model = tp.saturating_mul(pp).saturating_mul(cp).saturating_mul(shards);
    read.tp = Some(tp);
    read.pp = Some(pp);
    read.cp = Some(cp);
    read.dp = read.world.map(|world| world / model);
    read.ep = Some(options.size("expert-model-parallel-size", 1)?);
    read.etp = match read.experts {
        Some(_) => Some(options.size("expert-tensor-parallel-size", tp)?),
        None => None,
    };
    read.sequence_parallel = Some(options.flag("sequence-parallel") && tp > 1);
    read.account_for =
        Some(["embedding", "loss"].map(|what| options.flag(&format!("account-for-{what}-in-pipeline-split"))));
    let of_ends = ["first", "last"].map(|end| options.number(&format!("decoder-{end}-pipeline-num-layers")));
    let [first, last] = of_ends;
    let ends = [first?, last?];
    read.first_last_layers = (ends != [None, None]).then_some(ends);
    read.layout = options.text("pipeline-model-parallel-layout").map(str::to_string);
    read.vp = Some(chunks(options, read, pp)?);
    Ok(())
}

/// Returns the virtual stages per device.
fn chunks(options: &Options<'_>, read: &Reading, pp: u32) -> Result<u32, JobError> {
    if let (Some(layout), Some(setting)) = (&read.layout, options.0.get("pipeline-model-parallel-layout")) {
        let stages = pattern::stages(layout).ok_or_else(|| wrong(setting, "a layout of fewer stages"))?;
        return Ok((stages as u32 / pp).max(1));
    }
    if let Some(pattern) = options.text("hybrid-layer-pattern") {
        return Ok((pattern::hybrid(pattern).stages / pp).max(1));
    }
    if let Some(chunks) = options.number("num-virtual-stages-per-pipeline-rank")? {
        return Ok(chunks.max(1));
    }
    let per_chunk = options.number("num-layers-per-virtual-pipeline-stage")?.filter(|&layers| layers > 0);
    let Some((per_chunk, layers)) = per_chunk.zip(read.layers) else {
        return Ok(options.number("virtual-pipeline-model-parallel-size")?.unwrap_or(1).max(1));
    };
    let counted = read.account_for.map_or(0, |both| both.into_iter().map(u32::from).sum());
    Ok((layers.saturating_add(counted) / pp / per_chunk).max(1))
}

fn batch(options: &Options<'_>, read: &mut Reading) -> Result<(), JobError> {
    read.micro_batch = options.number("micro-batch-size")?;
    let data = read.micro_batch.zip(read.dp).and_then(|(size, dp)| size.checked_mul(dp)).filter(|&size| size > 0);
    read.global_batch = options.number("global-batch-size")?.or(data);
    read.num_microbatches = read.global_batch.zip(data).map(|(batch, data)| batch / data);
    read.seq = options.number("seq-length")?.or(options.number("encoder-seq-length")?);
    Ok(())
}

fn memory(options: &Options<'_>, read: &mut Reading) -> Result<(), JobError> {
    let granularity = match options.flag("recompute-activations") {
        true => Some("selective"),
        false => options.text("recompute-granularity"),
    };
    if granularity == Some("full") {
        read.recompute_method = options.text("recompute-method").map(str::to_string);
        read.recompute_layers = options.number("recompute-num-layers")?;
    }
    read.recompute = recomputed(options, granularity);
    let usual = if options.flag("bf16") {
        "bf16"
    } else if options.flag("fp16") {
        "fp16"
    } else {
        "fp32"
    };
    read.precision = Some(match (options.text("fp8-format"), options.text("fp4-format")) {
        (Some(format), _) => format!("fp8-{format}-{}", options.text("fp8-recipe").unwrap_or("delayed")),
        (None, Some(format)) => format!("fp4-{format}-{}", options.text("fp4-recipe").unwrap_or("nvfp4")),
        (None, None) => usual.to_string(),
    });
    sharding(options, read);
    Ok(())
}

/// Returns what is recomputed: `full`, or parts in alphabetical order.
fn recomputed(options: &Options<'_>, granularity: Option<&str>) -> Option<String> {
    let mixture = options.flag("moe-layer-recompute");
    match granularity {
        Some("full") => Some("full".to_string()),
        None if !mixture => None,
        _ => {
            let given = options.list("recompute-modules").map(<[String]>::to_vec);
            let mut parts = given.unwrap_or_else(|| vec!["core_attn".to_string()]);
            parts.extend(mixture.then(|| "moe".to_string()));
            parts.sort();
            parts.dedup();
            Some(parts.join(","))
        }
    }
}

fn sharding(options: &Options<'_>, read: &mut Reading) {
    let is_usual = matches!(options.text("optimizer").unwrap_or("adam"), "adam" | "sgd");
    let fsdp = options.flag("use-megatron-fsdp") || options.flag("use-custom-fsdp");
    let first = options.text("megatron-fsdp-version") != Some("2");
    let given = options.flag("use-distributed-optimizer") && is_usual && !options.flag("freeze-all-layers");
    let distributed = given || fsdp && first;
    read.distributed_optimizer = Some(distributed);
    read.zero = Some(match options.text("data-parallel-sharding-strategy").unwrap_or("optim_grads_params") {
        _ if options.flag("use-torch-fsdp2") => 3,
        _ if !fsdp => u32::from(distributed),
        "no_shard" => 0,
        "optim" => 1,
        "optim_grads" => 2,
        _ => 3,
    });
}
