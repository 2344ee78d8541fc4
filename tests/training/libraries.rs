//! Where the CUDA libraries are looked for, and what is reported if one is missing.

use crate::support::{PROGRAM, emulator, skipped_on_gpu};
use pipesim_gpu::library;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_library_that_the_loader_finds_is_opened_with_its_path_and_remembered() {
    let mathematics = library::Wanted {
        name: "libm",
        sonames: &["libm.so.6"],
        before: &[],
        folders: &["/nowhere"],
        fix: "",
        older_fix: None,
    };
    let found = library::open(&mathematics).expect("every machine with a C library has it");
    assert!(found.path.is_absolute() && found.path.is_file(), "{found:?}");
    assert_eq!(library::open(&mathematics).unwrap(), found);
}

#[test]
fn a_missing_library_says_what_was_looked_for_where_and_what_to_do() {
    let absent = library::Wanted {
        name: "absent",
        sonames: &["libabsent-a.so.1", "libabsent-b.so.1"],
        before: &[],
        folders: &["/nowhere"],
        fix: "install it",
        older_fix: None,
    };
    let missing = library::open(&absent).expect_err("there is no such library");
    let text = missing.to_string();
    for part in ["libabsent-a.so.1 or libabsent-b.so.1", "$PIPESIM_CUDA_PATH", "the loader's paths", "/nowhere"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.ends_with("; install it"), "{text}");
    assert!(missing.broken.is_empty(), "{missing:?}");
}

#[test]
fn a_file_that_is_no_library_is_told_apart_from_one_that_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("libempty.so.1"), "no library").expect("a file");
    let path: &'static str = folder.path().display().to_string().leak();
    let folders: &'static [&'static str] = vec![path].leak();
    let empty = library::Wanted {
        name: "empty",
        sonames: &["libempty.so.1"],
        before: &[],
        folders,
        fix: "install it",
        older_fix: None,
    };
    let missing = library::open(&empty).expect_err("it is no library");
    assert_eq!(missing.broken.len(), 1, "{missing:?}");
    assert!(missing.to_string().contains("found one that cannot be opened"), "{missing}");
}

#[test]
fn a_child_that_gives_no_answer_is_ended() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
    let begin = Instant::now();
    assert_eq!(library::ended(&mut child, Duration::from_millis(30)), None);
    assert!(begin.elapsed() < Duration::from_secs(30));
}

/// From a cold disk python3 takes seconds to start; its libraries are not missing.
#[test]
fn libraries_of_a_slow_python3_are_found() {
    if skipped_on_gpu("NVRTC may be in the loader's paths") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [site, python] = ["site", "python3"].map(|name| folder.path().join(name));
    let wheel = site.join("nvidia/cu13/lib");
    fs::create_dir_all(&wheel).unwrap();
    symlink(emulator().join("libnvrtc.so.13"), wheel.join("libnvrtc.so.13")).unwrap();
    fs::write(&python, format!("#!/bin/sh\nsleep 5.2\necho {}\n", site.display())).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let mut probe = Command::new(PROGRAM);
    let output = probe.args(["doctor", "--probe", "nvrtc"]).env_clear().env("PATH", path).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(found.contains(r#""status":"ok""#) && found.contains("site/nvidia/cu13/lib/libnvrtc.so.13"), "{found}");
}
