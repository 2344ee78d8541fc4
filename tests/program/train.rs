//! `pipesim train`: checkpoints, and runs that go on after an interruption as if there had been none.

use crate::support::*;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A model of next to nothing, whose learning rate depends on no number of steps.
pub const MODEL: &str = "--blocks 4 --heads 1 --channels 8 --max-sequence 16 --seq 8 --lr 3e-3";

/// pipesim with these arguments, in which `@` is a folder.
pub fn command(arguments: &str, folder: &Path) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", PROGRAM]);
    command.args(arguments.replace('@', &folder.display().to_string()).split_whitespace()).stdin(Stdio::null());
    command
}

/// Its exit code, what it printed and what it said.
pub fn pipesim(arguments: &str, folder: &Path) -> (Option<i32>, String, String) {
    let output = command(arguments, folder).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), out, err)
}

#[track_caller]
pub fn succeeds(arguments: &str, folder: &Path) -> String {
    let (code, out, err) = pipesim(arguments, folder);
    assert_eq!(code, Some(0), "{arguments}: {err}");
    out
}

/// The log of a run, without times.
pub fn log(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("log.jsonl")).unwrap();
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        for time in ["tokens_per_second", "bubble"] {
            assert!(line[time].is_f64(), "{line}");
            line.as_object_mut().unwrap().remove(time);
        }
        line
    };
    text.lines().map(line).collect()
}

/// The checkpoints of a run, oldest first.
pub fn checkpoints(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.path() {
            path if path.is_dir() => copy(&path, &target),
            path => assert!(fs::copy(path, target).is_ok()),
        }
    }
}

#[test]
fn a_resumed_run_has_the_losses_of_an_uninterrupted_one_under_any_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let settings = "--lr-schedule cosine --warmup-steps 3 --clip 1 --weight-decay 0.01 --validate-every 4 --sample-every 6 \
                    --sample-tokens 5 --temperature 1.1 --top-k 20 --save-every 4 --device cpu -q";
    let out = succeeds(&format!("train {MODEL} {settings} -p 2 -m 4 -s zb-v --steps 12 -o @/whole"), at);
    assert!(out.contains("12 steps done"), "{out}");
    let whole = log(&at.join("whole"));
    assert_eq!(whole.len(), 12);
    assert!(whole[3]["validation_loss"].is_f64() && whole[5]["sample"].is_string(), "{:?}", whole[3]);
    assert!(whole.iter().all(|line| line["norm"].as_f64().is_some_and(|norm| norm > 0.0)));
    assert!(whole[11]["loss"].as_f64() < whole[0]["loss"].as_f64());
    assert_eq!(checkpoints(&at.join("whole")), ["step-000008", "step-000012"]);
    assert!(at.join("whole/report/index.html").is_file());
    let page = fs::read_to_string(at.join("whole/loss.html")).unwrap();
    assert!(page.contains("<h1>Step 12 of 12</h1><svg") && !page.contains("refresh"), "{page}");
    for (number, pipeline) in
        ["", "-p 4 -s 1f1b", "-p 1 -s gpipe", "-s interleaved-zb --chunks 2", "-n 2", "-p 4 -s gpipe -n 3"]
            .iter()
            .enumerate()
    {
        let run = format!("again{number}");
        copy(&at.join("whole"), &at.join(&run));
        fs::remove_dir_all(at.join(&run).join("step-000012")).unwrap();
        succeeds(&format!("train --resume @/{run} {pipeline} --device cpu -q"), at);
        assert_eq!(log(&at.join(&run)), whole, "{pipeline}");
        for file in ["model.safetensors", "first_moments.safetensors", "second_moments.safetensors"] {
            let [one, other] =
                ["whole", &*run].map(|run| fs::read(at.join(run).join("step-000012").join(file)).unwrap());
            assert!(one == other, "{file} {pipeline}");
        }
    }
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    succeeds(&format!("train {MODEL} -p 2 -m 2 -s 1f1b --steps 4 --save-every 2 --device cpu -q -o @/run"), at);
    let saved = at.join("run/step-000004");
    let refused = |what: &str| {
        let (code, out, err) = pipesim("train --resume @/run --steps 6 --device cpu -q", at);
        assert!(code == Some(1) && out.is_empty() && err.contains("expected a complete checkpoint"), "{what}: {err}");
        assert!(err.contains(what) && err.contains("step-000002"), "{what}: {err}");
    };
    let files: Vec<PathBuf> = fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 6);
    for file in files {
        let (name, bytes) = (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&file).unwrap());
        for at in [0, bytes.len() / 2, bytes.len() - 3] {
            let mut other = bytes.clone();
            other[at] ^= 4;
            fs::write(&file, other).unwrap();
            refused(if name == "manifest.json" { "json" } else { &name });
        }
        fs::write(&file, &bytes[..bytes.len() - 2]).unwrap(); // more than a final line break
        refused(if name == "manifest.json" { "complete" } else { &name });
        fs::remove_file(&file).unwrap();
        refused(&name);
        fs::write(&file, bytes).unwrap();
    }
    succeeds("train --resume @/run --steps 6 --device cpu -q", at);
    // The data of a run must be the same, too.
    fs::write(at.join("text"), "a text that is long enough for some batches of this model ".repeat(20)).unwrap();
    succeeds(&format!("train {MODEL} -p 1 -m 2 -s 1f1b --data @/text --steps 1 --device cpu -q -o @/own"), at);
    fs::rename(at.join("text"), at.join("moved")).unwrap();
    let own = |arguments: &str, expected: &str| {
        let (code, _, err) = pipesim(&format!("train --resume @/own --device cpu -q {arguments}"), at);
        assert!(code == Some(2) && err.contains(expected), "{arguments}: {err}");
    };
    own("--steps 2", "name its new place with --data");
    succeeds("train --resume @/own --steps 2 --data @/moved --device cpu -q", at);
    fs::write(at.join("moved"), "a text that is long enough for some batches of this modem ".repeat(20)).unwrap();
    own("--steps 3", "CRC-32"); // the new place is saved
    fs::write(at.join("moved"), "a text that is long enough for some batches of this model ".repeat(21)).unwrap();
    own("--steps 3", "found 1218 tokens");
}

/// A process that is killed at the end of the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A file system of so many KiB in `folder`; only root can make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(folder: &Path, kib: usize) -> Option<SmallDisk> {
        fs::create_dir(folder).unwrap();
        let mount = |options: String| {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder).stderr(Stdio::null());
            mount.status().is_ok_and(|status| status.success())
        };
        mount(format!("size={kib}k")).then(|| SmallDisk(folder.to_path_buf()))
    }

    fn grow(&self) {
        let grown = Command::new("mount").args(["-o", "remount,size=8m"]).arg(&self.0).status();
        assert!(grown.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Ctrl-C, a request to end, a kill and a full disk, five times each, at random moments; steps take less than a millisecond and
/// checkpoints some, so every other interruption meets one that is being written.
#[test]
fn interrupted_runs_go_on_with_the_same_losses() {
    let mut dice = Dice(26);
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 4 -s zb-v --device cpu -q");
    succeeds(&format!("{start} --steps 600 -o @/whole"), at);
    let whole = log(&at.join("whole"));
    let saved =
        fs::read_dir(at.join("whole/step-000600")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let checkpoint_kib = saved.map(|bytes| 4 * bytes.div_ceil(4096)).sum::<u64>() as usize;
    for (number, end) in ["INT", "TERM", "KILL", "disk"].iter().cycle().take(20).enumerate() {
        // Two checkpoints and the log fit, perhaps a third one for a while.
        let (disk, kib) = (at.join(format!("disk{number}")), 2 * checkpoint_kib + 16 + dice.below(checkpoint_kib + 40));
        let small = (*end == "disk").then(|| SmallDisk::new(&disk, kib)).flatten();
        let run = if small.is_some() { disk.join("run") } else { at.join(format!("run{number}")) };
        let arguments = format!("{start} --steps 1000000 --save-every 3 -o {}", run.display());
        let mut ended = command(&arguments, at);
        if *end == "disk" && small.is_none() {
            // Without root, a limit of the size of files.
            ended = Command::new("sh");
            ended.args(["-c", &format!("ulimit -f {}; exec {PROGRAM} {arguments}", 50 + dice.below(20))]);
        }
        let mut running = Running(ended.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        if *end != "disk" {
            until("a checkpoint", || run.is_dir() && !checkpoints(&run).is_empty());
            std::thread::sleep(Duration::from_millis(dice.below(60) as u64));
            let kill = Command::new("kill").args([&format!("-{end}"), &running.0.id().to_string()]).status();
            assert!(kill.unwrap().success());
        }
        let mut said = String::new();
        std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        let code = running.0.wait().unwrap().code();
        let goes_on = said.contains("go on with") && said.contains("--resume");
        match *end {
            "KILL" => assert_eq!(code, None),
            "disk" => assert!(matches!(code, Some(1 | 5)) && said.starts_with("error: "), "{code:?}: {said}"),
            _ => assert!(matches!(code, Some(130 | 143)) && goes_on, "{code:?}: {said}"),
        }
        small.iter().for_each(SmallDisk::grow);
        let done: u32 = checkpoints(&run).last().unwrap()[5..].parse().unwrap();
        let last = done as usize + 4;
        assert!(last <= whole.len(), "{end} after {done} steps: the machine is faster than this test expects");
        succeeds(&format!("train --resume {} --steps {last} --device cpu -q", run.display()), at);
        assert_eq!(log(&run), whole[..last], "{end} after {done} steps");
        let left: Vec<_> = fs::read_dir(&run).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    }
}

#[test]
fn a_folder_takes_one_training_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 2 -s 1f1b --device cpu -q -o @/run");
    let mut running = Running(command(&format!("{start} --steps 1000000 --save-every 50"), at).spawn().unwrap());
    until("a checkpoint", || at.join("run").is_dir() && !checkpoints(&at.join("run")).is_empty());
    for second in [&start, "train --resume @/run --device cpu -q"] {
        let (code, out, err) = pipesim(second, at);
        assert!(code == Some(1) && out.is_empty() && err.contains("another program is writing to it"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    let kill = Command::new("kill").args(["-INT", &running.0.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    let steps: Vec<u64> = log(&at.join("run")).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert!(steps.iter().copied().eq(1..=steps.len() as u64));
}

#[test]
fn what_changes_no_loss_may_change_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 2 -s 1f1b --validate-every 2 --device cpu -q");
    succeeds(&format!("{start} --steps 8 -o @/whole"), at);
    succeeds(&format!("{start} --steps 4 -o @/run"), at);
    let changes = "--validate-every 3 --validation-batches 2 --sample-every 2 --sample-tokens 3 --save-every 1";
    succeeds(&format!("train --resume @/run --steps 8 {changes} --device cpu -q"), at);
    let losses = |run| log(&at.join(run)).iter().map(|line| line["loss"].as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(losses("whole"), losses("run"));
    let run = log(&at.join("run"));
    assert!(run[5]["validation_loss"].is_f64() && run[5]["sample"].is_string() && run[6]["sample"].is_null());
    assert_eq!(checkpoints(&at.join("run")), ["step-000007", "step-000008"]);
    let state = fs::read_to_string(at.join("run/step-000008/training.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!((&state["config"]["save_every"], &state["config"]["validation"]["every"]), (&1.into(), &3.into()));
}

#[test]
fn a_training_that_diverges_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = MODEL.replace("--lr 3e-3", "");
    let start = format!("train {model} -p 2 -m 2 -s 1f1b --device cpu -q --steps 12");
    let out = succeeds(&format!("{start} --lr 8 --clip 1 -o @/high"), at);
    assert!(out.contains("12 steps done") && out.contains("\nwarning: the loss rose from 5.5"), "{out}");
    let (code, _, err) = pipesim(&format!("{start} --lr 1e30 -o @/higher"), at);
    let logged = log(&at.join("higher")).len();
    assert!(code == Some(1) && err.contains(&format!("of step {} of 1f1b is", logged + 1)), "{logged}: {err}");
    assert!(checkpoints(&at.join("higher")).is_empty());
    // Weights that are no numbers are named, whatever the learning rate.
    let weights = at.join("high/step-000012/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let model = "--model @/high/step-000012 --seq 8 -p 2 -m 2 -s 1f1b --device cpu -q -o @/other";
    let (code, _, err) = pipesim(&format!("train {model}"), at);
    assert!(
        code == Some(1) && err.contains("expected finite numbers in 'transformer.") && !err.contains("--lr"),
        "{err}"
    );
    assert!(!at.join("other").exists());
}

/// A `config.json` with these keys more, or changed.
fn described(name: &str, changes: Value, folder: &Path) {
    let mut keys = serde_json::json!({
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16,
        "vocab_size": 300, "rms_norm_eps": 1e-5, "max_position_embeddings": 16, "attention_dropout": 0.1,
    });
    keys.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    fs::write(folder.join(name), keys.to_string()).unwrap();
}

#[test]
fn descriptions_are_taken_at_their_word() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = |model: &str, more: &str| {
        let start = "-p 2 -m 2 -s 1f1b --seq 8 --steps 1 --device cpu";
        pipesim(&format!("train --model @/{model} {start} {more}"), at)
    };
    described("llama.json", serde_json::json!({}), at);
    let (code, _, err) = train("llama.json", "-o @/taken");
    assert!(code == Some(0) && err.contains("the text is read as bytes") && err.contains("300 token ids"), "{err}");
    assert!(err.contains("attention_dropout 0.1; training here has no dropout"), "{err}");
    assert!(!err.contains("initializer_range"), "{err}");
    let stretched = serde_json::json!({"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16});
    described("long.json", serde_json::json!({"rope_scaling": stretched}), at);
    let cases = [
        ("llama.json", serde_json::json!({}), "--sample-every 1 --sample-tokens 9", "max_position_embeddings"),
        ("quantized.json", serde_json::json!({"quantization_config": {"bits": 4}}), "", "quantization_config"),
        ("null.json", serde_json::json!({"rms_norm_eps": null}), "", "rms_norm_eps"),
        ("scale.json", serde_json::json!({"scale_attn_weights": false}), "", "scale_attn_weights"),
        (
            "index.json",
            serde_json::json!({"scale_attn_by_inverse_layer_idx": true}),
            "",
            "scale_attn_by_inverse_layer_idx",
        ),
        ("cap.json", serde_json::json!({"final_logit_softcapping": 30.0}), "", "final_logit_softcapping"),
        ("scores.json", serde_json::json!({"attn_logit_softcapping": 50.0}), "", "attn_logit_softcapping"),
        ("multiplier.json", serde_json::json!({"embedding_multiplier": 12.0}), "", "embedding_multiplier"),
        ("residual.json", serde_json::json!({"residual_multiplier": 0.22}), "", "residual_multiplier"),
        ("clip.json", serde_json::json!({"clip_qkv": 8.0}), "", "clip_qkv"),
        ("causal.json", serde_json::json!({"is_causal": false}), "", "is_causal"),
        ("partial.json", serde_json::json!({"partial_rotary_factor": 0.5}), "", "partial_rotary_factor"),
        ("activation.json", serde_json::json!({"hidden_activation": "gelu"}), "", "hidden_activation"),
        ("positions.json", serde_json::json!({"rope_scaling": {"factor": 8.0}}), "", "llama3 rope_scaling or none"),
        ("interleaved.json", serde_json::json!({"rope_interleaved": true}), "", "rope_interleaved"),
    ];
    for (name, changes, more, expected) in cases {
        described(name, changes, at);
        let (code, _, err) = train(name, &format!("{more} -q -o @/refused"));
        assert!(code == Some(2) && err.contains(expected), "{name}: {err}");
    }
    for (name, seq, fits) in [("llama.json", 17, false), ("long.json", 64, true), ("long.json", 65, false)] {
        let (code, _, err) = pipesim(
            &format!("run --model @/{name} -p 1 -m 1 -s 1f1b --steps 1 --seq {seq} --device cpu -q -o @/r"),
            at,
        );
        assert!(
            (code == Some(0)) == fits && (fits || err.contains("the model's max_position_embeddings")),
            "{name} {seq}: {err}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let start = format!("train {MODEL} -p 2 -m 2 --steps 3 --device cpu -q");
    succeeds(&format!("{start} -s 1f1b --save-every 1 -o @/run"), at);
    let cases = [
        (format!("{start} -s 1f1b -o @/run"), "those of another training"),
        (format!("{start} -s 1f1b,gpipe -o @/other"), "one schedule"),
        (format!("{start} -s 1f1b -o @/other --warmup-steps 4"), "--warmup-steps"),
        (format!("{start} -s 1f1b -o @/other --min-lr 1"), "--lr-schedule"),
        (format!("{start} -s 1f1b -o @/other --lr-schedule linear --min-lr 1"), "at most --lr"),
        (format!("{start} -s 1f1b -o @/other --held-out 5%"), "--validate-every"),
        (format!("{start} -s 1f1b -o @/other --validate-every 1 --held-out 0.001%"), "held-out tokens"),
        (format!("{start} -s 1f1b -o @/other --sample-every 1 --sample-tokens 9"), "position table"),
        (format!("{start} -s 1f1b -o @/other --sample-every 1 --top-k 9"), "--temperature"),
        ("train --resume @/run".to_string(), "steps left"),
        ("train --resume @/run --steps 2".to_string(), "3 are done"),
        ("train --resume @/run --steps 4 -s 1f1b,gpipe".to_string(), "one schedule"),
        ("train --resume @/run --steps 4 --validate-every 2".to_string(), "would hold out tokens"),
        ("train --resume @/run --steps 4 --sample-tokens 2".to_string(), "--sample-every"),
        ("train --resume @/run/step-000001 --steps 4".to_string(), "step-000003"),
        ("train --resume @/nowhere".to_string(), "found none"),
        (format!("{start} -s 1f1b -o @/other.svg"), "a folder for log, checkpoints and report"),
        (format!("{start} -s 1f1b -o -"), "a folder for log, checkpoints and report"),
        (format!("{start} -s 1f1b -o @/other/folder --batch 3"), "multiple of --micro"),
        (format!("{start} -s interleaved-1f1b --layers 2,2 -o @/other"), "2 devices x 2 virtual stages"),
        ("train --resume @/run --lr 1".to_string(), "part of the checkpoint"),
        ("train --resume @/run/step-000003 --steps 2 -q".to_string(), "steps left"),
        (format!("run {MODEL} --model @/run/step-000003 -p 2 -m 2 -o @/r"), "--blocks changes a GPT-2 by name"),
        ("run --model @/run -p 2 -m 2 -o @/r".to_string(), "config.json"),
        ("train -p 2 -m 2 -s 1f1b".to_string(), "--output"),
        ("train -s 1f1b -o @/other".to_string(), "--stages"),
        ("train -p 2 -o @/other".to_string(), "--micro <M>\n  --schedule <NAME|FILE>"),
        ("train -p 2 -o @/other".to_string(), "pipesim train --resume <DIR>"),
    ];
    for (arguments, expected) in cases {
        let (code, _, err) = pipesim(&arguments, at);
        assert!(code == Some(2) && err.contains(expected), "{arguments}: {code:?} {err}");
    }
    let left: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["run"], "what was refused leaves nothing behind");
}

#[test]
fn copies_planned_by_costs_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    for verb in ["train", "run"] {
        let line = format!("{verb} {MODEL} --device cpu -p 2 -m 4 -s pipeoffload:planned=1 --steps 1 -o @/out");
        let (code, out, err) = pipesim(&line, folder.path());
        assert_eq!(code, Some(3), "{err}");
        assert!(
            out.is_empty() && err.contains("pipeoffload:planned=1: devices cannot run copies that are planned"),
            "{err}"
        );
        assert!(!err.contains("measur"), "{err}");
    }
}
