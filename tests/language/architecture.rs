//! The source keeps the rules that `src/lib.rs` states.

use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|e| e == "rs") {
            files.push(entry);
        }
    }
    files.sort();
    files
}

/// The table in the documentation of `src/lib.rs`: module to the modules that it may use.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let block = text.split("//! ```text\n").nth(2).and_then(|rest| rest.split("//! ```").next()).unwrap().to_string();
    let words = |line: &str| line.trim_start_matches("//!").split_whitespace().map(str::to_string).collect::<Vec<_>>();
    block
        .lines()
        .map(words)
        .filter(|w| !w.is_empty())
        .map(|w| (w[0].clone(), w[1..].iter().cloned().collect()))
        .collect()
}

/// The module of a file: `src/dsl/word.rs` is of `dsl`.
fn module(file: &Path) -> String {
    let relative = file.strip_prefix(root().join("src")).unwrap();
    relative.components().next().unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

#[test]
fn imports_follow_the_flow() {
    let table = table();
    let mut seen = BTreeSet::new();
    for file in rust_files(&root().join("src")) {
        let from = module(&file);
        if ["lib", "main", "internals"].contains(&from.as_str()) {
            continue;
        }
        seen.insert(from.clone());
        let allowed = table.get(&from).unwrap_or_else(|| panic!("{from} is missing in the table of src/lib.rs"));
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            for part in line.split("crate::").skip(1) {
                let names: Vec<String> = match part.strip_prefix('{') {
                    Some(list) => {
                        list.split([',', '}']).map(|n| n.trim().split("::").next().unwrap().to_string()).collect()
                    }
                    None => vec![part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()],
                };
                for to in names.into_iter().filter(|name| table.contains_key(name)) {
                    assert!(
                        to == from || allowed.contains(&to),
                        "{}:{}: {from} uses {to}, which the table in src/lib.rs does not allow",
                        file.display(),
                        number + 1
                    );
                }
            }
        }
    }
    assert_eq!(seen, table.keys().cloned().collect(), "the table and src/ list the same modules");
}

#[test]
fn every_file_says_what_it_is() {
    for file in rust_files(&root().join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} begins with no //! line", file.display());
        let code = text.split("#[cfg(test)]").next().unwrap();
        assert!(code.lines().count() <= 500, "{} is longer than 500 lines", file.display());
    }
}

/// Where `unsafe` stands, and what for. Each block says why it is sound.
const UNSAFE: [(&str, &str); 12] = [
    ("src/model/matrix.rs", "the library of matrix products takes pointers"),
    ("src/exec/arena.rs", "memory that processes share; its signals say who may touch what"),
    ("src/exec/heap.rs", "puts into it"),
    ("src/exec/link.rs", "messages in it"),
    ("src/exec/slot.rs", "messages in it"),
    ("src/exec/worker.rs", "ops read and write messages where they lie"),
    ("src/ranks/mpi.rs", "bytes that MPI sends later"),
    ("src/cuda/api/", "the driver, its compiler and its products"),
    ("src/cuda/library.rs", "libraries are opened at run time"),
    ("src/cuda/nccl.rs", "functions of a library opened at run time"),
    ("src/cuda/channel.rs", "the same"),
    ("src/cuda/symmetric.rs", "the same"),
];

#[test]
fn unsafe_stands_only_where_it_must() {
    let doctor = "src/doctor/"; // asks drivers and libraries that may be broken, without the layer above them
    for file in rust_files(&root().join("src")) {
        let path = file.strip_prefix(root()).unwrap().to_string_lossy().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        let blocks = code.matches("unsafe {").count();
        let listed = path.starts_with(doctor) || UNSAFE.iter().any(|(place, _)| path.starts_with(place));
        assert!(blocks == 0 || listed, "{path} has {blocks} unsafe blocks and is not in the list");
        let reasons = text.matches("// SAFETY:").count();
        let macros = path.starts_with("src/cuda/api/") || path.starts_with(doctor); // one reason for all calls of a macro
        assert!(blocks <= reasons || macros, "{path}: {blocks} unsafe blocks, {reasons} reasons");
    }
}

#[test]
fn schedules_are_embedded_all() {
    let mut files: Vec<String> = fs::read_dir(root().join("schedules"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().to_string())
        .collect();
    files.sort();
    let mut names: Vec<String> = pipesim::internals::dsl::names().into_iter().map(str::to_string).collect();
    names.sort();
    assert_eq!(files, names);
}
