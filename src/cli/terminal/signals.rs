//! Signals and the end of the process: Ctrl-C finishes the running step, and an unfinished file is removed.

use super::eprint;
use crate::ranks::{Stop, signal_name};
use crate::report::remove_unfinished;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use std::sync::{Arc, Once};

/// Ends the process. If a library of NVIDIA's is open, exit handlers are skipped: they take the library down while threads may still be
/// using it.
pub fn exit(code: u8) -> ! {
    #[cfg(feature = "cuda")]
    if pipesim_cuda::library::is_any_open() {
        low_level::exit(i32::from(code));
    }
    std::process::exit(i32::from(code))
}

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

/// Has signals that end the process remove unfinished files first, from now on. Signals that are ignored or already handled stay so.
/// Exceeding the file size limit becomes an ordinary error.
pub fn remove_unfinished_on_signals() {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| {
        let taken = signal_set("SigIgn:") | signal_set("SigCgt:");
        let is_free = |signal: &&i32| taken >> (**signal - 1) & 1 == 0;
        if is_free(&&SIGXFSZ) {
            let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        }
        let Ok(mut signals) = Signals::new([SIGHUP, SIGINT, SIGTERM].iter().filter(is_free)) else { return };
        let end = move || {
            if let Some(signal) = signals.forever().next() {
                remove_unfinished();
                let _ = low_level::emulate_default_handler(signal);
            }
        };
        // Without the thread, a signal waits until the process ends, which is soon.
        let _ = std::thread::Builder::new().name("tidy".to_string()).spawn(end);
    });
}

/// Reads a set of this process's signals; signal n is bit n - 1.
fn signal_set(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
