//! Lines that report a step, or the mean of several.

use super::number::{after, count, human, leading, positive, value, with_unit};

/// Longest step that is believed, in seconds.
const LONGEST_STEP_S: f64 = 1e6;

/// Forms of lines, best first: if a log has several, the best one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    Megatron,
    Nanotron,
    Titan,
    DeepSpeedPipe,
    Bridge,
    Nemo,
    DeepSpeed,
    /// Means since the start.
    Swift,
    Lightning,
    Trainer,
}

/// How long a step took, as the line says it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speed {
    Seconds(f64),
    /// Tokens per second and GPU.
    Tokens(f64),
    /// Samples per second of all GPUs.
    Samples(f64),
}

/// A line about steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StepLine {
    pub(super) form: Form,
    pub(super) iteration: u64,
    pub(super) speed: Speed,
    pub(super) tflops: Option<f64>,
    pub(super) tokens_per_s: Option<f64>,
    pub(super) batch: Option<u32>,
    pub(super) power_w: Option<f64>,
}

/// Reads a line, if it reports a step.
pub(super) fn of(line: &str) -> Option<StepLine> {
    let found = megatron(line)
        .or_else(|| nanotron(line))
        .or_else(|| titan(line))
        .or_else(|| deepspeed(line))
        .or_else(|| nemo(line))
        .or_else(|| bridge(line))
        .or_else(|| trainer(line))?;
    let (Speed::Seconds(rate) | Speed::Tokens(rate) | Speed::Samples(rate)) = found.speed;
    let sensible = rate > 0.0 && rate.is_finite() && !matches!(found.speed, Speed::Seconds(s) if s > LONGEST_STEP_S);
    sensible.then_some(found)
}

fn plain(form: Form, iteration: u64, speed: Speed) -> StepLine {
    StepLine { form, iteration, speed, tflops: None, tokens_per_s: None, batch: None, power_w: None }
}

/// The last `NAME N/TOTAL` of a text, with N up to TOTAL.
fn progress(text: &str, name: &str) -> Option<u64> {
    let (number, rest) = leading(text.rsplit_once(name)?.1)?;
    let (total, _) = leading(rest.trim_start().strip_prefix('/')?)?;
    (number >= 0.0 && number <= total && total < 1e15 && number.fract() == 0.0).then_some(number as u64)
}

/// Megatron-LM, its forks, Megatron-Bridge, Primus and Megatron-DeepSpeed.
fn megatron(line: &str) -> Option<StepLine> {
    let (name, unit) = [("elapsed time per iteration (ms):", 1e-3), ("| iteration time:", 1.0)]
        .into_iter()
        .find(|(name, _)| line.contains(name))?;
    let (head, tail) = line.split_at(line.find(name)?);
    let iteration = progress(head, "iteration ").or_else(|| progress(head, "iteration: "))?;
    // What follows belongs to another line if a step begins there.
    let next = tail[name.len()..].find(" iteration ").map(|at| at + name.len());
    let tail = next.filter(|at| progress(&tail[*at..], "iteration ").is_some()).map_or(tail, |at| &tail[..at]);
    Some(StepLine {
        tflops: ["throughput per GPU (TFLOP/s/GPU):", "TFLOPs:"]
            .iter()
            .find_map(|name| positive(tail, name))
            .or_else(|| with_unit(tail, "approx flops per GPU:", "TFLOPS")),
        tokens_per_s: ["tokens per GPU (tokens/s/GPU):", "tokens/sec/GPU:", "tokens per gpu per second (tgs):"]
            .iter()
            .find_map(|name| positive(tail, name)),
        batch: count(tail, "global batch size:"),
        power_w: positive(tail, "power per GPU (W/GPU):"),
        ..plain(Form::Megatron, iteration, Speed::Seconds(value(tail, name)? * unit))
    })
}

fn nanotron(line: &str) -> Option<StepLine> {
    let ms = human(line, "time_per_iteration_ms: ")?;
    Some(StepLine {
        tflops: human(line, "model_tflops_per_gpu: "),
        tokens_per_s: human(line, "tokens_per_sec_per_gpu: "),
        ..plain(Form::Nanotron, progress(line, "iteration: ")?, Speed::Seconds(ms / 1e3))
    })
}

fn titan(line: &str) -> Option<StepLine> {
    if line.contains("validate step:") {
        return None;
    }
    let tokens = positive(line, "  tps: ").or_else(|| positive(line, "  wps: "))?;
    let iteration = value(line, "step: ").filter(|step| *step >= 0.0)? as u64;
    Some(StepLine {
        tflops: positive(line, "  tflops: "),
        tokens_per_s: Some(tokens),
        ..plain(Form::Titan, iteration, Speed::Tokens(tokens))
    })
}

fn deepspeed(line: &str) -> Option<StepLine> {
    if let Some(seconds) = positive(line, "iter time (s): ") {
        let iteration = value(line, "steps: ").filter(|step| *step >= 0.0)?;
        return Some(plain(Form::DeepSpeedPipe, iteration as u64, Speed::Seconds(seconds)));
    }
    let samples = positive(line, "CurrSamplesPerSec=")?;
    // Before 2023: `0/40, RunningAvgSamplesPerSec=...`.
    let iteration = value(line, "/global_step=").or_else(|| {
        let (before, _) = line.split_once(", RunningAvgSamplesPerSec=")?;
        Some(leading(before.rsplit_once('/')?.1)?.0)
    });
    let iteration = iteration.filter(|step| *step >= 0.0)?;
    Some(plain(Form::DeepSpeed, iteration as u64, Speed::Samples(samples)))
}

fn nemo(line: &str) -> Option<StepLine> {
    let of = |name: &str| [": ", "=", "\": "].iter().find_map(|sign| value(line, &format!("{name}{sign}")));
    let seconds = of("train_step_timing in s")?;
    let iteration = of("global_step").filter(|step| *step >= 0.0)?;
    let batch = count(line, "global_batch_size: ");
    Some(StepLine { batch, ..plain(Form::Nemo, iteration as u64, Speed::Seconds(seconds)) })
}

/// Megatron-Bridge's own line has no number; see `Steps`, which counts them.
fn bridge(line: &str) -> Option<StepLine> {
    let seconds = with_unit(line, "Step Time : ", "s GPU utilization: ")?;
    let units = ["MODEL_TFLOP/s/GPU", " TFLOP/s/GPU"];
    let tflops = units.iter().find_map(|unit| with_unit(line, "GPU utilization: ", unit));
    Some(StepLine { tflops, ..plain(Form::Bridge, 0, Speed::Seconds(seconds)) })
}

/// ms-swift and the Trainer of Hugging Face print dictionaries, Lightning a progress bar.
fn trainer(line: &str) -> Option<StepLine> {
    let number =
        |name: &str| positive(line, &format!("'{name}': ")).or_else(|| positive(line, &format!("'{name}': '")));
    let swift = number("train_speed(s/it)").or_else(|| number("train_speed(iter/s)").map(|speed| 1.0 / speed));
    if let Some(seconds) = swift {
        return Some(plain(Form::Swift, progress(line, "'global_step/max_steps': '")?, Speed::Seconds(seconds)));
    }
    if let Some(speed) = number("train_steps_per_second") {
        return Some(plain(Form::Trainer, 1, Speed::Seconds(1.0 / speed)));
    }
    let bar = after(line, "Epoch ")?;
    let (counts, times) = bar.rsplit_once(" [")?;
    let iteration = progress(counts, "| ")?;
    let rate = after(times, ", ")?;
    let seconds = with_unit(rate, "", "s/it").or_else(|| with_unit(rate, "", "it/s").map(|speed| 1.0 / speed))?;
    Some(plain(Form::Lightning, iteration, Speed::Seconds(seconds)))
}
