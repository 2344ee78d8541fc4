//! Pictures, pages, tables and files made from timelines.
//!
//! A [`Report`] goes in, text or bytes come out. Nothing here simulates, executes or reads a clock: the same report gives
//! the same bytes. Only `folder` and `unfinished` touch the disk.
//!
//! Three layers: `scene` sorts a timeline's spans into rows and `axis` says what is shown of the time, `layout` turns a report
//! into a list of shapes, and each format (`svg`, `png`, `pdf`, `html`, `trace`, `csv`, `table`, `terminal`) writes what it is given.

mod axis;
mod blend;
mod canvas;
mod cells;
mod comparison;
mod csv;
mod error;
mod figures;
#[cfg(feature = "pictures")]
mod folder;
#[cfg(feature = "pictures")]
mod font;
mod format;
mod html;
mod json;
mod latex;
mod layout;
mod look;
mod number;
mod palette;
#[cfg(feature = "pictures")]
mod pdf;
#[cfg(feature = "pictures")]
mod png;
mod predicted;
mod repeat;
mod row;
mod ruler;
mod scene;
mod svg;
mod table;
mod terminal;
mod text;
mod trace;
#[cfg(feature = "pictures")]
mod unfinished;
#[cfg(test)]
mod vision;

pub use csv::{csv, field as csv_cell};
pub use error::WriteError;
pub use figures::figures;
#[cfg(feature = "pictures")]
pub use folder::{NamedBytes, folder, timeline_files, try_file, write_atomic};
pub use format::{Drawn, FORMATS, Place, Shape, endings};
pub use html::html;
pub use json::{json, timelines};
pub use latex::latex;
pub use look::{Look, Palette};
pub use number::{number, off_by, percent, plus_minus, quantity};
pub use palette::Colors;
#[cfg(feature = "pictures")]
pub use pdf::pdf;
#[cfg(feature = "pictures")]
pub use png::png;
pub use svg::svg;
pub use table::{markdown, table};
pub use terminal::terminal;
pub use text::{folded, is_control, visible, wrapped};
pub use trace::trace;
#[cfg(feature = "pictures")]
pub use trace::trace_gz;
#[cfg(feature = "pictures")]
pub use unfinished::remove_unfinished;

use crate::metrics::Metrics;
use crate::sim::IdleSpan;
use crate::timeline::Timeline;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is shown together: schedules on one time scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Headline.
    pub title: String,
    /// What was found, in a few sentences, to be read first; empty where there is nothing to say.
    pub verdict: String,
    /// One line under it: model, hardware, costs.
    pub subtitle: String,
    /// Program version, machine, date, costs; free text by key.
    pub provenance: BTreeMap<String, String>,
    /// The schedules, in the order in which they are shown.
    pub entries: Vec<Entry>,
    /// Further tables, shown after the figures.
    pub extra_tables: Vec<Table>,
    /// How it is drawn.
    pub look: Look,
}

/// One schedule in a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The schedule's name; in a comparison of several p and m with these.
    pub name: String,
    /// Where it stands in a comparison.
    pub point: Option<Point>,
    /// What a simulation predicts.
    pub predicted: Option<Panel>,
    /// What an execution measured.
    pub measured: Option<Panel>,
    /// How far the two are apart.
    pub error: Option<Comparison>,
    /// Figures over all steps that were measured or drawn by chance, not of the one that is shown, by name.
    pub over_steps: Vec<(&'static str, f64)>,
    /// Remarks for the reader, one sentence each.
    pub notes: Vec<String>,
}

/// Where an entry stands in a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// The schedule's name.
    pub schedule: String,
    /// Which of the schedules asked for it is, from 0.
    pub number: usize,
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// The cap on activations that it exceeds, so that it wins nothing.
    pub above_cap: Option<f64>,
    /// Why there is nothing to predict.
    pub left_out: Option<LeftOut>,
}

/// Why a schedule is not there for some numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// In a few words.
    pub what: &'static str,
    /// In full.
    pub why: String,
}

impl Report {
    /// The title that is shown: the one asked for, else the report's own.
    pub fn headline(&self) -> &str {
        self.look.title.as_deref().unwrap_or(&self.title)
    }
}

impl Entry {
    /// The schedule's name, without p and m.
    pub fn schedule(&self) -> &str {
        self.point.as_ref().map_or(&self.name, |point| &point.schedule)
    }

    /// Why there is nothing to predict, where it is so.
    pub fn left_out(&self) -> Option<&LeftOut> {
        self.point.as_ref()?.left_out.as_ref()
    }

    /// The panels there are, predicted first.
    pub fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.predicted.iter().chain(&self.measured)
    }
}

/// A timeline with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// The spans.
    pub timeline: Timeline,
    /// The figures, in the timeline's unit.
    pub metrics: Metrics,
    /// Why devices idle, by device and time, in the timeline's unit; empty where it is not known.
    pub idle: Vec<IdleSpan>,
    /// The most activations that a device may hold, where that was asked for.
    pub memory_cap: Option<f64>,
}

impl Panel {
    /// A timeline with its figures, and nothing said of causes and caps.
    pub fn new(timeline: Timeline, metrics: Metrics) -> Panel {
        Panel { timeline, metrics, idle: Vec::new(), memory_cap: None }
    }

    /// The iteration time, step ops included, in the timeline's unit.
    pub fn iteration(&self) -> f64 {
        self.timeline.end_ns() as f64 / self.timeline.unit_ns.max(1) as f64
    }
}

/// How far a prediction is from its measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Predicted / measured - 1, of the two timelines.
    pub makespan: f64,
    /// Of how many measured steps the measured one is the median; none where only timelines are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// How far predicted / measured of those steps reaches from its median: half of its 95 % interval, below six steps half of its
    /// range, as a share; none of fewer than three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<f64>,
    /// Predicted iteration / measured iteration - 1; `None` if only timelines are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<f64>,
    /// Predicted period / measured period - 1, if steps followed each other without a barrier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<f64>,
    /// Predicted bubble - measured bubble, in percentage points.
    pub bubble: f64,
    /// Median over ops of |predicted start - measured start|, as a fraction of the measured iteration.
    pub op_start_p50: f64,
    /// 95th percentile of the same.
    pub op_start_p95: f64,
    /// Makespan error when the run's own durations are fed back into the simulation, the median over steps; none where only
    /// timelines are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_replay: Option<f64>,
    /// Durations by kind of op.
    pub per_kind: Vec<KindError>,
    /// Measured time that each device waited for data, in ms.
    pub wait_ms_per_device: Vec<f64>,
    /// Measured time that each device's transfers took, in ms.
    pub transfer_ms_per_device: Vec<f64>,
    /// Distribution of the op start error: (error as a fraction of the iteration, share of ops at or below it).
    pub op_start_cdf: Vec<(f64, f64)>,
}

/// Predicted and measured mean duration of one kind of op.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindError {
    /// `F`, `I`, `W`, `B` or a step op's name.
    pub kind: String,
    /// Mean predicted duration.
    pub predicted_ms: f64,
    /// Mean measured duration.
    pub measured_ms: f64,
    /// How many ops were compared.
    pub count: u64,
}

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Column names.
    pub header: Vec<String>,
    /// Rows; short ones are filled with empty cells.
    pub rows: Vec<Vec<String>>,
}
