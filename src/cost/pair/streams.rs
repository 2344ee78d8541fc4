//! The launch order of a pair's sub-ops, and its simulation on three streams.

use super::{LayerOps, PassTimes, SubOps};
use pipesim_schedule::op::Kind;

/// A device's in-order streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Attention, experts and weights.
    Compute,
    /// Dispatch and combine.
    Communication,
    /// Further kernels next to the products for weights.
    Side,
}

impl Stream {
    /// All streams.
    pub const ALL: [Stream; 3] = [Stream::Compute, Stream::Communication, Stream::Side];

    /// Returns `compute`, `communication` or `side`.
    pub fn name(self) -> &'static str {
        ["compute", "communication", "side"][self as usize]
    }
}

/// Which chunk of a pair a sub-op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// The forward.
    Forward,
    /// The backward.
    Backward,
}

/// What a sub-op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // named as in `LayerCost`
pub enum SubOpKind {
    Embedding,
    Attn,
    AttnWeights,
    Dispatch,
    Mlp,
    MlpWeights,
    SideWeights,
    Combine,
    Head,
}

impl SubOpKind {
    /// Returns its name in one half: `attn_F`, `attn_B`, `attn_W`.
    pub fn name(self, half: Half) -> &'static str {
        let [forward, backward] = match self {
            SubOpKind::Embedding => ["embedding_F", "embedding_B"],
            SubOpKind::Attn => ["attn_F", "attn_B"],
            SubOpKind::AttnWeights => ["attn_W"; 2],
            SubOpKind::Dispatch => ["dispatch_F", "dispatch_B"],
            SubOpKind::Mlp => ["mlp_F", "mlp_B"],
            SubOpKind::MlpWeights => ["mlp_W"; 2],
            SubOpKind::SideWeights => ["side_W"; 2],
            SubOpKind::Combine => ["combine_F", "combine_B"],
            SubOpKind::Head => ["head_F", "head_B"],
        };
        if half == Half::Forward { forward } else { backward }
    }
}

/// A sub-op, as the host launches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubOp {
    /// What it does.
    pub kind: SubOpKind,
    /// Chunk of the pair.
    pub half: Half,
    /// Layer of its chunk, in model order; 0 for embedding and head.
    pub layer: u32,
    /// Stream that runs it.
    pub stream: Stream,
    /// In ns.
    pub duration: u64,
    /// The sub-op before it in its chunk, which it waits for in addition to its stream.
    pub waits: Option<usize>,
}

/// Chunks that run next to each other: a forward, and a backward of kind B or I.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    /// Sub-ops of the forward, if there is one.
    pub forward: Option<&'a SubOps>,
    /// Sub-ops of the backward, and its kind.
    pub backward: Option<(&'a SubOps, Kind)>,
}

/// Sub-ops in launch order. Each stream runs its part of it.
struct LaunchOrder {
    ops: Vec<SubOp>,
    /// The last sub-op of each chunk that later ones wait for.
    chain: [Option<usize>; 2],
}

impl LaunchOrder {
    fn add(&mut self, kind: SubOpKind, half: Half, layer: usize, stream: Stream, duration: u64) {
        let waits = self.chain[half as usize];
        self.ops.push(SubOp { kind, half, layer: layer as u32, stream, duration, waits });
    }

    /// Adds a sub-op that the next one of its chunk waits for.
    fn chained(&mut self, kind: SubOpKind, half: Half, layer: usize, stream: Stream, duration: u64) {
        self.add(kind, half, layer, stream, duration);
        self.chain[half as usize] = Some(self.ops.len() - 1);
    }
}

/// Times of a backward: of the input, and of weights that later sub-ops do not wait for.
#[derive(Clone, Copy)]
struct BackwardTimes {
    input: u64,
    weights: u64,
}

fn split(pass: PassTimes, kind: Kind, delays: bool) -> BackwardTimes {
    match (kind, delays) {
        (Kind::I, _) => BackwardTimes { input: pass.input, weights: 0 },
        (_, true) => BackwardTimes { input: pass.input, weights: pass.weights },
        (_, false) => BackwardTimes { input: pass.backward(), weights: 0 },
    }
}

/// Returns the sub-ops in launch order. Layer j of the forward is next to the j-th last layer of the backward; the rest of the longer
/// side follows. A backward's last product for weights runs after all layers, the head's forward and the embedding's backward after
/// it. Source: Megatron-LM, `core/models/common/model_chunk_schedule_plan.py`.
pub fn launch(chunks: Chunks<'_>) -> Vec<SubOp> {
    let mut launch = LaunchOrder { ops: Vec::new(), chain: [None; 2] };
    if let Some(forward) = chunks.forward {
        launch.chained(SubOpKind::Embedding, Half::Forward, 0, Stream::Compute, forward.first.forward);
    }
    if let Some((backward, kind)) = chunks.backward {
        let whole = split(backward.last, kind, false).input;
        launch.chained(SubOpKind::Head, Half::Backward, 0, Stream::Compute, whole);
    }
    let forward = |number: usize| Some((number, *chunks.forward?.layers.get(number)?));
    let backward = |number: usize| {
        let (sub_ops, kind) = chunks.backward?;
        let layer = sub_ops.layers.len().checked_sub(number + 1)?;
        Some((layer, sub_ops.layers[layer], kind, sub_ops.delays_weights))
    };
    let mut number = 0;
    while forward(number).is_some() || backward(number).is_some() {
        layers(&mut launch, forward(number), backward(number));
        number += 1;
    }
    if let Some((sub_ops, kind)) = chunks.backward
        && let Some(layer) = sub_ops.layers.first()
    {
        let weights = split(layer.attn, kind, sub_ops.delays_weights).weights;
        launch.add(SubOpKind::AttnWeights, Half::Backward, 0, Stream::Compute, weights);
    }
    if let Some(forward) = chunks.forward {
        launch.chained(SubOpKind::Head, Half::Forward, 0, Stream::Compute, forward.last.forward);
    }
    if let Some((sub_ops, kind)) = chunks.backward {
        let whole = split(sub_ops.first, kind, false).input;
        launch.chained(SubOpKind::Embedding, Half::Backward, 0, Stream::Compute, whole);
    }
    launch.ops
}

/// Adds a layer of the forward next to a layer of the backward: (layer, times[, kind, whether weights are delayed]).
fn layers(
    launch: &mut LaunchOrder,
    forward: Option<(usize, LayerOps)>,
    backward: Option<(usize, LayerOps, Kind, bool)>,
) {
    use Half::{Backward, Forward};
    use Stream::{Communication, Compute};
    if let Some((j, layer, ..)) = backward {
        launch.chained(SubOpKind::Combine, Backward, j, Communication, layer.combine.input);
    }
    if let Some((j, layer)) = forward {
        launch.chained(SubOpKind::Attn, Forward, j, Compute, layer.attn.forward);
    }
    if let Some((j, layer, kind, delays)) = backward {
        launch.chained(SubOpKind::Mlp, Backward, j, Compute, split(layer.mlp, kind, delays).input);
    }
    if let Some((j, layer)) = forward {
        launch.chained(SubOpKind::Dispatch, Forward, j, Communication, layer.dispatch.forward);
    }
    if let Some((j, layer, kind, delays)) = backward {
        if kind != Kind::I && layer.side > 0 {
            launch.add(SubOpKind::SideWeights, Backward, j, Stream::Side, layer.side);
        }
        launch.add(SubOpKind::MlpWeights, Backward, j, Compute, split(layer.mlp, kind, delays).weights);
        launch.chained(SubOpKind::Dispatch, Backward, j, Communication, layer.dispatch.input);
    }
    if let Some((j, layer)) = forward {
        launch.chained(SubOpKind::Mlp, Forward, j, Compute, layer.mlp.forward);
    }
    if let Some((j, layer)) = forward {
        launch.chained(SubOpKind::Combine, Forward, j, Communication, layer.combine.forward);
    }
    if let Some((j, layer, kind, delays)) = backward {
        let BackwardTimes { input, weights } = split(layer.attn, kind, delays);
        launch.chained(SubOpKind::Attn, Backward, j, Compute, input);
        if j > 0 {
            launch.add(SubOpKind::AttnWeights, Backward, j, Compute, weights);
        }
    }
}

/// Start and end of a sub-op, in ns from the start of its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubOpSpan {
    /// The sub-op.
    pub op: SubOp,
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// The run of a pair, or of one chunk alone, in ns from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamTimes {
    /// In launch order.
    pub spans: Vec<SubOpSpan>,
    /// End of the last sub-op.
    pub end: u64,
    /// When each chunk's output is complete: the forward's after its last combine, the backward's after its last attention.
    pub outputs: [u64; 2],
    /// By stream: the sum of its sub-ops.
    pub busy: [u64; 3],
}

impl StreamTimes {
    /// Simulates `chunks`.
    pub fn of(chunks: Chunks<'_>) -> StreamTimes {
        let has_one_queue = [chunks.forward, chunks.backward.map(|(backward, _)| backward)];
        run(&launch(chunks), has_one_queue.into_iter().flatten().any(|sub_ops| sub_ops.has_one_queue))
    }

    /// Returns the time for which the compute stream waits for the communication or side stream.
    pub fn exposed(&self) -> u64 {
        self.end - self.busy[Stream::Compute as usize]
    }
}

/// Simulates sub-ops in launch order: each starts when its stream is free and the sub-op that it waits for has ended. With one hardware
/// queue, it also waits until all kernels that were launched before it have started. Computation consists of many kernels, and its last
/// kernel starts shortly before its end; an exchange is one kernel.
pub fn run(ops: &[SubOp], has_one_queue: bool) -> StreamTimes {
    let mut times = StreamTimes { spans: Vec::with_capacity(ops.len()), ..StreamTimes::default() };
    let (mut free, mut launched) = ([0_u64; 3], 0);
    for &op in ops {
        let stream = op.stream as usize;
        let ready = op.waits.map_or(0, |before| times.spans[before].end);
        let start = free[stream].max(ready).max(launched);
        let end = start + op.duration;
        if has_one_queue {
            launched = if op.stream == Stream::Communication { start } else { end };
        }
        free[stream] = end;
        times.busy[stream] += op.duration;
        times.end = times.end.max(end);
        if matches!(op.kind, SubOpKind::Attn | SubOpKind::Combine) {
            times.outputs[op.half as usize] = end;
        }
        times.spans.push(SubOpSpan { op, start, end });
    }
    times
}

impl SubOps {
    /// Returns how long an op of `kind` takes alone, in ns. The products for weights of a whole backward hide its communication.
    pub fn alone(&self, kind: Kind) -> u64 {
        match kind {
            Kind::F => self.in_a_row(Kind::F),
            Kind::B => StreamTimes::of(Chunks { forward: None, backward: Some((self, Kind::B)) }).end,
            // Halves of a backward have nothing to hide behind.
            _ => self.in_a_row(kind),
        }
    }
}
