//! A schedule held ready for execution: one thread a device, buffers, and the watchdog.

use super::device::{Batch, Device, Update};
use super::link::Local;
use super::plan::Plan;
use super::record::{DeviceRecord, StepRecord};
use super::replicas::Replicas;
use super::watch::{Aborted, Fault, Watch};
use super::worker::Worker;
use crate::delivery::Delivery;
use crate::graph::TaskGraph;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often a session looks whether a device waits too long.
const LOOK: Duration = Duration::from_millis(50);

/// How a session treats its threads.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pin device r to core r: for measuring, where there are cores enough.
    pub pin: bool,
    /// How long a waiting thread spins before it parks.
    pub spin: Duration,
    /// Longest wait of a device for its data.
    pub timeout: Duration,
    /// A fault to inject.
    pub fault: Option<Fault>,
    /// How the link delivers.
    pub delivery: Delivery,
}

/// Why a step did not end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device waited too long.
    #[error(
        "schedule {schedule}: a device has waited for {seconds} s, longer than the limit; all devices were stopped:\n{report}"
    )]
    Hang {
        /// The schedule.
        schedule: String,
        /// How long.
        seconds: u64,
        /// Who was where.
        report: String,
    },
    /// A device's thread died.
    #[error("schedule {schedule}: device {device} died: {cause}; all devices were stopped:\n{report}")]
    Dead {
        /// The schedule.
        schedule: String,
        /// The device.
        device: u32,
        /// What it died of.
        cause: String,
        /// Who was where.
        report: String,
    },
    /// An op could not be computed.
    #[error("schedule {schedule}, device {device}: {cause:#}")]
    Failed {
        /// The schedule.
        schedule: String,
        /// The device.
        device: u32,
        /// Why.
        cause: anyhow::Error,
    },
}

type DeviceCall = Box<dyn FnOnce(&mut dyn Device) + Send>;

enum Command {
    /// Step number `step`, before which `updates` steps ended with an update.
    Step {
        step: u64,
        updates: u64,
        batch: Arc<Batch>,
        update: Option<Update>,
    },
    Call(DeviceCall),
}

enum Answer {
    Step(anyhow::Result<DeviceRecord>),
    Called,
    Died(String),
}

/// The session.
pub struct Session {
    plan: Arc<Plan>,
    link: Arc<Local>,
    watch: Arc<Watch>,
    timeout: Duration,
    commands: Vec<Sender<Command>>,
    answers: Receiver<(u32, Answer)>,
    steps: u64,
    updates: u64,
}

impl Session {
    /// Starts a thread for each of `devices`. Messages hold `hidden_len` numbers, the tied embedding's gradient `tied_len`.
    ///
    /// # Panics
    /// The number of devices is not the graph's, or the system gives no threads.
    pub fn start(
        graph: Arc<TaskGraph>,
        devices: Vec<Box<dyn Device>>,
        hidden_len: usize,
        tied_len: usize,
        settings: Settings,
    ) -> Session {
        assert_eq!(devices.len(), graph.schedule().devices() as usize, "one device for each of the schedule's");
        let plan = Arc::new(Plan::new(graph));
        let link = Arc::new(Local::new(&plan, settings.delivery, hidden_len, tied_len));
        let replicas = Arc::new(Replicas::new(&plan.graph.schedule().placement));
        let watch = Arc::new(Watch::new(devices.len() as u32, settings.spin));
        let gate = Arc::new(AtomicU64::new(0));
        let (answer, answers) = channel();
        let mut commands = Vec::new();
        for (number, device) in devices.into_iter().enumerate() {
            let number = number as u32;
            let worker = Worker {
                number,
                plan: plan.clone(),
                link: link.clone(),
                watch: watch.clone(),
                gate: gate.clone(),
                replicas: replicas.clone(),
                staging: [vec![0.0; hidden_len], vec![0.0; hidden_len]],
                fault: settings.fault,
            };
            let (command, inbox) = channel();
            let answer = answer.clone();
            let body = move || serve(worker, device, settings.pin, &inbox, &answer);
            std::thread::Builder::new()
                .name(format!("device {number}"))
                .spawn(body)
                .expect("the system gives a thread");
            commands.push(command);
        }
        Session { plan, link, watch, timeout: settings.timeout, commands, answers, steps: 0, updates: 0 }
    }

    /// The graph that this session executes.
    pub fn graph(&self) -> &Arc<TaskGraph> {
        &self.plan.graph
    }

    /// Slots of all channels: how many messages' buffers the graph needs.
    pub fn slot_count(&self) -> usize {
        self.plan.slots.iter().sum()
    }

    /// Runs one training step; without `update`, forward and backward only.
    ///
    /// # Errors
    /// See [`Error`]. After one, the session is of no more use.
    pub fn step(&mut self, batch: &Arc<Batch>, update: Option<Update>) -> Result<StepRecord, Error> {
        let step = self.steps;
        let updates = self.updates;
        self.steps += 1;
        self.updates += u64::from(update.is_some());
        for command in &self.commands {
            let _ = command.send(Command::Step { step, updates, batch: batch.clone(), update });
        }
        let mut records: Vec<Option<DeviceRecord>> = vec![None; self.commands.len()];
        let mut collect = |device: u32, answer| {
            if let Answer::Step(Ok(record)) = answer {
                records[device as usize] = Some(record);
            }
        };
        self.gather(&mut collect)?;
        Ok(StepRecord::new(records.into_iter().flatten().collect()))
    }

    /// Runs `call` on every device's thread, between steps.
    ///
    /// # Errors
    /// A device died.
    pub fn call(&mut self, call: impl Fn(u32, &mut dyn Device) + Clone + Send + 'static) -> Result<(), Error> {
        for (number, command) in self.commands.iter().enumerate() {
            let call = call.clone();
            let _ = command.send(Command::Call(Box::new(move |device| call(number as u32, device))));
        }
        self.gather(&mut |_, _| ())
    }

    /// One answer of every device; ends everything where a device fails, dies or waits too long.
    fn gather(&self, collect: &mut dyn FnMut(u32, Answer)) -> Result<(), Error> {
        let mut left = self.commands.len();
        while left > 0 {
            match self.answers.recv_timeout(LOOK.min(self.timeout / 2)) {
                Ok((device, Answer::Died(cause))) => return Err(self.give_up(device, Answer::Died(cause), left - 1)),
                Ok((device, Answer::Step(Err(cause)))) => {
                    return Err(self.give_up(device, Answer::Step(Err(cause)), left - 1));
                }
                Ok((device, answer)) => {
                    collect(device, answer);
                    left -= 1;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let waited = self.watch.longest_wait();
                    if waited > self.timeout {
                        let (schedule, report) = self.place();
                        self.stop(left);
                        return Err(Error::Hang { schedule, seconds: waited.as_secs(), report });
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.give_up(0, Answer::Died("all threads are gone".to_string()), 0));
                }
            }
        }
        Ok(())
    }

    fn place(&self) -> (String, String) {
        let report = self.watch.report(&self.plan.graph) + &self.link.report(self.steps.saturating_sub(1));
        (self.plan.graph.schedule().name.clone(), report)
    }

    fn give_up(&self, device: u32, answer: Answer, left: usize) -> Error {
        let (schedule, report) = self.place();
        self.stop(left);
        match answer {
            Answer::Step(Err(cause)) if !cause.is::<Aborted>() => Error::Failed { schedule, device, cause },
            Answer::Died(cause) => Error::Dead { schedule, device, cause, report },
            _ => Error::Dead { schedule, device, cause: "it was called off".to_string(), report },
        }
    }

    /// Calls everything off and gives the `left` threads that have not answered a moment to notice; one that hangs is left
    /// behind.
    fn stop(&self, mut left: usize) {
        self.watch.abort();
        let end = Instant::now() + Duration::from_secs(1);
        while left > 0 && Instant::now() < end && self.answers.recv_timeout(Duration::from_millis(100)).is_ok() {
            left -= 1;
        }
    }
}

/// A device's thread.
fn serve(
    mut worker: Worker,
    mut device: Box<dyn Device>,
    pin: bool,
    inbox: &Receiver<Command>,
    answer: &Sender<(u32, Answer)>,
) {
    if pin {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        if let Some(core) = cores.get(worker.number as usize) {
            core_affinity::set_for_current(*core);
        }
    }
    let number = worker.number;
    while let Ok(command) = inbox.recv() {
        let run = AssertUnwindSafe(|| match command {
            Command::Call(call) => {
                call(device.as_mut());
                Answer::Called
            }
            Command::Step { step, updates, batch, update } => {
                let result = worker.step(device.as_mut(), (step, updates), &batch, update.as_ref());
                if update.is_none() {
                    device.clear();
                }
                Answer::Step(result)
            }
        });
        let result = catch_unwind(run).unwrap_or_else(|panic| Answer::Died(panic_text(panic.as_ref())));
        let died = matches!(result, Answer::Died(_));
        if answer.send((number, result)).is_err() || died {
            return;
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_string()
}
