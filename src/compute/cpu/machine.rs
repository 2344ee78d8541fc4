//! A CPU core, with the memory that its calls use again.

use super::pool::Pool;
use crate::compute::{Attention, Memory, Workload};
use crate::model_spec::Storage;
use cpu_kernels::{attention, rotary};

/// How the CPU stores what passes leave behind: all in float32, rows of logits in whole cache lines.
pub const STORAGE: Storage = Storage::whole(4, 4, 16, 1);

/// The calling thread, with the memory that its calls use again.
pub struct Cpu {
    pub(super) workload: Workload,
    pub(super) inputs: Vec<u32>,
    pub(super) targets: Vec<u32>,
    pub(super) rotations: Option<rotary::Table>,
    pub(super) losses: Vec<f32>,
    pub(super) squares: Vec<f64>,
    pub(super) keep_logits: bool,
    /// By micro-batch (n, V).
    pub(super) logits: Vec<Option<Vec<f32>>>,
    pub(super) pool: Pool,
}

impl Memory for Vec<f32> {
    fn bytes(&self) -> usize {
        size_of_val(&self[..])
    }
}

impl Cpu {
    /// Returns a core for this workload.
    pub fn new(workload: Workload) -> Cpu {
        let (tokens, heads) = (workload.micro_batch.tokens, if workload.has_head { workload.microbatches } else { 0 });
        let rotations = (!workload.frequencies.is_empty()).then(|| rotary::Table::new(tokens, &workload.frequencies));
        Cpu {
            workload,
            inputs: Vec::new(),
            targets: Vec::new(),
            rotations,
            losses: vec![0.0; heads],
            squares: Vec::new(),
            keep_logits: false,
            logits: vec![None; heads],
            pool: Pool::default(),
        }
    }

    /// Sets whether forwards keep a copy of the logits; they do not by default.
    pub fn keep_logits(&mut self, keep: bool) {
        self.keep_logits = keep;
        if !keep {
            self.logits.fill(None);
        }
    }

    /// Logits (n, V) of a micro-batch's last forward, where the head is and they were kept.
    pub fn logits(&self, microbatch: u32) -> Option<&[f32]> {
        self.logits.get(microbatch as usize)?.as_deref()
    }

    pub(super) fn rows(&self) -> usize {
        self.workload.micro_batch.rows()
    }

    pub(super) fn shape(&self, layer: &Attention) -> attention::Shape {
        let (micro, &Attention { heads, groups, size }) = (self.workload.micro_batch, layer);
        attention::Shape { sequences: micro.sequences, tokens: micro.tokens, heads, groups, size }
    }
}
