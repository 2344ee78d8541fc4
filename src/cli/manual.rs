//! `pipesim man`: the manual pages, from the description of the command line.

use super::Failure;
use crate::nearest::{hint, nearest};
use clap::Command;

/// The page of the program, or of one of its verbs: by its name, below another by both.
pub fn page(mut program: Command, verb: &[String]) -> Result<String, Failure> {
    program.build();
    let mut described = program;
    for name in verb {
        let known: Vec<String> = described.get_subcommands().map(|verb| verb.get_name().to_string()).collect();
        let found = described.find_subcommand(name).cloned();
        described = found.ok_or_else(|| {
            Failure::Usage(format!(
                "expected a verb, one of {}, found '{name}'{}; give one of these or none",
                known.join(", "),
                hint(&nearest(name, &known.iter().map(String::as_str).collect::<Vec<_>>()))
            ))
        })?;
    }
    let name = [&["pipesim".to_string()], verb].concat().join("-");
    let mut text = Vec::new();
    let source = format!("pipesim {}", env!("CARGO_PKG_VERSION"));
    let manual = clap_mangen::Man::new(described).title(name).source(source);
    manual.render(&mut text).map_err(anyhow::Error::from)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
