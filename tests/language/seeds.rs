//! The inputs that fuzzing begins with, and those that it once found faults with: `fuzz/` tries others.

#[path = "../../fuzz/checks.rs"]
mod checks;

use crate::support::root;
use std::fs;
use std::panic::catch_unwind;
use std::path::PathBuf;

/// Every file in `fuzz/seeds/<folder>` passes `check`.
fn replay(folder: &str, check: fn(&[u8])) {
    let folder = root().join("fuzz/seeds").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    files.retain(|file| {
        let input = fs::read(file).unwrap();
        catch_unwind(|| check(&input)).is_err()
    });
    assert!(files.is_empty(), "these inputs break a promise: {files:#?}");
}

#[test]
fn schedule_files() {
    replay("language", checks::language);
}

#[test]
fn words_of_the_grammar() {
    replay("words", checks::language);
}

#[test]
fn pytorchs_files() {
    replay("csv", checks::csv);
}

#[test]
fn timelines() {
    replay("timeline", checks::timeline);
}

#[test]
fn cost_files() {
    replay("costs", checks::costs);
}

#[test]
fn arguments() {
    replay("arguments", checks::arguments);
}
