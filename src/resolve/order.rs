//! From a name or a path to the order that it stands for.

use super::{Error, Selection, Warning, read_text};
use crate::csv;
use crate::dsl::{self, Request, Source};
use crate::open::Order;
use crate::schedule::Schedule;
use std::path::Path;

/// The order that a name or path stands for.
#[derive(Debug)]
pub struct Found {
    /// The order, or what settles it.
    pub order: Order,
    /// Where its ops were written.
    pub source: Option<Source>,
    /// What was understood otherwise than it was written.
    pub warnings: Vec<Warning>,
}

impl Selection {
    /// The order that a name or path stands for.
    ///
    /// # Errors
    /// An unknown or invalid schedule, options that it does not have, a step too large for this machine.
    pub fn order(&self, name: &str) -> Result<Found, Error> {
        if Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) {
            return self.imported(name);
        }
        let path = dsl::resolve(name)?;
        let Selection { devices, microbatches, chunks, budget, .. } = *self;
        let ops = u64::from(devices) * u64::from(microbatches) * u64::from(chunks.unwrap_or(1));
        self.host.admit(2 * ops)?;
        let request = Request { devices, microbatches, chunks, options: self.options.clone(), budget };
        let watch = self.host.watch(&path.file, budget, 16 * 3 * ops);
        let compiled = dsl::compile(&path, &request)?;
        drop(watch);
        Ok(Found { order: compiled.order, source: Some(compiled.source), warnings: Vec::new() })
    }

    /// The schedule in one of PyTorch's files, which must be for the numbers asked for.
    fn imported(&self, file: &str) -> Result<Found, Error> {
        self.no_options("a .csv file holds one order")?;
        if self.chunks.is_some() {
            return Err(Error::Usage(format!("{file} says itself how many stages a device has; leave --chunks out")));
        }
        let text = read_text(self.host, file, csv::MAX_BYTES as u64)?;
        let name = Path::new(file).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let csv::Imported { schedule, warnings } = csv::read(&name, file, &text)?;
        let (devices, microbatches) = (schedule.devices(), schedule.microbatches);
        if (devices, microbatches) != (self.devices, self.microbatches) {
            return Err(Error::Usage(format!(
                "{file} is a schedule for {devices} devices and {microbatches} micro-batches; ask for --stages {devices} --micro {microbatches}, found --stages {} --micro {}",
                self.devices, self.microbatches
            )));
        }
        let incomplete = |fault| Error::Incomplete { file: file.to_string(), devices, microbatches, fault };
        let warnings = warnings.into_iter().map(Warning::Imported).collect();
        Schedule::validate(&schedule).map_err(incomplete)?;
        Ok(Found { order: Order::Fixed(schedule), source: None, warnings })
    }
}
