//! A case as flat tables: what each op needs, how long it takes, what it holds, and what must come after it.

use pipesim_cost::{CostTable, gcd};
use pipesim_schedule::activation::{self, UNLIMITED, WHOLE};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{OpenSchedule, Program};

/// The ops of one stage, direction and kind.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub device: usize,
    pub op: Op,
    pub duration: i64,
    /// Duration and the host overhead after it.
    pub hold: i64,
    /// The row whose output it needs, and the transfer time; `None` for W and the first F.
    pub input: Option<(usize, i64)>,
    /// The row of the same device whose op of the same micro-batch must run first: F for a backward, I for a W.
    pub own: Option<usize>,
    /// With one stage per device: the row that must release an activation first, and how many micro-batches earlier.
    pub frees: Option<(usize, usize)>,
    /// Of a forward: the rows of forwards that come before on the same device for the same micro-batch.
    pub before: Vec<usize>,
    pub count: usize,
    /// By micro-batch: least time from its end to the end of the step.
    pub tails: Vec<i64>,
}

pub(super) struct SearchState {
    /// By row: number of its ops that have run.
    pub counts: Vec<u8>,
    /// By row: their ends.
    pub ends: Vec<Vec<i64>>,
    /// By device: when it is free.
    pub free: Vec<i64>,
    /// By device: activations held.
    pub live: Vec<i128>,
}

impl SearchState {
    /// Returns how many ops of a row have run.
    pub fn done(&self, row: usize) -> usize {
        usize::from(self.counts[row])
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tables {
    /// Each row precedes those that need its output for the same micro-batch.
    pub rows: Vec<Row>,
    /// By device, its rows.
    pub of_device: Vec<Vec<usize>>,
    /// By device.
    pub caps: Vec<i128>,
    /// By kind: what an op adds to what its device holds.
    pub changes: [i128; Kind::ALL.len()],
    /// By device: whether its forwards must be taken in turn for its cap to count.
    pub in_turn: Vec<bool>,
    /// Whether several chunks of a device share its cap.
    pub shared: bool,
    /// Common divisor of all times.
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
            shared: placement.held_by(0).len() > 1,
            step: 1,
            directions: placement.directions(),
            microbatches: open.microbatches,
        };
        (0..placement.directions()).for_each(|direction| tables.add_direction(open, costs, split, direction));
        tables.step = tables.rows.iter().fold(0, |step, row| {
            let lag = row.input.map_or(0, |(_, lag)| lag);
            [row.duration, row.hold, lag].into_iter().fold(step, |step, time| gcd(step, time.unsigned_abs()))
        });
        tables.step = tables.step.max(1);
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
            _ => first + (2 * stages + stage) as usize,
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

    /// Computes the longest paths to the end, with the micro-batches of a row in order.
    fn fix_tails(&mut self) {
        for row in &mut self.rows {
            row.tails = vec![0; row.count];
        }
        for k in (0..self.microbatches as usize).rev() {
            for number in (0..self.rows.len()).rev() {
                if k < self.rows[number].count {
                    self.raise_tails_before(number, k);
                }
            }
        }
    }

    /// Raises the tails of the predecessors of micro-batch number `k` of `row`.
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

    /// Returns the op of micro-batch number `k` of `row`'s direction.
    pub fn op(&self, row: usize, k: usize) -> Op {
        let op = self.rows[row].op;
        let first = if op.direction() == 0 { 0 } else { self.microbatches.div_ceil(2) };
        Op::new(op.kind(), op.stage(), first + k as u32).in_direction(op.direction())
    }

    /// Returns an op of zero duration for which a device may have to wait: one with overhead, or a forward that shares its cap.
    pub fn instant(&self) -> Option<Op> {
        let waits = |row: &&Row| row.hold > row.duration || (self.shared && row.op.kind() == Kind::F);
        self.rows.iter().filter(|row| row.duration == 0).find(waits).map(|row| row.op)
    }

    pub fn ops(&self) -> usize {
        self.rows.iter().map(|row| row.count).sum()
    }
}
