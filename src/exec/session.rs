//! A session executes steps of a schedule: one thread per worker, and the watchdog.

use super::device::{Batch, State, Update};
use super::program::{DeviceCall, Runner, Runners, Turn};
use super::queues::CommunicationQueues;
use super::record::{DeviceRecord, StepRecord};
use super::shared::{Settings, Shared};
use super::signal::{Aborted, WaitPolicy as _};
use super::watch::{called_off_since, join_within, start_thread};
use crate::ranks::{ENDLESS, Ranks, signal_name};
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::mesh::Mesh;
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which a session checks whether a device waits too long.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long a rank with a failure waits for the other ranks' results.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an epilogue session waits for its threads to free their resources.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The same for all sessions together once one was aborted, whose threads may never end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Error {
    /// A device waited too long.
    #[error(
        "schedule {schedule}: a device has waited for {seconds} s, longer than the limit; all devices were stopped:\n{report}"
    )]
    Hang {
        schedule: String,
        seconds: u64,
        /// Progress of all devices.
        report: String,
    },
    /// A worker's thread died.
    #[error("schedule {schedule}: {worker} died: {cause}; all devices were stopped:\n{report}")]
    Dead {
        schedule: String,
        /// Its name, such as `device 1`.
        worker: String,
        /// The panic message.
        cause: String,
        /// Progress of all devices.
        report: String,
    },
    /// An op could not be computed.
    #[error("schedule {schedule}, {worker}: {cause}")]
    Failed {
        schedule: String,
        /// The name of the worker, such as `device 1`.
        worker: String,
        cause: String,
    },
    /// A signal asked the run to end before the next step.
    #[error("stopped by {}", signal_name(i32::from(*signal)))]
    Stopped { signal: u8 },
    /// A rank has ended.
    #[error("schedule {schedule}: {cause}:\n{report}")]
    Lost {
        schedule: String,
        /// Which rank, and how.
        cause: String,
        /// Progress of all devices.
        report: String,
    },
}

enum Command {
    Step { turn: Turn, batch: Arc<Batch>, update: Option<Update> },
    Call(DeviceCall),
}

enum WorkerAnswer {
    Step(Box<DeviceRecord>),
    Called,
    Failed(anyhow::Error),
    Died(String),
}

/// A rank's result of a step.
#[derive(Serialize, Deserialize)]
enum StepPart {
    /// Its devices' records, and the signal that it received.
    Done(Vec<(u32, DeviceRecord)>, Option<u8>),
    /// Another rank aborted this rank's devices.
    Aborted,
    Failed(Error),
}

/// The devices of a schedule, ready to execute steps.
pub struct Session {
    shared: Arc<Shared>,
    timeout: Duration,
    commands: Vec<Sender<Command>>,
    answers: Receiver<(u32, WorkerAnswer)>,
    threads: Vec<JoinHandle<()>>,
    steps: u64,
    /// Number of steps with backwards.
    backwards: u64,
    updates: u64,
}

/// Creates a session from this rank's devices and their numbers. All ranks must call this together.
///
/// # Errors
/// The system does not allow this many threads.
pub fn start_session(shared: Arc<Shared>, runners: Runners, settings: Settings) -> anyhow::Result<Session> {
    let (answer, answers) = channel();
    let count = runners.len();
    let timeout = settings.timeout;
    let (commands, threads, [steps, backwards, updates]) = (Vec::new(), Vec::new(), [0; 3]);
    let mut session = Session { shared, timeout, commands, answers, threads, steps, backwards, updates };
    for (number, runner) in runners {
        let (command, inbox) = channel();
        let answer = answer.clone();
        let body = move || serve(number, runner, settings.pin, &inbox, &answer);
        session.threads.push(start_thread(format!("device {number}"), session.threads.len(), count, body)?);
        session.commands.push(command);
    }
    Ok(session)
}

impl Session {
    pub fn graph(&self) -> &Arc<TaskGraph> {
        &self.shared.plan.graph
    }

    pub fn ranks(&self) -> &Ranks {
        &self.shared.ranks
    }

    /// Runs one training step; without `update`, forward and backward only. All ranks return the same record.
    ///
    /// # Errors
    /// See [`Error`]. After an error the session is unusable.
    pub fn step(&mut self, batch: &Arc<Batch>, update: Option<Update>) -> Result<StepRecord, Error> {
        self.row(&[(batch.clone(), update)])
    }

    /// Runs the forwards of a step, and nothing else: gradients stay as they are. The loss has the bits of [`Session::step`].
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn evaluate(&mut self, batch: &Arc<Batch>) -> Result<StepRecord, Error> {
        if !self.shared.queues.is_empty() {
            return self.step(batch, None); // queues that emulate a delivery expect all messages of a step
        }
        self.turns(&[(batch.clone(), None)], true)
    }

    /// Runs steps back to back, without a barrier between them: a device begins the next step as soon as it has finished its part of
    /// the previous one. Returns the record of the first step, with the ends of the following ones.
    ///
    /// # Errors
    /// As [`Session::step`].
    ///
    /// # Panics
    /// There are no steps.
    pub fn row(&mut self, steps: &[(Arc<Batch>, Option<Update>)]) -> Result<StepRecord, Error> {
        self.turns(steps, false)
    }

    fn turns(&mut self, steps: &[(Arc<Batch>, Option<Update>)], forwards_only: bool) -> Result<StepRecord, Error> {
        if let Some(signal) = self.shared.ranks.stop().agreed() {
            return Err(Error::Stopped { signal });
        }
        if self.shared.ranks.lost().is_some() {
            return Err(self.lost(&self.why_lost()));
        }
        let mesh = self.shared.mesh;
        for (number, (batch, update)) in steps.iter().enumerate() {
            let (step, backwards, updates) = (self.steps, self.backwards, self.updates);
            let turn = Turn { step, backwards, updates, follows: number > 0, forwards_only };
            self.steps += 1;
            self.backwards += u64::from(!forwards_only);
            self.updates += u64::from(update.is_some());
            let parts = Batch::split(batch, mesh.data);
            for (worker, command) in self.workers().zip(&self.commands) {
                let batch = parts[mesh.coordinate(worker).data as usize].clone();
                let _ = command.send(Command::Step { turn, batch, update: *update });
            }
        }
        let mut records = Vec::new();
        let mut collect = |device, answer| {
            if let WorkerAnswer::Step(record) = answer {
                records.push((device, *record));
            }
        };
        let part = match self.gather(steps.len(), &mut collect) {
            Ok(()) => StepPart::Done(records, self.shared.ranks.stop().asked()),
            Err(None) => StepPart::Aborted,
            Err(Some(error)) => StepPart::Failed(error),
        };
        let mut records = self.join(part)?;
        // The sort is stable: records of a worker stay in the order of steps.
        records.sort_by_key(|&(worker, _)| worker);
        let mut row: Vec<Vec<DeviceRecord>> = steps.iter().map(|_| Vec::new()).collect();
        for (number, (_, record)) in records.into_iter().enumerate() {
            row[number % steps.len()].push(record);
        }
        Ok(StepRecord::of_row(row, mesh))
    }

    /// This rank's workers.
    fn workers(&self) -> std::ops::Range<u32> {
        self.shared.ranks.devices(self.shared.workers())
    }

    pub fn mesh(&self) -> Mesh {
        self.shared.mesh
    }

    /// Runs `call` on the thread of each worker of this rank, between steps, with the worker's number.
    pub fn call(
        &mut self,
        call: impl Fn(u32, &mut dyn State) -> anyhow::Result<()> + Clone + Send + 'static,
    ) -> Result<(), Error> {
        for (number, command) in self.workers().zip(&self.commands) {
            let call = call.clone();
            let _ = command.send(Command::Call(Box::new(move |device| call(number, device))));
        }
        self.gather(1, &mut |_, _| ()).map_err(|error| error.unwrap_or_else(|| self.lost("it was aborted")))
    }

    /// Collects the records of all ranks.
    fn join(&self, part: StepPart) -> Result<Vec<(u32, DeviceRecord)>, Error> {
        let parts = match self.shared.ranks.size() {
            1 => vec![part],
            _ => self.exchange(&part)?,
        };
        let mut records = Vec::new();
        let mut aborted = false;
        for part in parts {
            match part {
                StepPart::Done(more, asked) => {
                    records.extend(more);
                    self.shared.ranks.stop().agree(asked);
                }
                StepPart::Aborted => aborted = true,
                StepPart::Failed(error) => return Err(error),
            }
        }
        if aborted { Err(self.lost("it was aborted")) } else { Ok(records) }
    }

    /// Exchanges results with all ranks. A rank with a failure does not wait long for the others, which may have failed too.
    fn exchange(&self, part: &StepPart) -> Result<Vec<StepPart>, Error> {
        let limit = match part {
            StepPart::Failed(error @ Error::Lost { .. }) => return Err(error.clone()),
            StepPart::Done(..) => ENDLESS, // each rank watches its own devices
            StepPart::Aborted | StepPart::Failed(_) => FAILURE_TIMEOUT,
        };
        let bytes = serde_json::to_vec(part).map_err(|error| self.lost(&error.to_string()))?;
        let all = self.shared.ranks.exchange_within(bytes, limit).map_err(|lost| match part {
            StepPart::Failed(error) => error.clone(),
            _ => self.lost(&lost.to_string()),
        })?;
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|error| self.lost(&error.to_string()));
        all.iter().map(read).collect()
    }

    fn why_lost(&self) -> String {
        self.shared.ranks.lost().map_or_else(|| "a rank is gone".to_string(), |lost| lost.to_string())
    }

    /// Collects `each` answers of every device of this rank. Aborts the run if a device fails, dies or waits too long, or a rank has
    /// ended. The error is `None` if another rank aborted the run.
    fn gather(&self, each: usize, collect: &mut dyn FnMut(u32, WorkerAnswer)) -> Result<(), Option<Error>> {
        let mut left = each * self.commands.len();
        let interval = CHECK_INTERVAL.min(self.timeout / 2);
        // Do not count time for which this process was stopped, for example by Ctrl-Z.
        let (mut stopped, mut last) = (Duration::ZERO, Instant::now());
        while left > 0 {
            stopped += last.elapsed().saturating_sub(4 * CHECK_INTERVAL);
            last = Instant::now();
            match self.answers.recv_timeout(interval) {
                Ok((device, answer @ (WorkerAnswer::Died(_) | WorkerAnswer::Failed(_)))) => {
                    return Err(self.give_up(device, answer, left - 1));
                }
                Ok((device, answer)) => {
                    collect(device, answer);
                    left -= 1;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(error) = self.trouble(stopped) {
                        self.stop(left);
                        return Err(error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.give_up(0, WorkerAnswer::Died("all threads are gone".to_string()), 0));
                }
            }
        }
        Ok(())
    }

    /// Returns why the devices of this rank cannot continue, if they cannot.
    fn trouble(&self, stopped: Duration) -> Option<Option<Error>> {
        let waited = self.shared.watch.longest_wait().saturating_sub(stopped);
        if self.shared.ranks.lost().is_some() {
            return Some(Some(self.lost(&self.why_lost())));
        }
        if self.shared.watch.is_aborted() {
            return Some(None);
        }
        (waited > self.timeout).then(|| {
            let (schedule, report) = self.place();
            Some(Error::Hang { schedule, seconds: waited.as_secs(), report })
        })
    }

    fn lost(&self, cause: &str) -> Error {
        let (schedule, report) = self.place();
        Error::Lost { schedule, cause: cause.to_string(), report }
    }

    fn place(&self) -> (String, String) {
        let shared = &self.shared;
        let graph = &shared.plan.graph;
        let of_copy = |queues: &CommunicationQueues| queues.report(&shared.heap, graph, self.steps.saturating_sub(1));
        let queues: String = shared.queues.iter().map(of_copy).collect();
        (graph.schedule().name.clone(), shared.watch.report(graph, shared.mesh) + &queues)
    }

    fn give_up(&self, worker: u32, answer: WorkerAnswer, left: usize) -> Option<Error> {
        let ((schedule, report), worker) = (self.place(), self.shared.mesh.name(worker));
        self.stop(left);
        match answer {
            WorkerAnswer::Failed(cause) if !cause.is::<Aborted>() => {
                Some(Error::Failed { schedule, worker, cause: format!("{cause:#}") })
            }
            WorkerAnswer::Died(cause) => Some(Error::Dead { schedule, worker, cause, report }),
            _ => self.shared.ranks.lost().map(|lost| self.lost(&lost.to_string())),
        }
    }

    /// Aborts the run, and waits briefly for the `left` threads that have not answered.
    fn stop(&self, mut left: usize) {
        self.shared.watch.abort();
        let end = Instant::now() + Duration::from_secs(1);
        while left > 0 && Instant::now() < end && self.answers.recv_timeout(Duration::from_millis(100)).is_ok() {
            left -= 1;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.commands.clear(); // the threads end when their channel closes
        let limit = called_off_since().map_or(JOIN_TIMEOUT, |since| ABORT_TIMEOUT.saturating_sub(since));
        join_within(self.threads.drain(..), limit);
    }
}

/// Body of a device's thread, which ends when its device fails.
fn serve(
    number: u32,
    mut runner: Box<dyn Runner>,
    pin: bool,
    inbox: &Receiver<Command>,
    answer: &Sender<(u32, WorkerAnswer)>,
) {
    if pin {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        if let Some(core) = cores.get(number as usize) {
            core_affinity::set_for_current(*core);
        }
    }
    let mut failed = false;
    while let (false, Ok(command)) = (failed, inbox.recv()) {
        let run = AssertUnwindSafe(|| match command {
            Command::Call(call) => runner.call(call).map(|()| WorkerAnswer::Called),
            Command::Step { turn, batch, update } => {
                let record = runner.step(turn, &batch, update.as_ref())?;
                if update.is_none() && !turn.forwards_only {
                    runner.call(Box::new(|state| state.clear()))?;
                }
                Ok(WorkerAnswer::Step(Box::new(record)))
            }
        });
        let answered = match catch_unwind(run) {
            Ok(result) => result.unwrap_or_else(WorkerAnswer::Failed),
            Err(panic) => WorkerAnswer::Died(panic_text(panic.as_ref())),
        };
        failed = matches!(answered, WorkerAnswer::Died(_) | WorkerAnswer::Failed(_));
        if answer.send((number, answered)).is_err() {
            break;
        }
    }
    runner.end(failed);
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_string()
}
