//! The inputs that fuzzing begins with, and those that it once found faults with: `fuzz/` tries others.

#[path = "../fuzz/checks.rs"]
mod checks;

use crate::support::root;
use std::fs;
use std::panic::catch_unwind;

type Check = fn(&[u8]);

/// Every file in `tests/fuzz/seeds/<folder>` passes its check.
#[test]
fn every_input_passes_its_check() {
    let folders: [(&str, Check); 6] = [
        ("language", checks::language),
        ("words", checks::language),
        ("csv", checks::csv),
        ("timeline", checks::timeline),
        ("costs", checks::costs),
        ("arguments", checks::arguments),
    ];
    let mut broken = Vec::new();
    for (folder, check) in folders {
        let folder = root().join("tests/fuzz/seeds").join(folder);
        let inputs: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "{}", folder.display());
        broken.extend(inputs.into_iter().filter(|input| {
            let input = fs::read(input).unwrap();
            catch_unwind(|| check(&input)).is_err()
        }));
    }
    assert!(broken.is_empty(), "these inputs break a promise: {broken:#?}");
}
