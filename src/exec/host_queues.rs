//! Copies to and from the host, on threads next to a device's own: one queue per direction, each in order.

use super::shared::Shared;
use super::signal::{Aborted, WaitPolicy as _};
use super::watch::start_thread;
use anyhow::{Result, anyhow, bail};
use pipesim_schedule::op::{Engine, Op};
use pipesim_train::model::CopyWork;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval at which a device that waits for a copy checks whether the run was aborted.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Threads of a device with copies, besides its own.
pub const COPY_THREADS: usize = 2;

/// A copy, by its number.
struct QueuedCopy {
    number: usize,
    /// The copies that it waits for.
    after: Vec<usize>,
    work: CopyWork,
}

/// A message to the thread of a queue.
enum QueueMessage {
    /// A step begins, and numbers with it.
    Begin,
    Copy(QueuedCopy),
    /// A copy of the other queue has ended.
    Ended(usize),
}

/// A copy that has ended, with start and end in ns.
struct EndedCopy {
    number: usize,
    times: [u64; 2],
    result: Result<()>,
}

/// The queues of a device, to the host and from it. They end with it.
pub(super) struct HostQueues {
    queues: Vec<Sender<QueueMessage>>,
    threads: Vec<JoinHandle<()>>,
    ended: Receiver<EndedCopy>,
    /// Number of copies begun in this step.
    begun: usize,
    /// Start and end of the copies that have ended in this step, by number.
    times: BTreeMap<usize, [u64; 2]>,
}

impl HostQueues {
    /// Starts the queues of worker `worker`.
    ///
    /// # Errors
    /// The system does not allow more threads.
    pub fn start(worker: u32, shared: &Arc<Shared>) -> Result<HostQueues> {
        let (tell, ended) = channel();
        let (to_host, leaving) = channel();
        let (from_host, coming) = channel();
        let (first, count) = (COPY_THREADS * worker as usize, (1 + COPY_THREADS) * shared.workers() as usize);
        let (clock, told, other) = (shared.clone(), tell.clone(), from_host.clone());
        let note = move |copy: EndedCopy| {
            let _ = other.send(QueueMessage::Ended(copy.number)); // a RELOAD may wait for it
            let _ = told.send(copy);
        };
        let mut queues = HostQueues {
            queues: vec![to_host, from_host],
            threads: Vec::new(),
            ended,
            begun: 0,
            times: BTreeMap::new(),
        };
        let out = start_thread(format!("device {worker} out"), first, count, move || serve(&leaving, &clock, note))?;
        queues.threads.push(out);
        let clock = shared.clone();
        let note = move |copy: EndedCopy| drop(tell.send(copy));
        let back = start_thread(format!("device {worker} in"), first + 1, count, move || serve(&coming, &clock, note))?;
        queues.threads.push(back);
        Ok(queues)
    }

    /// Begins a step; the copies of the last one have ended.
    pub fn begin(&mut self) {
        (self.begun, self.times) = (0, BTreeMap::new());
        self.queues.iter().for_each(|queue| drop(queue.send(QueueMessage::Begin)));
    }

    /// Number of copies begun in this step.
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Adds the copy `op` with this number to its queue: it runs after the copies `after`.
    pub fn add(&mut self, op: Op, number: usize, after: &[usize], work: CopyWork) -> Result<()> {
        let queue = &self.queues[usize::from(op.kind().engine() == Engine::FromHost)];
        self.begun += 1;
        let copy = QueuedCopy { number, after: after.to_vec(), work };
        queue.send(QueueMessage::Copy(copy)).map_err(|_| anyhow!("the thread that copies has ended"))
    }

    /// Waits for copies, by number.
    ///
    /// # Errors
    /// A copy failed, or the run was aborted.
    pub fn wait(&mut self, copies: &[usize], shared: &Shared) -> Result<()> {
        while !copies.iter().all(|number| self.times.contains_key(number)) {
            match self.ended.recv_timeout(CHECK_INTERVAL) {
                Ok(EndedCopy { number, times, result }) => {
                    result?;
                    self.times.insert(number, times);
                }
                Err(RecvTimeoutError::Timeout) if shared.watch.is_aborted() => return Err(Aborted.into()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the threads that copy have ended"),
            }
        }
        Ok(())
    }

    /// Start and end of a copy that has ended.
    pub fn times(&self, number: usize) -> Option<[u64; 2]> {
        self.times.get(&number).copied()
    }
}

impl Drop for HostQueues {
    fn drop(&mut self) {
        self.queues.clear(); // the threads end when their channels close
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Body of a queue's thread.
fn serve(inbox: &Receiver<QueueMessage>, shared: &Shared, note: impl Fn(EndedCopy)) {
    let (mut queue, mut ended) = (VecDeque::new(), BTreeSet::new());
    while let Ok(message) = inbox.recv() {
        match message {
            QueueMessage::Begin => ended.clear(),
            QueueMessage::Copy(copy) => queue.push_back(copy),
            QueueMessage::Ended(number) => drop(ended.insert(number)),
        }
        let can_run =
            |copy: &QueuedCopy, ended: &BTreeSet<usize>| copy.after.iter().all(|number| ended.contains(number));
        while queue.front().is_some_and(|copy| can_run(copy, &ended)) {
            let Some(QueuedCopy { number, work, .. }) = queue.pop_front() else { break };
            let start = shared.watch.now_ns();
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(anyhow!("a copy panicked")));
            ended.insert(number);
            note(EndedCopy { number, times: [start, shared.watch.now_ns()], result });
        }
    }
}
