//! `pipesim schedules`.

use super::Failure;
use super::output::{print, print_text};
use crate::dsl::{self, Description};
use crate::resolve::{self, Files};
use clap::Args;

/// Arguments of `schedules`.
#[derive(Args)]
pub struct Schedules {
    /// Print the text of one schedule instead of the list
    name: Option<String>,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

impl Schedules {
    /// Lists the schedules, or prints one.
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(name) = &self.name {
            return print_text(&resolve::schedule_file(&Files, name)?.text);
        }
        let mut all = Vec::new();
        for name in dsl::names() {
            all.push(dsl::describe(&dsl::named(name)?)?);
        }
        print(&if self.json { json(&all) } else { table(&all) })
    }
}

fn memory(description: &Description) -> &str {
    description.details.lines().find_map(|line| line.strip_prefix("memory: ")).unwrap_or("")
}

fn json(all: &[Description]) -> String {
    let list: Vec<_> = all
        .iter()
        .map(|d| {
            serde_json::json!({"name": d.name, "summary": d.summary, "placement": d.placement,
                               "peak_activations": memory(d), "options": d.options})
        })
        .collect();
    format!("{:#}\n", serde_json::json!({"schema_version": 1, "schedules": list}))
}

/// Two lines a schedule: what it is, and under it where its stages are, what it holds and which options it has.
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
    text + "\nauto: the best of these under --memory-cap. What device r holds is counted in what its whole share of layers keeps for \
            one micro-batch.\n`pipesim schedules NAME` prints a schedule's text.\n"
}
