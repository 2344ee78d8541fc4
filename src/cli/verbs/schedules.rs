//! `pipesim schedules`: list the built-in schedules, or show one.

use crate::cli::Failure;
use crate::cli::flags::in_report;
use crate::cli::options::output::draw;
use crate::cli::terminal::colors::Color;
use crate::cli::terminal::{fold, print, print_folded, print_text};
use clap::Args;
use pipesim_answer::resolve::{self, Costs, Files, Resolved, Selection};
use pipesim_frameworks::having;
use pipesim_language::{self as dsl, Description};
use pipesim_report::{Report, number, percent};
use serde_json::{Value, json};

/// Devices and micro-batches of the drawings.
const SMALL: (u32, u32) = (4, 8);
/// Chunks of the second drawing, for a schedule that leaves their number open.
const CHUNKS: u32 = 4;

const HELP: &str = include_str!("schedules.txt");

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Schedules {
    /// Schedule to show instead of the list: its timeline, memory, bubble and paper as comments, and its text
    name: Option<String>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

impl Schedules {
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(name) = &self.name {
            let file = resolve::schedule_file(&Files, name)?;
            if let Ok(own) = dsl::named(name) {
                print(&card(&dsl::describe(&own)?)?)?;
            }
            return print_text(&file.text);
        }
        if self.json { print(&format!("{:#}\n", list()?)) } else { print_folded(&table(&described()?)) }
    }
}

fn described() -> Result<Vec<Description>, Failure> {
    Ok(dsl::names().into_iter().map(|name| dsl::describe(&dsl::named(name)?)).collect::<Result<_, _>>()?)
}

/// Finds the line `what: ..` in the documentation of a schedule's file.
fn said<'a>(description: &'a Description, what: &str) -> Option<&'a str> {
    description.details.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(": "))
}

fn memory(description: &Description) -> &str {
    said(description, "memory").unwrap_or("")
}

/// Returns the address of the paper whose arXiv number is in the summary.
fn paper(description: &Description) -> Option<String> {
    let number = description.summary.split("arXiv ").nth(1)?;
    let number: String = number.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    Some(format!("https://arxiv.org/abs/{}", number.trim_end_matches('.')))
}

/// Describes a schedule in comments of its file: its timeline, memory, bubble and paper.
fn card(d: &Description) -> Result<String, Failure> {
    let (devices, microbatches) = SMALL;
    let usual: Option<u32> = d.options.iter().find_map(|option| option.strip_prefix("v = ")?.parse().ok());
    let (several, usual) = (usual.is_some(), usual.filter(|&v| v > 1));
    let named = |v: Option<u32>| v.map_or_else(|| d.name.clone(), |v| format!("{}:v={v}", d.name));
    let small = |v| Selection::new(devices, microbatches).resolve(&named(v), &Costs::default());
    let all = [usual, several.then_some(CHUNKS)];
    let all: Vec<Resolved> = all[..1 + usize::from(several)].iter().map(|&v| small(v)).collect::<Result<_, _>>()?;
    let predicted = all.iter().map(Resolved::predict).collect::<Result<Vec<_>, _>>()?;
    let first = predicted[0].metrics();
    let mut lines = vec![d.summary.clone(), String::new()];
    const MARGIN: usize = 2; // "# "
    let mut report = Report::drawn(&predicted);
    in_report(&mut report);
    let drawn = draw(&report, false, Color::default(), MARGIN);
    lines.extend(drawn.lines().map(str::to_string));
    lines.push(String::new());
    let mut add = |what: &str, text: String| lines.push(format!("{what:9}{text}"));
    add("stages", d.placement.clone());
    if !d.options.is_empty() {
        add("options", d.options.join(", "));
    }
    let mut peaks: Vec<String> = first.per_device.iter().map(|device| number(device.peak_activations)).collect();
    peaks.dedup();
    add("memory", format!("{}   (here {} activations)", memory(d), peaks.join(", ")));
    let wait = format!(
        "(here {} of {} units, {})",
        number(first.makespan - first.ideal),
        number(first.makespan),
        percent(first.bubble)
    );
    let formula = said(d, "bubble").unwrap_or("no formula: costs decide the order");
    add("bubble", format!("{formula}   {wait}"));
    if let Some(paper) = paper(d) {
        add("paper", paper);
    }
    for (framework, own) in having(&d.name).map_err(Failure::usage)? {
        add("in", format!("{} {}: {own}", framework.title(), framework.version()));
    }
    add("again", format!("pipesim predict --stages {devices} --micro {microbatches} -s {}", named(usual)));
    lines.push(String::new());
    lines.push(
        "memory: most activations that device r holds; 1 is what its whole share of layers keeps for one micro-batch."
            .to_string(),
    );
    lines.push("bubble: the step's time beyond m (F + I + W), the work of a device; B = I + W.".to_string());
    let text = fold(&lines.join("\n"), MARGIN);
    Ok(text.lines().map(|line| format!("# {line}").trim_end().to_string() + "\n").collect())
}

/// Returns the list as JSON.
pub fn list() -> Result<Value, Failure> {
    let one = |d: &Description| {
        let of = having(&d.name).map_err(Failure::usage)?.into_iter();
        let of = of.map(
            |(one, own)| json!({"name": one.name(), "title": one.title(), "version": one.version(), "schedule": own}),
        );
        let (peak, bubble, of) = (memory(d), said(d, "bubble"), of.collect::<Vec<_>>());
        Ok(
            json!({"name": d.name, "summary": d.summary, "placement": d.placement, "peak_activations": peak, "options": d.options,
                  "bubble": bubble, "paper": paper(d), "frameworks": of}),
        )
    };
    let list = described()?.iter().map(one).collect::<Result<Vec<_>, Failure>>()?;
    Ok(json!({"schema_version": 1, "schedules": list}))
}

/// Formats two lines per schedule: its summary; its placement, memory and options.
fn table(all: &[Description]) -> String {
    let width = all.iter().map(|d| d.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for d in all {
        let options = if d.options.is_empty() { String::new() } else { format!("; options: {}", d.options.join(", ")) };
        text += &format!(
            "{:width$}  {}\n{:width$}  {}; holds {}{options}\n",
            d.name,
            d.summary,
            "",
            d.placement,
            memory(d)
        );
    }
    text + "\nauto: the best of these under --memory-cap. Device r holds activations in units of what its whole share of layers keeps \
            for one micro-batch.\n`pipesim schedules NAME` shows a schedule and prints its text; `pipesim tour` walks through eight of them.\n"
}
