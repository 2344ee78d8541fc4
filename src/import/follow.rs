//! The records of a job that still runs: steps as they are completed by all ranks.

use super::assemble::assemble;
use super::error::ImportError;
use super::rank::{Ping, RankRun, RankStep};
use super::record::{self, Row};
use pipesim_schedule::timeline::Timeline;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// A folder of `pipesim.record` that a job writes.
#[derive(Debug)]
pub struct Follower {
    folder: PathBuf,
    pipeline: Option<u32>,
    files: BTreeMap<PathBuf, Followed>,
}

/// A rank's file: how far it was read, and the steps that other ranks have not yet completed.
#[derive(Debug, Default)]
struct Followed {
    offset: u64,
    lines: usize,
    /// The start of a line whose end is not yet written.
    rest: Vec<u8>,
    run: Option<RankRun>,
    steps: BTreeMap<u64, RankStep>,
    pings: Vec<Ping>,
}

impl Follower {
    /// Follows pipeline number `pipeline` of the ranks in `folder`, which may not exist yet; the first one by default.
    pub fn new(folder: &Path, pipeline: Option<u32>) -> Follower {
        Follower { folder: folder.to_path_buf(), pipeline, files: BTreeMap::new() }
    }

    /// Reads what was added, and returns the timelines of the steps that all ranks have completed since.
    ///
    /// # Errors
    /// A file cannot be read or is no record, or files contradict each other.
    pub fn completed(&mut self) -> Result<Vec<Timeline>, ImportError> {
        self.read()?;
        let Some(ranks) = self.ranks()? else { return Ok(Vec::new()) };
        let of_pipeline =
            |file: &&mut Followed| file.run.as_ref().and_then(|run| run.rank).is_some_and(|rank| ranks.contains(&rank));
        let mut files: Vec<&mut Followed> = self.files.values_mut().filter(of_pipeline).collect();
        if files.len() < ranks.len() {
            return Ok(Vec::new());
        }
        let numbers: Vec<u64> = files[0].steps.keys().copied().collect();
        let complete = numbers.into_iter().filter(|number| files.iter().all(|file| file.steps.contains_key(number)));
        let mut timelines = Vec::new();
        for number in complete.collect::<Vec<u64>>() {
            let runs = files.iter_mut().filter_map(|file| file.alone(number)).collect();
            timelines.extend(assemble(runs, record::FORMAT, true, None, Vec::new())?.timelines);
        }
        Ok(timelines)
    }

    fn read(&mut self) -> Result<(), ImportError> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Ok(()) };
        let paths = entries.flatten().map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")) {
            let shown = pipesim_schedule::sanitize::sanitize(&path.display().to_string()).to_string();
            let failed = |error: io::Error| ImportError::new(format!("cannot read {shown}: {error}"));
            self.files.entry(path.clone()).or_default().read(&path, &shown, &failed)?;
        }
        Ok(())
    }

    /// Returns the ranks of the pipeline; `None` while no rank has written.
    fn ranks(&self) -> Result<Option<BTreeSet<u32>>, ImportError> {
        let runs = self.files.values().filter_map(|file| file.run.as_ref());
        let pipelines: BTreeSet<&[u32]> =
            runs.flat_map(|run| &run.groups).map(|group| group.ranks.as_slice()).collect();
        let wanted = self.pipeline.unwrap_or_default() as usize;
        match pipelines.iter().nth(wanted) {
            Some(ranks) => Ok(Some(ranks.iter().copied().collect())),
            None if pipelines.is_empty() => Ok(None),
            None => Err(ImportError::new(format!(
                "expected a pipeline from 0 to {}, found {wanted}; correct `pipeline`",
                pipelines.len() - 1
            ))),
        }
    }
}

impl Followed {
    fn read(&mut self, path: &Path, shown: &str, failed: &dyn Fn(io::Error) -> ImportError) -> Result<(), ImportError> {
        let mut file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() < self.offset {
            *self = Followed::default(); // written anew
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        self.offset += file.read_to_end(&mut self.rest).map_err(failed)? as u64;
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        for line in String::from_utf8_lossy(&whole).lines().filter(|line| !line.trim().is_empty()) {
            match record::row(shown, self.lines, line)? {
                Row::Header(run) => (self.run, self.steps) = (Some(*run), BTreeMap::new()),
                Row::Step(mut step) => {
                    let rank = self.run.as_ref().and_then(|run| run.rank).unwrap_or_default();
                    step.check(shown, rank);
                    if !step.pings.is_empty() {
                        self.pings.clone_from(&step.pings);
                    }
                    self.steps.insert(step.number, step);
                }
            }
            self.lines += 1;
        }
        Ok(())
    }

    /// Takes step `number` out, as a run of its own; earlier steps are given up.
    fn alone(&mut self, number: u64) -> Option<RankRun> {
        let mut step = self.steps.remove(&number)?;
        self.steps.retain(|&other, _| other > number);
        step.pings.clone_from(&self.pings);
        Some(RankRun { steps: vec![step], ..self.run.clone()? })
    }
}
