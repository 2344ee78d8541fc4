//! Files with changed bytes, cut off, or without some events: an error, a warning, or the same ops; never a panic.

use crate::megatron::golden;
use crate::{kineto_folder, megatron, order, read, write_report};
use pipesim_import::Run;
use std::fs;
use std::path::Path;

/// A linear congruential generator (Knuth's constants), its upper bits.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

/// Number of files per kind; `PIPESIM_MUTATIONS=1250` tries 5,000.
fn count() -> u64 {
    std::env::var("PIPESIM_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(60)
}

/// The orders of all steps and devices.
fn orders(run: &Run) -> Vec<Vec<String>> {
    let devices = run.timelines[0].devices;
    (0..run.timelines.len())
        .flat_map(|step| (0..devices).map(move |device| (step, device)))
        .map(|(step, device)| order(run, step, device))
        .collect()
}

/// Changes a file: some bytes, a piece that is gone or doubled, or the end.
fn mutate(draw: &mut Draw, bytes: &mut Vec<u8>) {
    let at = draw.below(bytes.len());
    let length = 1 + draw.below(300);
    let end = (at + length).min(bytes.len());
    match draw.below(5) {
        0 => bytes[at] = draw.below(256) as u8,
        1 => (0..8).for_each(|_| bytes[at] ^= 1 << draw.below(8)),
        2 => drop(bytes.drain(at..end)),
        3 => bytes.truncate(at),
        _ => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

/// Mutates `file` of the run at `folder` and reads all: an error, a warning that was not there before, or the same order.
fn survive(folder: &Path, file: &str, seed: u64) {
    let whole = read(&[folder.to_path_buf()]).unwrap();
    let expected = (orders(&whole), whole.warnings);
    let path = folder.join(file);
    let bytes = fs::read(&path).unwrap();
    let mut draw = Draw(seed);
    let (mut errors, mut warned) = (0, 0);
    for number in 0..count() {
        let mut changed = bytes.clone();
        mutate(&mut draw, &mut changed);
        fs::write(&path, &changed).unwrap();
        match read(&[folder.to_path_buf()]) {
            Err(error) => {
                assert!(!error.is_empty());
                errors += 1;
            }
            Ok(run) if run.warnings.iter().any(|warning| !expected.1.contains(warning)) => warned += 1,
            Ok(run) => assert_eq!(orders(&run), expected.0, "{file}, mutation {number}: {:?}", run.warnings),
        }
    }
    println!("{file}: {} mutations, {errors} errors, {warned} with a warning", count());
    fs::write(&path, &bytes).unwrap();
}

#[test]
fn mutated_files_are_noticed() {
    let schedule = megatron(4, 8, 1);
    let folder = kineto_folder(&schedule, 2);
    survive(folder.path(), "rank1.json", 1);
    let folder = tempfile::tempdir().unwrap();
    write_report(&folder.path().join("node.sqlite"), &megatron(2, 4, 2), 2);
    survive(folder.path(), "node.sqlite", 2);
    let folder = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let packed = fs::File::open(golden(&format!("interleaved_p2_m4/rank{rank}.json.gz"))).unwrap();
        let mut unpacked = fs::File::create(folder.path().join(format!("rank{rank}.json"))).unwrap();
        std::io::copy(&mut flate2::read::MultiGzDecoder::new(packed), &mut unpacked).unwrap();
    }
    survive(folder.path(), "rank1.json", 4);
    survive_alone("train.log", &fs::read_to_string(golden("interleaved_p2_m4/train.log")).unwrap(), 5);
    let mut rows = String::from("rank,stage,kind,microbatch,start_us,end_us,step\n");
    for step in 0..2 {
        for device in 0..4 {
            for (at, op) in (0..).zip(schedule.program(device)) {
                let start = 10_000 * step + 10 * at;
                rows += &format!(
                    "{device},{},{},{},{start},{},{step}\n",
                    op.stage(),
                    op.kind().letter(),
                    op.microbatch(),
                    start + 9
                );
            }
        }
    }
    survive_alone("ops.csv", &rows, 3);
}

/// Mutates a file whose numbers nothing repeats: whatever is read is right, or an error; no panic.
fn survive_alone(name: &str, text: &str, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut draw = Draw(seed);
    let mut errors = 0;
    for _ in 0..count() {
        let mut changed = text.as_bytes().to_vec();
        mutate(&mut draw, &mut changed);
        fs::write(&path, &changed).unwrap();
        errors += u32::from(read(std::slice::from_ref(&path)).is_err());
    }
    println!("{name}: {} mutations, {errors} errors", count());
}
