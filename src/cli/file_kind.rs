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

/// Kinds of files that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Timelines,
    Figures,
    ReportFigures,
    Plan,
    CostFile,
    Trace,
    TraceFolder,
    OpTable,
    Config,
    Shape,
    Star,
    ScheduleCsv,
    ExportedSchedule,
    StageTimes,
    HardwareTable,
    StackTable,
    Checkpoint,
    Tokens,
    Picture,
    TrainingLog,
    MegatronLog,
    LaunchFile,
    Question,
}

/// Options and arguments that take files, by the verb (empty: any) and their name in [`clap`]; what they expect, and the kinds.
const SLOTS: [(&str, &str, &str, &[FileKind]); 16] = [
    ("predict", "question", "a question", &[FileKind::Question]),
    ("compare", "files", "timelines that -o FILE.json wrote", &[FileKind::Timelines]),
    ("explain", "timeline", "the timeline of a measured step", &[FileKind::Timelines]),
    ("profile", "from", "the timelines of a measured run", &[FileKind::Timelines]),
    (
        "import",
        "traces",
        "traces of a profiler",
        &[FileKind::Trace, FileKind::TraceFolder, FileKind::OpTable, FileKind::Timelines],
    ),
    ("", "profile", "a cost file", &[FileKind::CostFile]),
    ("", "costs", "a file of stage times", &[FileKind::StageTimes]),
    ("predict", "model", "a config.json or a shape file", &[FileKind::Config, FileKind::Shape]),
    ("explain", "model", "a config.json or a shape file", &[FileKind::Config, FileKind::Shape]),
    ("plan", "model", "a config.json or a shape file", &[FileKind::Config, FileKind::Shape]),
    ("", "model", "a config.json", &[FileKind::Config]),
    ("", "hardware", "a table of hardware", &[FileKind::HardwareTable]),
    ("", "stack", "a table of training software", &[FileKind::StackTable]),
    ("", "schedule", "a schedule", &[FileKind::Star, FileKind::ScheduleCsv]),
    ("", "checkpoint", "an llm.c checkpoint", &[FileKind::Checkpoint]),
    ("", "data", "a text or a token file", &[FileKind::Tokens]),
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
    let kind = FileKind::of(Path::new(file)).filter(|kind| !kinds.contains(kind))?;
    let (found, advice) = kind.described();
    Some(format!(
        "{file}: expected {expected}, found {found}; {}",
        advice.replace("FILE", &pipesim_schedule::sanitize::shell_quoted(file))
    ))
}

impl FileKind {
    /// What it is, and what to do with FILE.
    fn described(self) -> (&'static str, &'static str) {
        match self {
            FileKind::Timelines => ("saved timelines", "compare them: `pipesim compare FILE`"),
            FileKind::Figures => {
                ("figures that a verb printed, which no verb reads", "write timelines with -o FILE.json")
            }
            FileKind::ReportFigures => ("a report's figures, which have no spans", "give the folder that it is in"),
            FileKind::Plan => ("a saved plan, which no verb reads", "its 'plans' say which options to give to predict"),
            FileKind::CostFile => {
                ("a cost file", "predict with it: `pipesim predict --profile FILE --stages P --micro M`")
            }
            FileKind::Trace => ("a profiler's trace", "import it: `pipesim import FILE`"),
            FileKind::TraceFolder => ("a folder of profilers' traces", "import it: `pipesim import FILE`"),
            FileKind::OpTable => ("a table of op times", "import it: `pipesim import FILE`"),
            FileKind::Config => (
                "a model's config.json",
                "predict the model: `pipesim predict --model FILE --hardware h100-sxm --stages P --micro M`",
            ),
            FileKind::Shape => (
                "a model's shape file",
                "predict the model: `pipesim predict --model FILE --hardware h100-sxm --stages P --micro M`",
            ),
            FileKind::Star => ("a schedule", "check it: `pipesim check --schedule FILE --stages P --micro M`"),
            FileKind::ScheduleCsv => {
                ("a schedule in PyTorch's format", "check it: `pipesim check --schedule FILE --stages P --micro M`")
            }
            FileKind::ExportedSchedule => {
                ("an exported schedule, which no verb reads", "export it with --to pytorch-csv, which --schedule takes")
            }
            FileKind::StageTimes => {
                ("a file of stage times", "predict with it: `pipesim predict --costs FILE --stages P --micro M`")
            }
            FileKind::HardwareTable => (
                "a table of hardware",
                "predict on it: `pipesim predict --model gpt2 --hardware FILE --stages P --micro M`",
            ),
            FileKind::StackTable => (
                "a table of training software",
                "predict with it: `pipesim predict --model gpt2 --hardware h100-sxm --stack FILE --stages P --micro M`",
            ),
            FileKind::Checkpoint => {
                ("an llm.c checkpoint", "train from it: `pipesim run --checkpoint FILE --stages P --micro M`")
            }
            FileKind::Tokens => ("an llm.c token file", "train on it: `pipesim run --data FILE --stages P --micro M`"),
            FileKind::Picture => ("a picture or a page, which no verb reads", "write its data with -o FILE.json"),
            FileKind::TrainingLog => ("the log of a training, which no verb reads", "its report is in the same folder"),
            FileKind::MegatronLog => (
                "Megatron's training log, which no verb reads",
                "import a profiler's trace, or compare its 'elapsed time per iteration' with what predict prints",
            ),
            FileKind::LaunchFile => (
                "a launch script or job, which no verb reads",
                "give its numbers to predict, which takes Megatron's names of options, too",
            ),
            FileKind::Question => ("a question", "ask it: `pipesim predict FILE`"),
        }
    }

    /// Returns the kind of a file or folder; `None` for none that is known.
    fn of(path: &Path) -> Option<FileKind> {
        if path.is_dir() {
            if pipesim_report::timeline_files(path).is_some() {
                return Some(FileKind::Timelines);
            }
            let mut inside = std::fs::read_dir(path).ok()?.flatten().take(1000).map(|entry| entry.path());
            let is_trace = |path: &std::path::PathBuf| path.is_file() && FileKind::of(path) == Some(FileKind::Trace);
            return inside.find(is_trace).map(|_| FileKind::TraceFolder);
        }
        let bytes = path.is_file().then(|| read(path)).flatten()?; // a pipe may never end
        let magic = bytes.first_chunk::<4>().map(|start| i32::from_le_bytes(*start));
        match magic {
            Some(20_240_326..=20_240_328 | 20_240_522) => return Some(FileKind::Checkpoint),
            Some(20_240_520 | 20_240_801) => return Some(FileKind::Tokens),
            _ => {}
        }
        if [&b"%PDF"[..], b"\x89PNG", b"<svg", b"<!doctype html", b"<?xml"].iter().any(|start| bytes.starts_with(start))
        {
            return Some(FileKind::Picture);
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_lowercase();
        let start = &text[..text.floor_char_boundary(START)];
        of_log(start).or_else(|| of_json(text)).or_else(|| match ending.as_str() {
            "toml" => of_toml(text),
            "star" => Some(FileKind::Star),
            _ => of_csv(start).or_else(|| of_launch(start)),
        })
    }
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
    if of_megatron { Some(FileKind::MegatronLog) } else { is_own.then_some(FileKind::TrainingLog) }
}

fn of_json(text: &str) -> Option<FileKind> {
    let start = &text[..text.floor_char_boundary(START)];
    if text.starts_with(['{', '['])
        && ["\"traceEvents\"", "\"NvtxEvent\"", "\"TraceProcessEvent\""].iter().any(|key| start.contains(key))
    {
        return Some(FileKind::Trace);
    }
    let keys = huggingface::keys(text).ok()?;
    let any = |names: &str| names.split(' ').any(|name| keys.contains_key(name));
    match any("schema_version") {
        true if any("spans timelines") => Some(FileKind::Timelines),
        true if any("parts stages") => Some(FileKind::CostFile),
        true if any("plans") => Some(FileKind::Plan),
        true if any("schedules") => Some(FileKind::ReportFigures),
        true if any("programs") => Some(FileKind::ExportedSchedule),
        true if any("predictions explanations checks runs probes") => Some(FileKind::Figures),
        true => None,
        false if any("traceEvents") => Some(FileKind::Trace),
        false if any("model_type architectures hidden_size n_embd") => Some(FileKind::Config),
        false if any("hidden layers") && any("arch heads") => Some(FileKind::Shape),
        false => None,
    }
}

fn of_toml(text: &str) -> Option<FileKind> {
    let table: toml::Table = text.parse().ok()?;
    let any = |names: &[&str]| names.iter().any(|name| table.contains_key(*name));
    let fields = |fields: &[pipesim_models::hardware::Field]| fields.iter().any(|field| table.contains_key(field.name));
    let base = table.get("base").and_then(toml::Value::as_str).unwrap_or_default();
    match () {
        () if table.get("version").is_some_and(toml::Value::is_integer) => Some(FileKind::Question),
        () if any(&["F", "I", "W", "B"]) => Some(FileKind::StageTimes),
        () if any(&["parallelism", "training", "job", "model"]) => Some(FileKind::LaunchFile),
        () if fields(Hardware::FIELDS) || pipesim_models::hardware::names().any(|name| name == base) => {
            Some(FileKind::HardwareTable)
        }
        () if fields(Stack::FIELDS) || pipesim_models::hardware::stack(base).is_ok() => Some(FileKind::StackTable),
        () => None,
    }
}

fn of_csv(start: &str) -> Option<FileKind> {
    let mut cells = start.lines().next()?.split(',').map(str::trim);
    let header: Vec<&str> = cells.clone().map(|cell| cell.split('_').next().unwrap_or_default()).collect();
    let has = |name: &str| header.iter().any(|cell| cell.eq_ignore_ascii_case(name));
    if has("rank") && has("stage") && has("kind") {
        return Some(FileKind::OpTable);
    }
    if has("stage") && (has("F") || has("B")) {
        return Some(FileKind::StageTimes);
    }
    // 0F0, 3B12, (1F2;0B0)OVERLAP_F_B
    let is_op = |cell: &str| {
        let cell = cell.trim_start_matches(['(', '"']);
        let after = cell.trim_start_matches(|c: char| c.is_ascii_digit());
        after.len() < cell.len() && after.starts_with(['F', 'B', 'I', 'W'])
    };
    cells.any(is_op).then_some(FileKind::ScheduleCsv)
}

fn of_launch(start: &str) -> Option<FileKind> {
    let words = ["torchrun", "pretrain_", "--pipeline-model-parallel-size", "#SBATCH", "deepspeed "];
    words.iter().any(|word| start.contains(word)).then_some(FileKind::LaunchFile)
}
