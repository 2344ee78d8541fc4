//! What a file is, by its content, and what takes it: for the errors of verbs that were given a file of another kind.

use super::Failure;
use clap::ArgMatches;
use flate2::read::MultiGzDecoder;
use pipesim_models::hardware::{Hardware, Stack};
use pipesim_models::model_spec::huggingface;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a file is, and what to do with FILE.
type FileKind = &'static str;

const TIMELINES: FileKind = "saved timelines; compare them: `pipesim compare FILE`";
const FIGURES: FileKind = "figures that a verb printed, which have no timelines; run its command again with -o timelines.json in place of --format json";
const SPANS: FileKind = "a table of timelines, which no verb reads; run its command again with -o timelines.json";
const REPORT_FIGURES: FileKind = "a report's figures, which have no spans; give the folder that it is in";
const PLAN: FileKind = "a saved plan, which no verb reads; its 'plans' say which options to give to predict";
const COST_FILE: FileKind = "a cost file; predict with it: `pipesim predict --profile FILE --stages P --micro M`";
const TRACE: FileKind = "a profiler's trace; import it: `pipesim import FILE`";
const TRACE_FOLDER: FileKind = "a folder of profilers' traces; import it: `pipesim import FILE`";
const OP_TABLE: FileKind = "a table of op times; import it: `pipesim import FILE`";
const CONFIG: FileKind =
    "a model's config.json; predict the model: `pipesim predict --model FILE --hardware h100-sxm --stages P --micro M`";
const SHAPE: FileKind =
    "a model's shape file; predict the model: `pipesim predict --model FILE --hardware h100-sxm --stages P --micro M`";
const STAR: FileKind = "a schedule; check it: `pipesim check --schedule FILE --stages P --micro M`";
const SCHEDULE_CSV: FileKind =
    "a schedule in PyTorch's format; check it: `pipesim check --schedule FILE --stages P --micro M`";
const EXPORTED_SCHEDULE: FileKind =
    "an exported schedule, which no verb reads; export it with --to pytorch-csv, which --schedule takes";
const STAGE_TIMES: FileKind =
    "a file of stage times; predict with it: `pipesim predict --costs FILE --stages P --micro M`";
const HARDWARE_TABLE: FileKind =
    "a table of hardware; predict on it: `pipesim predict --model gpt2 --hardware FILE --stages P --micro M`";
const STACK_TABLE: FileKind = "a table of training software; predict with it: `pipesim predict --model gpt2 --hardware h100-sxm --stack FILE --stages P --micro M`";
const CHECKPOINT: FileKind = "an llm.c checkpoint; train from it: `pipesim run --checkpoint FILE --stages P --micro M`";
const TOKENS: FileKind = "an llm.c token file; train on it: `pipesim run --data FILE --stages P --micro M`";
const PICTURE: FileKind = "a picture or a page, which no verb reads; run its command again with -o timelines.json";
const TRAINING_LOG: FileKind = "the log of a training, which no verb reads; its report is in the same folder";
const MEGATRON_LOG: FileKind = "Megatron's training log, which predict takes as --measured FILE or --job FILE, and import if it has times of each rank (--timing-log-level 2 --timing-log-option all)";
const TIMED_LOG: FileKind = "Megatron's training log with times of each rank; import it: `pipesim import FILE`";
const LAUNCH_FILE: FileKind = "a launch script or job, which predict, plan and explain take as --job FILE";
const QUESTION: FileKind = "a question; ask it: `pipesim predict FILE`";

/// Options and arguments that take files, by the verb (empty: any) and their name in [`clap`]; what they expect, and the kinds.
const SLOTS: [(&str, &str, &str, &[FileKind]); 18] = [
    ("", "question", "a question", &[QUESTION]),
    ("compare", "files", "timelines that -o FILE.json wrote", &[TIMELINES]),
    ("compare", "before", "a timeline that -o FILE.json wrote", &[TIMELINES]),
    ("compare", "after", "a timeline that -o FILE.json wrote", &[TIMELINES]),
    (
        "explain",
        "timeline",
        "the timeline of a measured step, or traces",
        &[TIMELINES, TRACE, TRACE_FOLDER, OP_TABLE, TIMED_LOG],
    ),
    ("profile", "from", "the timelines of a measured run", &[TIMELINES]),
    ("import", "traces", "traces of a profiler", &[TRACE, TRACE_FOLDER, OP_TABLE, TIMELINES, TIMED_LOG]),
    ("", "profile", "a cost file", &[COST_FILE]),
    ("", "costs", "a file of stage times", &[STAGE_TIMES]),
    ("predict", "model", "a config.json or a shape file", &[CONFIG, SHAPE]),
    ("explain", "model", "a config.json or a shape file", &[CONFIG, SHAPE]),
    ("plan", "model", "a config.json or a shape file", &[CONFIG, SHAPE]),
    ("", "model", "a config.json", &[CONFIG]),
    ("", "hardware", "a table of hardware", &[HARDWARE_TABLE]),
    ("", "stack", "a table of training software", &[STACK_TABLE]),
    ("", "schedule", "a schedule", &[STAR, SCHEDULE_CSV]),
    ("", "checkpoint", "an llm.c checkpoint", &[CHECKPOINT]),
    ("", "data", "a text or a token file", &[TOKENS]),
];

/// Largest file that is read as a whole; of larger ones only the start is seen.
const MOST_BYTES: u64 = 256 << 20;
/// Length of the start that is searched for words.
const START: usize = 1 << 16;

/// Returns a failure that names what takes a file, in place of `failure`, if a file of another kind was given.
pub fn instead(failure: Failure, matches: &ArgMatches) -> Failure {
    let same: fn(String) -> Failure = match failure {
        Failure::Usage(_) => Failure::Usage,
        Failure::Schedule(_) => Failure::Schedule,
        Failure::Failed(_) => |why| Failure::Failed(anyhow::Error::msg(why)),
        _ => return failure,
    };
    let Some((mut verb, mut given)) = matches.subcommand() else { return failure };
    while let Some((name, below)) = given.subcommand() {
        (verb, given) = (name, below);
    }
    let mut seen = BTreeSet::new();
    for (_, slot, _, _) in SLOTS.iter().filter(|(of, slot, _, _)| (of.is_empty() || *of == verb) && seen.insert(*slot))
    {
        let values = given.try_get_raw(slot).ok().flatten().into_iter().flatten();
        let values =
            values.flat_map(|value| value.to_string_lossy().split(',').map(str::to_string).collect::<Vec<_>>());
        if let Some(why) = values.into_iter().find_map(|value| mistaken(verb, slot, &value)) {
            return same(why);
        }
    }
    failure
}

/// Says what a file is and what takes it; `None` if it is of a kind that `slot` of `verb` takes, or of none that is known.
pub fn mistaken(verb: &str, slot: &str, file: &str) -> Option<String> {
    let (_, _, expected, kinds) =
        SLOTS.iter().find(|(of, name, _, _)| (of.is_empty() || *of == verb) && *name == slot)?;
    let found = kind_of(Path::new(file)).filter(|kind| !kinds.contains(kind))?;
    Some(format!(
        "{file}: expected {expected}, found {}",
        found.replace("FILE", &pipesim_schedule::sanitize::shell_quoted(file))
    ))
}

/// Whether `pipesim import` reads the file or folder, and it has no timelines yet.
pub fn is_trace(path: &Path) -> bool {
    kind_of(path).is_some_and(|kind| [TRACE, TRACE_FOLDER, OP_TABLE, TIMED_LOG].contains(&kind))
}

/// Returns the kind of a file or folder; `None` for none that is known.
fn kind_of(path: &Path) -> Option<FileKind> {
    if path.is_dir() {
        if pipesim_report::timeline_files(path).is_some() {
            return Some(TIMELINES);
        }
        let mut inside = std::fs::read_dir(path).ok()?.flatten().take(1000).map(|entry| entry.path());
        let is_trace = |path: &std::path::PathBuf| path.is_file() && kind_of(path) == Some(TRACE);
        return inside.find(is_trace).map(|_| TRACE_FOLDER);
    }
    let bytes = path.is_file().then(|| read(path)).flatten()?; // a pipe may never end
    let magic = bytes.first_chunk::<4>().map(|start| i32::from_le_bytes(*start));
    match magic {
        Some(20_240_326..=20_240_328 | 20_240_522) => return Some(CHECKPOINT),
        Some(20_240_520 | 20_240_801) => return Some(TOKENS),
        _ => {}
    }
    if bytes.starts_with(b"SQLite format 3") || path.extension().is_some_and(|ending| ending == "nsys-rep") {
        return Some(TRACE);
    }
    if [&b"%PDF"[..], b"\x89PNG", b"<svg", b"<!doctype html", b"<?xml"].iter().any(|start| bytes.starts_with(start)) {
        return Some(PICTURE);
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_lowercase();
    let start = &text[..text.floor_char_boundary(START)];
    let is_timed = !text.starts_with('{') && text.contains("times across ranks (ms):");
    is_timed.then_some(TIMED_LOG).or_else(|| of_log(start)).or_else(|| of_json(text)).or_else(|| {
        match ending.as_str() {
            "toml" => of_toml(text),
            "star" => Some(STAR),
            _ => of_csv(start).or_else(|| of_launch(start)),
        }
    })
}

/// Returns the bytes of a file, unpacked, up to a limit.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Some(bytes);
    }
    let mut unpacked = Vec::new();
    let _ = MultiGzDecoder::new(bytes.as_slice()).take(MOST_BYTES).read_to_end(&mut unpacked);
    Some(unpacked)
}

fn of_log(start: &str) -> Option<FileKind> {
    let of_megatron = start.contains("elapsed time per iteration") && start.contains("iteration ");
    let keys = start.lines().next().and_then(|line| huggingface::keys(line).ok());
    let is_own =
        keys.is_some_and(|keys| ["step", "loss", "tokens_per_second"].iter().all(|key| keys.contains_key(*key)));
    if of_megatron { Some(MEGATRON_LOG) } else { is_own.then_some(TRAINING_LOG) }
}

fn of_json(text: &str) -> Option<FileKind> {
    let start = &text[..text.floor_char_boundary(START)];
    if text.starts_with(['{', '['])
        && ["\"traceEvents\"", "\"NvtxEvent\"", "\"TraceProcessEvent\""].iter().any(|key| start.contains(key))
    {
        return Some(TRACE);
    }
    let keys = huggingface::keys(text).ok()?;
    let any = |names: &str| names.split(' ').any(|name| keys.contains_key(name));
    match any("schema_version") {
        true if any("spans timelines") => Some(TIMELINES),
        true if any("parts stages") => Some(COST_FILE),
        true if any("plans") => Some(PLAN),
        true if any("schedules") => Some(REPORT_FIGURES),
        true if any("programs") => Some(EXPORTED_SCHEDULE),
        true if any("predictions explanations checks runs probes") => Some(FIGURES),
        true => None,
        false if any("traceEvents") => Some(TRACE),
        false if any("model_type architectures hidden_size n_embd") => Some(CONFIG),
        false if any("hidden layers") && any("arch heads") => Some(SHAPE),
        false => None,
    }
}

fn of_toml(text: &str) -> Option<FileKind> {
    let table: toml::Table = text.parse().ok()?;
    let any = |names: &[&str]| names.iter().any(|name| table.contains_key(*name));
    let fields = |fields: &[pipesim_models::hardware::Field]| fields.iter().any(|field| table.contains_key(field.name));
    let base = table.get("base").and_then(toml::Value::as_str).unwrap_or_default();
    match () {
        () if table.get("version").is_some_and(toml::Value::is_integer) => Some(QUESTION),
        () if any(&["F", "I", "W", "B"]) => Some(STAGE_TIMES),
        () if any(&["parallelism", "training", "job", "model"]) => Some(LAUNCH_FILE),
        () if fields(Hardware::FIELDS) || pipesim_models::hardware::names().any(|name| name == base) => {
            Some(HARDWARE_TABLE)
        }
        () if fields(Stack::FIELDS) || pipesim_models::hardware::stack(base).is_ok() => Some(STACK_TABLE),
        () => None,
    }
}

fn of_csv(start: &str) -> Option<FileKind> {
    let mut cells = start.lines().next()?.split(',').map(str::trim);
    let header: Vec<&str> = cells.clone().map(|cell| cell.split('_').next().unwrap_or_default()).collect();
    let has = |name: &str| header.iter().any(|cell| cell.eq_ignore_ascii_case(name));
    if has("rank") && has("stage") && has("kind") {
        return Some(OP_TABLE);
    }
    if start.starts_with("schedule,source,device,") {
        return Some(SPANS);
    }
    if has("stage") && (has("F") || has("B")) {
        return Some(STAGE_TIMES);
    }
    // 0F0, 3B12, (1F2;0B0)OVERLAP_F_B
    let is_op = |cell: &str| {
        let cell = cell.trim_start_matches(['(', '"']);
        let after = cell.trim_start_matches(|c: char| c.is_ascii_digit());
        after.len() < cell.len() && after.starts_with(['F', 'B', 'I', 'W'])
    };
    cells.any(is_op).then_some(SCHEDULE_CSV)
}

fn of_launch(start: &str) -> Option<FileKind> {
    let words = ["torchrun", "pretrain_", "--pipeline-model-parallel-size", "#SBATCH", "deepspeed "];
    words.iter().any(|word| start.contains(word)).then_some(LAUNCH_FILE)
}
