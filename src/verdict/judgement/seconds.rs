//! Times as text.

use pipesim_report::{number, quantity};

/// Writes a time in seconds, or in milliseconds below one second.
pub fn time(seconds: f64) -> String {
    if seconds.abs() < 1.0 { quantity(1e3 * seconds, "ms") } else { format!("{} s", number(seconds)) }
}
