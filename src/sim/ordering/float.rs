//! Programs in fixed order with floating W's or R's, for slices and recompute: one pass over the devices.
//!
//! A device waits for the input of its next op. Before it, floating ops run that end by the time the input arrives. W's are the oldest
//! whose I has run; R's are the first listed whose F has run, and run at the latest where they are listed.

use pipesim_cost::CostTable;
use pipesim_schedule::activation::{Holding, UNLIMITED, cap};
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::open::{OpenSchedule, Program};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an op hands on: whether it is a gradient, its stage, direction, micro-batch and slice.
type Output = (bool, u32, u32, u32, Option<u32>);

struct FillDevice<'a> {
    ops: &'a [Op],
    /// The kind that floats.
    floating: Option<Kind>,
    cap: i128,
    next: usize,
    free: u64,
    live: i128,
    /// W's whose I has run, or R's that have run.
    pending: VecDeque<Op>,
    ran: BTreeSet<Op>,
    /// Units of R's, and W's that are listed.
    recomputed: BTreeSet<Op>,
    weights: BTreeSet<Op>,
    out: Vec<Op>,
}

struct FloatPass<'a> {
    open: &'a OpenSchedule,
    costs: &'a CostTable,
    holding: Holding<'a>,
    arrivals: BTreeMap<Output, u64>,
}

/// Returns the ops of each device in order; `None` if devices wait for each other.
pub(super) fn rows(open: &OpenSchedule, costs: &CostTable) -> Option<Vec<Vec<Op>>> {
    let whole = open.placement.chunks() * open.slices.total();
    let mut devices: Vec<FillDevice> = open.programs.iter().map(|program| FillDevice::new(program, whole)).collect();
    let holding = Holding::new(costs.keep, &open.slices);
    let mut pass = FloatPass { open, costs, holding, arrivals: BTreeMap::new() };
    loop {
        let mut ran = false;
        for device in &mut devices {
            ran |= pass.advance(device);
        }
        if !ran {
            break;
        }
    }
    let done = devices.iter().all(|device| device.next == device.ops.len());
    done.then(|| devices.into_iter().map(FillDevice::finished).collect())
}

impl<'a> FillDevice<'a> {
    fn new(program: &'a Program, whole: u32) -> FillDevice<'a> {
        let (floating, limit) = match program {
            Program::Fill { floating, cap, .. } => (Some(*floating), *cap),
            _ => (None, None),
        };
        let ops = program.listed();
        let of = |kind: Kind| ops.iter().filter(|op| op.kind() == kind).map(|op| op.alone()).collect();
        FillDevice {
            ops,
            floating,
            cap: limit.map_or(UNLIMITED, |units| cap(units, whole)),
            next: 0,
            free: 0,
            live: 0,
            pending: VecDeque::new(),
            ran: BTreeSet::new(),
            recomputed: of(Kind::R),
            weights: of(Kind::W),
            out: Vec::new(),
        }
    }

    /// Returns the ops that ran, with the W's that are left at the end.
    fn finished(mut self) -> Vec<Op> {
        self.out.extend(self.pending);
        self.out
    }

    /// Returns the first listed R that has not run and whose F has.
    fn next_recompute(&self) -> Option<(usize, Op)> {
        let ahead = self.ops.iter().enumerate().skip(self.next);
        let mut recomputes = ahead.filter(|(_, op)| op.kind() == Kind::R && !self.ran.contains(*op));
        let (at, &op) = recomputes.next()?;
        self.ran.contains(&op.of_kind(Kind::F)).then_some((at, op))
    }
}

fn output(op: Op, stage: u32) -> Output {
    (op.kind().is_backward(), stage, op.direction(), op.microbatch(), op.slice())
}

impl FloatPass<'_> {
    /// Runs a device until it waits; returns whether any op ran.
    fn advance(&mut self, device: &mut FillDevice) -> bool {
        let start = device.next;
        while let Some(&op) = device.ops.get(device.next) {
            if op.kind() == Kind::R && device.ran.contains(&op) {
                device.next += 1;
                continue;
            }
            let upstream = op.upstream(self.open.placement.stages());
            let arrival = match upstream.map(|stage| self.arrivals.get(&output(op, stage))) {
                Some(None) => break,
                Some(Some(&arrival)) => arrival,
                None => 0,
            };
            if device.out.last().is_none_or(|last| !last.opens_pair()) {
                self.fill(device, op, arrival);
            }
            device.next += 1;
            self.run(device, op, arrival);
        }
        device.next > start
    }

    /// Runs floating ops before `op`, whose input arrives at `arrival`.
    fn fill(&self, device: &mut FillDevice, op: Op, arrival: u64) {
        let hold = |op: Op| self.costs.of(op).duration + self.costs.of(op).after;
        match device.floating {
            Some(Kind::W) => {
                let change = |device: &FillDevice| device.live + self.change(device, op).0;
                while let Some(&weights) = device.pending.front()
                    && (device.free + hold(weights) <= arrival || change(device) > device.cap)
                {
                    device.pending.pop_front();
                    self.start(device, weights, 0);
                }
            }
            Some(Kind::R) => {
                while let Some((at, recompute)) = device.next_recompute()
                    && device.free + hold(recompute) <= arrival
                    && self.has_room(device, at, recompute)
                {
                    self.start(device, recompute, 0);
                }
            }
            _ => {}
        }
    }

    /// Whether the device stays within its cap if the R listed at `at` runs now.
    fn has_room(&self, device: &FillDevice, at: usize, recompute: Op) -> bool {
        let more = self.change(device, recompute).0;
        let mut level = device.live + more;
        let mut fits = level <= device.cap;
        for &op in device.ops[device.next..at].iter().filter(|op| !device.ran.contains(*op)) {
            let (start, end) = self.change(device, op);
            fits = fits && level + start <= device.cap;
            level += start + end;
        }
        fits || device.cap == UNLIMITED
    }

    fn change(&self, device: &FillDevice, op: Op) -> (i128, i128) {
        self.holding.of(op, device.recomputed.contains(&op.of_kind(Kind::R)))
    }

    /// Appends `op`; returns when it starts.
    fn start(&self, device: &mut FillDevice, op: Op, arrival: u64) -> u64 {
        let (time, (taken, returned)) = (self.costs.of(op), self.change(device, op));
        let start = device.free.max(arrival);
        device.free = start + time.duration + time.after;
        device.live += taken + returned;
        device.ran.insert(op.alone());
        device.out.push(op);
        start
    }

    fn run(&mut self, device: &mut FillDevice, op: Op, arrival: u64) {
        let start = self.start(device, op, arrival);
        let time = self.costs.of(op);
        let lag = if self.open.placement.leaves_device(op) { time.arrival } else { 0 };
        if op.kind() == Kind::F || op.kind().is_backward() {
            self.arrivals.insert(output(op, op.stage()), start + time.duration + lag);
        }
        let weights = op.of_kind(Kind::W);
        if device.floating == Some(Kind::W) && op.kind() == Kind::I && !device.weights.contains(&weights) {
            device.pending.push_back(weights);
        }
    }
}
