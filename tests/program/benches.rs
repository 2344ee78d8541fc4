//! Benchmarks compare equal work, or print no ratio.

use crate::train::succeeds;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn script(path: &Path, body: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Exit code, output and errors of a benchmark, in which pipesim, its step example and PyTorch are stand-ins that answer `ours` and
/// `theirs`.
fn bench(name: &str, folder: &Path, ours: &Value, theirs: &Value) -> (Option<i32>, String, String) {
    let answer = |value: &Value| format!("echo \"$@\" >>'{}/arguments'\necho '{value}'", folder.display());
    script(&folder.join("bin/cargo"), "exit 0");
    script(&folder.join("bin/taskset"), "shift 2; exec \"$@\"");
    script(&folder.join("target/release/pipesim"), &answer(&json!({"runs": [ours]})));
    script(&folder.join("target/release/examples/step"), &answer(ours));
    let python = "case $1 in -c) exit 0;; */pytorch_eager.py)";
    script(&folder.join("python"), &format!("{python} {};; *) exec python3 \"$@\";; esac", answer(theirs)));
    let root = env!("CARGO_MANIFEST_DIR");
    let path = format!("{}/bin:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(format!("{root}/tests/benches/{name}"));
    command.arg("2").arg(folder.join("python")).env("PATH", path).env("CARGO_TARGET_DIR", folder.join("target"));
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), out, err)
}

/// The work of `values`: blocks, heads, channels, vocabulary, parameters, tokens per sequence, sequences and FLOPs per token.
fn work(values: [u64; 8]) -> Value {
    let [blocks, heads, channels, vocabulary, parameters, sequence_tokens, sequences, flops_per_token] = values;
    json!({"blocks": blocks, "heads": heads, "channels": channels, "vocabulary": vocabulary, "parameters": parameters,
        "sequence_tokens": sequence_tokens, "sequences": sequences, "flops_per_token": flops_per_token})
}

#[test]
fn throughput_compares_equal_work_or_prints_no_ratio() {
    let line = |work: Value, per_second: f64| json!({"work": work, "tokens_per_second": per_second, "program": "pytorch 0", "cpu_ms": 1000.0 / per_second, "product_gflops": 2.0, "gflops": 1.0});
    let values = [8, 6, 384, 257, 14_393_856, 256, 8, 94_961_664];
    for (name, found) in [("throughput", "median ratio 1.20"), ("cpu_step", "ratio 1.20")] {
        let folder = tempfile::tempdir().unwrap();
        let (code, out, err) = bench(name, folder.path(), &line(work(values), 120.0), &line(work(values), 100.0));
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains(found) && out.contains("8 x 256 tokens"), "{out}");
        // All sizes are in both commands: none is a default, which may change.
        let arguments = fs::read_to_string(folder.path().join("arguments")).unwrap();
        let compared = |line: &&str| !line.contains("--baseline") && !line.ends_with("--steps 12");
        for line in arguments.lines().filter(compared) {
            for size in ["--blocks", "--heads", "--channels", "--vocabulary", "--seq", "--micro"] {
                assert!(line.split(' ').any(|word| word == size), "{name}: {line} lacks {size}");
            }
        }
        for which in 0..values.len() {
            let mut other = values;
            other[which] -= 1;
            let (code, out, err) = bench(name, folder.path(), &line(work(other), 120.0), &line(work(values), 100.0));
            assert_eq!(code, Some(1), "{out}");
            assert!(!out.contains("ratio 1.20"), "{out}");
            assert!(err.contains("expected the same work on both sides, found"), "{err}");
        }
    }
}

#[test]
fn run_reports_the_work_of_its_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = "--blocks 3 --heads 2 --channels 8 --vocabulary 259 --max-sequence 16 --seq 5 --batch 12";
    let out = succeeds(
        &format!("run -p 1 -m 3 --dp 2 -s 1f1b --steps 1 --warmup 0 -q --format json {sizes} -o @/out"),
        folder.path(),
    );
    let run: Value = serde_json::from_str(&out).unwrap();
    let block = 12 * 8 * 8 + 13 * 8;
    let parameters = 3 * block + 2 * 8 + (259 + 16) * 8;
    let flops = 6 * (3 * 12 * 8 * 8 + 259 * 8) + 12 * 3 * 5 * 8;
    assert_eq!(run["runs"][0]["work"], work([3, 2, 8, 259, parameters, 5, 12, flops]));
}
