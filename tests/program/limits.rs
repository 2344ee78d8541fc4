//! Machines with too little: memory, threads; data without an end. An error that says so, never an abort or a hang.

use crate::support::*;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs a shell line with the program as `$0` in a folder of its own; what came of it, within a minute.
fn shell(line: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Command::new("sh").args(["-c", line, PROGRAM]).current_dir(folder.path()).output();
    let Output { status, stderr, .. } = output.unwrap();
    let told = String::from_utf8_lossy(&stderr).into_owned();
    assert!(start.elapsed() < Duration::from_secs(60), "{line}: took {:?}: {told}", start.elapsed());
    // where a thread's stack just fits, glibc and Rust end the process in its first instructions, and say why
    let is_of_runtime = [
        "failed to register TLS destructor: out of memory",
        "failed to allocate an alternative stack: Cannot allocate memory",
    ]
    .iter()
    .any(|why| told.contains(why));
    for word in ["panicked", "Aborted", "a bug in pipesim"] {
        assert!(is_of_runtime || !told.contains(word), "{line}: {told}");
    }
    (if is_of_runtime { Some(5) } else { status.code() }, told)
}

const RUN: &str = "\"$0\" run -p 2 -m 2 -s 1f1b --device cpu --steps 1 --warmup 0 -q --seq 16";

#[test]
fn too_little_memory_is_an_error() {
    // From too little for anything to enough for some: wherever it ends, it says so. With less than 70 MiB the kernel cannot map the program
    // itself, and ends it before its first instruction.
    let mut codes = Vec::new();
    for mebibytes in [90, 140, 300, 360, 390, 420, 440, 460, 480, 520] {
        let (code, told) = shell(&format!("ulimit -v {}; {RUN} --blocks 4 --heads 4 --channels 256", mebibytes << 10));
        assert!(matches!(code, Some(0 | 5 | 127)), "{mebibytes} MiB: {code:?} {told}");
        assert!(code != Some(5) || told.contains("memory") || told.contains("thread"), "{mebibytes} MiB: {told}");
        codes.push(code);
    }
    assert!(codes.contains(&Some(5)), "{codes:?}");
    // The same of two ranks, of which one may get what the other does not.
    for mebibytes in [300, 490, 500, 505, 510, 515, 520] {
        let (code, told) = shell(&format!(
            "ulimit -v {}; {RUN} -n 2 --timeout 5 --blocks 4 --heads 4 --channels 256",
            mebibytes << 10
        ));
        assert!(matches!(code, Some(0 | 5)), "{mebibytes} MiB, two ranks: {code:?} {told}");
    }
    // Known beforehand, and by what is left of the address space.
    let (code, told) = shell("ulimit -v 700000; exec \"$0\" predict -p 64 -m 262144 -s zb-h1 -q");
    assert!(code == Some(5) && told.contains("memory"), "{code:?} {told}");
    let (code, told) = shell(&format!("ulimit -v 4000000; {RUN} --model gpt2-medium"));
    assert!(code == Some(5) && told.contains("memory"), "{code:?} {told}");
}

#[test]
fn too_few_threads_are_an_error() {
    let (code, told) = shell("exec \"$0\" run -p 33000 -m 1 -s gpipe --device timed --steps 1 --warmup 0 -q");
    assert!(code == Some(5) && told.contains("threads"), "{code:?} {told}");
    let nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups prlimit";
    let (can, _) = shell(&format!("{nobody} --nproc=100 \"$0\" --version"));
    if can != Some(0) {
        println!("skipped: only root can become nobody, whose threads can be counted");
        return;
    }
    for (threads, more) in [
        (4, "-p 8 -m 8 --device timed -s gpipe"),
        (7, "-p 8 -m 8 --device cpu -s 1f1b"),
        (3, "-p 2 -m 2 -n 2 --device timed"),
    ] {
        let line =
            format!("chmod 777 .; {nobody} --nproc={threads} \"$0\" run {more} --steps 1 --warmup 0 -q --timeout 5");
        let (code, told) = shell(&line);
        assert!(code == Some(5), "{threads} threads, {more}: {code:?} {told}");
    }
}

#[test]
fn data_has_an_end() {
    let cases = [
        ("mkdir d", "d", 2, "found a folder"),
        ("mkfifo d", "d", 2, "found a pipe"),
        ("true", "/dev/zero", 2, "found a pipe or a device"),
        ("true", "nothing", 2, "found none"),
        ("truncate -s 100G d", "d", 2, "expected at most 4.0 GiB of data at d, found 100.0 GiB"),
    ];
    for (make, data, expected, words) in cases {
        let (code, told) = shell(&format!("{make}; {RUN} --data {data}"));
        assert!(code == Some(expected) && told.contains(words), "{data}: {code:?} {told}");
    }
}
