//! `pipesim schedules`.

use super::Failure;
use super::output::print;
use crate::dsl::{self, Description};
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
    ///
    /// # Errors
    /// An unknown name.
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(name) = &self.name {
            return print(&dsl::resolve(name)?.text);
        }
        let mut all = Vec::new();
        for name in dsl::names() {
            all.push(dsl::describe(&dsl::resolve(name)?)?);
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

fn table(all: &[Description]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(110);
    table.set_header(["schedule", "placement", "peak activations", "options", "what it is"]);
    for d in all {
        table.add_row([d.name.as_str(), d.placement.as_str(), memory(d), &d.options.join(", "), d.summary.as_str()]);
    }
    format!(
        "{table}\nPeak activations of device r, in what a device's whole share of layers keeps for one micro-batch.\n"
    )
}
