//! Where and when figures were made.

use super::Training;
use super::machine::{cores, processor};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Program, machine, operating system, date, and the commit that the program was built from.
pub fn here() -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    let mut add = |key: &str, value: String| map.insert(key.to_string(), value);
    add("program", format!("pipesim {}", env!("CARGO_PKG_VERSION")));
    add("machine", format!("{}, {} cores", processor(), cores()));
    add("system", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    add("date", date());
    if env!("PIPESIM_COMMIT") != "unknown" {
        add("commit", env!("PIPESIM_COMMIT").to_string());
    }
    map
}

/// [`here`], with the devices and ranks of a training.
pub fn of(training: &Training) -> BTreeMap<String, String> {
    let mut map = here();
    map.extend(training.setting());
    map
}

/// Today, UTC, as year-month-day (Howard Hinnant's civil-from-days).
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let days = (seconds / 86_400) as i64 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
