//! Signals and the end of the process: an unfinished file is removed, a search ends with what it has found. WebAssembly has no signals.

use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
#[cfg(unix)]
use {
    pipesim_system::unfinished::remove_unfinished,
    signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    signal_hook::iterator::Signals,
    signal_hook::low_level,
    std::sync::Once,
};

/// Ends the process. If a library of NVIDIA's is open, exit handlers are skipped: they take the library down while threads may still be
/// using it.
pub fn exit(code: u8) -> ! {
    #[cfg(feature = "training")]
    if pipesim_gpu::library::is_any_open() {
        low_level::exit(i32::from(code));
    }
    std::process::exit(i32::from(code))
}

/// Has signals that end the process remove unfinished files first, from now on. Signals that are ignored or already handled stay so.
/// Exceeding the file size limit becomes an ordinary error.
#[cfg(unix)]
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

#[cfg(not(unix))]
pub fn remove_unfinished_on_signals() {}

/// Has SIGHUP, SIGINT and SIGTERM store their number in `signal`; a second one ends the process.
#[cfg(unix)]
pub fn note(signal: &Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicBool::new(false));
    for number in [SIGHUP, SIGINT, SIGTERM] {
        let _ = signal_hook::flag::register_conditional_shutdown(number, 128 + number, asked.clone());
        let _ = signal_hook::flag::register(number, asked.clone());
        let _ = signal_hook::flag::register_usize(number, signal.clone(), number as usize);
    }
}

#[cfg(not(unix))]
pub fn note(_: &Arc<AtomicUsize>) {}

/// Returns the name of a signal that [`note`] stores.
pub fn name(signal: usize) -> &'static str {
    #[cfg(unix)]
    if let Some(name) = low_level::signal_name(signal as i32) {
        return name;
    }
    let _ = signal;
    "a signal"
}

/// Reads a set of this process's signals; signal n is bit n - 1.
#[cfg(unix)]
pub fn signal_set(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
