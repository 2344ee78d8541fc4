//! What somebody measured of a step, in the units in which people state it.

use super::counted::FlopCount;
use pipesim_cost::analytic::Analytic;
use pipesim_jobs::Measurement;
use pipesim_models::hardware::Hardware;
use serde::Serialize;
use thiserror::Error;

/// A measurement that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MeasuredError {
    /// A number or unit that is not known.
    #[error(
        "expected a time, a speed or the path of a log, found '{0}'; write it as in 9.6s, 9600ms, 12.3k tokens/s, 1541 tokens/s/gpu, '430 TFLOP/s/gpu model' or '43% MFU bf16'"
    )]
    Unknown(String),
    /// TFLOP/s without how FLOPs are counted.
    #[error(
        "expected how FLOPs are counted after '{0}', found nothing; add one of: model (as this program counts), megatron-full (printed by Megatron before 2025-03-06: all scores), megatron-half (since then: half of them), hardware (with recomputation)"
    )]
    Uncounted(String),
    /// MFU without its peak.
    #[error(
        "expected the peak after '{0}', found nothing; add its precision (bf16, fp8, fp4) or its TFLOP/s, as in '43% MFU 989'"
    )]
    NoPeak(String),
    /// Values of which one is none of a step.
    #[error(
        "expected values within a factor of 10 of each other, each with its unit, and no commas in numbers, found '{0}'; correct it"
    )]
    Apart(String),
    /// A value that no step has.
    #[error("expected a time or a speed above 0, found '{0}'; correct it")]
    NotPositive(String),
    /// A log without times.
    #[error("expected a log with times of steps, or with tokens per second, found neither; give a time, as in 9.6s")]
    NoTimes,
    /// A log of steps of another size.
    #[error(
        "expected steps of {expected} sequences as in the question, found {found} in the log; set `batch` to {found}"
    )]
    OtherBatch {
        /// Sequences of a step of the question.
        expected: u64,
        /// Sequences of a step of the log.
        found: u64,
    },
    /// A peak that the GPU does not have.
    #[error("expected a precision that {0} has, found {1}; give the peak in TFLOP/s, as in '43% MFU 989'")]
    Precision(String, String),
}

/// The peak of an MFU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peak {
    /// The chip's, of a precision.
    Of(String),
    /// In TFLOP/s.
    Tflops(f64),
}

/// What a number counts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Seconds per step.
    Seconds,
    /// Tokens per second of all GPUs.
    Tokens,
    /// Tokens per second and GPU.
    TokensPerGpu,
    /// TFLOP/s per GPU.
    Tflops(FlopCount),
    /// Share of a peak, of the model's FLOPs.
    Mfu(Peak),
}

/// Measured values of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// As it was given.
    pub text: String,
    /// What the values count.
    pub unit: Unit,
    /// In that unit, in the order in which they were given.
    pub values: Vec<f64>,
}

impl Measured {
    /// Reads one value, or several separated by commas, of which the last one's unit holds for those without.
    ///
    /// # Errors
    /// No number, a unit that is not known or that does not say what it counts, or values that are of different steps.
    pub fn parse(text: &str) -> Result<Measured, MeasuredError> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let last = parts.last().copied().unwrap_or_default();
        let (_, unit) = one(last)?;
        let unit = unit.ok_or_else(|| MeasuredError::Unknown(text.to_string()))?;
        let mut values = Vec::new();
        for part in parts {
            match one(part)? {
                // 12,300 tokens/s is one number, not two
                (_, None) if !part.contains('.') => return Err(MeasuredError::Apart(text.to_string())),
                (value, None) => values.push(value),
                (value, Some((found, scale))) if found == unit.0 => values.push(value * scale / unit.1),
                _ => return Err(MeasuredError::Unknown(text.to_string())),
            }
        }
        let values: Vec<f64> = values.into_iter().map(|value| value * unit.1).collect();
        let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(a, b), &value| (a.min(value), b.max(value)));
        if least <= 0.0 {
            return Err(MeasuredError::NotPositive(text.to_string()));
        }
        if most > 10.0 * least {
            return Err(MeasuredError::Apart(text.to_string()));
        }
        Ok(Measured { text: text.to_string(), unit: unit.0, values })
    }

    /// Returns the median and the 5th and 95th percentile of a log, called `name`.
    ///
    /// # Errors
    /// It has no times.
    pub fn of_log(name: &str, log: &Measurement) -> Result<Measured, MeasuredError> {
        let [least, most] = log.range_s;
        let (unit, values) = match log.printed_tokens_per_s {
            _ if log.median_s > 0.0 => (Unit::Seconds, vec![least, log.median_s, most]),
            Some(tokens) => (Unit::TokensPerGpu, vec![tokens]),
            None => return Err(MeasuredError::NoTimes),
        };
        Ok(Measured { text: name.to_string(), unit, values })
    }

    /// Returns the seconds of each step, in rising order.
    ///
    /// # Errors
    /// An MFU of a peak that the GPU does not have.
    pub fn seconds(&self, analytic: &Analytic) -> Result<Vec<f64>, MeasuredError> {
        let (tokens, gpus) = (analytic.layout.tokens() as f64, analytic.layout.gpus() as f64);
        let hardware = &analytic.machine.hardware;
        // what a step has of the counted
        let whole = match &self.unit {
            Unit::Seconds => 1.0,
            Unit::Tokens => tokens,
            Unit::TokensPerGpu => tokens / gpus,
            Unit::Tflops(count) => count.of_step(analytic) / gpus / 1e12,
            Unit::Mfu(peak) => {
                let peak = match peak {
                    Peak::Tflops(peak) => *peak,
                    Peak::Of(name) => peak_of(hardware, name)
                        .filter(|peak| *peak > 0.0)
                        .ok_or_else(|| MeasuredError::Precision(hardware.name.clone(), name.clone()))?,
                };
                100.0 * FlopCount::Model.of_step(analytic) / gpus / 1e12 / peak
            }
        };
        let one = |value: &f64| if self.unit == Unit::Seconds { *value } else { whole / value };
        let mut seconds: Vec<f64> = self.values.iter().map(one).collect();
        seconds.sort_by(f64::total_cmp);
        Ok(seconds)
    }
}

fn peak_of(hardware: &Hardware, name: &str) -> Option<f64> {
    match name {
        "bf16" | "fp16" => Some(hardware.bf16_tflops),
        "fp8" | "mxfp8" => Some(hardware.fp8_tflops),
        "fp4" | "nvfp4" => Some(hardware.fp4_tflops),
        _ => None,
    }
}

/// A number and its unit with the factor to the unit's own scale.
type One = (f64, Option<(Unit, f64)>);

fn one(text: &str) -> Result<One, MeasuredError> {
    let unknown = || MeasuredError::Unknown(text.to_string());
    let lower = text.to_lowercase();
    let end = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
    let value: f64 = lower[..end].parse().map_err(|_| unknown())?;
    let mut words = lower[end..].split_whitespace();
    let first = words.next().unwrap_or_default();
    // a thousand is written at the number: 12.3k tokens/s
    let (scale, name) = match first {
        "k" => (1e3, words.next().unwrap_or_default()),
        "m" => (1e6, words.next().unwrap_or_default()),
        "%" => (1.0, words.next().unwrap_or_default()),
        name => (1.0, name.trim_start_matches('%')),
    };
    let rest = words.collect::<Vec<_>>().join(" ");
    let unit = match (name, rest.as_str()) {
        ("", "") => return Ok((value, None)),
        ("s" | "sec" | "seconds", "") => (Unit::Seconds, scale),
        ("ms", "") => (Unit::Seconds, 1e-3),
        ("tokens/s" | "tok/s" | "tps", "") => (Unit::Tokens, scale),
        ("tokens/s/gpu" | "tok/s/gpu" | "tgs", "") => (Unit::TokensPerGpu, scale),
        ("tflops" | "tflop/s" | "tflops/gpu" | "tflop/s/gpu", "") => {
            return Err(MeasuredError::Uncounted(text.to_string()));
        }
        ("tflops" | "tflop/s" | "tflops/gpu" | "tflop/s/gpu", count) => {
            (Unit::Tflops(FlopCount::named(count).ok_or_else(unknown)?), scale)
        }
        ("mfu", "") => return Err(MeasuredError::NoPeak(text.to_string())),
        ("mfu", peak) => (Unit::Mfu(peak.parse().map_or_else(|_| Peak::Of(peak.to_string()), Peak::Tflops)), scale),
        _ => return Err(unknown()),
    };
    Ok((value, Some(unit)))
}
