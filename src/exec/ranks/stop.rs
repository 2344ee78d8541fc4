//! Requests to end a run early, by signal.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A request to end early, as the number of a signal, and its state.
#[derive(Debug, Default)]
pub struct Stop {
    /// The signal that this process received; 0 for none.
    asked: AtomicU8,
    /// A second signal arrived: end at once.
    urgent: AtomicBool,
    /// The signal that all ranks have agreed on after a step; 0 for none.
    agreed: AtomicU8,
    measured: AtomicBool,
}

fn some(signal: u8) -> Option<u8> {
    Some(signal).filter(|&signal| signal > 0)
}

impl Stop {
    /// Requests the end with the signal of this number. Returns whether this is the first request.
    pub fn ask(&self, signal: u8) -> bool {
        let first = self.asked.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.urgent.fetch_or(!first, Ordering::SeqCst);
        first
    }

    /// Returns the signal that requested the end.
    pub fn asked(&self) -> Option<u8> {
        some(self.asked.load(Ordering::SeqCst))
    }

    /// Whether the end was requested more than once.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::SeqCst)
    }

    /// Records what all ranks have agreed on.
    pub fn agree(&self, signal: Option<u8>) {
        self.agreed.fetch_max(signal.unwrap_or(0), Ordering::SeqCst);
    }

    /// Returns the signal that all ranks agreed on: none of them begins another step.
    pub fn agreed(&self) -> Option<u8> {
        some(self.agreed.load(Ordering::SeqCst))
    }

    /// Records that a step was measured. Returns whether it is the first.
    pub fn note_measured(&self) -> bool {
        !self.measured.swap(true, Ordering::SeqCst)
    }

    /// Whether a step was measured, so that there are results to write.
    pub fn has_measured(&self) -> bool {
        self.measured.load(Ordering::SeqCst)
    }
}

/// Returns the name of a signal that ends processes; `a signal` for others.
pub fn signal_name(signal: i32) -> &'static str {
    let names =
        [(1, "SIGHUP"), (2, "SIGINT"), (6, "SIGABRT"), (7, "SIGBUS"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")];
    names.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name)
}
