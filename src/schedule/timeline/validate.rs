//! Checks that header and spans of a timeline are consistent.

use super::read::{check_version, field};
use super::step::MAX_NS;
use super::{MAX_UNIT_NS, Source, Span, Timeline, TimelineError};
use crate::op::{Kind, Op};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), TimelineError> {
    if holds { Ok(()) } else { Err(TimelineError(what())) }
}

/// Units of time and their nanoseconds. Costs without a unit are in `unit`, which may have any length.
const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Maximum number of devices, and of chunks.
const MOST: u32 = 1 << 20;

impl Timeline {
    /// Checks that header and spans do not contradict each other or themselves; `place` is the path of the timeline in its file.
    pub(super) fn validate(&self, place: &str) -> Result<(), TimelineError> {
        check_version(place, Some(&Value::from(self.schema_version)))?;
        self.validate_header(place)?;
        self.validate_spans(place)?;
        self.validate_workers(place)?;
        self.validate_bounds(place)
    }

    pub(super) fn validate_spans(&self, place: &str) -> Result<(), TimelineError> {
        for (number, span) in self.spans.iter().enumerate() {
            self.validate_span(span).map_err(|what| TimelineError(self.of_span(place, number, &what)))?;
        }
        self.validate_ops(place)
    }

    fn validate_header(&self, place: &str) -> Result<(), TimelineError> {
        let between = |name: &str, found: u64, most: u64| {
            ensure((1..=most).contains(&found), || {
                format!("{}: expected a whole number from 1 to {most}, found {found}; correct it", field(place, name))
            })
        };
        between("devices", self.devices.into(), MOST.into())?;
        between("chunks", self.chunks.into(), MOST.into())?;
        between("microbatches", self.microbatches.into(), u32::MAX.into())?;
        between("unit_ns", self.unit_ns, MAX_UNIT_NS)?;
        self.validate_unit(place)?;
        self.validate_steps(place)?;
        ensure((0.0..=1.0).contains(&self.keep), || {
            format!("{}: expected a share between 0 and 1, found {}; correct it", field(place, "keep"), self.keep)
        })
    }

    /// Checks the figures of an imported run's steps, and its incomplete devices.
    fn validate_steps(&self, place: &str) -> Result<(), TimelineError> {
        for device in &self.incomplete_devices {
            ensure(*device < self.devices, || {
                let place = field(place, "incomplete_devices");
                format!(
                    "{place}: expected devices below {}, as in the header, found {device}; correct it",
                    self.devices
                )
            })?;
        }
        let is_listed = self.step.is_none_or(|step| self.steps.iter().any(|figures| figures.number == step));
        ensure(is_listed, || {
            let (place, step) = (field(place, "step"), self.step.unwrap_or_default());
            format!("{place}: expected the number of one of the steps, found {step}; correct it, or leave it out")
        })?;
        self.steps.iter().enumerate().try_for_each(|(number, step)| {
            step.validate(self.devices).map_err(|what| {
                TimelineError(format!("{}: {what}; correct it", field(place, &format!("steps[{number}]"))))
            })
        })
    }

    /// Checks that the unit of time is known and has its length.
    fn validate_unit(&self, place: &str) -> Result<(), TimelineError> {
        let known = TIME_UNITS.iter().find(|(name, _)| *name == self.time_unit);
        ensure(known.is_some() || self.time_unit == "unit", || {
            let place = field(place, "time_unit");
            format!("{place}: expected unit, ns, us, ms or s, found '{}'; correct it", self.time_unit)
        })?;
        let (name, ns) = known.copied().unwrap_or(("unit", self.unit_ns));
        ensure(self.unit_ns == ns, || {
            let place = field(place, "unit_ns");
            format!(
                "{place}: expected {ns}, the nanoseconds of 1 {name}, found {}; correct unit_ns or time_unit",
                self.unit_ns
            )
        })
    }

    /// Checks that no prediction is shorter than its lower bounds. A measured step may be, on a machine that was fast at the time.
    fn validate_bounds(&self, place: &str) -> Result<(), TimelineError> {
        let end = || self.ops().map(|(_, span)| span.end_ns).max().unwrap_or(0);
        let most = match (self.typical_makespan_ns, self.source) {
            (Some(typical), _) => ("typical_makespan_ns", typical),
            (None, Source::Predicted) => ("the makespan", end()),
            (None, Source::Measured) => return Ok(()),
        };
        let bounds =
            [("lower_bound_ns", self.lower_bound_ns), ("lower_bound_if_split_ns", self.lower_bound_if_split_ns)];
        bounds.into_iter().filter_map(|(name, bound)| Some((name, bound?))).try_for_each(|(name, bound)| {
            ensure(bound <= most.1, || {
                let (what, most) = most;
                format!(
                    "{}: expected a lower bound of at most {most} ns, {what}, found {bound}; correct it, or leave it out",
                    field(place, name)
                )
            })
        })
    }

    fn validate_span(&self, span: &Span) -> Result<(), String> {
        let Span { device, peer, start_ns, end_ns, .. } = *span;
        let devices = self.devices;
        for (name, device) in [("device", Some(device)), ("peer", peer)] {
            if device.is_some_and(|device| device >= devices) {
                let found = device.unwrap_or_default();
                return Err(format!("{name}: expected 0 to {}, of {devices} devices, found {found}", devices - 1));
            }
        }
        if end_ns < start_ns {
            return Err(format!("end_ns: expected {start_ns}, its start_ns, or later, found {end_ns}"));
        }
        if end_ns > MAX_NS {
            return Err(format!("end_ns: expected at most {MAX_NS}, which is 104 days, found {end_ns}"));
        }
        let Some(op) = span.pipeline_op() else { return Ok(()) };
        let stages = u64::from(devices) * u64::from(self.chunks);
        if u64::from(op.stage()) >= stages || op.microbatch() >= op.kind().count(self.microbatches) {
            return Err(format!(
                "op: expected a stage below {stages} and a micro-batch below {}, as in the header, found {op}",
                self.microbatches
            ));
        }
        Ok(())
    }

    /// Checks that every stage runs each micro-batch forward and backward once, and each device one op at a time.
    fn validate_ops(&self, place: &str) -> Result<(), TimelineError> {
        let here = if place.is_empty() { "the timeline" } else { place };
        let mut ops: Vec<(u32, u64, u64, usize, Op)> = Vec::new();
        let mut kinds: BTreeMap<(u32, u32, usize), [bool; Kind::ALL.len()]> = BTreeMap::new();
        for (number, span) in self.spans.iter().enumerate() {
            let Some(op) = span.pipeline_op() else { continue };
            let seen =
                &mut kinds.entry((op.stage(), op.microbatch(), op.slice_number())).or_default()[op.kind() as usize];
            ensure(!*seen, || self.of_span(place, number, "it occurs twice in the timeline"))?;
            *seen = true;
            ops.push((span.device, span.start_ns, span.end_ns, number, op));
        }
        kinds.retain(|_, kinds| Kind::ALL.iter().any(|&kind| !kind.is_vocabulary() && kinds[kind as usize]));
        ensure(!ops.is_empty(), || format!("{here} has no spans of ops; write it again with -o FILE.json"))?;
        ops.sort_unstable();
        for pair in ops.windows(2) {
            let [(device, _, end_ns, number, one), (other_device, start_ns, _, other_number, other)] =
                [pair[0], pair[1]];
            ensure(device != other_device || end_ns <= start_ns, || {
                let [one, other] =
                    [(one, number), (other, other_number)].map(|(op, number)| format!("{op} (spans[{number}])"));
                format!(
                    "{here}: {one} ends at {end_ns} ns and {other} starts at {start_ns} ns on device {device}, which runs one op \
                     at a time; correct their times"
                )
            })?;
        }
        let whole = |kinds: &[bool; Kind::ALL.len()]| {
            let has = |kind: Kind| kinds[kind as usize];
            has(Kind::F) && (has(Kind::B) != has(Kind::I)) && has(Kind::I) == has(Kind::W)
        };
        if !self.incomplete_devices.is_empty() {
            return Ok(()); // a trace was missing or cut off
        }
        let expected = u64::from(self.devices)
            * u64::from(self.chunks)
            * u64::from(self.microbatches)
            * self.slices.len().max(1) as u64;
        let found = kinds.values().filter(|kinds| whole(kinds)).count();
        ensure(found as u64 == expected && kinds.len() == found, || {
            let partial = kinds.iter().find(|(_, kinds)| !whole(kinds));
            let which = partial.map_or_else(String::new, |((stage, microbatch, _), _)| {
                format!(", stage {stage} of micro-batch {microbatch} is incomplete")
            });
            format!(
                "{here} lacks ops: its header implies {expected} pairs of stage and micro-batch, each with a forward (F) and a backward (B, \
                 or I and W), found {found}{which}; write it again with -o FILE.json"
            )
        })
    }

    /// Returns the message that `what` is wrong with span `number`.
    fn of_span(&self, place: &str, number: usize, what: &str) -> String {
        let Span { op, device, .. } = &self.spans[number];
        format!("{} ({op} on device {device}): {what}; correct it", field(place, &format!("spans[{number}]")))
    }
}

impl Timeline {
    /// Checks that every copy occurs once, with spans that fit the header.
    pub(super) fn validate_workers(&self, place: &str) -> Result<(), TimelineError> {
        let Some(workers) = &self.workers else { return Ok(()) };
        let here = field(place, "workers");
        let mesh = workers.mesh;
        let coordinates = workers.others.iter().map(|other| (other.data, other.tensor));
        let found: BTreeSet<(u32, u32)> = coordinates.chain([(workers.data, workers.tensor)]).collect();
        let is_whole = mesh.is_sound()
            && found.iter().all(|&(data, tensor)| data < mesh.data && tensor < mesh.tensor)
            && found.len() == mesh.copies() as usize
            && workers.others.len() + 1 == found.len();
        if !is_whole {
            return Err(TimelineError(format!(
                "{here}: expected the workers of {mesh}, each once, found {} of {} coordinates; correct them, or leave workers out",
                workers.others.len() + 1,
                found.len()
            )));
        }
        workers
            .others
            .iter()
            .enumerate()
            .try_for_each(|(number, other)| self.of_workers(other).validate_spans(&format!("{here}.others[{number}]")))
    }
}
