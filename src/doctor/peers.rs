//! Copies between GPUs: each ordered pair, 16 MiB, compared byte for byte, then timed.

use super::devices::initialized;
use super::driver::{Context, Driver, Fault, Memory};
use super::finding::Finding;

const BYTES: usize = 16 << 20;
const TIMES: u32 = 8;

/// Beyond so many pairs the row gives their range, not each.
const MOST_TOLD: usize = 6;

pub(super) fn peer_access() -> Finding {
    let (driver, count) = match initialized() {
        Ok(initialized) => initialized,
        Err(finding) => return finding,
    };
    if count < 2 {
        return Finding::unknown("one GPU: it has no peer", "nothing to do for one GPU; slices of it need no peer");
    }
    match copies(&driver, count) {
        Ok(copies) => finding(&copies),
        Err(fault) => fault.finding(),
    }
}

/// One ordered pair.
#[derive(Clone, Copy, Debug)]
struct Copied {
    from: i32,
    to: i32,
    /// Whether the first addresses the second's memory; else the driver stages the copy through the host.
    direct: bool,
    /// Bytes that are not as they were.
    wrong: usize,
    gigabytes_per_second: f64,
}

impl std::fmt::Display for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Copied { from, to, direct, wrong, gigabytes_per_second } = self;
        let way = if *direct { "direct" } else { "through the host" };
        write!(f, "{from} to {to} {way} {gigabytes_per_second:.1} GB/s")?;
        if *wrong > 0 { write!(f, ", {wrong} of {BYTES} bytes wrong") } else { Ok(()) }
    }
}

fn copies(driver: &Driver, count: i32) -> Result<Vec<Copied>, Fault> {
    let devices: Vec<i32> = (0..count).map(|number| driver.device(number)).collect::<Result<_, _>>()?;
    let contexts: Vec<Context> = devices.iter().map(|device| driver.context(*device)).collect::<Result<_, _>>()?;
    let memories: Vec<Memory> =
        contexts.iter().map(|context| Memory::new(driver, *context, BYTES)).collect::<Result<_, _>>()?;
    let sent = pattern();
    let inverse: Vec<u8> = sent.iter().map(|byte| !byte).collect();
    let mut copies = Vec::new();
    for from in 0..devices.len() {
        for to in (0..devices.len()).filter(|to| *to != from) {
            let direct = driver.can_access(devices[from], devices[to])?;
            if direct {
                driver.make_current(contexts[from])?;
                driver.enable_peer(contexts[to])?;
            }
            let (wrong, gigabytes_per_second) = copy(&memories[from], &memories[to], &sent, &inverse)?;
            copies.push(Copied { from: from as i32, to: to as i32, direct, wrong, gigabytes_per_second });
        }
    }
    Ok(copies)
}

/// Bytes that arrived wrong, and the speed of those copies that follow the first.
fn copy(from: &Memory, to: &Memory, sent: &[u8], inverse: &[u8]) -> Result<(usize, f64), Fault> {
    from.write(sent)?;
    // What was there before must not pass for what was sent: every byte of it differs.
    to.write(inverse)?;
    from.copy_to(to, 1)?;
    let received = to.read()?;
    let wrong = match received == sent {
        true => 0,
        false => sent.iter().zip(&received).filter(|(sent, received)| sent != received).count(),
    };
    let time = from.copy_to(to, TIMES)?;
    Ok((wrong, BYTES as f64 * f64::from(TIMES) / time.as_secs_f64().max(1e-9) / 1e9))
}

/// Bytes that do not repeat, so that a shifted copy is a wrong one: SplitMix64 (Steele, Lea, Flood 2014).
fn pattern() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    let mut state = 0u64;
    for word in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes
}

fn finding(copies: &[Copied]) -> Finding {
    let told = |copies: &[&Copied]| copies.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let wrong: Vec<&Copied> = copies.iter().filter(|copied| copied.wrong > 0).collect();
    if !wrong.is_empty() {
        return Finding::broken(
            told(&wrong),
            "switch off the IOMMU, or ACS on the PCIe bridges between these GPUs; until then use one of them (--slices)",
        );
    }
    let found = if copies.len() <= MOST_TOLD {
        told(&copies.iter().collect::<Vec<_>>())
    } else {
        let speeds = copies.iter().map(|copied| copied.gigabytes_per_second);
        let (slowest, fastest) = (speeds.clone().fold(f64::INFINITY, f64::min), speeds.fold(0.0, f64::max));
        let direct = copies.iter().filter(|copied| copied.direct).count();
        format!("{direct} of {} pairs direct, {slowest:.1} to {fastest:.1} GB/s", copies.len())
    };
    Finding::ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn copied(from: i32, to: i32, direct: bool, wrong: usize, gigabytes_per_second: f64) -> Copied {
        Copied { from, to, direct, wrong, gigabytes_per_second }
    }

    #[test]
    fn a_wrong_byte_is_broken_and_a_way_through_the_host_is_not() {
        let well = [copied(0, 1, true, 0, 24.94), copied(1, 0, false, 0, 6.0)];
        assert_eq!(finding(&well), Finding::ok("0 to 1 direct 24.9 GB/s; 1 to 0 through the host 6.0 GB/s"));
        let ill = finding(&[well[0], copied(1, 0, true, 3, 24.9)]);
        assert_eq!(ill.status, Status::Broken);
        assert_eq!(ill.found, "1 to 0 direct 24.9 GB/s, 3 of 16777216 bytes wrong");
        assert!(ill.fix.is_some());
    }

    #[test]
    fn many_pairs_are_told_as_a_range() {
        let pairs: Vec<Copied> = (0..12).map(|n| copied(n, n + 1, n > 0, 0, 100.0 + f64::from(n))).collect();
        assert_eq!(finding(&pairs), Finding::ok("11 of 12 pairs direct, 100.0 to 111.0 GB/s"));
    }

    #[test]
    fn a_copy_shifted_by_a_page_is_wrong_almost_everywhere() {
        let bytes = pattern();
        assert_eq!(bytes.len(), BYTES);
        // The generator's first word from seed 0, as published.
        assert_eq!(bytes[..8], 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
        let same = bytes.iter().zip(&bytes[4096..]).filter(|(one, other)| one == other).count();
        assert!(same < BYTES / 128, "{same}");
    }
}
