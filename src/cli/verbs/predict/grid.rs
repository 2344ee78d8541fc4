//! Every combination of schedules, numbers of devices and numbers of micro-batches.

use crate::cli::Failure;
use crate::cli::options::schedules::SearchOptions;
use crate::cli::terminal::progress::RemarkOptions;
use crate::dsl;
use crate::graph::TaskGraph;
use crate::report::{ComparisonPoint, Entry, LeftOut, Report};
use crate::resolve::{Costs, Error, Resolved, Selection, Variant, Warning};
use crate::sim::event::EventError;
use std::collections::{BTreeMap, BTreeSet};

/// One schedule for one p and m.
pub struct Combination {
    pub name: String,
    pub point: ComparisonPoint,
    /// The schedule with its costs, unless it is left out. A sweep drops it after its prediction.
    pub resolved: Option<Resolved>,
}

/// The numbers of stages per device of each schedule, over all p.
#[derive(Default)]
pub struct ChunksBySchedule(BTreeMap<String, BTreeSet<u32>>);

impl ChunksBySchedule {
    /// Notes the graph of the schedule `name`; `auto` chooses its chunks.
    pub fn note(&mut self, name: &str, graph: &TaskGraph) {
        if let Some(variant) = Variant::parse(name).ok().filter(|variant| !variant.is_auto()) {
            self.0.entry(variant.base).or_default().insert(graph.schedule().placement.chunks());
        }
    }
}

/// Returns what a table shows for a schedule that does not exist for some numbers.
fn what(error: &Error) -> &'static str {
    match error {
        Error::Deadlock { .. } => "deadlock",
        Error::Cost(_) | Error::Split(_) => "no costs",
        Error::Ordering { .. } => "no order",
        _ => "none",
    }
}

impl Combination {
    /// Leaves the combination out because its step cannot be simulated.
    pub fn leave_out(&mut self, error: &EventError) {
        self.point.left_out = Some(LeftOut { what: "deadlock", why: error.to_string() });
        self.resolved = None;
    }

    /// Prints why the combination is left out, if it is.
    pub fn remark_left_out(&self, remarks: RemarkOptions) {
        if let Some(LeftOut { why, .. }) = &self.point.left_out {
            let why = why.lines().next().unwrap_or_default().trim_end_matches(':');
            remarks.remark(&format!("note: {} is left out: {why}", self.name));
        }
    }

    /// Returns the name of the built-in schedule, none for a file.
    pub fn known_schedule(&self) -> Option<&'static str> {
        let variant = Variant::parse(&self.name).ok()?;
        let name = &self.resolved.as_ref()?.graph.schedule().name;
        let base = if variant.is_auto() { name.split(" (").nth(1)?.trim_end_matches(')') } else { &variant.base };
        let base = dsl::named(base.split(':').next()?).ok()?.name;
        dsl::names().into_iter().find(|name| *name == base)
    }

    /// Whether the schedule exists for these numbers.
    pub fn exists(&self) -> bool {
        self.point.left_out.is_none()
    }

    /// Whether a table marks the combination as left out or above the cap.
    pub fn is_marked(&self) -> bool {
        self.point.left_out.is_some() || self.point.above_cap.is_some()
    }

    /// Returns the schedule's name, with p and m if there are `several`.
    pub fn label(&self, several: bool) -> String {
        let ComparisonPoint { schedule, devices, microbatches, .. } = &self.point;
        if several { format!("{schedule} p={devices} m={microbatches}") } else { schedule.clone() }
    }
}

impl SearchOptions {
    pub fn are_several(&self) -> bool {
        self.stages.are_several() || self.micro.are_several()
    }

    /// Whether results are printed as a comparison: several p or m, or several schedules with options or a cap.
    pub fn is_comparison(&self) -> bool {
        let names = self.names();
        let has_options = |name: &String| Variant::parse(name).is_ok_and(|variant| !variant.options.is_empty());
        let contest = self.memory_cap.is_some() || names.iter().any(has_options);
        self.are_several() || names.len() > 1 && contest
    }

    /// Returns the number of combinations.
    pub fn count(&self) -> usize {
        self.stages.all().len() * self.micro.all().len() * self.names().len()
    }

    /// Resolves each schedule at each p and m, and gives each to `visit` in their order: by p, m and schedule. With several
    /// combinations, those that do not exist are left out.
    pub fn each_combination(
        &self,
        costs: &Costs,
        balance: bool,
        remarks: RemarkOptions,
        mut visit: impl FnMut(Combination) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (names, count) = (self.names(), self.count());
        self.reject_unused(&names, remarks)?;
        let (mut first, mut any) = (None, false);
        for Selection { devices, microbatches, .. } in self.selections() {
            let selection = Selection { devices, microbatches, balance, ..self.selection() };
            for (number, name) in names.iter().enumerate() {
                let busy = remarks.busy(&format!("making the order of {name}"), None);
                let resolved = selection.resolve(name, costs);
                drop(busy);
                let mut point = ComparisonPoint {
                    schedule: name.clone(),
                    number,
                    devices,
                    microbatches,
                    above_cap: None,
                    left_out: None,
                };
                let resolved = match resolved {
                    Err(error) if count > 1 && error.is_of_numbers() => {
                        point.left_out = Some(LeftOut { what: what(&error), why: error.to_string() });
                        first.get_or_insert(Failure::from(error));
                        None
                    }
                    resolved => Some(resolved?),
                };
                if let Some(resolved) = &resolved {
                    resolved.warnings.iter().for_each(|warning| remarks.warn(warning));
                    point.schedule.clone_from(&resolved.graph.schedule().name);
                    point.above_cap = resolved.warnings.iter().find_map(|warning| match warning {
                        Warning::AboveCap { cap, .. } => Some(*cap),
                        Warning::Imported(_) | Warning::NoneFits { .. } => None,
                    });
                }
                let one = Combination { name: name.clone(), point, resolved };
                if !self.are_several() {
                    one.remark_left_out(remarks);
                }
                any |= one.exists();
                visit(one)?;
            }
        }
        match first {
            Some(failure) if !any => Err(failure),
            _ => Ok(()),
        }
    }

    /// Resolves each schedule at each p and m.
    pub fn combinations(
        &self,
        costs: &Costs,
        balance: bool,
        remarks: RemarkOptions,
    ) -> Result<Vec<Combination>, Failure> {
        let mut all = Vec::new();
        self.each_combination(costs, balance, remarks, |one| {
            all.push(one);
            Ok(())
        })?;
        Ok(all)
    }

    /// Notes that costs per device make the model grow with p, but not with v.
    pub fn remark_on_model(&self, chunks: &ChunksBySchedule, remarks: RemarkOptions) {
        const ONE_MODEL: &str = "for one model give --costs-per model, or layer with --layers";
        if self.stages.are_several() {
            let stages = &self.stages;
            remarks.remark(&format!(
                "note: costs are per device, so over p = {stages} the model grows with p; {ONE_MODEL}"
            ));
        }
        if chunks.0.values().any(|chunks| chunks.len() > 1) {
            remarks.remark(
                "note: costs are per device, and a chunk costs 1/v of them: at each p, every v has the same model",
            );
        }
    }
}

/// Makes a comparison of a report whose entries are the combinations that are not left out, in their order.
pub fn compared(report: Report, combinations: &[Combination], several: bool) -> Report {
    let mut extra_tables = report.extra_tables;
    // Jitter has a row per combination.
    for table in &mut extra_tables {
        let there = combinations.iter().filter(|one| one.exists());
        table.rows.iter_mut().zip(there).for_each(|(row, one)| row[0] = one.label(several));
    }
    let mut there = report.entries.into_iter();
    let entry = |one: &Combination| {
        let found = if one.exists() { there.next() } else { None };
        Entry { name: one.label(several), point: Some(one.point.clone()), ..found.unwrap_or_default() }
    };
    Report { entries: combinations.iter().map(entry).collect(), extra_tables, ..report }
}
