//! The schedules that come with the program, and how a name finds one.

use super::host::LayoutValue;
use super::language::{dialect, globals};
use super::request::{Error, ScheduleFile};
use starlark::docs::{DocItem, DocMember};
use starlark::environment::Module;
use starlark::eval::Evaluator;
use starlark::syntax::AstModule;
use starlark::values::ValueLike;

/// The files of `schedules/`, by name; `build.rs` lists them.
const EMBEDDED: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/schedules.rs"));

/// Names of the embedded schedules.
pub fn names() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, _)| *name).collect()
}

/// The embedded schedule of a name; case, `-`, `_` and spaces do not matter.
pub fn named(name: &str) -> Result<ScheduleFile, Error> {
    let plain = |text: &str| text.to_lowercase().replace(['-', '_', ' '], "");
    if let Some((stem, text)) = EMBEDDED.iter().find(|(stem, _)| plain(stem) == plain(name)) {
        let file = format!("schedules/{stem}.star");
        return Ok(ScheduleFile { name: (*stem).to_string(), file, text: (*text).to_string() });
    }
    let nearest = EMBEDDED.iter().map(|(stem, _)| (distance(&plain(stem), &plain(name)), *stem)).min();
    let hint = match nearest {
        Some((d, stem)) if d <= 3 && d < plain(name).len() => format!("; did you mean {stem}?"),
        _ => ";".to_string(),
    };
    Err(Error::Usage(format!(
        "no schedule is called '{name}'{hint} Known: {}, auto; or give the path of a .star or .csv file",
        names().join(", ")
    )))
}

/// Edit distance (insertions, deletions, substitutions).
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The stem.
    pub name: String,
    /// First line of the file's docstring: name, paper, idea.
    pub summary: String,
    /// Rest of the docstring.
    pub details: String,
    /// Placement as the outside calls it.
    pub placement: String,
    /// Options with defaults, as `v = 2`.
    pub options: Vec<String>,
}

/// Reads docstring, placement and options without compiling for any p.
pub fn describe(path: &ScheduleFile) -> Result<Description, Error> {
    let invalid = |e: starlark::Error| Error::Invalid(format!("{}: {e}", path.file));
    Module::with_temp_heap(|module| {
        let mut evaluator = Evaluator::new(&module);
        evaluator.set_max_tick_count(1_000_000).map_err(|e| Error::Invalid(e.to_string()))?;
        let ast = AstModule::parse(&path.file, path.text.clone(), &dialect()).map_err(invalid)?;
        evaluator.eval_module(ast, &globals()).map_err(invalid)?;
        let placement = match module.get("placement") {
            None => "linear".to_string(),
            Some(value) => match value.downcast_ref::<LayoutValue>() {
                Some(value) => value.layout.name().to_string(),
                // a function of p: what it says for two devices
                None => {
                    let p = evaluator.heap().alloc(2);
                    let value = evaluator.eval_function(value, &[p], &[]).map_err(invalid)?;
                    value.downcast_ref::<LayoutValue>().map_or("custom", |v| v.layout.name()).to_string()
                }
            },
        };
        let options = match module.get("device").map(|device| device.documentation()) {
            Some(DocItem::Member(DocMember::Function(function))) => function
                .params
                .pos_or_named
                .iter()
                .skip(3)
                .map(|param| format!("{} = {}", param.name, param.default_value.as_deref().unwrap_or("?")))
                .collect(),
            _ => Vec::new(),
        };
        drop(evaluator);
        let docs = module.freeze().map_err(|e| Error::Invalid(format!("{}: {e:?}", path.file)))?.documentation().docs;
        let (summary, details) = docs.map_or_else(Default::default, |d| (d.summary, d.details.unwrap_or_default()));
        Ok(Description { name: path.name.clone(), summary, details, placement, options })
    })
}
