//! Ctrl-C in a measurement or a training finishes the running step.

use super::eprint;
use super::signals::{exit, signal_set};
use pipesim_exec::ranks::{Stop, signal_name};
use pipesim_system::unfinished::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decides {
    /// This process.
    Itself,
    /// This process, a launcher, through its ranks' [`Stop`].
    Launcher,
    /// The launcher of this rank, or all ranks together.
    Others,
}

/// Has SIGINT, SIGHUP and SIGTERM ask `stop` for the end after the running step; a second one, or one before any measured step, ends
/// the process at once. Signals that this process inherited as ignored, as under `nohup`, stay ignored.
pub fn install_signal_handler(stop: &Arc<Stop>, decides: Decides, is_quiet: bool) {
    let ignored = signal_set("SigIgn:");
    // SIGTERM is what an MPI launcher sends to the others when a rank is gone; the MPI code handles it.
    let terminates = (decides != Decides::Others || std::env::var_os("PIPESIM_RANK").is_some()).then_some(SIGTERM);
    let handled = [SIGHUP, SIGINT].into_iter().chain(terminates).filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let Ok(mut sent) = Signals::new(handled.collect::<Vec<i32>>()) else { return };
    let stop = stop.clone();
    let listen = move || {
        // Only signals sent to this process count as a repeat: its launcher may have passed on the same signal before.
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
                    eprint(&format!("stopped {when} by {name}; nothing is written"));
                    exit(128 + signal as u8);
                }
                None if decides != Decides::Others && !is_quiet => {
                    eprint(&format!("{name}: stopping after this step; once more stops at once"));
                }
                _ => {}
            }
        }
    };
    // Without the thread, signals have their default effect.
    let _ = std::thread::Builder::new().name("signals".to_string()).spawn(listen);
}
