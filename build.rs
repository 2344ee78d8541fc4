//! Finds the commit that the program is built from.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Sets PIPESIM_COMMIT and PIPESIM_COMMIT_DATE from the environment, otherwise from git, otherwise to `unknown`. Development
/// builds do not ask git, as each commit would recompile the crate.
fn main() {
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
