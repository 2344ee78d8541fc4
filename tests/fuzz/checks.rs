//! Checks that hold for every input, shared by the fuzz targets and `tests/language/seeds.rs`.
//!
//! Each check takes one input and panics if the program breaks a promise. Where possible it compares with a second method
//! ([`reference`]).

mod judged;
mod readers;
pub mod reference;
mod xml;

pub use judged::schedule;
pub use readers::{arguments, costs, csv, timeline};

use pipesim::schedules::{Budget, Found, Order};
use pipesim::{ResolveError, Selection};
use std::cell::Cell;
use std::sync::{Mutex, Once, PoisonError};

/// An input of the target `language`: its first three characters are p (`1` to `6`), m (`1` to `9`, then `:` `;` `<` for 10 to
/// 12) and v (`0` leaves it open), and what follows is a schedule file.
pub fn language(input: &[u8]) {
    if let Some((request, text)) = file(input) {
        compiled(compile(&text, &request), &request);
    }
}

/// Returns the request in an input of `language`, and its schedule file; `None` for bytes that are not text.
pub fn file(input: &[u8]) -> Option<(Selection, String)> {
    let (head, text) = input.split_at_checked(3)?;
    let text = std::str::from_utf8(text).ok()?;
    let [p, m, v] = [head[0].wrapping_sub(b'1') % 6 + 1, head[1].wrapping_sub(b'1') % 12 + 1, head[2] % 4];
    Some((request(p.into(), m.into(), Some(v.into()).filter(|&v| v > 0)), text.to_string()))
}

/// Returns a request with small budgets.
pub fn request(devices: u32, microbatches: u32, chunks: Option<u32>) -> Selection {
    let budget = Budget { ticks: 20_000, bytes: 64 << 20, ops: 20_000 };
    Selection { chunks, budget, ..Selection::new(devices, microbatches) }
}

/// Compiles `text`; panics of the program fail the check even if it catches them.
pub fn compile(text: &str, request: &Selection) -> Result<Found, ResolveError> {
    watch_panics();
    WATCHED.set(true);
    let result = request.order_of_text("seed.star", text);
    WATCHED.set(false);
    if let Some(panic) = noted().take() {
        // Values too large for the language cause panics in its crates, which `compile` must catch.
        assert!(panic.contains("/registry/src/"), "compile caught a panic of our own: {panic}");
    }
    result
}

/// Checks the result of `compile`.
pub fn compiled(result: Result<Found, ResolveError>, request: &Selection) {
    match result {
        Ok(Found { order: Order::Fixed(fixed), source, .. }) => {
            let source = source.expect("it has a file");
            assert_eq!((fixed.devices(), fixed.microbatches), (request.devices, request.microbatches));
            for device in 0..fixed.devices() {
                for index in [0, fixed.program(device).len() / 2, fixed.program(device).len() + 1] {
                    assert!(source.location(device, index).starts_with("seed.star:"), "an op is somewhere in its file");
                }
            }
            schedule(&fixed);
        }
        Ok(Found { order: Order::Open(open), .. }) => judged::open(&open),
        Err(error) => assert!(!error.to_string().trim().is_empty(), "an error says what is wrong"),
    }
}

thread_local! {
    /// Whether this thread's panics are recorded instead of reported.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Location and message of a recorded panic.
fn noted() -> std::sync::MutexGuard<'static, Option<String>> {
    static NOTED: Mutex<Option<String>> = Mutex::new(None);
    NOTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs a hook that records panics under watch and of threads that evaluate schedule files, and reports all others.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if WATCHED.get() || std::thread::current().name() == Some("evaluation") {
                *noted() = Some(info.to_string());
            } else {
                report(info);
            }
        }));
    });
}
