//! `pipesim-validation`: predicts published steps, fits the constants of the cost model, and compares searched schedules with the
//! zero-bubble authors' own.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pipesim_validation::{calibration, fit, layouts, left_out, originals, predict, read, regret, write};
use std::path::{Path, PathBuf};

/// Research harness of pipesim.
#[derive(Parser)]
enum Verb {
    /// Predict every row of a table of published steps, and write a page of the errors
    Published {
        /// Table: a list of rows in JSON
        #[arg(default_value = "tests/golden/throughputs/measured.json")]
        table: PathBuf,
        /// Folder to write the page to
        #[arg(long, short, default_value = "reports/published")]
        output: PathBuf,
    },
    /// Fit the constants of the cost model to a table of published steps
    Fit {
        /// Table: a list of rows in JSON
        #[arg(default_value = "tests/golden/throughputs/measured.json")]
        table: PathBuf,
        /// What each fit leaves out in turn, to predict it
        #[arg(value_enum, default_value = "all")]
        left_out: fit::LeftOut,
        /// Leave out rows whose order is searched, which takes minutes
        #[arg(long)]
        fixed: bool,
    },
    /// Predict every published step of a fixed order by a fit without steps like it; write the ratios, and the intervals of predictions
    /// that follow
    LeftOut {
        /// The repository's root
        #[arg(default_value = ".")]
        root: PathBuf,
    },
    /// Correct predictions of published layouts by others of their group; write the prior and the errors, and print them as Markdown
    Calibration {
        /// The repository's root
        #[arg(default_value = ".")]
        root: PathBuf,
    },
    /// Predict a measured grid of layouts: which run out of memory, and how long steps are
    Layouts {
        /// Grid: a list of runs in JSON
        table: PathBuf,
    },
    /// Choose the best layout of each search problem by prediction, and print how much slower it is than the best measured one, as
    /// Markdown
    Regret {
        /// Table: a measured grid of layouts, or a list of published steps, in JSON
        table: PathBuf,
    },
    /// Compare searched schedules with what the zero-bubble authors' schedulers reach, as Markdown
    Originals {
        /// Table of cases in JSON
        #[arg(default_value = "tests/golden/zero-bubble/originals.json")]
        table: PathBuf,
        /// Only cases of these schedulers or numbers of devices: ZBV, p16
        only: Vec<String>,
    },
}

fn main() -> Result<()> {
    match Verb::parse() {
        Verb::Published { table, output } => published(&table, &output),
        Verb::Fit { table, left_out, fixed } => fit::CrossValidation::new(&text(&table)?, fixed)?.print(left_out),
        Verb::LeftOut { root } => left_out::write(&root),
        Verb::Calibration { root } => calibration::write(&root),
        Verb::Layouts { table } => layouts::print(&text(&table)?),
        Verb::Regret { table } => {
            print!("{}", regret::page(&text(&table)?)?);
            Ok(())
        }
        Verb::Originals { table, only } => originals::print(&text(&table)?, &only),
    }
}

fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Rows that cannot be read are listed at the end, after the page of the others.
fn published(table: &Path, output: &Path) -> Result<()> {
    let (rows, faults) = read(&text(table)?).with_context(|| table.display().to_string())?;
    let (read, all) = (rows.len(), rows.len() + faults.len());
    if read > 0 {
        print!("{}", write(&predict(rows), &left_out::read_ratios(output)?, output)?);
        eprintln!("wrote {}", output.display());
    }
    let names = faults.join("\n  ");
    ensure!(faults.is_empty(), "{}: {} of {all} rows cannot be read:\n  {names}", table.display(), faults.len());
    Ok(())
}
