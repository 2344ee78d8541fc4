//! `pipesim schedules`.

use super::Failure;
use super::output::{print, print_text};
use crate::dsl::{self, Description};
use crate::resolve::{self, Files};
use clap::Args;

const HELP: &str = "\
To ask for one with options, in any verb:
  -s interleaved-1f1b:v=4
  -s group-interleaved:v=2,group=2

To write one (`pipesim schedules zb-v` prints one; the book has a page on it):

  options: parameters of device with defaults, set by -s FILE:late=2
    def device(r, p, m, late = 0):
        n = min(p - 1 - r + late, m)
        return n * F + (m - n) * (F + B) + n * B

  placements: linear (where none is named), loop, zigzag, v_shape,
  bidirectional, or the device of each stage
    placement = custom([0, 1, 1, 0])
    def device(r, p, m):
        return m * F[0] + m * F[1] + m * B[1] + m * B[0]

  caps: the most activations of a device, in fill, greedy and search; 1 is
  what its whole share of layers keeps for one micro-batch
    def device(r, p, m):
        return greedy([I, F, W], cap = 1.5)

  greedy over chunks: what is ready runs, on whichever chunk of the device;
  the first kind named goes first, of it the oldest micro-batch
    placement = v_shape
    def device(r, p, m):
        return greedy([B, F], cap = p)
";

/// Arguments of `schedules`.
#[derive(Args)]
#[command(after_help = HELP)]
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
