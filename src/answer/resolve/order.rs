//! The order of a schedule's name or path.

use super::variant::memory_cap;
use super::{Error, Host, Selection, Variant, Warning, usage};
use pipesim_language::{self as dsl, Request, ScheduleFile, ScheduleSource, Takes};
use pipesim_schedule::csv;
use pipesim_schedule::graph::TaskGraph;
use pipesim_schedule::open::Order;
use pipesim_schedule::schedule::Schedule;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

#[derive(Debug)]
pub struct Found {
    /// Fixed or open order.
    pub order: Order,
    /// Source locations of its ops.
    pub source: Option<ScheduleSource>,
    /// Deviations from the text.
    pub warnings: Vec<Warning>,
}

#[derive(Debug)]
pub struct OrderedGraph {
    pub graph: TaskGraph,
    /// Name of the schedule that `auto` chose, which can be requested by itself.
    pub chosen: Option<String>,
    /// Deviations from the schedule's text.
    pub warnings: Vec<Warning>,
}

/// Maximum size of a schedule file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Returns the schedule file with this name, or at this path: anything with a `/`, or that ends in `.star`.
pub fn schedule_file(host: &dyn Host, name: &str) -> Result<ScheduleFile, Error> {
    if !name.contains('/') && !name.ends_with(".star") {
        return Ok(dsl::named(name)?);
    }
    let fail = |what: &str| dsl::Error::Usage(format!("expected a schedule file at {name}, {what}"));
    let text = host.read(name, MAX_FILE_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fail("found none; check the path, or give a name that `pipesim schedules` lists"),
        _ => fail(&unread(&error)),
    })?;
    let text = text.ok_or_else(|| {
        fail(&format!("found more than {} MiB; write loops and n * word instead of single ops", MAX_FILE_BYTES >> 20))
    })?;
    let stem = Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    Ok(ScheduleFile { name: stem.into_owned(), file: name.to_string(), text })
}

/// Returns the text of a plain file of at most `limit` bytes.
pub fn read_text(host: &dyn Host, path: &str, limit: u64) -> Result<String, Error> {
    let fail = |what: String| Error::File { path: path.to_string(), what };
    let text = host.read(path, limit).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fail("expected a file, found none; check the path".to_string()),
        _ => fail(format!("expected a file, {}", unread(&error))),
    })?;
    text.ok_or_else(|| fail(format!("expected at most {} MiB, found more; is it the file you mean?", limit >> 20)))
}

/// Describes an error in place of a text.
fn unread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "found one that may not be read; change its permissions".to_string(),
        io::ErrorKind::IsADirectory
        | io::ErrorKind::InvalidData
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::Unsupported => error.to_string(),
        _ => format!("found one that cannot be read ({error}); copy it to a plain file"),
    }
}

impl Selection {
    /// Returns which of chunks and options the schedule of a variant accepts.
    ///
    /// # Errors
    /// An unknown or invalid schedule.
    pub fn takes(&self, variant: &Variant) -> Result<Takes, Error> {
        if variant.is_auto() {
            return Ok(Takes { options: vec!["v".to_string(), "cap".to_string()], chunks: true });
        }
        if variant.is_csv() {
            return Ok(Takes::default());
        }
        let file = schedule_file(self.host, &variant.base)?;
        let Selection { devices, microbatches, budget, .. } = *self;
        let request = Request { devices, microbatches, chunks: None, options: BTreeMap::new(), budget };
        let _watch = self.host.watch(&file.file, budget, 0);
        Ok(dsl::takes(&file, &request)?)
    }

    /// Returns the selection for `variant`: its own options in addition to the common ones.
    ///
    /// # Errors
    /// An option that both set.
    pub(super) fn of(&self, variant: &Variant) -> Result<Selection, Error> {
        let mut own = self.clone();
        if self.lenient && (self.chunks.is_some() || !self.options.is_empty()) {
            let takes = self.takes(variant)?;
            own.chunks = own.chunks.filter(|_| takes.chunks);
            own.options.retain(|key, _| takes.options.contains(key));
        }
        if self.slices.is_some() && !self.takes(variant)?.options.iter().any(|option| option == "slices") {
            if !self.lenient {
                return Err(usage(format!(
                    "`slice-lengths` cuts sequences, and {variant} has no slices; leave it out"
                )));
            }
            own.slices = None;
        }
        for (key, value) in &variant.options {
            let both = match key.as_str() {
                "v" if own.chunks.is_some_and(|chunks| chunks.to_string() != *value) => Some("`chunks`"),
                "cap" if variant.is_auto() && own.memory_cap.is_some() => Some("`memory-cap`"),
                _ if own.options.contains_key(key) => Some("`set`"),
                _ => None,
            };
            if let Some(flag) = both {
                return Err(usage(format!("{flag} and {variant} both say what {key} is; leave one of the two out")));
            }
        }
        own.options.extend(variant.options.clone());
        if variant.options.contains_key("v") || variant.is_auto() {
            let v = own.options.remove("v").map(|text| dsl::chunks_asked(&text)).transpose()?;
            own.chunks = v.or(own.chunks);
        }
        if variant.is_auto()
            && let Some(text) = own.options.remove("cap")
        {
            let cap = memory_cap(&text).map_err(|why| usage(format!("{variant}: cap = {text}: {why}")))?;
            own.memory_cap = Some(cap);
        }
        Ok(own)
    }

    /// Returns the order of a name or path, with or without its own options.
    ///
    /// # Errors
    /// An unknown or invalid schedule, unknown options, or a step too large for this machine.
    pub fn order(&self, name: &str) -> Result<Found, Error> {
        let variant = Variant::parse(name)?;
        self.of(&variant)?.order_of(&variant)
    }

    /// Returns the order of a variant whose options are already in the selection.
    pub(super) fn order_of(&self, variant: &Variant) -> Result<Found, Error> {
        if variant.is_csv() {
            return self.imported(&variant.base);
        }
        let file = schedule_file(self.host, &variant.base)?;
        self.compiled(&ScheduleFile { name: variant.named(&file.name), ..file })
    }

    /// Returns the order of the schedule file `text`, named `name`.
    ///
    /// # Errors
    /// As [`Selection::order`].
    pub fn order_of_text(&self, name: &str, text: &str) -> Result<Found, Error> {
        self.compiled(&ScheduleFile::from_text(name, text))
    }

    fn compiled(&self, path: &ScheduleFile) -> Result<Found, Error> {
        let Selection { devices, microbatches, chunks, budget, .. } = *self;
        let stages = u64::from(devices) * u64::from(chunks.unwrap_or(1));
        let ops = (2 * u64::from(microbatches)).saturating_mul(stages);
        if ops <= budget.ops {
            self.host.admit(ops)?; // above its budget the schedule is at fault, not the machine
        }
        let options = self.sliced_options()?;
        let request = Request { devices, microbatches, chunks, options, budget };
        let watch = self.host.watch(&path.file, budget, ops);
        let compiled = dsl::compile(path, &request)?;
        drop(watch);
        let stages = compiled.order.placement().stages();
        self.host.admit(2 * u64::from(stages) * u64::from(microbatches))?; // the file may have set more chunks
        let order = match &self.slices {
            None => compiled.order,
            Some(slices) => compiled.order.with_slices(slices.clone()),
        };
        Ok(Found { order, source: Some(compiled.source), warnings: Vec::new() })
    }

    /// Returns the schedule's own options with the number of slices that --slice-lengths implies.
    fn sliced_options(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut options = self.options.clone();
        let Some(slices) = &self.slices else { return Ok(options) };
        let count = slices.count().to_string();
        match options.get("slices") {
            Some(given) if given.trim() != count => Err(usage(format!(
                "`slice-lengths` has {count} lengths, but slices = {given}; give as many lengths, or leave slices out"
            ))),
            _ => {
                options.insert("slices".to_string(), count);
                Ok(options)
            }
        }
    }

    /// Reads one of PyTorch's CSV files, which must be for the requested numbers.
    fn imported(&self, file: &str) -> Result<Found, Error> {
        self.no_options("a .csv file holds one order")?;
        if self.chunks.is_some() {
            return Err(usage(format!("{file} fixes the number of stages per device; leave `chunks` out")));
        }
        let text = read_text(self.host, file, csv::MAX_BYTES as u64)?;
        let name = Path::new(file).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let csv::Imported { schedule, warnings } = csv::read(&name, file, &text)?;
        let (devices, microbatches) = (schedule.devices(), schedule.microbatches);
        if (devices, microbatches) != (self.devices, self.microbatches) {
            return Err(Error::OtherNumbers(format!(
                "{file} is a schedule for {devices} devices and {microbatches} micro-batches; ask for `stages` {devices} `micro` {microbatches}, found `stages` {} `micro` {}",
                self.devices, self.microbatches
            )));
        }
        let (ops, budget) = (schedule.ops().len() as u64, self.budget.ops);
        if ops > budget {
            let why = format!("{file} has {ops} ops; the budget is {budget} ops; raise `max-ops`");
            return Err(dsl::Error::Invalid(why).into());
        }
        let incomplete = |fault| Error::Incomplete { file: file.to_string(), devices, microbatches, fault };
        let warnings = warnings.into_iter().map(Warning::Imported).collect();
        Schedule::validate(&schedule).map_err(incomplete)?;
        Ok(Found { order: Order::Fixed(schedule), source: None, warnings })
    }
}
