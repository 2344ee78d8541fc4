//! A schedule: where the stages are, and one fixed order of ops per device.

use crate::op::{Kind, Op};
use std::fmt;

/// Which device holds which stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    name: String,
    devices: u32,
    /// By stage.
    device_of: Vec<u32>,
    /// By device, the stages of its chunks in chunk order.
    stages_of: Vec<Vec<u32>>,
}

impl Placement {
    /// The placement that puts stage `s` on device `device_of[s]`; chunk numbers follow stage order on each device.
    ///
    /// # Errors
    /// A device outside 0..devices, or devices that hold different numbers of stages.
    pub fn new(name: &str, devices: u32, device_of: Vec<u32>) -> Result<Placement, String> {
        let mut stages_of = vec![Vec::new(); devices as usize];
        for (stage, &device) in device_of.iter().enumerate() {
            let stages = stages_of.get_mut(device as usize).ok_or_else(|| {
                format!("placement puts stage {stage} on device {device}, but there are {devices} devices")
            })?;
            stages.push(stage as u32);
        }
        let chunks = stages_of.first().map_or(0, Vec::len);
        match stages_of.iter().position(|stages| stages.len() != chunks || chunks == 0) {
            Some(device) => Err(format!(
                "every device must hold the same number of stages; device 0 holds {chunks}, device {device} holds {}",
                stages_of[device].len()
            )),
            None => Ok(Placement { name: name.to_string(), devices, device_of, stages_of }),
        }
    }

    /// One stage a device.
    pub fn linear(devices: u32) -> Placement {
        Placement::looped("linear", devices, 1)
    }

    /// Stage s on device s mod p (Narayanan et al. 2021, the interleaved schedule).
    pub fn looped(name: &str, devices: u32, chunks: u32) -> Placement {
        let device_of = (0..devices * chunks).map(|stage| stage % devices).collect();
        Placement::new(name, devices, device_of).expect("a loop is balanced")
    }

    /// Down the devices and up again, `chunks` times in all: stages r and 2p-1-r on device r for two chunks
    /// (Qi et al., arXiv 2401.10241 section 6), a zigzag for more (Liu et al. 2023, Hanayo).
    pub fn zigzag(name: &str, devices: u32, chunks: u32) -> Placement {
        let device_of = (0..devices * chunks)
            .map(|stage| {
                let (wave, step) = (stage / devices, stage % devices);
                if wave % 2 == 0 { step } else { devices - 1 - step }
            })
            .collect();
        Placement::new(name, devices, device_of).expect("a zigzag is balanced")
    }

    /// What the schedule's author calls it: `linear`, `loop`, `V`, ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// p.
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// v, stages a device.
    pub fn chunks(&self) -> u32 {
        self.stages_of[0].len() as u32
    }

    /// S = p * v.
    pub fn stages(&self) -> u32 {
        self.device_of.len() as u32
    }

    /// The device that holds `stage`.
    pub fn device_of(&self, stage: u32) -> u32 {
        self.device_of[stage as usize]
    }

    /// The stages of `device`, by chunk.
    pub fn stages_of(&self, device: u32) -> &[u32] {
        &self.stages_of[device as usize]
    }

    /// Whether the output of `op` goes to another device. The last stage's F and the first stage's backward go nowhere.
    pub fn leaves_device(&self, op: Op) -> bool {
        let stage = op.stage();
        let next = match op.kind() {
            Kind::F => Some(stage + 1).filter(|&s| s < self.stages()),
            Kind::I | Kind::B => stage.checked_sub(1),
            Kind::W => None,
        };
        next.is_some_and(|next| self.device_of(next) != self.device_of(stage))
    }
}

/// A name for a run of ops of one device: warm-up, steady, drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Index of its first op in the device's program.
    pub start: usize,
    /// As the schedule calls it; empty after the end of a named part.
    pub name: String,
}

/// The programs of devices 0, 1, 2, ... as they are written, one after the other.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The finished programs and, at the end, the one being written.
    pub ops: Vec<Op>,
    starts: Vec<usize>,
    phases: Vec<Vec<Phase>>,
}

impl Default for Programs {
    fn default() -> Programs {
        Programs { ops: Vec::new(), starts: vec![0], phases: Vec::new() }
    }
}

impl Programs {
    /// Ends the program that is being written.
    pub fn finish(&mut self, phases: Vec<Phase>) {
        self.starts.push(self.ops.len());
        self.phases.push(phases);
    }

    /// The finished programs.
    pub fn rows(&self) -> Vec<&[Op]> {
        self.starts.windows(2).map(|pair| &self.ops[pair[0]..pair[1]]).collect()
    }
}

/// One fixed order of ops for each device. Flat: a device's ops are contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The file's stem.
    pub name: String,
    /// Stage to device.
    pub placement: Placement,
    /// m.
    pub microbatches: u32,
    ops: Vec<Op>,
    starts: Vec<usize>,
    phases: Vec<Vec<Phase>>,
}

impl Schedule {
    /// A schedule of the programs of all devices; [`Schedule::validate`] tells whether it is one.
    pub fn new(name: &str, placement: Placement, microbatches: u32, programs: Programs) -> Schedule {
        let Programs { ops, starts, phases } = programs;
        Schedule { name: name.to_string(), placement, microbatches, ops, starts, phases }
    }

    /// p.
    pub fn devices(&self) -> u32 {
        self.placement.devices()
    }

    /// All ops, device by device.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Where the ops of `device` are in [`Schedule::ops`].
    pub fn range(&self, device: u32) -> std::ops::Range<usize> {
        self.starts[device as usize]..self.starts[device as usize + 1]
    }

    /// The program of `device`.
    pub fn program(&self, device: u32) -> &[Op] {
        &self.ops[self.range(device)]
    }

    /// The phases of `device`, by start.
    pub fn phases(&self, device: u32) -> &[Phase] {
        &self.phases[device as usize]
    }

    /// The phase of op number `index` of `device`'s program.
    pub fn phase(&self, device: u32, index: usize) -> Option<&str> {
        let phases = self.phases(device);
        let at = phases.partition_point(|phase| phase.start <= index).checked_sub(1)?;
        Some(phases[at].name.as_str()).filter(|name| !name.is_empty())
    }

    /// How many ops each (stage, kind) has, by [`Op::slot`].
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.placement.stages() as usize * Kind::ALL.len()];
        self.ops.iter().for_each(|op| counts[op.slot()] += 1);
        counts
    }

    /// Whether any backward is split into I and W.
    pub fn splits_backward(&self) -> bool {
        self.ops.iter().any(|op| op.kind() == Kind::I)
    }

    /// Highest number of activations that `device` holds at once, under `keep` (DESIGN, cost key): its order alone decides.
    pub fn peak_activations(&self, device: u32, keep: f64) -> f64 {
        // By kind: whole activations, and what is kept of others from I to W.
        const CHANGES: [(i64, i64); 4] = [(1, 0), (-1, 1), (0, -1), (-1, 0)];
        let (mut whole, mut kept, mut peak) = (0, 0, 0.0_f64);
        for op in self.program(device) {
            let change = CHANGES[op.kind() as usize];
            (whole, kept) = (whole + change.0, kept + change.1);
            peak = peak.max(whole as f64 + kept as f64 * keep);
        }
        peak / f64::from(self.placement.chunks())
    }

    /// Checks that each device runs every micro-batch of its stages once forward and once backward (B, or I and later W),
    /// and that F comes before its backward. What waits across devices is the task graph's to check.
    ///
    /// # Errors
    /// The first fault, with the place.
    pub fn validate(&self) -> Result<(), Fault> {
        for device in 0..self.devices() {
            let mut seen = Seen::new(self.placement.stages_of(device), self.microbatches);
            let stages = self.placement.stages_of(device);
            for (index, &op) in self.program(device).iter().enumerate() {
                let chunk = stages.iter().position(|&stage| stage == op.stage());
                let chunk = chunk.ok_or_else(|| format!("{op} is on a device that holds stages {stages:?}"));
                let added = chunk.and_then(|chunk| seen.add(chunk, op));
                added.map_err(|what| self.fault(device, Some(index), what))?;
            }
            if let Some(what) = seen.missing() {
                return Err(self.fault(device, None, what));
            }
        }
        Ok(())
    }

    /// A fault of this schedule at op number `index` of `device`.
    pub fn fault(&self, device: u32, index: Option<usize>, what: String) -> Fault {
        let columns = index.unwrap_or(self.program(device).len());
        let programs: Vec<&[Op]> = (0..self.devices()).map(|d| self.program(d)).collect();
        Fault { device, index, what, grid: grid(&programs, device, columns) }
    }
}

/// Which ops a device has run: the bookkeeping behind [`Schedule::validate`].
pub struct Seen {
    stages: Vec<u32>,
    microbatches: u32,
    /// By (chunk, micro-batch) the kinds run, as bits 1 << kind.
    bits: Vec<u8>,
    /// By chunk.
    complete: Vec<u32>,
}

impl Seen {
    /// Nothing run yet on a device that holds `stages`.
    pub fn new(stages: &[u32], microbatches: u32) -> Seen {
        let cells = stages.len() * microbatches as usize;
        Seen { stages: stages.to_vec(), microbatches, bits: vec![0; cells], complete: vec![0; stages.len()] }
    }

    /// Notes that `op`, which is on the device's chunk number `chunk`, runs.
    ///
    /// # Errors
    /// Why it cannot run here and now.
    #[inline]
    pub fn add(&mut self, chunk: usize, op: Op) -> Result<(), String> {
        if op.microbatch() >= self.microbatches {
            return Err(format!("{op} names micro-batch {}, but m = {}", op.microbatch(), self.microbatches));
        }
        let bits = &mut self.bits[chunk * self.microbatches as usize + op.microbatch() as usize];
        let (needed, excluded) = match op.kind() {
            Kind::F => (0, bit(Kind::F)),
            Kind::I | Kind::B => (bit(Kind::F), bit(Kind::I) | bit(Kind::B)),
            Kind::W => (bit(Kind::I), bit(Kind::W)),
        };
        if *bits & (needed | excluded) != needed {
            return Err(refusal(op, *bits));
        }
        *bits |= bit(op.kind());
        self.complete[chunk] += u32::from(bit(op.kind()) & COMPLETE != 0);
        Ok(())
    }

    /// What is missing at the end of the program.
    pub fn missing(&self) -> Option<String> {
        let chunk = self.complete.iter().position(|&n| n < self.microbatches)?;
        let cells = &self.bits[chunk * self.microbatches as usize..][..self.microbatches as usize];
        let microbatch = cells.iter().position(|&bits| bits & COMPLETE == 0)?;
        let of = |kind: Kind| Op::new(kind, self.stages[chunk], microbatch as u32);
        Some(if cells[microbatch] & bit(Kind::F) == 0 {
            format!("{} is missing", of(Kind::F))
        } else if cells[microbatch] & bit(Kind::I) == 0 {
            format!("{} has no backward: neither {} nor {}", of(Kind::F), of(Kind::B), of(Kind::I))
        } else {
            format!("{} is missing: {} is left without its weights", of(Kind::W), of(Kind::I))
        })
    }
}

/// The kind in a set of kinds.
const fn bit(kind: Kind) -> u8 {
    1 << kind as u8
}

/// One of these ends what a stage does for a micro-batch.
const COMPLETE: u8 = bit(Kind::W) | bit(Kind::B);

/// Why `op` cannot run after the kinds in `bits` of its stage and micro-batch.
#[cold]
fn refusal(op: Op, bits: u8) -> String {
    let of = |kind: Kind| Op::new(kind, op.stage(), op.microbatch());
    let has = |kind: Kind| bits & bit(kind) != 0;
    match op.kind() {
        kind if has(kind) => format!("{op} runs twice"),
        Kind::I | Kind::B if !has(Kind::F) => format!("{op} runs before {}", of(Kind::F)),
        Kind::I => format!("{op} runs although {} did its work", of(Kind::B)),
        Kind::B => format!("{op} runs although {} did half its work", of(Kind::I)),
        Kind::F | Kind::W => format!("{op} has no {} before it", of(Kind::I)),
    }
}

/// What is wrong with a schedule, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The device whose program is wrong.
    pub device: u32,
    /// The op's number in that program; `None`: the program's end.
    pub index: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// The ops around the place, drawn.
    pub grid: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => writeln!(f, "device {}, op number {index}: {}", self.device, self.what)?,
            None => writeln!(f, "device {}, at the end: {}", self.device, self.what)?,
        }
        write!(f, "{}", self.grid)
    }
}

impl std::error::Error for Fault {}

/// Draws the ops around column `at` of `device`'s row, that op in brackets and an arrow after the row.
pub fn grid(programs: &[&[Op]], device: u32, at: usize) -> String {
    const COLUMNS: usize = 9;
    const ROWS: usize = 8;
    let first = at.saturating_sub(COLUMNS / 2 + 1);
    let row = device as usize;
    let rows = row.saturating_sub(ROWS / 2)..programs.len().min(row.saturating_sub(ROWS / 2) + ROWS);
    let cell = |r: usize, column: usize| -> String {
        let op = programs[r].get(column).map(Op::to_string);
        match (r == row && column == at, op) {
            (true, op) => format!("[{}]", op.as_deref().unwrap_or("end")),
            (false, op) => op.unwrap_or_default(),
        }
    };
    let width = rows.clone().flat_map(|r| (first..first + COLUMNS).map(move |c| (r, c))).map(|(r, c)| cell(r, c).len());
    let width = width.max().unwrap_or(3).max(3);
    let mut text = String::new();
    for r in rows {
        let before = if first > 0 { "... " } else { "" };
        let cells: Vec<String> = (first..first + COLUMNS).map(|c| format!("{:>width$}", cell(r, c))).collect();
        let after = if programs[r].len() > first + COLUMNS { " ..." } else { "" };
        let arrow = if r == row { "   <-- here" } else { "" };
        let line = format!("  device {r:>3} | {before}{}{after}", cells.join(" "));
        text += &format!("{}{arrow}\n", line.trim_end());
    }
    text
}
