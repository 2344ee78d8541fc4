//! Ctrl-C and its kin: the running step is finished and what was measured is written, unless there is nothing to write or the
//! user insists.

use super::leave::leave;
use super::output::tell;
use super::tidy::signals;
use crate::ranks::{Stop, signal_name};
use crate::report::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Who decides what a signal does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decides {
    /// This process.
    Itself,
    /// Whoever looks at the [`Stop`]: a launcher, which speaks for its ranks.
    Launcher,
    /// The launcher of this rank, or all ranks together.
    Others,
}

/// Has signals ask `stop` for the end from now on. Those that this process was told to ignore, as `nohup` does, it ignores.
pub fn heed(stop: &Arc<Stop>, decides: Decides, is_quiet: bool) {
    let ignored = signals("SigIgn:");
    // What MPI's launcher sends when a rank is gone is heeded where MPI is.
    let terminates = (decides != Decides::Others || std::env::var_os("PIPESIM_RANK").is_some()).then_some(SIGTERM);
    let heeded: Vec<i32> =
        [SIGHUP, SIGINT].into_iter().chain(terminates).filter(|signal| ignored >> (signal - 1) & 1 == 0).collect();
    let Ok(mut sent) = Signals::new(heeded) else { return };
    let stop = stop.clone();
    let listen = move || {
        // Only what this process was sent itself insists: its launcher may have told it of the same signal before.
        let mut first = true;
        for signal in sent.forever() {
            let name = signal_name(signal);
            stop.ask(signal as u8);
            let at_once = match (first, stop.has_measured()) {
                (true, false) => Some("before a step was measured"),
                (false, _) => Some("at once"),
                (true, true) => None,
            };
            first = false;
            if at_once.is_some() {
                remove_unfinished();
            }
            match at_once {
                Some(when) if decides == Decides::Itself => {
                    tell(&format!("stopped {when} by {name}; nothing is written"));
                    leave(128 + signal as u8);
                }
                None if decides != Decides::Others && !is_quiet => {
                    tell(&format!("{name}: stopping after this step; once more stops at once"));
                }
                _ => {}
            }
        }
    };
    // Without the thread signals do what they do to any process.
    let _ = std::thread::Builder::new().name("signals".to_string()).spawn(listen);
}
