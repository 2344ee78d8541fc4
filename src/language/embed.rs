//! Embeds every file of a folder of the repository in a crate.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Writes the list of the files of a folder with this ending, in `order`: name and text.
pub fn embed(folder: &str, ending: &str, order: &str) {
    let path = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..").join(folder);
    println!("cargo:rerun-if-changed={}", path.display());
    let entries = fs::read_dir(&path).expect("the folder is there");
    let files = entries.map(|entry| entry.expect("its entries can be read").path());
    let stem = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_string();
    let place = |name: &str| order.split(' ').position(|known| known == name).unwrap_or(usize::MAX);
    let mut files: Vec<(usize, String, PathBuf)> = files
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .map(|path| (place(&stem(&path)), stem(&path), path))
        .collect();
    files.sort();
    let row = |(_, name, path): &(usize, String, PathBuf)| format!("    ({name:?}, include_str!({path:?})),\n");
    let list = format!("&[\n{}]\n", files.iter().map(row).collect::<String>());
    let out = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join(format!("{folder}.rs"));
    fs::write(out, list).expect("cargo's folder can be written");
}
