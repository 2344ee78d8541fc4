//! What `pipesim.record` wrote in a job: one file per rank, a header and then a line of JSON per step.

use super::clock::Bound;
use super::error::ImportError;
use super::rank::{Ping, RankOp, RankRun, RankStep};
use super::trace::Group;
use pipesim_schedule::op::{Kind, Op};
use serde::Deserialize;

/// Version of the format, as in `python/pipesim/record.py`.
const VERSION: u32 = 1;

/// The first line of a file, and of each later start of the job.
#[derive(Deserialize)]
struct Header {
    pipesim_record: u32,
    rank: u32,
    world_size: u32,
    /// Ranks of the pipeline by device.
    pipeline: Vec<u32>,
    pytorch: Option<String>,
}

/// One step; all times in ns of the rank's clock.
#[derive(Deserialize)]
struct StepLine {
    step: u64,
    start_ns: i64,
    end_ns: i64,
    /// Kind, stage, micro-batch, start, end.
    #[serde(default)]
    ops: Vec<(char, u32, u32, i64, i64)>,
    /// Kind, stage, micro-batch of the op whose output is sent; when it was posted and known to be complete.
    #[serde(default)]
    sends: Vec<(char, u32, u32, i64, Option<i64>)>,
    /// Of the op that waits: when the receive was posted, and when the rank went on.
    #[serde(default)]
    receives: Vec<(char, u32, u32, i64, Option<i64>)>,
    /// On the first rank: another rank, when a message to it was sent, received there, the answer sent there, received here.
    #[serde(default)]
    pings: Vec<Ping>,
}

/// Returns what the exchange says of the clocks of devices `first` and `other`: no message arrives before it is sent.
pub fn bounds((_, sent, there, back, received): Ping, first: usize, other: usize, step: usize) -> [Bound; 2] {
    [
        Bound { from: first, to: other, before: sent, after: there, step },
        Bound { from: other, to: first, before: back, after: received, step },
    ]
}

/// Name of the format, for people.
pub const FORMAT: &str = "pipesim.record";

/// What a line says.
pub enum Row {
    /// The job started: a rank without steps.
    Header(Box<RankRun>),
    Step(RankStep),
}

/// Reads a rank's file. A last line that is cut off, as of a job that still runs, is left out.
///
/// # Errors
/// A line is no step, or of another version; the text names it.
pub fn read(file: &str, text: &str) -> Result<RankRun, ImportError> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut run: Option<RankRun> = None;
    let mut earlier = 0;
    for (number, line) in whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match (row(file, number, line)?, &mut run) {
            (Row::Header(header), _) => {
                earlier += run.replace(*header).map_or(0, |run| run.steps.len());
            }
            (Row::Step(mut step), Some(run)) => {
                run.warnings.extend(step.check(file, run.rank.unwrap_or_default()));
                run.steps.push(step);
            }
            (Row::Step(_), None) => return Err(fault(file, number, "a header of pipesim.record", "a step")),
        }
    }
    let mut run = run.ok_or_else(|| fault(file, 0, "a header of pipesim.record", "no whole line"))?;
    if earlier > 0 {
        run.warnings.push(format!("{file}: the job started again; {earlier} steps before that are left out"));
    }
    run.first = run.steps.first().and_then(|step| step.marked).map_or(0, |(start, _)| start);
    Ok(run)
}

/// Reads one line.
///
/// # Errors
/// It is neither a header nor a step; the text names it.
pub fn row(file: &str, number: usize, line: &str) -> Result<Row, ImportError> {
    let fault = |expected: &str, found: &str| fault(file, number, expected, found);
    if !line.starts_with("{\"pipesim_record\"") {
        let line: StepLine = serde_json::from_str(line).map_err(|error| fault("a step", &error.to_string()))?;
        return line.step(&fault).map(Row::Step);
    }
    let header: Header =
        serde_json::from_str(line).map_err(|error| fault("a header of pipesim.record", &error.to_string()))?;
    if header.pipesim_record != VERSION {
        let found = format!("version {}", header.pipesim_record);
        return Err(fault(&format!("version {VERSION} of pipesim.record"), &found));
    }
    let mut run = RankRun::of_table(file, header.rank);
    run.world_size = Some(header.world_size);
    run.groups = vec![Group { name: "mesh_pp".to_string(), ranks: header.pipeline }];
    run.version = header.pytorch;
    Ok(Row::Header(Box::new(run)))
}

fn fault(file: &str, number: usize, expected: &str, found: &str) -> ImportError {
    ImportError::new(format!(
        "{file}, line {}: expected {expected}, found {found}; record the run again, or remove the line",
        number + 1
    ))
}

impl StepLine {
    fn step(self, fault: &dyn Fn(&str, &str) -> ImportError) -> Result<RankStep, ImportError> {
        let mut step =
            RankStep { number: self.step, marked: Some((self.start_ns, self.end_ns)), ..RankStep::default() };
        step.pings = self.pings;
        let mut free = self.start_ns;
        for (letter, stage, microbatch, start, end) in self.ops {
            let kind = Kind::from_letter(letter);
            let kind = kind.ok_or_else(|| fault("a kind: F, I, W or B", &letter.to_string()))?;
            if stage > 1 << 20 || microbatch == u32::MAX || end < start {
                let found = format!("stage {stage}, micro-batch {microbatch}, {start} to {end} ns");
                return Err(fault("an op that ends after its start", &found));
            }
            let mut op = RankOp::new(Op::new(kind, stage, microbatch), start, end);
            op.ready = free.min(start);
            free = end;
            if kind != Kind::W {
                // Data is sent after the op that makes it, and is there when the op that takes it starts.
                (op.send, op.receive) = (Some((end, None)), Some((op.ready, start)));
            }
            step.ops.push(op);
        }
        for (letter, stage, microbatch, posted, done) in self.sends {
            if let Some(op) = step.find(letter != 'F', stage, microbatch) {
                let sent = posted.max(op.end);
                op.send = Some((sent, done.filter(|&done| done >= sent)));
            }
        }
        for (letter, stage, microbatch, posted, _) in self.receives {
            if let Some(op) = step.find(letter != 'F', stage, microbatch) {
                op.receive = Some((posted.min(op.start), op.start));
            }
        }
        Ok(step)
    }
}
