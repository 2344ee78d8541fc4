//! The loop itself: steps, and what happens between them. All ranks run it together; rank 0 alone writes, samples and has a log.

use super::config::{LoopConfig, Pipeline, SavedRun};
use super::held_out::{HeldOut, PROMPT_TOKENS};
use super::log::{Log, LogLine};
use super::trend::Trend;
use super::weights::HostCopy;
use crate::experiment::{Error, Training, report_of, require_session};
use pipesim_exec::{Session, StepRecord, Update};
use pipesim_report::Report;
use pipesim_schedule::graph::TaskGraph;
use pipesim_train::checkpoint::{
    CONFIG, Checkpoint, FIRST_MOMENTS, SECOND_MOMENTS, STATE, WEIGHTS, Writer, config_json,
};
use pipesim_train::model::{Parameters, Quantity, Tokenizer};
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Number of last steps that are reported.
const REPORTED: usize = 20;

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LoopEvent<'a> {
    /// The run begins after this many of its steps.
    Begin { done: u32, steps: u32 },
    /// A step is done and logged.
    Step(&'a LogLine),
    /// A checkpoint was written.
    Saved(&'a Path),
    /// No more steps follow.
    End,
}

/// Receives the events of a run.
pub type Watcher<'a> = &'a dyn Fn(LoopEvent<'_>);

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Number of steps done.
    pub step: u32,
    /// The signal that ended it before its last step.
    pub signal: Option<u8>,
    /// The newest checkpoint.
    pub checkpoint: PathBuf,
    /// The last steps, predicted and measured; `None` if no step was run.
    pub report: Option<Report>,
    /// Says that the loss ended above where it began, or above the loss of guessing.
    pub warning: Option<String>,
}

/// A run, ready to begin or to go on.
pub struct TrainingLoop {
    config: LoopConfig,
    pipeline: Pipeline,
    training: Training,
    held_out: Option<HeldOut>,
    /// Tokens that samples continue.
    prompt: Vec<u32>,
    /// The folder of the run.
    folder: PathBuf,
    /// The checkpoint to go on from, and its steps.
    resumed: Option<(Checkpoint, u32)>,
    /// Keys of the model's `config.json`, if it has one.
    keys: Map<String, Value>,
}

/// What a run has while it runs.
struct Running<'a> {
    session: Session,
    copy: HostCopy,
    /// Rank 0's.
    log: Option<Log>,
    trend: Trend,
    /// The last steps.
    recent: VecDeque<StepRecord>,
    begun: Instant,
    watcher: Watcher<'a>,
}

impl TrainingLoop {
    /// Prepares a run in `folder`, which exists, or one that goes on from `resumed`.
    ///
    /// # Errors
    /// The data is too short, the prompt does not fit, or the model cannot be saved.
    pub fn new(
        config: LoopConfig,
        pipeline: Pipeline,
        mut training: Training,
        folder: &Path,
        resumed: Option<(Checkpoint, u32)>,
    ) -> Result<TrainingLoop, Error> {
        config.learning_rate.check(config.steps)?;
        let keys = training.training_config.config_keys()?;
        config_json(training.config(), &keys)?;
        let split = |validation| HeldOut::split(&mut training, validation, pipeline.micro);
        let held_out = config.validation.map(split).transpose()?;
        let prompt = prompt(&config, &training, held_out.as_ref())?;
        let folder = folder.to_path_buf();
        Ok(TrainingLoop { config, pipeline, training, held_out, prompt, folder, resumed, keys })
    }

    /// Runs the steps of `graph` that are left. Ends early after a step if a signal asks for it.
    ///
    /// # Errors
    /// See [`Error`]. The newest checkpoint is kept. `rescued` gets a report of the steps before a rank or device was lost, on the rank
    /// that prints.
    pub fn run(mut self, graph: TaskGraph, watcher: Watcher<'_>, rescued: impl FnOnce(Report)) -> Result<Ended, Error> {
        let graph = Arc::new(graph);
        self.training.stages(&graph)?;
        require_session(&graph, &self.training)?;
        let mut session = self.training.session(&graph)?;
        let empty = Parameters { config: *self.training.config(), tensors: Vec::new() };
        let copy = HostCopy::new(std::mem::replace(&mut self.training.parameters, empty), &mut session)?;
        if let Some((checkpoint, _)) = &self.resumed {
            let moments = [(FIRST_MOMENTS, Quantity::FirstMoments), (SECOND_MOMENTS, Quantity::SecondMoments)];
            for (name, what) in moments {
                copy.import(&mut session, checkpoint, name, what)?;
            }
        }
        let first = self.resumed.as_ref().map_or(0, |(_, step)| *step);
        let opened = self.is_first().then(|| Log::open(&self.folder, first)).transpose()?;
        let (log, losses) = opened.map_or((None, Vec::new()), |(log, losses)| (Some(log), losses));
        let mut trend = Trend::default();
        losses.into_iter().for_each(|loss| trend.add(loss));
        let mut running =
            Running { session, copy, log, trend, recent: VecDeque::new(), begun: Instant::now(), watcher };
        watcher(LoopEvent::Begin { done: first, steps: self.config.steps });
        let ended = self.steps(&mut running, first);
        watcher(LoopEvent::End);
        let recent: Vec<StepRecord> = running.recent.into_iter().collect();
        let is_reported = self.training.ranks.speaks() && !recent.is_empty();
        let report = || is_reported.then(|| report_of(&self.training, &graph, recent)).transpose();
        let (step, signal, checkpoint) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // The error is what ended the run, not a failure to report it.
                let lost = error.is_hang().then(report);
                if let Some(report) = lost.and_then(|report| report.ok().flatten()) {
                    rescued(report);
                }
                return Err(error);
            }
        };
        let warning = running.trend.warning(self.training.config().vocabulary);
        Ok(Ended { step, signal, checkpoint, report: report()?, warning })
    }

    /// Runs the steps from `first` on. Returns the number of steps done, the signal that ended them, and the newest checkpoint.
    fn steps(&self, running: &mut Running<'_>, first: u32) -> Result<(u32, Option<u8>, PathBuf), Error> {
        let mut newest = self.resumed.as_ref().map(|(checkpoint, step)| (*step, checkpoint.path.clone()));
        let mut done = first;
        let mut signal = None;
        while done < self.config.steps && signal.is_none() {
            let mut line = self.step(running, done)?;
            done += 1;
            signal = self.between(running, done, &mut line)?;
            running.log.iter_mut().try_for_each(|log| log.add(&line))?;
            running.trend.add(line.loss);
            (running.watcher)(LoopEvent::Step(&line));
            if self.config.save_every.is_some_and(|every| done.is_multiple_of(every)) {
                newest = Some((done, self.save(running, done)?));
            }
        }
        let checkpoint = match newest {
            Some((step, path)) if step == done => path,
            _ => self.save(running, done)?,
        };
        Ok((done, signal, checkpoint))
    }

    /// Runs step `number`, from 0.
    fn step(&self, running: &mut Running<'_>, number: u32) -> Result<LogLine, Error> {
        let at_ns = running.begun.elapsed().as_nanos() as u64;
        let adamw = self.config.adamw(number);
        // The norm is logged even if nothing is clipped.
        let clip = Some(self.config.optimizer.clip.unwrap_or(f32::INFINITY));
        let batch = self.training.batch(number as usize, self.pipeline.micro)?;
        let update = Update { number: number + 1, adamw, clip };
        let record = StepRecord { at_ns, ..running.session.step(&batch, Some(update))? };
        running.session.ranks().note_measured();
        let loss = record.loss.unwrap_or(f64::NAN);
        // After a norm that is not finite, the parameters are not, either.
        let numbers = [("loss", loss), ("gradient norm", record.norm().unwrap_or(0.0))];
        if let Some(&(what, value)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            let (schedule, step) = (self.pipeline.schedule.clone(), number as usize + 1);
            return Err(Error::Diverged { schedule, what, step, value });
        }
        let line = LogLine {
            step: number + 1,
            loss,
            norm: record.norm(),
            learning_rate: adamw.learning_rate,
            tokens_per_second: batch.inputs.len() as f64 / (record.wall_ns as f64 / 1e9).max(1e-9),
            bubble: record.bubble(),
            ..LogLine::default()
        };
        running.recent.push_back(record);
        if running.recent.len() > REPORTED {
            running.recent.pop_front();
        }
        Ok(line)
    }

    /// Validates and samples after `done` steps if it is time. Returns the signal that asked for the end.
    fn between(&self, running: &mut Running<'_>, done: u32, line: &mut LogLine) -> Result<Option<u8>, Error> {
        let agreed = |running: &Running<'_>| running.session.ranks().stop().agreed();
        if agreed(running).is_some() {
            return Ok(agreed(running));
        }
        let is_time = |every: u32| done.is_multiple_of(every) || done == self.config.steps;
        if let (Some(validation), Some(held_out)) = (self.config.validation, &self.held_out)
            && is_time(validation.every)
        {
            match held_out.loss(&mut running.session) {
                Err(Error::Stopped { .. }) => {}
                loss => line.validation_loss = loss?,
            }
        }
        if let Some(samples) = self.config.samples.as_ref().filter(|samples| is_time(samples.every)) {
            let parameters = running.copy.export(&mut running.session, Quantity::Values)?;
            if self.is_first() {
                let ids = samples.sampling.sample(&parameters, &self.prompt, samples.tokens, u64::from(done))?;
                line.sample = Some(self.text(&ids));
            }
            drop(parameters);
            self.training.ranks.follow(Vec::new())?; // the others wait here, not inside a step
        }
        Ok(agreed(running))
    }

    /// Whether this is rank 0, or the only process.
    fn is_first(&self) -> bool {
        self.training.ranks.rank() == 0
    }

    /// Returns sampled tokens as text, or as numbers if there is no tokenizer.
    fn text(&self, ids: &[u32]) -> String {
        let numbers = || ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        self.training
            .training_config
            .tokenizer(self.training.config())
            .map_or_else(numbers, |t: Tokenizer| t.decode(ids))
    }

    /// Writes a checkpoint after `done` steps. Returns its folder on all ranks.
    fn save(&self, running: &mut Running<'_>, done: u32) -> Result<PathBuf, Error> {
        running.log.iter().try_for_each(Log::sync)?;
        let writer = self.is_first().then(|| Writer::new(&self.folder)).transpose()?;
        if let Some(writer) = &writer {
            writer.json(CONFIG, &config_json(self.training.config(), &self.keys)?)?;
        }
        let quantities = [
            (WEIGHTS, Quantity::Values),
            (FIRST_MOMENTS, Quantity::FirstMoments),
            (SECOND_MOMENTS, Quantity::SecondMoments),
        ];
        for (name, what) in quantities {
            let parameters = running.copy.export(&mut running.session, what)?;
            if let Some(writer) = &writer {
                parameters.check_finite().map_err(|why| {
                    Error::Failed(format!(
                        "{why:#} after step {done}: training diverged, and nothing is saved; lower `lr`"
                    ))
                })?;
                writer.tensors(name, &parameters)?;
            }
        }
        let finish = |writer: Writer| {
            writer.json(STATE, &SavedRun::new(done, self.pipeline.clone(), self.config.clone()))?;
            writer.finish(done)
        };
        let path = writer.map(finish).transpose()?.unwrap_or_default();
        // The others wait here, not inside a step.
        let path = self.training.ranks.follow(path.into_os_string().into_vec())?;
        let path = PathBuf::from(OsString::from_vec(path));
        (running.watcher)(LoopEvent::Saved(&path));
        Ok(path)
    }
}

/// Returns the tokens that samples continue, and checks that samples fit into the model's sequences.
fn prompt(config: &LoopConfig, training: &Training, held_out: Option<&HeldOut>) -> Result<Vec<u32>, Error> {
    let Some(samples) = &config.samples else { return Ok(Vec::new()) };
    let beginning = || training.tokens.ids().iter().take(PROMPT_TOKENS).copied().collect();
    let prompt: Vec<u32> = match &samples.prompt {
        None => held_out.map_or_else(beginning, |held_out| held_out.beginning.clone()),
        Some(text) => {
            let tokenizer = training.training_config.tokenizer(training.config()).ok_or_else(|| {
                Error::Usage(
                    "`sample-prompt` needs a tokenizer, and none is known for these tokens; leave it out".to_string(),
                )
            })?;
            tokenizer.encode(text)
        }
    };
    let vocabulary = training.config().vocabulary;
    if prompt.is_empty() || prompt.iter().any(|&id| id as usize >= vocabulary) {
        return Err(Error::Usage(format!(
            "expected a `sample-prompt` of at least one token, all below the vocabulary's {vocabulary}; choose another text"
        )));
    }
    let longest = training.training_config.longest_sequence(training.config())?;
    let (longest, limit) = longest.unwrap_or((usize::MAX, ""));
    if prompt.len() + samples.tokens > longest {
        return Err(Error::Usage(format!(
            "expected a prompt and `sample-tokens` of at most {longest} tokens together, {limit}, found {} and {}; sample \
             fewer",
            prompt.len(),
            samples.tokens
        )));
    }
    Ok(prompt)
}
