//! Options for a model on hardware under a parallel layout.

use super::costs::{CostOptions, read_text};
use super::memory_cap::MemoryCap;
use super::mixture::MixtureOptions;
use super::schedules::SearchOptions;
use super::values::{Numbers, RecomputeParser, is_toml, name_or_toml, numbers, one_of, whole};
use crate::cli::Failure;
use crate::cli::terminal::progress::RemarkOptions;
use crate::cost::analytic::{Analytic, Platform};
use crate::hardware::{self, Hardware, Stack};
use crate::layout::{Attention, ParallelConfig, Precision, Recompute, STACKS, Zero, micro_batches};
use crate::model_spec::{self, huggingface, huggingface::Described, shape, transformer::Config};
use crate::report::{Table, gibibytes, number, quantity};
use crate::resolve::Costs;
use crate::schedule::Overlap;
use crate::step_estimate::StepEstimate;
use clap::Args;
use std::path::Path;

/// Largest parallel degree and number of sequences or tokens.
const MOST: u64 = 1 << 27;
/// Most combinations of degrees and micro-batches.
const MOST_LAYOUTS: usize = 1_000_000;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "A model on hardware")]
pub struct HardwareOptions {
    /// Model: a name (llama-3-70b, deepseek-v3, gpt2-xl, ...), a Hugging Face config.json or a shape file
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// Hardware: a name (h100-sxm, gb200, ...) or a .toml file
    #[arg(long, value_name = "NAME|FILE", requires = "model", conflicts_with_all = ["costs", "costs_per", "profile", "slow"])]
    pub hardware: Option<String>,
    /// Tensor-parallel size: GPUs that share each layer
    #[arg(long, value_name = "T", default_value = "1", aliases = ["tensor-model-parallel-size", "tensor-parallel-size", "tensor-parallel-degree"], value_parser = numbers(1..=MOST as u32))]
    pub tp: Numbers,
    /// Data-parallel size: pipelines that share the batch
    #[arg(long, value_name = "D", default_value = "1", visible_alias = "data-parallel-size", alias = "data-parallel-degree", value_parser = numbers(1..=MOST as u32))]
    pub dp: Numbers,
    /// Context-parallel size: GPUs that share each sequence
    #[arg(long, value_name = "C", default_value_t = 1, aliases = ["context-parallel-size", "context-parallel-degree"], value_parser = whole::<u32>(1..=MOST))]
    pub cp: u32,
    /// Global batch size: sequences per step over all pipelines; replaces --micro
    #[arg(long, value_name = "N", aliases = ["global-batch-size", "gbs"], value_parser = whole::<u32>(1..=MOST))]
    pub batch: Option<u32>,
    /// Sequences per micro-batch [default: 1, or the quotient of --batch and --micro; with --profile, the first measured size]
    #[arg(long, value_name = "B", alias = "mbs", value_parser = numbers(1..=MOST as u32))]
    pub micro_batch_size: Option<Numbers>,
    /// Tokens per sequence
    #[arg(long, value_name = "S", default_value_t = 1024, aliases = ["seq-length", "seq-len", "sequence-length"], value_parser = whole::<u32>(1..=MOST))]
    pub seq: u32,
    /// Precision of matrix products
    #[arg(long = "precision", value_name = "PRECISION", default_value = "bf16", value_parser = one_of(Precision::ALL.iter().map(|&p| (spellings(p), "", p))))]
    pub compute_precision: Precision,
    /// Activations that the backward recomputes: none, selective, full, or parts, as in moe_act,layernorm
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = RecomputeParser)]
    pub recompute: Recompute,
    /// ZeRO stage, what data-parallel ranks shard: 1 optimizer state, 2 also gradients, 3 also weights
    #[arg(long, value_name = "STAGE", default_value = "0", value_parser = one_of(Zero::ALL.iter().map(|&z| (z.name(), "", z))))]
    pub zero: Zero,
    /// Sequence parallelism: tensor-parallel ranks also shard the activations between matrix products
    #[arg(long, alias = "sp")]
    pub sequence_parallel: bool,
    /// Attention kernel [default: the stack's]
    #[arg(long, value_name = "HOW", value_parser = one_of(Attention::ALL.iter().map(|&a| (a.name(), "", a))))]
    pub attention: Option<Attention>,
    /// Training software, or a .toml file
    #[arg(long, value_name = "NAME|FILE", default_value = STACKS[0], value_parser = name_or_toml(&STACKS))]
    pub stack: String,
    #[command(flatten)]
    pub mixture: MixtureOptions,
}

/// Degrees and micro-batches of one layout.
#[derive(Clone, Copy, Debug)]
pub struct Degrees {
    pub tp: u32,
    pub stages: u32,
    pub dp: u32,
    /// Sequences per micro-batch, if given.
    pub size: Option<u32>,
    /// Micro-batches.
    pub micro: u32,
}

/// Returns a precision's name and its long forms, separated by `|`.
pub fn spellings(precision: Precision) -> &'static str {
    match precision {
        Precision::Bf16 => "bf16|bfloat16",
        Precision::Fp16 => "fp16|float16|half",
        Precision::Fp32 => "fp32|float32|f32",
        other => other.name(),
    }
}

/// Finds a model by name or reads its file; `sequence` is --seq.
pub fn model(name: &str, sequence: u32, remarks: RemarkOptions) -> Result<Config, Failure> {
    if name.ends_with(".json") || name.contains('/') {
        if let Some(last) = model_spec::of_hub(name).filter(|_| !Path::new(name).exists()) {
            return Err(Failure::Usage(model_spec::unknown(last)));
        }
        let text = read_text(Path::new(name), 16 << 20)?;
        if shape::is_shape(&text) {
            return shape::read(&text, sequence as usize).map_err(|error| Failure::Usage(format!("{name}: {error}")));
        }
        let Described { config, unknown } =
            huggingface::read(&text).map_err(|error| Failure::Usage(format!("{name}: {error}")))?;
        if !unknown.is_empty() {
            let keys = unknown.join(", ");
            remarks.remark(&format!("warning: {name}: unknown keys, assumed not to change the model: {keys}"));
        }
        return Ok(config);
    }
    model_spec::transformer_named(name).ok_or_else(|| Failure::Usage(model_spec::unknown(name)))
}

/// Finds hardware by name or reads its file.
pub fn hardware(name: &str) -> Result<Hardware, Failure> {
    if !is_toml(name) {
        return hardware::hardware(name).map_err(Failure::usage);
    }
    read_table(name, hardware::hardware_file)
}

/// Finds training software by name or reads its file.
pub fn stack(name: &str) -> Result<Stack, Failure> {
    if !is_toml(name) {
        return hardware::stack(name).map_err(Failure::usage);
    }
    read_table(name, hardware::stack_file)
}

/// Reads a table with `read`, and its bases from files next to it.
fn read_table<T>(
    name: &str,
    read: impl Fn(&str, &str, hardware::Files<'_>) -> Result<T, hardware::Error>,
) -> Result<T, Failure> {
    let folder = Path::new(name).parent().map(Path::to_path_buf).unwrap_or_default();
    let text = read_text(Path::new(name), 1 << 20)?;
    let file = Path::new(name).file_name().map_or_else(|| name.to_string(), |file| file.to_string_lossy().into_owned());
    let others =
        |base: &str| read_text(&folder.join(base), 1 << 20).map_err(|error| hardware::Error::new(error.to_string()));
    read(&file, &text, &others).map_err(Failure::usage)
}

impl HardwareOptions {
    /// Whether several layouts are asked for.
    pub fn are_several(&self) -> bool {
        let sizes = self.micro_batch_size.as_ref().is_some_and(Numbers::are_several);
        sizes || self.tp.are_several() || self.dp.are_several()
    }

    /// Returns the costs of the model on the hardware, if given, with the memory of `schedules`, for every combination of degrees
    /// and micro-batches. If there are several, combinations that the model or the batch does not allow are skipped.
    pub fn all(
        &self,
        schedules: &SearchOptions,
        costs: &CostOptions,
        micro_given: bool,
        remarks: RemarkOptions,
    ) -> Result<Vec<Analytic>, Failure> {
        let (Some(name), Some(hardware_name)) = (&self.model, &self.hardware) else { return Ok(Vec::new()) };
        let model = model(name, self.seq, remarks)?;
        let machine = Platform { hardware: hardware(hardware_name)?, stack: stack(&self.stack)? };
        let bytes = schedules.memory_cap.and_then(MemoryCap::bytes);
        let (mut found, mut refused) = (Vec::new(), None);
        let sizes = self.micro_batch_size.as_ref().map_or(1, |sizes| sizes.all().len());
        let numbers = [self.tp.all(), self.dp.all(), schedules.stages.all(), schedules.micro.all()].map(<[u32]>::len);
        let count = numbers.iter().fold(sizes, |count, more| count.saturating_mul(*more));
        if count > MOST_LAYOUTS {
            return Err(Failure::Usage(format!("expected at most {MOST_LAYOUTS} layouts, found {count}; give fewer")));
        }
        let several = self.are_several() || schedules.stages.are_several() || schedules.micro.are_several();
        for degrees in self.degrees(schedules) {
            let micro = (micro_given || self.batch.is_none()).then_some(degrees.micro);
            let costs = self
                .layout(degrees, schedules, micro, costs, (&model, &machine.stack))
                .and_then(|layout| Analytic::new(model, machine.clone(), layout).map_err(Failure::usage));
            match costs {
                Ok(analytic) => found.push(match bytes {
                    Some(bytes) => analytic.with_memory(bytes),
                    None => analytic,
                }),
                Err(failure) if several => {
                    let Degrees { tp, stages, dp, .. } = degrees;
                    remarks.remark(&format!("note: --tp {tp} --stages {stages} --dp {dp} is left out: {failure}"));
                    refused.get_or_insert(failure);
                }
                Err(failure) => return Err(failure),
            }
        }
        match refused {
            Some(failure) if found.is_empty() => Err(failure),
            _ => Ok(found),
        }
    }

    /// Returns the combinations of degrees and micro-batches.
    fn degrees(&self, schedules: &SearchOptions) -> Vec<Degrees> {
        let sizes = self
            .micro_batch_size
            .as_ref()
            .map_or_else(|| vec![None], |sizes| sizes.all().iter().map(|&b| Some(b)).collect());
        let mut all = Vec::new();
        for &tp in self.tp.all() {
            for &stages in schedules.stages.all() {
                for &dp in self.dp.all() {
                    for &size in &sizes {
                        all.extend(schedules.micro.all().iter().map(|&micro| Degrees { tp, stages, dp, size, micro }));
                    }
                }
            }
        }
        all
    }

    /// Returns the costs without a model on hardware, at --micro-batch-size.
    pub fn costs(&self, options: &CostOptions, remarks: RemarkOptions) -> Result<Costs, Failure> {
        let costs = options.costs()?;
        let Some(sequences) = self.micro_batch_size.as_ref().map(Numbers::first) else { return Ok(costs) };
        if costs.is_staged() {
            return Err(Failure::Usage(
                "--micro-batch-size: the cost file has the times of stages at one micro-batch size, which is not known; leave it out, or \
                 measure a run with the other size"
                    .to_string(),
            ));
        }
        if let Some((least, most)) = costs.measured_sequences().filter(|(a, b)| !(*a..=*b).contains(&sequences)) {
            remarks.remark(&format!(
                "note: micro-batches of {least} to {most} sequences were measured, not of {sequences}: times are scaled in \
                 proportion; pipesim profile --calibrate-batch {least},{sequences} measures both"
            ));
        }
        Ok(costs.with_sequences(sequences))
    }

    /// Returns a layout of `model`. `micro` is --micro if given.
    fn layout(
        &self,
        degrees: Degrees,
        schedules: &SearchOptions,
        micro: Option<u32>,
        costs: &CostOptions,
        (model, stack): (&Config, &Stack),
    ) -> Result<ParallelConfig, Failure> {
        let (mixture, chunks) = (&self.mixture, schedules.chunks);
        let batch = mixture.batch_of_round(self.batch)?;
        let (size, micro) = micro_batches(batch, degrees.dp, degrees.size, micro).map_err(Failure::usage)?;
        let layout =
            costs.layout.as_ref().map(|layout| layout.stages(degrees.stages, chunks, model.layers)).transpose()?;
        let own_chunks = layout.as_ref().and_then(|layout| layout.chunks(degrees.stages).ok());
        Ok(ParallelConfig {
            pp: degrees.stages,
            chunks: own_chunks.or(chunks).unwrap_or(1),
            tp: degrees.tp,
            cp: self.cp,
            dp: degrees.dp,
            micro_batch_size: size,
            micro,
            sequence: self.seq,
            precision: self.compute_precision,
            recompute: self.recompute,
            zero: self.zero,
            sequence_parallel: self.sequence_parallel,
            attention: self.attention,
            stack: self.stack.clone(),
            layers: costs.layers.clone(),
            layout,
            ep: mixture.ep,
            etp: mixture.etp(degrees.tp, stack, model),
            dispatcher: mixture.dispatcher,
            routing: mixture.routing,
            cuda_graph: mixture.cuda_graph,
            moe_overlap: mixture.moe_overlap || model.experts.is_some() && schedules.overlap == Overlap::Streams,
            delay_wgrad: mixture.delay_wgrad,
            fsdp: schedules.fsdp.clone(),
            rounds: mixture.rounds,
        })
    }
}

/// Returns remarks about an unusual layout, and about `schedules` that the stack does not implement.
pub fn remarks(analytic: &Analytic, schedules: &[&str]) -> Vec<String> {
    let Analytic { machine, layout, .. } = analytic;
    let node = machine.hardware.gpus_per_node;
    let mut remarks = Vec::new();
    if f64::from(layout.tp) > node {
        remarks.push(format!(
            "warning: --tp {} is more than the {node} GPUs of a node: the collectives of every layer cross the network",
            layout.tp
        ));
    }
    if let (Some(known), true) = (machine.stack.schedules(), layout.pp > 1) {
        let missing: Vec<&str> = schedules.iter().copied().filter(|name| !known.contains(name)).collect();
        let known = if known.is_empty() { "no pipeline schedule".to_string() } else { known.join(", ") };
        if !missing.is_empty() {
            remarks.push(format!(
                "note: {} implements {known}; {} predicted as if it did",
                machine.stack.name,
                match missing.as_slice() {
                    [one] => format!("{one} is"),
                    several => format!("{} are", several.join(", ")),
                }
            ));
        }
    }
    remarks
}

/// Returns the numbers of parameters that a token activates, and that multi-token prediction adds.
fn parameters_beside(analytic: &Analytic) -> String {
    let billions = |parameters: u128| format!("{:.2} G", parameters as f64 / 1e9);
    let active = analytic.model.experts.map(|_| format!("{} active", billions(analytic.spec.active_parameters())));
    let predicting = Some(analytic.spec.prediction_parameters()).filter(|parameters| *parameters > 0);
    let predicting = predicting.map(|parameters| format!("{} more for multi-token prediction", billions(parameters)));
    let words: Vec<String> = active.into_iter().chain(predicting).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

/// Makes a table of step estimates, one row per schedule, times in ms.
pub fn table(analytic: &Analytic, forecasts: &[(String, StepEstimate)]) -> Table {
    let mut header = vec![
        "schedule",
        "iteration",
        "90 % within",
        "tokens/s",
        "tokens/s/GPU",
        "TFLOP/s/GPU",
        "MFU",
        "compute",
        "tensor",
        "experts",
        "bubble",
        "data",
        "optimizer",
        "other",
    ];
    let ms = |seconds: f64| quantity(seconds * 1e3, "ms");
    let experts = header.iter().position(|name| *name == "experts").filter(|_| analytic.model.experts.is_none());
    experts.map(|column| header.remove(column));
    let row = |(name, f): &(String, StepEstimate)| {
        let (t, [low, high]) = (&f.time_s, f.iteration_interval_s);
        let mut cells = vec![
            name.clone(),
            ms(f.iteration_s),
            format!("{} to {}", number(low * 1e3), ms(high)),
            number(f.tokens_per_second),
            number(f.tokens_per_second_per_gpu),
            number(f.model_tflops_per_gpu),
            format!("{:.1} %", 100.0 * f.mfu),
            ms(t.compute),
            ms(t.tensor_parallel_exposed),
            ms(t.expert_parallel_exposed),
            ms(t.pipeline_bubble),
            ms(t.data_parallel_exposed),
            ms(t.optimizer),
            ms(t.other),
        ];
        experts.map(|column| cells.remove(column));
        cells
    };
    let Analytic { machine, layout, .. } = analytic;
    let layers = forecasts.iter().map(|(name, f)| format!("{name} {:?}", f.layers)).collect::<Vec<_>>().join("; ");
    let shown = forecasts.iter().map(|(name, f)| format!("{name} {}", f.stage_layout)).collect::<Vec<_>>().join("; ");
    let shown = if layout.layout.is_some() { format!("Layout: {shown}. ") } else { String::new() };
    let caption = format!(
        "{:.2} G parameters{} on {} {}: {layout}; {}, {}, attention {}. Layers: {layers}. {shown}\
         An iteration is the makespan plus the end of a step: data, optimizer, other.",
        analytic.spec.parameters() as f64 / 1e9,
        parameters_beside(analytic),
        layout.gpus(),
        machine.hardware.name,
        layout.precision,
        machine.stack.name,
        analytic.attention(),
    );
    Table::new(caption, &header, forecasts.iter().map(row).collect())
}

/// Describes the memory of the fullest devices, for mixtures of experts.
fn memory_caption(forecasts: &[(String, StepEstimate)]) -> String {
    let mut caption = "Memory of the fullest device".to_string();
    for (name, forecast) in forecasts {
        let part = forecast.memory.fullest().of_which;
        let named = [
            ("expert weights", part.expert_weights),
            ("their gradients", part.expert_gradients),
            ("their optimizer", part.expert_optimizer),
            ("expert activations", part.expert_activations),
            ("attention activations", part.attention_activations),
            ("prediction layers", part.prediction_activations),
            ("logits", part.logits),
            ("dispatch buffers", part.dispatch_buffers),
        ];
        let named = named.into_iter().filter(|(_, bytes)| *bytes > 0);
        let words: Vec<String> = named.map(|(what, bytes)| format!("{what} {}", gibibytes(bytes))).collect();
        if !words.is_empty() {
            caption += &format!("; {name}, of which {}", words.join(", "));
        }
    }
    caption
}

/// Makes a table of the memory of the fullest device, one row per schedule.
pub fn memory_table(forecasts: &[(String, StepEstimate)]) -> Table {
    let header =
        ["schedule", "device", "weights", "gradients", "optimizer", "activations", "buffers", "total", "of", "fits"];
    let row = |(name, f): &(String, StepEstimate)| {
        let device = f.memory.fullest();
        let bytes =
            [device.weights, device.gradients, device.optimizer, device.activations, device.buffers, device.total];
        let names = [name.clone(), device.device.to_string()];
        let fits = if f.memory.fits { "yes" } else { "no" };
        let rest = [gibibytes(f.memory.capacity_bytes), fits.to_string()];
        names.into_iter().chain(bytes.map(gibibytes)).chain(rest).collect()
    };
    Table::new(memory_caption(forecasts), &header, forecasts.iter().map(row).collect())
}
