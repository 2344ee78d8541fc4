//! One case as flat tables: what each op needs, lasts and holds, and what must come after it.

use crate::activation::{self, UNLIMITED, WHOLE};
use crate::cost::CostTable;
use crate::graph::TaskGraph;
use crate::op::{Kind, Op};
use crate::open::{Goal, OpenSchedule, Program};

/// The ops of one stage, direction and kind.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub device: usize,
    pub op: Op,
    pub duration: i64,
    /// With what the device is held up afterwards.
    pub hold: i64,
    /// The row whose output it needs, and the latency; none for W and the first F.
    pub input: Option<(usize, i64)>,
    /// The row of the same device whose op of the same micro-batch comes before: F of a backward, I of a W.
    pub own: Option<usize>,
    /// The device's row whose activation of so many micro-batches before must be returned first: one stage a device.
    pub frees: Option<(usize, usize)>,
    /// The rows whose forward of the same micro-batch comes before on the same device: of a forward.
    pub before: Vec<usize>,
    pub count: usize,
    /// By micro-batch: from its end to the goal's, at least; negative where the goal counts from a device's first start.
    pub tails: Vec<i64>,
}

/// How far every device is.
pub(super) struct State {
    /// By row: how many of its ops have run.
    pub counts: Vec<u8>,
    /// By row: when these ended.
    pub ends: Vec<Vec<i64>>,
    /// By device: from when it is free.
    pub free: Vec<i64>,
    /// By device: activations held.
    pub live: Vec<i128>,
}

impl State {
    /// How many ops of a row have run.
    pub fn done(&self, row: usize) -> usize {
        usize::from(self.counts[row])
    }
}

/// One case.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// Every row before those that need its output for the same micro-batch.
    pub rows: Vec<Row>,
    /// By device, its rows.
    pub of_device: Vec<Vec<usize>>,
    /// By device.
    pub caps: Vec<i128>,
    /// By kind: what it adds to what its device holds.
    pub changes: [i128; 4],
    /// By device: whether its forwards must be taken in turn for its cap to count.
    pub in_turn: Vec<bool>,
    /// By device, from when the goal counts its end.
    pub origins: Vec<i64>,
    /// Whether several chunks of a device share its cap.
    pub shared: bool,
    /// What every time is a multiple of.
    pub step: u64,
    pub directions: u32,
    microbatches: u32,
}

impl Tables {
    pub fn new(open: &OpenSchedule, costs: &CostTable, split: bool) -> Tables {
        let placement = &open.placement;
        let cap = |program: &Program| match program {
            Program::Search { cap: Some(cap), .. } => activation::cap(*cap, placement.chunks()),
            _ => UNLIMITED,
        };
        let mut tables = Tables {
            rows: Vec::new(),
            of_device: vec![Vec::new(); placement.devices() as usize],
            caps: open.programs.iter().map(cap).collect(),
            changes: costs.keep.changes(),
            in_turn: Vec::new(),
            origins: vec![0; placement.devices() as usize],
            shared: placement.held_by(0).len() > 1,
            step: 1,
            directions: placement.directions(),
            microbatches: open.microbatches,
        };
        (0..placement.directions()).for_each(|direction| tables.add_direction(open, costs, split, direction));
        tables.step = tables.rows.iter().fold(0, |step, row| {
            let lag = row.input.map_or(0, |(_, lag)| lag);
            [row.duration, row.hold, lag].into_iter().fold(step, |step, time| divisor(step, time.unsigned_abs()))
        });
        tables.step = tables.step.max(1);
        if open.goal == Goal::Span {
            tables.fix_origins();
        }
        tables.fix_tails();
        tables.in_turn = (0..tables.of_device.len()).map(|device| tables.counts_in_turn(device)).collect();
        tables
    }

    fn add_direction(&mut self, open: &OpenSchedule, costs: &CostTable, split: bool, direction: u32) {
        let placement = &open.placement;
        let stages = placement.stages();
        let kinds = Kind::of_microbatch(split);
        let first = self.rows.len();
        let row_of = |kind: Kind, stage: u32| match kind {
            Kind::F => first + stage as usize,
            Kind::I | Kind::B => first + (stages + stages - 1 - stage) as usize,
            Kind::W => first + (2 * stages + stage) as usize,
        };
        for &kind in kinds {
            for position in 0..stages {
                let stage = if kind.is_backward() { stages - 1 - position } else { position };
                let op = Op::new(kind, stage, 0).in_direction(direction);
                let (time, device) = (costs.of(op), placement.device_of(op) as usize);
                let input = op.upstream(stages).map(|from| {
                    let before = op.on_stage(from);
                    let lag = if placement.leaves_device(before) { costs.of(before).arrival as i64 } else { 0 };
                    (row_of(kind, from), lag)
                });
                let whole = self.changes[Kind::I as usize] == 0 || !split;
                let held = usize::try_from(self.caps[device] / WHOLE).unwrap_or(usize::MAX);
                let frees = (kind == Kind::F && whole && !self.shared && self.caps[device] < UNLIMITED)
                    .then(|| (row_of(kinds[kinds.len() - 1], stage), held));
                self.of_device[device].push(self.rows.len());
                self.rows.push(Row {
                    device,
                    op,
                    duration: time.duration as i64,
                    hold: (time.duration + time.after) as i64,
                    input,
                    own: kind.needs().map(|needed| row_of(needed, stage)),
                    frees,
                    before: match kind {
                        Kind::F => {
                            (0..stage).map(|s| row_of(kind, s)).filter(|&r| self.rows[r].device == device).collect()
                        }
                        _ => Vec::new(),
                    },
                    count: placement.microbatches_of(direction, open.microbatches).len(),
                    tails: Vec::new(),
                });
            }
        }
    }

    /// Whether a device's forwards must be taken in turn for its cap to count.
    fn counts_in_turn(&self, device: usize) -> bool {
        let partial = self.changes[Kind::I as usize] < 0 && self.rows.iter().any(|row| row.op.kind() == Kind::I);
        self.caps[device] < UNLIMITED && (self.shared || partial)
    }

    /// A device's first op is the first forward of its first stage; it starts when the chain of them reaches it.
    fn fix_origins(&mut self) {
        let mut time = 0;
        for number in 0..self.of_device.len() {
            let row = &self.rows[number];
            time += row.input.map_or(0, |(from, lag)| self.rows[from].duration + lag);
            self.origins[row.device] = time;
        }
    }

    /// Longest ways to the goal, micro-batches in order within a row.
    fn fix_tails(&mut self) {
        for row in &mut self.rows {
            row.tails = vec![-self.origins[row.device]; row.count];
        }
        for k in (0..self.microbatches as usize).rev() {
            for number in (0..self.rows.len()).rev() {
                if k < self.rows[number].count {
                    self.raise_tails_before(number, k);
                }
            }
        }
    }

    /// Raises the tails of what comes before the op of `row` and micro-batch number `k`.
    fn raise_tails_before(&mut self, row: usize, k: usize) {
        let Row { duration, input, own, frees, ref tails, .. } = self.rows[row];
        let through = duration + tails[k];
        let overhead = |other: usize| self.rows[other].hold - self.rows[other].duration;
        let before = [
            input.map(|(from, lag)| (from, k, lag)),
            k.checked_sub(1).map(|k| (row, k, overhead(row))),
            own.map(|own| (own, k, overhead(own))),
            frees.and_then(|(from, held)| Some((from, k.checked_sub(held)?, overhead(from)))),
        ];
        for (other, k, lag) in before.into_iter().flatten() {
            let tail = &mut self.rows[other].tails[k];
            *tail = (*tail).max(lag + through);
        }
    }

    /// The op of micro-batch number `k` of `row`'s direction.
    pub fn op(&self, row: usize, k: usize) -> Op {
        let op = self.rows[row].op;
        let first = if op.direction() == 0 { 0 } else { self.microbatches.div_ceil(2) };
        Op::new(op.kind(), op.stage(), first + k as u32).in_direction(op.direction())
    }

    /// An op of no duration that a device may have to wait out: one with overhead, or a forward that shares its cap.
    pub fn instant(&self) -> Option<Op> {
        let waits = |row: &&Row| row.hold > row.duration || (self.shared && row.op.kind() == Kind::F);
        self.rows.iter().filter(|row| row.duration == 0).find(waits).map(|row| row.op)
    }

    /// How many ops there are.
    pub fn ops(&self) -> usize {
        self.rows.iter().map(|row| row.count).sum()
    }

    /// What a schedule reaches: every op starts as soon as its device and its input allow.
    pub fn objective(&self, graph: &TaskGraph) -> u64 {
        let mut row_of = vec![0; self.rows.iter().map(|row| row.op.slot() + 1).max().unwrap_or(0)];
        self.rows.iter().enumerate().for_each(|(number, row)| row_of[row.op.slot()] = number);
        let (mut ends, mut free) = (vec![0; graph.len()], vec![0; self.of_device.len()]);
        let mut objective = 0;
        for index in graph.order() {
            let row = &self.rows[row_of[graph.op(index).slot()]];
            let lag = row.input.map_or(0, |(_, lag)| lag);
            let start = free[row.device].max(graph.upstream(index).map_or(0, |from| ends[from] + lag));
            ends[index] = start + row.duration;
            free[row.device] = start + row.hold;
            objective = objective.max(ends[index] - self.origins[row.device]);
        }
        objective.max(0) as u64
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}
