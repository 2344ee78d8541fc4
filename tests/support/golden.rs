//! What others computed, in `tests/golden`: PyTorch's losses, gradients and schedules, the authors' of DualPipe and of zero bubble.

use super::{cells, valid_schedule};
use pipesim::training::{AdamW, Parameters};
use pipesim::{Overlap, Placement, Schedule};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The repository; `$PIPESIM_ROOT` where that is not where this was compiled.
pub fn root() -> PathBuf {
    std::env::var_os("PIPESIM_ROOT").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// A file or folder of `tests/golden`.
pub fn golden(path: impl AsRef<Path>) -> PathBuf {
    root().join("tests/golden").join(path)
}

/// The same as text, for arguments.
pub fn golden_path(path: impl AsRef<Path>) -> String {
    golden(path).display().to_string()
}

/// The files of a folder with this ending, sorted.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|e| e == ending));
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    files
}

/// A golden file of JSON.
#[track_caller]
pub fn golden_json(path: impl AsRef<Path>) -> Value {
    let path = golden(path);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// A golden file that is a list.
#[track_caller]
pub fn golden_list(path: impl AsRef<Path>) -> Vec<Value> {
    golden_json(path).as_array().unwrap().clone()
}

/// PyTorch's losses of one setting.
pub fn golden_losses(setting: &str) -> Vec<f64> {
    numbers(&golden_json("gpt2/expected.json")[setting])
}

/// PyTorch's settings: name, hyperparameters, and the norm at which gradients are clipped. C takes a new batch every step.
pub fn golden_settings() -> [(&'static str, AdamW, Option<f64>); 3] {
    let hyper = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    [
        ("A_same_batch_b0.9_0.999_wd0.01", AdamW { weight_decay: 0.01, ..hyper }, None),
        ("B_same_batch_b0.9_0.95_wd0_clip1", AdamW { beta2: 0.95, ..hyper }, Some(1.0)),
        ("C_stream_b0.9_0.999_wd0", hyper, None),
    ]
}

/// Checks the losses, at least two, of each run in the JSON of `pipesim run` against PyTorch's; by schedule and link, the losses.
pub fn check_losses(json: &Value, setting: &str, tolerance: f64) -> BTreeMap<(String, String), Vec<f64>> {
    let expected = golden_losses(setting);
    let check = |run: &Value| {
        let [name, link] = ["schedule", "link"].map(|key| run[key].as_str().unwrap().to_string());
        let losses = numbers(&run["losses"]);
        assert!(losses.len() >= 2, "{name} over {link}: {losses:?}");
        for (step, (ours, theirs)) in losses.iter().zip(&expected).enumerate() {
            assert!((ours - theirs).abs() < tolerance, "{name} over {link}, step {step}: {ours}, PyTorch {theirs}");
        }
        ((name, link), losses)
    };
    json["runs"].as_array().unwrap().iter().map(check).collect()
}

/// The model that PyTorch trained.
pub fn checkpoint() -> Parameters {
    Parameters::read(&golden("gpt2/model.bin")).unwrap()
}

/// llm.c's debug state: a batch with the logits, the loss and the gradients that PyTorch computed for it.
pub struct DebugState {
    /// Sequences, B.
    pub batch: usize,
    /// Tokens per sequence, T.
    pub tokens: usize,
    /// Token ids (B, T).
    pub inputs: Vec<u32>,
    /// Token ids (B, T).
    pub targets: Vec<u32>,
    /// (B, T, V)
    pub logits: Vec<f32>,
    /// Mean over all tokens.
    pub loss: f32,
    /// Gradients of the parameters, in llm.c's order and shapes.
    pub gradients: Vec<Vec<f32>>,
}

/// Returns the debug state of the model in [`checkpoint`].
pub fn debug_state() -> DebugState {
    let config = checkpoint().config;
    let bytes = std::fs::read(golden("gpt2/debug_state.bin")).unwrap();
    let mut words = bytes.as_chunks::<4>().0.iter().copied();
    let header: Vec<i32> = words.by_ref().take(256).map(i32::from_le_bytes).collect();
    assert_eq!(header[..2], [20240327, 2], "expected llm.c's magic number and version");
    let (batch, tokens) = (header[2] as usize, header[3] as usize);
    let mut ids = || words.by_ref().take(batch * tokens).map(u32::from_le_bytes).collect::<Vec<u32>>();
    let (inputs, targets) = (ids(), ids());
    let mut floats = |count: usize| words.by_ref().take(count).map(f32::from_le_bytes).collect::<Vec<f32>>();
    let (logits, loss) = (floats(batch * tokens * config.vocabulary), floats(1)[0]);
    let gradients = config.tensor_lengths().into_iter().map(&mut floats).collect();
    assert!(words.next().is_none(), "expected the file to end with the gradients");
    DebugState { batch, tokens, inputs, targets, logits, loss, gradients }
}

/// The length of the difference of two vectors, in lengths of `expected`.
pub fn relative_distance(found: &[f32], expected: &[f32]) -> f64 {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let differences = &mut found.iter().zip(expected).map(|(&a, &b)| f64::from(a) - f64::from(b));
    length(differences) / length(&mut expected.iter().map(|&x| f64::from(x))).max(1e-30)
}

#[track_caller]
pub fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

#[track_caller]
pub fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

/// A schedule of PyTorch's or of DualPipe's authors, and an entry of its `expected.json`, with the figures that they state.
pub struct GoldenSchedule {
    pub folder: &'static str,
    pub entry: Value,
}

impl GoldenSchedule {
    /// All of them.
    pub fn all() -> Vec<GoldenSchedule> {
        let entries = |folder| golden_list(format!("{folder}/expected.json")).into_iter().map(move |e| (folder, e));
        ["pytorch", "dualpipe"]
            .into_iter()
            .flat_map(entries)
            .map(|(folder, entry)| GoldenSchedule { folder, entry })
            .collect()
    }

    pub fn name(&self) -> &str {
        self.entry["name"].as_str().unwrap()
    }

    pub fn class(&self) -> &str {
        self.entry["cls"].as_str().unwrap()
    }

    pub fn number(&self, key: &str) -> f64 {
        number(&self.entry, key)
    }

    /// Of an op.
    pub fn cost(&self, key: &str) -> f64 {
        number(&self.entry["costs"], key)
    }

    /// Devices, chunks a device, micro-batches.
    pub fn sizes(&self) -> [u32; 3] {
        ["p", "v", "m"].map(|key| self.number(key) as u32)
    }

    /// Their costs as `--costs` takes them: theirs are an op's, ours a device's, and a chunk's op takes 1/v of that.
    pub fn costs(&self) -> String {
        let [f, i, w, b] = ["F", "I", "W", "B"].map(|key| self.cost(key) * self.number("v"));
        format!("F={f:.3},I={i:.3},W={w:.3},B={b:.3},comm={}", self.cost("comm"))
    }

    pub fn overlap(&self) -> Overlap {
        match self.entry["overlap_mode"].as_str() {
            Some("serial") => Overlap::Serial,
            Some("runtime") => Overlap::Runtime,
            Some("overlap") => Overlap::Max,
            _ => Overlap::Atomic,
        }
    }

    /// The text of its file: ops as PyTorch writes them, a line a device.
    pub fn text(&self) -> String {
        std::fs::read_to_string(golden(self.folder).join(format!("{}.csv", self.name()))).unwrap()
    }

    pub fn schedule(&self) -> Schedule {
        let [p, v, m] = self.sizes();
        let placement = match self.class() {
            "DualPipe" => Placement::bidirectional(p, 1).unwrap(),
            "DualPipeV" | "ScheduleDualPipeV" | "ScheduleZBVZeroBubble" => Placement::zigzag("V", p, 2),
            _ => Placement::looped("loop", p, v),
        };
        let rows: Vec<_> = self.text().lines().map(|row| cells(row, &placement, m)).collect();
        valid_schedule(&placement, m, &rows)
    }
}
