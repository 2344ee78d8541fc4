//! A memory limit: activation units or bytes.

use crate::resolve::memory_cap;
use std::fmt;
use std::str::FromStr;

/// Most that a device may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryCap {
    /// Activations; 1 unit is what a device's whole share of layers keeps for one micro-batch.
    Units(f64),
    Bytes(u64),
}

const BYTES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

impl FromStr for MemoryCap {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryCap, String> {
        if let Some((number, unit)) = BYTES.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes))) {
            return match number.trim().parse::<f64>() {
                Ok(number) if (1.0..=1e15).contains(&(number * unit as f64)) => {
                    Ok(MemoryCap::Bytes((number * unit as f64) as u64))
                }
                _ => Err("expected a number of bytes from 1 B to 900 TiB, as in 80GiB or 79.5GiB".to_string()),
            };
        }
        if let Some((number, letter)) = sloppy_bytes(text) {
            return Err(format!("expected bytes with a unit, as in 80GiB; write {number}{letter}iB"));
        }
        memory_cap(text).map(MemoryCap::Units).map_err(|error| error.to_string())
    }
}

impl fmt::Display for MemoryCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryCap::Units(units) => write!(f, "{units}"),
            MemoryCap::Bytes(bytes) => write!(f, "{bytes}B"),
        }
    }
}

impl MemoryCap {
    /// Returns the activation units, if it is in these.
    pub fn units(self) -> Option<f64> {
        if let MemoryCap::Units(units) = self { Some(units) } else { None }
    }

    /// Returns the bytes, if it is in these.
    pub fn bytes(self) -> Option<u64> {
        if let MemoryCap::Bytes(bytes) = self { Some(bytes) } else { None }
    }
}

/// Splits bytes whose unit is written loosely, as `80G` or `80gb`, into the number and the unit's first letter.
fn sloppy_bytes(text: &str) -> Option<(&str, char)> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[number.len()..].to_lowercase();
    let letter = ['k', 'm', 'g', 't']
        .into_iter()
        .find(|letter| unit.strip_prefix(*letter).is_some_and(|rest| ["", "i", "b", "ib"].contains(&rest)))?;
    let number = number.trim_end();
    number.parse::<f64>().ok().map(|_| (number, letter.to_ascii_uppercase()))
}
