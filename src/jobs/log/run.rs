//! One run of a log.

use super::content::Log;
use super::facts::Facts;
use super::memory::Memory;
use super::step::{self, Form};
use super::steps::{Steps, Taken};
use super::timers::Timers;
use crate::measurement::Measurement;

/// Lines that say that the next step has a checkpoint or an evaluation before it.
const PAUSES: [&str; 8] = [
    "saving checkpoint",
    "successfully saved checkpoint",
    "Saving the checkpoint",
    "Saving checkpoint",
    "Saving model checkpoint",
    "validation loss at",
    "validate step:",
    "Evaluating",
];
/// Lines that begin a run.
const STARTS: [&str; 3] = ["--- arguments ---", "Starting job: ", "initializing torch distributed"];

/// One run of a log.
#[derive(Default)]
pub(super) struct Run {
    facts: Facts,
    steps: Steps,
    memory: Memory,
    timers: Timers,
    consumed_tokens: bool,
    bridge: bool,
    neox: bool,
    undated: bool,
    words: bool,
}

impl Run {
    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Reads a line, or returns the run that begins with it.
    pub(super) fn read(&mut self, file: &str, number: usize, line: &str) -> Option<Run> {
        if self.has_steps() && STARTS.iter().any(|start| line.contains(start)) {
            return Some(Run::default());
        }
        if let Some(found) = step::of(line) {
            if self.steps.read(&found) == Taken::AnotherRun {
                // Its launcher started it anew, with the same arguments.
                return Some(Run { facts: self.facts.clone(), ..Run::default() });
            }
            self.bridge |= found.form == Form::Bridge;
            self.consumed_tokens |= line.contains("consumed tokens:");
            self.neox |= line.contains("approx flops per GPU:");
            self.undated |= line.trim_start().starts_with("iteration ");
            self.words |= line.contains("  wps: ");
            self.memory.read(line);
            return None;
        }
        if PAUSES.iter().any(|pause| line.contains(pause)) {
            self.steps.pause();
        } else if line.contains("Dumping profiler traces at step") {
            self.steps.profiled();
        } else if !self.facts.in_arguments || line.contains("--- end of arguments") {
            self.timers.read(line);
        }
        self.memory.read(line);
        self.facts.read(file, number, line);
        None
    }

    /// Reads the line that began this run.
    pub(super) fn again(&mut self, line: &str, file: &str, number: usize) {
        self.read(file, number, line);
    }

    fn framework(&self) -> Option<&'static str> {
        match self.steps.form() {
            _ if self.bridge => Some("megatron-bridge"),
            Some(Form::Megatron) if self.consumed_tokens => Some("megatron-deepspeed"),
            Some(Form::Megatron) if self.neox => None,
            Some(Form::Megatron) => Some("megatron-core"),
            Some(Form::Nanotron) => Some("nanotron"),
            Some(Form::Titan) => Some("torchtitan"),
            Some(Form::DeepSpeed | Form::DeepSpeedPipe) => Some("deepspeed"),
            None if !self.facts.settings.0.is_empty() => Some("megatron-core"),
            _ => None,
        }
    }

    pub(super) fn finish(mut self, runs: usize) -> Log {
        let framework = self.framework();
        let version_hint = match framework {
            Some("megatron-core") if self.undated => Some("before 2024-03: its lines have no date"),
            Some("torchtitan") if self.words => Some("before 2024-11-25: its lines have `wps`"),
            _ => None,
        };
        let measurement = Measurement {
            allocated_bytes: self.memory.allocated,
            reserved_bytes: self.memory.reserved,
            timers: self.timers.medians(),
            arguments: self.facts.settings.0.iter().map(|one| (one.name.clone(), one.values.join(" "))).collect(),
            ..self.steps.measure(&self.facts)
        };
        Log {
            framework: framework.map(str::to_string),
            version_hint: version_hint.map(str::to_string),
            tokens_per_step: self.facts.tokens(),
            settings: self.facts.settings,
            world: self.facts.world,
            degrees: self.facts.degrees,
            measurement,
            padded_vocab: self.facts.padded_vocab,
            parameters: self.facts.parameters,
            gpu: self.facts.gpu,
            peak_flops: self.facts.peak_flops,
            theoretical_bytes: self.facts.theoretical_bytes,
            runs,
        }
    }
}
