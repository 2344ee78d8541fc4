//! A watch without clocks: threads wait without spinning, until the run is aborted.

use super::arena::Region;
use super::heap::Heap;
use super::signal::WaitPolicy;
use std::sync::Arc;
use std::time::Duration;

pub struct Watch {
    pub heap: Arc<Heap>,
    pub aborted: Region,
}

impl WaitPolicy for Watch {
    fn spin(&self) -> Duration {
        Duration::ZERO
    }

    fn is_aborted(&self) -> bool {
        self.heap.signal(self.aborted).value() != 0
    }
}

impl Watch {
    pub fn note_wait(&self, _worker: u32, _waits: bool) {}

    pub fn abort(&self) {
        self.heap.raise_everywhere(self.aborted, 1);
    }
}
