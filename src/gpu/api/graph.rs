//! CUDA graphs: work that a stream collects instead of enqueuing it, and launches as one graph where it was enqueued before.
//!
//! Collected work is data. A list of it goes to the stream as soon as something else is enqueued there. Graphs are found by the whole
//! list, with every address and number in it, so a list that differs anywhere is another list and never meets a graph of this one. A
//! list is enqueued piece by piece the first time, so that libraries load what it needs. If it comes again, it is captured before the next
//! step: making a graph may wait for the GPU, which inside of a step could wait for another GPU's host.

use super::driver::call;
use super::work::{DriverQueue, StreamWork};
use super::{Context, Fault, Handle};
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// A graph that can be launched.
struct Graph {
    context: Arc<Context>,
    handle: Handle<sys::CUgraphExec_st>,
}

impl Graph {
    /// Captures work of a stream without running it.
    fn capture(queue: &DriverQueue, list: &[StreamWork]) -> Result<Graph, Fault> {
        // Relaxed, because other threads allocate and ask for events meanwhile, and libraries may do so in this one.
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let (context, handle) = (&queue.context, queue.handle.raw());
        let (mut graph, mut executable) = (null_mut(), null_mut());
        call!(context, cuStreamBeginCapture_v2(handle, relaxed))?;
        let captured = list.iter().try_for_each(|work| queue.enqueue(work));
        let ended = call!(context, cuStreamEndCapture(handle, &mut graph));
        let made = captured.and(ended);
        let made = made.and_then(|()| call!(context, cuGraphInstantiateWithFlags(&mut executable, graph, 0)));
        if !graph.is_null() {
            call!(context, cuGraphDestroy(graph))?;
        }
        made?;
        let graph = Graph { context: context.clone(), handle: Handle::new(executable) };
        call!(context, cuGraphUpload(executable, handle))?;
        Ok(graph)
    }

    fn launch(&self, queue: &DriverQueue) -> Result<(), Fault> {
        call!(self.context, cuGraphLaunch(self.handle.raw(), queue.handle.raw()))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A graph that still runs is freed at its end. A fault here was already reported by an earlier call.
        let _ = self.context.make_current().and_then(|()| call!(self.context, cuGraphExecDestroy(self.handle.raw())));
    }
}

/// What became of a list of work.
enum CaptureState {
    /// It was enqueued once.
    Seen,
    /// It was enqueued again, and is captured before the next step.
    Due,
    Captured(Graph),
    /// The driver or a library cannot capture it.
    Refused,
}

struct Known {
    state: CaptureState,
    /// The last step that had it.
    step: u64,
}

/// Shortest list that becomes a graph.
const LEAST: usize = 2;

/// Steps after which a list that does not come again is forgotten, and a graph.
const KEPT: [u64; 2] = [2, 64];

/// How graphs were used in a device's last step, or in the running one so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Kernels, products, copies and fills of ops.
    pub calls: u64,
    /// Launches that these took: one per graph, and one per call outside of graphs.
    pub launches: u64,
    /// Graphs that were captured in all steps.
    pub captured: u64,
    /// Lists of calls that could not be captured.
    pub refused: u64,
    /// The function that refused the first of them, and its code.
    pub first_refusal: Option<(&'static str, u32)>,
}

impl GraphCounts {
    /// The sums of both.
    pub fn and(self, other: &GraphCounts) -> GraphCounts {
        GraphCounts {
            calls: self.calls + other.calls,
            launches: self.launches + other.launches,
            captured: self.captured + other.captured,
            refused: self.refused + other.refused,
            first_refusal: self.first_refusal.or(other.first_refusal),
        }
    }
}

/// By session and device.
pub type GraphUse = Arc<Mutex<BTreeMap<(u32, u32), GraphCounts>>>;

/// The graphs of one session on one stream.
pub struct Graphs {
    known: BTreeMap<Vec<StreamWork>, Known>,
    /// Collected and not yet enqueued.
    pub(super) pending: Vec<StreamWork>,
    step: u64,
    counts: GraphCounts,
    place: (u32, u32),
    told: GraphUse,
}

impl Graphs {
    /// Creates the graphs of a session on a device, which are counted in `told`.
    pub fn new(place: (u32, u32), told: &GraphUse) -> Graphs {
        let (known, pending, counts) = (BTreeMap::new(), Vec::new(), GraphCounts::default());
        let graphs = Graphs { known, pending, step: 0, counts, place, told: told.clone() };
        graphs.tell();
        graphs
    }

    /// Publishes the counts.
    fn tell(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(self.place, self.counts);
    }

    /// Begins a step: captures what came again in the last one, and forgets what did not come for long.
    pub(super) fn begin_step(&mut self, queue: &DriverQueue) {
        self.step += 1;
        let (step, counts) = (self.step, &mut self.counts);
        for (list, known) in self.known.iter_mut().filter(|(_, known)| matches!(known.state, CaptureState::Due)) {
            known.state = match Graph::capture(queue, list) {
                Ok(graph) => {
                    counts.captured += 1;
                    CaptureState::Captured(graph)
                }
                Err(fault) => {
                    counts.refused += 1;
                    counts.first_refusal.get_or_insert((fault.call, fault.code));
                    CaptureState::Refused
                }
            };
        }
        self.known.retain(|_, known| {
            let kept = KEPT[usize::from(matches!(known.state, CaptureState::Captured(_)))];
            step - known.step <= kept
        });
        (self.counts.calls, self.counts.launches) = (0, 0);
    }

    /// Takes these graphs out, to give them to a stream.
    pub(super) fn take(&mut self) -> Graphs {
        let (known, pending) = (std::mem::take(&mut self.known), std::mem::take(&mut self.pending));
        Graphs { known, pending, told: self.told.clone(), ..*self }
    }

    /// Drops what a failed op left, and publishes the counts.
    pub(super) fn end_op(&mut self) {
        self.pending.clear();
        self.tell();
    }

    /// Enqueues what was collected.
    pub(super) fn flush(&mut self, queue: &DriverQueue) -> Result<(), Fault> {
        let list = std::mem::take(&mut self.pending);
        self.counts.calls += list.len() as u64;
        let (step, counts) = (self.step, &mut self.counts);
        match self.known.get_mut(&list) {
            Some(known) => {
                known.step = step;
                if matches!(known.state, CaptureState::Seen) {
                    known.state = CaptureState::Due;
                }
                if let CaptureState::Captured(graph) = &known.state {
                    counts.launches += 1;
                    queue.note(list.iter().map(StreamWork::entries).sum());
                    return graph.launch(queue);
                }
            }
            None if list.len() >= LEAST => {
                self.known.insert(list.clone(), Known { state: CaptureState::Seen, step });
            }
            None => {}
        }
        counts.launches += list.len() as u64;
        list.iter().try_for_each(|work| {
            queue.note(work.entries());
            queue.enqueue(work)
        })
    }
}
