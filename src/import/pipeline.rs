//! Which ranks form the pipeline, and which stages each device has.

use super::error::ImportError;
use super::rank::{RankRun, Stages};
use super::trace::Group;
use pipesim_schedule::op::{Kind, Op};
use std::collections::{BTreeMap, BTreeSet};

/// The device of a stage, given the number of devices.
pub type Pattern = fn(u32, u32) -> u32;

/// How programs place stages: round-robin, or V-shaped.
pub const PATTERNS: [Pattern; 2] =
    [|stage, p| stage % p, |stage, p| if stage / p % 2 == 0 { stage % p } else { p - 1 - stage % p }];

/// The runs of one pipeline by device.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Rank of each device.
    pub ranks: Vec<u32>,
    /// What each device's file says; `None` if there is none.
    pub runs: Vec<Option<RankRun>>,
    /// Device of each stage, as far as known.
    pub device_of: BTreeMap<u32, u32>,
    pub stages: u32,
    pub chunks: u32,
    pub microbatches: u32,
    /// Stages with a backward in two ops.
    pub split: BTreeSet<u32>,
}

impl Pipeline {
    /// Chooses the pipeline number `wanted` and makes stages global.
    ///
    /// # Errors
    /// There is no such pipeline, or files contradict each other.
    pub fn choose(
        runs: Vec<RankRun>,
        wanted: Option<u32>,
        warnings: &mut Vec<String>,
    ) -> Result<Pipeline, ImportError> {
        let runs = numbered(runs)?;
        let groups = groups(&runs);
        let number = wanted.unwrap_or_default() as usize;
        let Some(ranks) = groups.get(number) else {
            let (count, last) = (groups.len(), groups.len().saturating_sub(1));
            return Err(ImportError::new(format!(
                "expected a pipeline from 0 to {last}, as the traces have {count}, found {number}; correct `pipeline`"
            )));
        };
        if groups.len() > 1 && wanted.is_none() {
            let list = list(ranks);
            warnings.push(format!(
                "the traces have {} pipelines; this is number 0, of ranks {list}; choose with `pipeline`",
                groups.len()
            ));
        }
        let mut by_rank: BTreeMap<u32, RankRun> = runs.into_iter().collect();
        if ranks.len() == 1 && by_rank.get(&ranks[0]).is_some_and(|run| run.is_alone && !run.steps.is_empty()) {
            warnings.push(format!(
                "rank {} neither sends nor receives: what is shown are the forwards and backwards of one device, and no pipeline",
                ranks[0]
            ));
        }
        let runs: Vec<Option<RankRun>> = ranks.iter().map(|rank| by_rank.remove(rank)).collect();
        let ranks = ranks.clone();
        Pipeline {
            ranks,
            runs,
            device_of: BTreeMap::new(),
            stages: 0,
            chunks: 0,
            microbatches: 0,
            split: BTreeSet::new(),
        }
        .placed()
    }

    /// Makes stages global and finds the device of each.
    fn placed(mut self) -> Result<Pipeline, ImportError> {
        let p = self.ranks.len() as u32;
        for (device, run) in self.runs.iter_mut().enumerate() {
            let Some(run) = run else { continue };
            let chunks = run.steps.iter().flat_map(|step| &step.ops).map(|op| op.op.stage()).max().unwrap_or_default();
            if run.stages == Stages::OfRank && chunks.saturating_mul(p).saturating_add(p) < Op::MAX_STAGE {
                for op in run.steps.iter_mut().flat_map(|step| &mut step.ops) {
                    op.op = op.op.on_stage(op.op.stage() * p + device as u32);
                }
            }
            for op in run.steps.iter().flat_map(|step| &step.ops) {
                let other = *self.device_of.entry(op.op.stage()).or_insert(device as u32);
                if other != device as u32 {
                    let (one, two) = (self.ranks[other as usize], run.rank.unwrap_or_default());
                    return Err(ImportError::new(format!(
                        "expected each stage on one rank, found stage {} on ranks {one} and {two}; give the files of one pipeline",
                        op.op.stage()
                    )));
                }
            }
        }
        let ops = || self.runs.iter().flatten().flat_map(|run| &run.steps).flat_map(|step| &step.ops);
        let Some(last) = self.device_of.keys().next_back().copied() else { return Ok(self) };
        self.microbatches = ops().map(|op| op.op.microbatch()).max().unwrap_or_default().saturating_add(1);
        let is_part = |op: &Op| matches!(op.kind(), Kind::I | Kind::W);
        self.split = ops().map(|op| op.op).filter(is_part).map(Op::stage).collect();
        let of_device = |device| self.device_of.values().filter(|&&found| found == device).count() as u32;
        self.chunks = (0..p).map(of_device).max().unwrap_or(1).max((last + 1).div_ceil(p));
        self.stages = self.chunks.saturating_mul(p).max(last + 1);
        let most = ops().count() as u64;
        if u64::from(self.stages) > most.saturating_mul(64) || u64::from(self.microbatches) > most {
            return Err(ImportError::new(format!(
                "expected stages and micro-batches numbered from 0, found stage {last} and micro-batch {} in {most} ops; check `label`",
                self.microbatches - 1
            )));
        }
        self.guess_missing();
        Ok(self)
    }

    /// Gives stages of devices without a file to them, where one pattern explains all others: round-robin or V-shaped.
    fn guess_missing(&mut self) {
        let p = self.ranks.len() as u32;
        let fits = |pattern: &&Pattern| self.device_of.iter().all(|(&stage, &device)| pattern(stage, p) == device);
        if let Some(pattern) = PATTERNS.iter().find(fits) {
            for stage in 0..self.stages {
                self.device_of.entry(stage).or_insert_with(|| pattern(stage, p));
            }
        }
    }

    /// Returns the device that `op` gets its input from, with the stage; `None` for a W and at the pipeline's ends.
    pub fn source(&self, op: Op) -> Option<(u32, u32)> {
        let stage = op.upstream(self.stages)?;
        Some((*self.device_of.get(&stage)?, stage))
    }

    /// Returns the devices that have no file.
    pub fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.runs).filter(|(_, run)| run.is_none()).map(|(device, _)| device).collect()
    }

    /// Returns how many ops of its stages `device` has in one step, and how many it must have.
    pub fn expected(&self, device: u32, has: &BTreeSet<Op>) -> (usize, usize) {
        let (mut expected, mut found) = (0, 0);
        for (&stage, _) in self.device_of.iter().filter(|(_, of)| **of == device) {
            let splits = self.split.contains(&stage);
            for microbatch in 0..self.microbatches {
                let has = |kind| has.contains(&Op::new(kind, stage, microbatch));
                let kinds: &[Kind] =
                    if has(Kind::B) || !splits { &[Kind::F, Kind::B] } else { &[Kind::F, Kind::I, Kind::W] };
                expected += kinds.len();
                found += kinds.iter().filter(|&&kind| has(kind)).count();
            }
        }
        (found, expected)
    }
}

/// Gives each run its rank: from the trace, else from the file's name, else from the run's position.
fn numbered(runs: Vec<RankRun>) -> Result<Vec<(u32, RankRun)>, ImportError> {
    let mut by_rank: BTreeMap<u32, RankRun> = BTreeMap::new();
    for (number, mut run) in runs.into_iter().enumerate() {
        let rank = run.rank.or_else(|| rank_of_name(&run.file)).unwrap_or(number as u32);
        run.rank = Some(rank);
        if let Some(other) = by_rank.get(&rank) {
            return Err(ImportError::new(format!(
                "expected one file per rank, found {} and {} of rank {rank}; leave one out",
                other.file, run.file
            )));
        }
        by_rank.insert(rank, run);
    }
    Ok(by_rank.into_iter().collect())
}

/// Returns the number after `rank` in a file's name, as in `rank3_trace.json.gz`.
pub fn rank_of_name(file: &str) -> Option<u32> {
    let name = file.rsplit(['/', '\\']).next()?.to_ascii_lowercase();
    let after = name.find("rank").map(|at| &name[at + 4..])?;
    let digits = after.trim_start_matches(['_', '-', '.']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Whether a group has the ranks of a pipeline, by the names of torchtitan and Megatron-LM.
pub fn is_pipeline(group: &Group) -> bool {
    group.name.ends_with("_pp") || ["pp", "PIPELINE_MODEL_PARALLEL_GROUP"].contains(&group.name.as_str())
}

/// Most ranks of a pipeline.
const MOST_RANKS: u32 = 1 << 16;
/// Most devices of a pipeline.
const MOST_DEVICES: usize = 1 << 10;

/// Returns the ranks of each pipeline, in the order of the pipeline; ranks that exchange nothing are pipelines of one device.
fn groups(runs: &[(u32, RankRun)]) -> Vec<Vec<u32>> {
    let of_run = |run: &RankRun| {
        let pipelines = run.groups.iter().filter(|group| is_pipeline(group));
        pipelines.map(|group| group.ranks.clone()).collect::<Vec<_>>()
    };
    let mut groups: BTreeSet<Vec<u32>> = runs.iter().flat_map(|(_, run)| of_run(run)).collect();
    let is_valid = |group: &Vec<u32>| {
        let different: BTreeSet<&u32> = group.iter().collect();
        different.len() == group.len()
            && (1..=MOST_DEVICES).contains(&group.len())
            && group.iter().all(|&rank| rank < MOST_RANKS)
    };
    groups.retain(is_valid);
    if !groups.is_empty() {
        return groups.into_iter().collect();
    }
    if !runs.is_empty() && runs.iter().all(|(_, run)| run.is_alone) {
        return runs.iter().map(|(rank, _)| vec![*rank]).collect();
    }
    // One pipeline: all ranks of the run, or those that are there.
    let world = runs.iter().filter_map(|(_, run)| run.world_size).filter(|&size| size <= MOST_RANKS).max();
    let last = runs.iter().map(|(rank, _)| *rank).max().unwrap_or_default();
    match world {
        Some(world) if world > last && (world as usize) < 8 * runs.len().max(1) => vec![(0..world).collect()],
        _ => vec![runs.iter().map(|(rank, _)| *rank).collect()],
    }
}

/// Returns ranks as `0, 2, 4`, at most eight of them.
pub fn list(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(8).map(u32::to_string).collect();
    let more = if ranks.len() > 8 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}
