//! Signals that end the program while it writes: nothing unfinished stays, and the old is as it was.

use crate::report::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::sync::{Arc, Once};

/// Has signals that end the process tidy up first, from now on. Those that somebody else decides on, or that are ignored as under
/// `nohup`, are left alone. A file that grows beyond its limit is an error as others are.
pub fn tidy_on_signals() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        let taken = signals("SigIgn:") | signals("SigCgt:");
        let is_free = |signal: &&i32| taken >> (**signal - 1) & 1 == 0;
        if is_free(&&SIGXFSZ) {
            let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        }
        let Ok(mut signals) = Signals::new([SIGHUP, SIGINT, SIGTERM].iter().filter(is_free)) else { return };
        let end = move || {
            if let Some(signal) = signals.forever().next() {
                remove_unfinished();
                let _ = emulate_default_handler(signal);
            }
        };
        // Without the thread a signal waits until the process has ended, which is soon.
        let _ = std::thread::Builder::new().name("tidy".to_string()).spawn(end);
    });
}

/// A set of this process's signals, signal n in bit n - 1.
pub(super) fn signals(set: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix(set));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
