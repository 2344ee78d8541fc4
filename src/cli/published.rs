//! `pipesim report published`: predict every row of a table of published, measured steps, and write a page.

use super::Failure;
use super::guard::Guarded;
use super::options::{RemarkOptions, read_text};
use super::output::{json, print};
use crate::published;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `report published`.
#[derive(Args)]
pub struct Published {
    /// The table: a list of rows in JSON
    #[arg(value_name = "FILE", default_value = "tests/golden/throughputs/measured.json")]
    file: PathBuf,
    /// Folder to write the page to
    #[arg(long, short, value_name = "FOLDER", default_value = "reports/published")]
    output: PathBuf,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Published {
    /// Predicts, prints, writes.
    pub fn run(&self) -> Result<(), Failure> {
        let text = read_text(&self.file, 256 << 20)?;
        let of_file = |text: String| Failure::Usage(format!("{}: {text}", self.file.display()));
        let (rows, faults) = published::read(&text).map_err(|error| of_file(error.to_string()))?;
        let left_out = |all: usize| {
            let count = faults.len();
            of_file(format!("{count} of {all} rows cannot be read; correct them:\n  {}", faults.join("\n  ")))
        };
        let all = rows.len() + faults.len();
        if rows.is_empty() && !faults.is_empty() {
            return Err(left_out(all));
        }
        let busy = self.remarks.busy("making the orders of published schedules", None);
        let held = published::hold(rows, &Guarded, &|_| busy.done());
        drop(busy);
        let markdown = published::markdown(&held);
        let files = [
            ("README.md", markdown.clone()),
            ("index.html", published::html(&held)),
            ("scatter.svg", published::scatter(&held)),
            ("published.json", json(&published::json(&held))?),
        ];
        std::fs::create_dir_all(&self.output).with_context(|| format!("cannot make {}", self.output.display()))?;
        for (name, text) in files {
            let path = self.output.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.remarks.remark(&format!("wrote {}", self.output.display()));
        print(&markdown)?;
        // The other rows were judged all the same.
        if faults.is_empty() { Ok(()) } else { Err(left_out(all)) }
    }
}
