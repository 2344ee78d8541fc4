//! A CPU core, with the memory that its calls use again.

use super::pool::{BufferPool, Memories};
use crate::compute::{Attention, Collective, Memory, Workload};
use anyhow::Result;
use cpu_kernels::{attention, rotary};
use pipesim_models::model_spec::Storage;
use std::ops::Range;

/// How the CPU stores what passes leave behind: all in float32, rows of logits in whole cache lines.
pub const STORAGE: Storage = Storage::whole(4, 4, 16, 1);

/// How one of `ranks` tensor-parallel ranks on CPUs stores it, for a vocabulary padded to a multiple of `vocabulary_multiple`: each
/// has rows of logits in whole cache lines, all of one length.
pub fn storage(vocabulary_multiple: usize, ranks: usize) -> Storage {
    let each = STORAGE.logits_multiple;
    let logits_multiple = if ranks == 1 { each } else { least_common_multiple(vocabulary_multiple, each * ranks) };
    Storage { logits_multiple, tp: ranks, ..STORAGE }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a.max(1), b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.max(1) / divisor * b
}

/// The calling thread, with the memory that its calls use again, and with what joins it to the other tensor-parallel ranks.
pub struct Cpu {
    pub(super) workload: Workload,
    pub(super) ranks: Box<dyn Collective>,
    /// Elements from one row of logits to the next.
    pub(super) stride: usize,
    pub(super) inputs: Vec<u32>,
    pub(super) targets: Vec<u32>,
    pub(super) rotations: Option<rotary::Table>,
    /// The slice that calls are for.
    pub(super) slice: usize,
    /// By micro-batch, then by slice: sum of the tokens' losses.
    pub(super) losses: Vec<f64>,
    pub(super) squares: Vec<f64>,
    pub(super) keep_logits: bool,
    /// By micro-batch, then by slice (n, V).
    pub(super) logits: Vec<Option<Vec<f32>>>,
    pub(super) pool: BufferPool,
    /// Where copies to the host go.
    host: BufferPool,
}

impl Memory for Vec<f32> {
    fn bytes(&self) -> usize {
        size_of_val(&self[..])
    }
}

impl Cpu {
    /// Returns a core for this workload, one of `ranks` that share its layers.
    ///
    /// # Errors
    /// The workload is another rank's.
    pub fn new(workload: Workload, ranks: Box<dyn Collective>) -> Result<Cpu> {
        workload.require_rank(ranks.rank(), ranks.size())?;
        let tokens = workload.micro_batch.tokens;
        let heads = if workload.has_head { workload.microbatches * workload.slice_count() } else { 0 };
        let rotations = (!workload.frequencies.is_empty()).then(|| rotary::Table::new(tokens, &workload.frequencies));
        let storage = storage(workload.vocabulary_multiple, ranks.size());
        let stride = workload.vocabulary.next_multiple_of(storage.logits_multiple) / ranks.size();
        Ok(Cpu {
            workload,
            ranks,
            stride,
            inputs: Vec::new(),
            targets: Vec::new(),
            rotations,
            slice: 0,
            losses: vec![0.0; heads],
            squares: Vec::new(),
            keep_logits: false,
            logits: vec![None; heads],
            pool: BufferPool::default(),
            host: BufferPool::default(),
        })
    }

    /// Sets whether forwards keep a copy of the logits; they do not by default.
    pub fn keep_logits(&mut self, keep: bool) {
        self.keep_logits = keep;
        if !keep {
            self.logits.fill(None);
        }
    }

    /// Cuts sequences into other slices from now on; the last slice may be missing. Buffers of other lengths are freed.
    pub fn cut(&mut self, slices: Vec<usize>) {
        self.workload.slices = slices;
        self.pool.clear();
    }

    /// Logits (n, V) of a micro-batch's last forward, of the ids that this rank has, where the head is and they were kept. With slices
    /// one after the other.
    pub fn logits(&self, unit: u32) -> Option<&[f32]> {
        self.logits.get(unit as usize)?.as_deref()
    }

    /// The memory of its buffers and of the host, for copies by other threads.
    pub fn memories(&self) -> Memories {
        Memories { device: self.pool.clone(), host: self.host.clone() }
    }

    /// Rows of the slice.
    pub(super) fn rows(&self) -> usize {
        self.workload.slice_rows(self.slice)
    }

    /// Rows between products: with sequence parallelism, this rank's rows.
    pub(super) fn rows_between(&self) -> usize {
        self.rows() / self.workload.tensor.row_ranks()
    }

    /// The positions of the slice's tokens in their sequences.
    pub(super) fn positions(&self) -> Range<usize> {
        self.workload.positions(self.slice)
    }

    /// The number of the slice of `microbatch` among all slices of a step.
    pub(super) fn unit(&self, microbatch: usize) -> usize {
        microbatch * self.workload.slice_count() + self.slice
    }

    /// The range of the slice of `microbatch` in a step's tokens, which are in the order of slices.
    pub(super) fn tokens(&self, microbatch: usize) -> Range<usize> {
        self.workload.slice_tokens(microbatch, self.slice)
    }

    pub(super) fn shape(&self, layer: &Attention) -> attention::Shape {
        let &Attention { heads, groups, size } = layer;
        let (sequences, tokens) = (self.workload.micro_batch.sequences, self.positions().len());
        attention::Shape { sequences, tokens, heads, groups, size }
    }
}
