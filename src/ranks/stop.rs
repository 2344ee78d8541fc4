//! Whether somebody wants a run to end early, and whether there is something to lose by then.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A wish to end early, as a signal's number, and how far it has come.
#[derive(Debug, Default)]
pub struct Stop {
    /// What this process was sent; 0 for nothing.
    asked: AtomicU8,
    /// It was asked again: to end at once.
    urgent: AtomicBool,
    /// What all ranks have agreed on after a step; 0 for nothing.
    agreed: AtomicU8,
    measured: AtomicBool,
}

fn some(signal: u8) -> Option<u8> {
    Some(signal).filter(|&signal| signal > 0)
}

impl Stop {
    /// Asks for the end, as the signal of this number does; whether for the first time.
    pub fn ask(&self, signal: u8) -> bool {
        let first = self.asked.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.urgent.fetch_or(!first, Ordering::SeqCst);
        first
    }

    /// The signal that asked for the end.
    pub fn asked(&self) -> Option<u8> {
        some(self.asked.load(Ordering::SeqCst))
    }

    /// Whether it was asked for more than once.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::SeqCst)
    }

    /// Notes what all ranks have agreed on.
    pub fn agree(&self, signal: Option<u8>) {
        self.agreed.fetch_max(signal.unwrap_or(0), Ordering::SeqCst);
    }

    /// The signal because of which no rank begins another step.
    pub fn agreed(&self) -> Option<u8> {
        some(self.agreed.load(Ordering::SeqCst))
    }

    /// Notes that a step was measured; whether it is the first.
    pub fn note_measured(&self) -> bool {
        !self.measured.swap(true, Ordering::SeqCst)
    }

    /// Whether a step was measured: there is something to write down.
    pub fn has_measured(&self) -> bool {
        self.measured.load(Ordering::SeqCst)
    }
}

/// A signal's name, where it is one that ends processes.
pub fn signal_name(signal: i32) -> &'static str {
    let names =
        [(1, "SIGHUP"), (2, "SIGINT"), (6, "SIGABRT"), (7, "SIGBUS"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM")];
    names.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_counts_and_the_second_is_urgent() {
        let stop = Stop::default();
        assert!(stop.asked().is_none() && stop.agreed().is_none() && !stop.has_measured());
        assert!(stop.ask(2) && !stop.is_urgent());
        assert!(!stop.ask(15) && stop.is_urgent());
        assert_eq!(stop.asked(), Some(2));
        stop.agree(None);
        assert_eq!(stop.agreed(), None);
        stop.agree(stop.asked());
        assert_eq!(stop.agreed(), Some(2));
        assert!(stop.note_measured() && !stop.note_measured() && stop.has_measured());
    }
}
