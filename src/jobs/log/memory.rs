//! Memory that frameworks print.

use super::number::{after, leading, value, with_unit};
use std::collections::BTreeMap;

/// What Megatron calls MB, in bytes. Megatron-Bridge's gigabytes have 10^9.
const MIB: f64 = 1048576.0;
/// What DeepSpeed calls GB, in bytes.
const GIB: f64 = 1073741824.0;
/// Most ranks whose memory is kept.
const RANKS: usize = 1 << 16;

/// Most memory by rank, in bytes.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) allocated: BTreeMap<u32, u64>,
    pub(super) reserved: BTreeMap<u32, u64>,
}

impl Memory {
    pub(super) fn read(&mut self, line: &str) {
        let rank = || rank(line).unwrap_or(0);
        if let Some((_, list)) = line.split_once(" memory (") {
            for (name, unit) in [("max allocated: ", MIB), ("mem-max-allocated-gigabytes: ", 1e9)] {
                keep(&mut self.allocated, rank(), value(list, name), unit);
            }
            for (name, unit) in [("max reserved: ", MIB), ("mem-max-reserved-gigabytes: ", 1e9)] {
                keep(&mut self.reserved, rank(), value(list, name), unit);
            }
        } else if let Some(gib) = with_unit(line, "  memory: ", "GiB(") {
            keep(&mut self.reserved, rank(), Some(gib), GIB);
        } else if let Some(gib) = with_unit(line, "MaxMemAllocated=", "GB") {
            keep(&mut self.allocated, rank(), Some(gib), GIB);
        } else if line.contains("MiB. Peak reserved: ") {
            keep(&mut self.allocated, rank(), with_unit(line, "Peak allocated ", "MiB"), MIB);
            keep(&mut self.reserved, rank(), with_unit(line, "Peak reserved: ", "MiB"), MIB);
        }
    }
}

fn keep(by_rank: &mut BTreeMap<u32, u64>, rank: u32, amount: Option<f64>, unit: f64) {
    let Some(bytes) = amount.map(|amount| amount * unit).filter(|bytes| (1.0..1e15).contains(bytes)) else { return };
    if by_rank.len() < RANKS || by_rank.contains_key(&rank) {
        let most = by_rank.entry(rank).or_default();
        *most = (*most).max(bytes.round() as u64);
    }
}

/// Returns the rank that a line names: `[Rank 3]`, `[rank3]:` or, by the launcher, `[default3]:` or `3: `.
fn rank(line: &str) -> Option<u32> {
    let names = ["[Rank ", "[rank", "[default"];
    let text = names.iter().find_map(|name| after(line, name)).or(Some(line))?;
    let (rank, rest) = leading(text)?;
    (rest.starts_with([']', ':']) && rank.fract() == 0.0 && (0.0..1e6).contains(&rank)).then_some(rank as u32)
}
