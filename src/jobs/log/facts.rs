//! What a log says about its run besides steps: arguments, parallel sizes, batch and GPU.

use super::number::{after, count, leading, value, whole};
use crate::setting::{Setting, Settings};
use std::collections::BTreeMap;

/// Width of the names and dots of Megatron's arguments.
const WIDTH: usize = 48;
/// Dots that show an argument whatever the width, as logs are edited and forks have other widths.
const LEAST_DOTS: usize = 3;
/// Most arguments, and most ranks whose number of parameters is kept.
const MOST: usize = 10_000;
/// Longest values of all arguments together, in bytes.
const MOST_TEXT: usize = 4 << 20;
/// Names of parallel sizes, as Megatron and torchtitan write them.
const DEGREES: [(&str, &str); 12] = [
    ("data-parallel size:", "dp"),
    ("data-parallel-size:", "dp"),
    (" context-parallel size:", "cp"),
    ("tensor-model-parallel size:", "tp"),
    ("pipeline-model-parallel size:", "pp"),
    ("expert-model-parallel size:", "ep"),
    (" pp=", "pp"),
    (" dp_replicate=", "dp_replicate"),
    (" dp_shard=", "dp_shard"),
    (" cp=", "cp"),
    (" tp=", "tp"),
    (" ep=", "ep"),
];

/// What a log says besides steps.
#[derive(Clone, Default)]
pub(super) struct Facts {
    pub(super) settings: Settings,
    pub(super) world: Option<u32>,
    pub(super) degrees: BTreeMap<String, u32>,
    pub(super) batch: Option<u32>,
    pub(super) seq: Option<u32>,
    pub(super) tokens_per_step: Option<u64>,
    pub(super) padded_vocab: Option<u64>,
    pub(super) parameters: BTreeMap<String, u64>,
    pub(super) gpu: Option<String>,
    pub(super) peak_flops: Option<f64>,
    pub(super) theoretical_bytes: Option<[u64; 3]>,
    pub(super) in_arguments: bool,
    text: usize,
}

impl Facts {
    pub(super) fn read(&mut self, file: &str, number: usize, line: &str) {
        if line.contains("--- arguments ---") {
            (self.in_arguments, self.settings, self.text) = (true, Settings::default(), 0);
        } else if line.contains("--- end of arguments ---") {
            self.in_arguments = false;
        } else if let Some(setting) = argument(line).filter(|_| self.in_arguments && self.settings.0.len() < MOST) {
            let (name, value) = setting;
            let place = format!("{file}:{number}");
            self.text += value.len();
            if self.text > MOST_TEXT {
                return;
            }
            self.settings.0.push(Setting { name, values: vec![value], place, unresolved: Vec::new() });
        } else {
            self.sizes(line);
            self.batch(line);
            self.model(line);
        }
    }

    fn sizes(&mut self, line: &str) {
        if let Some(world) = count(line, "using world size:") {
            self.world = Some(world);
        }
        if line.contains("using world size:") || line.contains("Building device mesh with parallelism:") {
            let found = DEGREES.iter().filter_map(|(text, name)| Some((name.to_string(), count(line, text)?)));
            self.degrees.extend(found);
        } else if let Some((_, lists)) = line.split_once("-D device mesh with [") {
            let Some((names, sizes)) = lists.split_once("], [") else { return };
            let names = names.split(',').map(|name| name.trim().trim_matches('\'').to_string());
            let sizes =
                sizes.split(']').next().unwrap_or_default().split(',').map(|size| size.trim().parse::<u32>().ok());
            self.degrees
                .extend(names.zip(sizes).filter_map(|(name, size)| Some((name, size.filter(|size| *size > 0)?))));
        } else if line.contains("TOTAL_PARAMS=") {
            if let Some(stage) = whole(line, "STAGE=").filter(|stage| *stage < 65_536) {
                let stages = self.degrees.entry("pp".to_string()).or_default();
                *stages = (*stages).max(stage as u32 + 1);
            }
            return;
        } else {
            return;
        }
        if !line.contains("using world size:") {
            let parts = ["pp", "dp_replicate", "dp_shard", "dp", "cp", "tp"];
            let sizes = parts.iter().filter_map(|name| self.degrees.get(*name));
            self.world = sizes.copied().try_fold(1u32, u32::checked_mul);
        }
    }

    fn batch(&mut self, line: &str) {
        if line.contains("local batch size ") {
            self.batch = count(line, "global batch size ").or(self.batch);
            self.seq = count(line, "sequence length ").or(self.seq);
        }
        if let Some((before, _)) = line.split_once(" tokens per train step") {
            let number = before.rsplit(' ').next().and_then(leading);
            self.tokens_per_step = number.filter(|(number, _)| *number >= 1.0).map(|(number, _)| number as u64);
        }
        if let Some((_, rest)) = line.split_once("train_batch_size ..") {
            let number = leading(rest.trim_start_matches('.')).filter(|(number, _)| (1.0..1e9).contains(number));
            self.batch = number.map(|(number, _)| number as u32).or(self.batch);
        }
    }

    fn model(&mut self, line: &str) {
        if let Some((_, rest)) = line.split_once(" capacity: ")
            && let Some((gpu, _)) =
                rest.split_once(" with ").filter(|(gpu, rest)| gpu.len() < 100 && rest.contains("GiB memory"))
        {
            self.gpu = Some(gpu.to_string());
        } else if let Some(flops) = value(line, "Peak FLOPS used for computing MFU:") {
            self.peak_flops = Some(flops).filter(|flops| *flops > 0.0);
        } else if line.contains("> padded vocab (size: ") {
            self.padded_vocab = whole(line, "(new size: ").or(self.padded_vocab);
        } else if let Some((_, rest)) = line.split_once("> number of parameters on ") {
            let Some((rank, number)) = after(rest, "rank ").and_then(|rest| rest.split_once(": ")) else { return };
            if let Some(number) = whole(number, "").filter(|_| rank.len() < 100 && self.parameters.len() < MOST) {
                self.parameters.insert(rank.to_string(), number);
            }
        } else if line.contains("Theoretical memory footprints:") {
            let bytes = |name: &str| {
                let mib = leading(after(line, name)?)?.0;
                (0.0..1e12).contains(&mib).then(|| (mib * 1048576.0).round() as u64)
            };
            let all = (bytes("weight and optimizer="), bytes("activation="), bytes("total="));
            if let (Some(weights), Some(activations), Some(total)) = all {
                self.theoretical_bytes = Some([weights, activations, total]);
            }
        }
    }

    /// Tokens per step, as lines say it or as batch and sequence give it.
    pub(super) fn tokens(&self) -> Option<u64> {
        self.tokens_per_step.or_else(|| Some(u64::from(self.batch?) * u64::from(self.seq?)))
    }
}

/// Reads `NAME ....... VALUE`, whose name and dots have 48 columns; a longer name has none.
fn argument(line: &str) -> Option<(String, String)> {
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let mut at = 0;
    for part in line.split(' ') {
        let rest = &line[(at + part.len()).min(line.len())..];
        let dots = rest.strip_prefix(' ').and_then(|rest| rest.split(' ').next());
        if is_name(part)
            && let Some(dots) = dots
            && dots.bytes().all(|byte| byte == b'.')
            && (dots.len() >= LEAST_DOTS || part.len() + dots.len() == WIDTH.max(part.len()))
        {
            let value = rest[(2 + dots.len()).min(rest.len())..].trim_end();
            return Some((part.to_string(), value.to_string()));
        }
        at += part.len() + 1;
    }
    None
}
