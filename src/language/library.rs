//! The embedded schedules and their names.

use super::host::LayoutValue;
use super::language::{dialect, globals};
use super::request::{Error, ScheduleFile};
use pipesim_schedule::nearest::{hint, nearest, plain, same_numbers};
use starlark::docs::{DocItem, DocMember};
use starlark::environment::Module;
use starlark::eval::Evaluator;
use starlark::syntax::AstModule;
use starlark::values::ValueLike;

/// The files of `schedules/`, by name; `build.rs` lists them.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/schedules.rs"));

/// Returns the names of the embedded schedules.
pub fn names() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, _)| *name).collect()
}

/// Schedules that cut micro-batches into slices, recompute, copy or share the vocabulary: never chosen without being asked for.
const BEYOND_MICROBATCHES: [&str; 9] = [
    "1f1b-offload",
    "1f1b-recompute",
    "1f1b-vocab",
    "pipeoffload",
    "seq1f1b",
    "seq1f1b-interleaved",
    "seq1f1b-zb",
    "slimpipe",
    "terapipe",
];

/// Returns the names of the embedded schedules that run whole micro-batches, and nothing but F, I, W and B.
pub fn names_of_whole() -> Vec<&'static str> {
    names().into_iter().filter(|name| !BEYOND_MICROBATCHES.contains(name)).collect()
}

/// Names elsewhere, without hyphens: PyTorch's classes (without `Schedule`, zb for zero-bubble), Megatron-LM, Paddle, papers.
const OTHER_NAMES: [(&str, &[&str]); 6] = [
    ("1f1b", &["pipedreamflush", "dapple", "noninterleaved", "noninterleaved1f1b", "onefoneb"]),
    (
        "interleaved-1f1b",
        &["interleaved", "interleave", "1f1binterleaved", "vpp", "virtualpipeline", "depthfirst", "dfs"],
    ),
    ("gpipe", &["fthenb", "filldrain", "afab", "allforwardallbackward"]),
    ("looped-bfs", &["bfs", "breadthfirst"]),
    ("eager-1f1b", &["1f1beager"]),
    ("zb-v", &["zbvzb"]),
];

/// Returns the embedded schedule of a name, which may be its name elsewhere; ignores case, `-`, `_` and spaces.
pub fn named(name: &str) -> Result<ScheduleFile, Error> {
    let asked = plain(name).replace("zerobubble", "zb");
    let asked = asked.strip_prefix("schedule").filter(|rest| !rest.is_empty()).unwrap_or(&asked);
    let other = OTHER_NAMES.iter().find(|(_, others)| others.contains(&asked)).map(|(stem, _)| plain(stem));
    let asked = other.as_deref().unwrap_or(asked);
    if let Some((stem, text)) = EMBEDDED.iter().find(|(stem, _)| plain(stem) == asked) {
        let file = format!("schedules/{stem}.star");
        return Ok(ScheduleFile { name: (*stem).to_string(), file, text: (*text).to_string() });
    }
    let known = names();
    let like: Vec<&str> = nearest(asked, &known).into_iter().filter(|found| same_numbers(asked, found)).collect();
    Err(Error::Usage(format!(
        "no schedule is called '{name}'{}; known: {}, auto; or give the path of a .star or .csv file",
        hint(&like),
        known.join(", ")
    )))
}

/// Description of a schedule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The file's stem.
    pub name: String,
    /// First line of the file's docstring: name, paper, idea.
    pub summary: String,
    /// Rest of the docstring.
    pub details: String,
    /// Name of its placement.
    pub placement: String,
    /// Options with defaults: `v = 2`.
    pub options: Vec<String>,
}

/// Reads docstring, placement and options without compiling the schedule.
pub fn describe(path: &ScheduleFile) -> Result<Description, Error> {
    let invalid = |e: starlark::Error| Error::Invalid(format!("{}: {e}", path.file));
    Module::with_temp_heap(|module| {
        let mut evaluator = Evaluator::new(&module);
        evaluator.set_max_tick_count(1_000_000).map_err(|e| Error::Invalid(e.to_string()))?;
        let ast = AstModule::parse(&path.file, path.text.clone(), &dialect()).map_err(invalid)?;
        evaluator.eval_module(ast, &globals()).map_err(invalid)?;
        let (placement, is_open) = match module.get("placement") {
            None => ("linear".to_string(), false),
            Some(mut value) => {
                if value.downcast_ref::<LayoutValue>().is_none() {
                    // a function of p: evaluate it for two devices
                    let p = evaluator.heap().alloc(2);
                    value = evaluator.eval_function(value, &[p], &[]).map_err(invalid)?;
                }
                let found = value.downcast_ref::<LayoutValue>();
                let is_open = found.is_some_and(|found| found.chunks.or(found.layout.chunks(2)).is_none());
                (found.map_or("custom", |found| found.layout.name()).to_string(), is_open)
            }
        };
        let mut options: Vec<String> = match module.get("device").map(|device| device.documentation()) {
            Some(DocItem::Member(DocMember::Function(function))) => function
                .params
                .pos_or_named
                .iter()
                .skip(3)
                .map(|param| format!("{} = {}", param.name, param.default_value.as_deref().unwrap_or("?")))
                .collect(),
            _ => Vec::new(),
        };
        if is_open && !options.iter().any(|option| option.starts_with("v =")) {
            options.push("v = 1".to_string()); // --chunks applies to every placement that leaves it open
        }
        drop(evaluator);
        let docs = module.freeze().map_err(|e| Error::Invalid(format!("{}: {e:?}", path.file)))?.documentation().docs;
        let (summary, details) = docs.map_or_else(Default::default, |d| (d.summary, d.details.unwrap_or_default()));
        Ok(Description { name: path.name.clone(), summary, details, placement, options })
    })
}
