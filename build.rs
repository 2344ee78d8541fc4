//! Makes the list of schedules that come with the program: every file of `schedules/`, so that a new one needs no other.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The order of lists, and of `auto` among equals; others follow by name.
const ORDER: [&str; 22] = [
    "naive",
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-2p",
    "zb-v",
    "zb-v-greedy",
    "v-half",
    "v-min",
    "v-zb",
    "1f1b-v",
    "interleaved-zb",
    "dualpipe",
    "dualpipe-v",
    "chimera",
    "hanayo",
    "group-interleaved",
];

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("schedules");
    println!("cargo:rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).expect("the folder of schedules is there");
    let files = entries.map(|entry| entry.expect("its entries can be read").path());
    let stem = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_string();
    let mut files: Vec<(usize, String, PathBuf)> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "star"))
        .map(|path| (ORDER.iter().position(|name| *name == stem(&path)).unwrap_or(ORDER.len()), stem(&path), path))
        .collect();
    files.sort();
    let row = |(_, name, path): &(usize, String, PathBuf)| format!("    ({name:?}, include_str!({path:?})),\n");
    let list = format!("&[\n{}]\n", files.iter().map(row).collect::<String>());
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("schedules.rs");
    fs::write(out, list).expect("cargo's folder can be written");
}
