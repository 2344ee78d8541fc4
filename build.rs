//! Embeds every file of `schedules/` in the program, and the commit that it is built from.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Order of lists, and of ties in `auto`; other schedules follow by name.
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
    tell_commit();
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

/// Sets PIPESIM_COMMIT and PIPESIM_COMMIT_DATE from the environment, otherwise from git, otherwise to `unknown`. Development
/// builds do not ask git, as each commit would recompile the crate.
fn tell_commit() {
    let release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(head) =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|head| release && Path::new(head).exists())
    {
        println!("cargo:rerun-if-changed={head}");
    }
    for (name, asked) in [
        ("PIPESIM_COMMIT", ["rev-parse", "--short=12", "HEAD"].as_slice()),
        ("PIPESIM_COMMIT_DATE", &["log", "-1", "--format=%cs"]),
    ] {
        println!("cargo:rerun-if-env-changed={name}");
        let given = env::var(name).ok().filter(|value| !value.is_empty());
        let found = given.or_else(|| git(asked).filter(|_| release));
        println!("cargo:rustc-env={name}={}", found.as_deref().unwrap_or("unknown"));
    }
}

/// Returns the output of git in this checkout; `None` if the package is not the root of one.
fn git(arguments: &[&str]) -> Option<String> {
    let folder = env::var("CARGO_MANIFEST_DIR").ok()?;
    let ask = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&folder).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let top = ask(&["rev-parse", "--show-toplevel"])?;
    (fs::canonicalize(top).ok()? == fs::canonicalize(&folder).ok()?).then(|| ask(arguments))?
}
