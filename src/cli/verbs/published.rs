//! `pipesim report published`: predict every row of a table of published measurements, and write a page.

use crate::cli::Failure;
use crate::cli::options::costs::read_text;
use crate::cli::options::output::json;
use crate::cli::sandbox::Sandbox;
use crate::cli::terminal::print;
use crate::cli::terminal::progress::RemarkOptions;
use crate::published;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Published {
    /// Table: a JSON list of rows
    #[arg(value_name = "FILE", default_value = "tests/golden/throughputs/measured.json")]
    file: PathBuf,
    /// Folder to write the page to
    #[arg(long, short, value_name = "FOLDER", default_value = "reports/published")]
    output: PathBuf,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Published {
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
        let busy = self.remarks.busy("ordering published schedules", None);
        let held = published::hold(rows, &Sandbox, &|_| busy.done());
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
        // The other rows are judged in any case.
        if faults.is_empty() { Ok(()) } else { Err(left_out(all)) }
    }
}
