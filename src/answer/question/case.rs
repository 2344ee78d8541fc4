//! Every combination of schedules, numbers of devices and numbers of micro-batches.

use super::observer::Observer;
use super::remark::{self, Remark};
use super::settings::Question;
use crate::resolve::{Costs, Error, Host, Resolved, Selection, Variant, Warning};
use pipesim_language as dsl;
use pipesim_report::{ComparisonPoint, LeftOut};
use pipesim_sim::event::EventError;
use std::ops::Deref;

/// One schedule for one p and m.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// The schedule as it was asked for.
    pub name: String,
    /// Its displayed name, its numbers, and why there is no prediction.
    pub point: ComparisonPoint,
    /// Name of the schedule that `auto` chose.
    pub chosen: Option<String>,
}

impl Deref for Case {
    type Target = ComparisonPoint;

    fn deref(&self) -> &ComparisonPoint {
        &self.point
    }
}

impl Case {
    /// Leaves it out because its step cannot be simulated.
    pub(super) fn leave_out(&mut self, error: &EventError) {
        self.point.left_out = Some(LeftOut { what: "deadlock", why: error.to_string() });
    }

    /// Notes why it is left out, if it is.
    pub(super) fn remark_left_out(&self, observer: &dyn Observer) {
        if let Some(left_out) = &self.left_out {
            observer.remark(&Remark::CaseLeftOut { name: self.name.clone(), left_out: left_out.clone() });
        }
    }

    /// Returns the name of the built-in schedule, that which `auto` chose included; none for a file.
    pub fn known_schedule(&self) -> Option<&'static str> {
        built_in(self.chosen.as_ref().unwrap_or(&self.name))
    }

    /// Whether there is a prediction.
    pub fn exists(&self) -> bool {
        self.left_out.is_none()
    }

    /// Whether a table marks it as left out or above the cap.
    pub fn is_marked(&self) -> bool {
        self.left_out.is_some() || self.above_cap.is_some()
    }

    /// Returns the displayed name, with p and m if there are `several`.
    pub fn label(&self, several: bool) -> String {
        let ComparisonPoint { schedule, devices, microbatches, .. } = &self.point;
        if several { format!("{schedule} p={devices} m={microbatches}") } else { schedule.clone() }
    }
}

impl Question {
    /// Resolves each schedule at each p and m, and gives each to `visit` in their order: by p, m and schedule. Of several, those that do not
    /// exist are left out, unless none does.
    pub(super) fn each_case<E: From<Error>>(
        &self,
        costs: &Costs,
        host: &'static dyn Host,
        observer: &dyn Observer,
        mut visit: impl FnMut(Case, Option<Resolved>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (names, count) = (self.names(), self.count());
        self.reject_unused(&names, host, observer)?;
        let plain = self.selection_of(costs, host)?;
        let (mut first, mut any) = (None, false);
        for (devices, microbatches) in self.points() {
            let selection = Selection { devices, microbatches, ..plain.clone() };
            for (number, name) in names.iter().enumerate() {
                let resolved = resolve(&selection, name, costs, observer);
                let point = ComparisonPoint {
                    schedule: name.clone(),
                    number,
                    devices,
                    microbatches,
                    ..ComparisonPoint::default()
                };
                let mut case = Case { name: name.clone(), point, chosen: None };
                let resolved = match resolved {
                    Err(error) if count > 1 && error.is_of_numbers() => {
                        case.point.left_out = Some(remark::left_out(&error));
                        first.get_or_insert(error);
                        None
                    }
                    resolved => Some(resolved?),
                };
                if let Some(resolved) = &resolved {
                    case.point.schedule.clone_from(&resolved.graph.schedule().name);
                    case.chosen.clone_from(&resolved.chosen);
                    case.point.above_cap = resolved.warnings.iter().find_map(|warning| match warning {
                        Warning::AboveCap { cap, .. } => Some(*cap),
                        Warning::Imported(_) | Warning::NoneFits { .. } => None,
                    });
                }
                if !self.are_several() {
                    case.remark_left_out(observer);
                }
                any |= resolved.is_some();
                visit(case, resolved)?;
            }
        }
        match first {
            Some(error) if !any => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Resolves each schedule at the first p and m.
    ///
    /// # Errors
    /// Settings without effect, or a schedule that does not exist.
    pub fn resolved(
        &self,
        costs: &Costs,
        host: &'static dyn Host,
        observer: &dyn Observer,
    ) -> Result<Vec<Resolved>, Error> {
        let names = self.names();
        self.reject_unused(&names, host, observer)?;
        let selection = self.selection_of(costs, host)?;
        names.iter().map(|name| resolve(&selection, name, costs, observer)).collect()
    }

    /// Returns the request for a schedule with these costs, at the first p and m.
    ///
    /// # Errors
    /// As [`Question::selection`].
    pub fn selection_of(&self, costs: &Costs, host: &'static dyn Host) -> Result<Selection, Error> {
        let plain = self.selection(host)?;
        Ok(costs.analytic().map_or(plain.clone(), |analytic| plain.under(analytic)))
    }
}

fn built_in(asked: &str) -> Option<&'static str> {
    let base = dsl::named(&Variant::parse(asked).ok()?.base).ok()?.name;
    dsl::names().into_iter().find(|name| *name == base)
}

impl Resolved {
    /// Returns the name of the built-in schedule that was `asked` for or that `auto` chose; none for a file.
    pub fn built_in(&self, asked: &str) -> Option<&'static str> {
        built_in(self.chosen.as_deref().unwrap_or(asked))
    }
}

fn resolve(selection: &Selection, name: &str, costs: &Costs, observer: &dyn Observer) -> Result<Resolved, Error> {
    let busy = observer.busy(&format!("making the order of {name}"), None);
    let resolved = selection.resolve(name, costs)?;
    drop(busy);
    resolved.warnings.iter().for_each(|warning| observer.remark(&Remark::Warning(warning.clone())));
    Ok(resolved)
}
