//! Reports: pictures, pages, tables and files made from timelines.
//!
//! A [`Report`] goes in, text or bytes come out. Nothing here simulates, executes or reads a clock: the same report
//! gives the same bytes. Only `file` touches the disk.
//!
//! `scene` sorts a timeline's spans into rows and chooses the visible part of the time. The still pictures (`picture`),
//! the HTML page (`page`) and the drawing in a terminal (`terminal`) build on it. `plot` draws charts and heat maps of
//! figures, `table` the figures as text; `file` knows formats by their endings.
//!
//! ```
//! use pipesim_report::{Report, Table};
//!
//! let table = Table::new("Bubble", &["schedule", "share"], vec![vec!["1f1b".to_string(), "0.27".to_string()]]);
//! let report = Report { extra_tables: vec![table], ..Report::default() };
//! assert!(report.markdown().contains("| 1f1b"));
//! ```

#![cfg_attr(not(feature = "pictures"), allow(dead_code))]

mod change;
mod compare;
mod contest;
mod file;
mod glossary;
mod headline;
mod number;
mod page;
mod picture;
#[cfg(feature = "pictures")]
mod plot;
mod predicted;
mod scene;
mod steps;
mod table;
mod terminal;
mod text;

pub use change::{MEMORY, QUESTION};
pub use compare::{Unlike, compare};
pub use contest::{Contest, Rules};
pub use file::csv::{SpanRows, field as csv_cell};
pub use file::figures::{FigureRows, figures};
#[cfg(feature = "pictures")]
pub use file::folder::{ClaimedFolder, NamedBytes, folder, timeline_files, try_file, write_atomic};
pub use file::format::{FORMATS, Output, OutputKind, TimelineRendering, endings};
pub use file::json::timelines;
#[cfg(feature = "pictures")]
pub use file::stream::SpanFiles;
#[cfg(feature = "pictures")]
pub use file::trace::trace_gz;
pub use glossary::meaning;
pub use headline::ITERATION;
pub use number::{changed, gibibytes, number, off_by, percent, plus_minus, quantity, trimmed};
pub use page::{filled, inside_script};
#[cfg(feature = "pictures")]
pub use picture::blend::{Fill, Sliver, blend};
pub use pipesim_system::unfinished::WriteError;
#[cfg(feature = "pictures")]
pub use plot::{Chart, HeatMap, Plot, PlotAxis, Plots, Series, SeriesStyle};
pub use predicted::PredictedEntry;
pub use scene::look::{Look, Palette, PictureColumn};
pub use scene::palette::Colors;
pub use steps::steps_table;
pub use text::{escape, folded, is_control, visible, wrapped};

use pipesim_schedule::metrics::{DeviceMetrics, Metrics};
use pipesim_schedule::timeline::Timeline;
use pipesim_sim::{IdleSpan, StreamSpan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Schedules shown together on one time scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub title: String,
    /// Verdict in a few sentences, shown first; may be empty.
    pub verdict: String,
    /// Line under the title: model, hardware, costs.
    pub subtitle: String,
    /// Program version, machine, date, costs: free text by key.
    pub provenance: BTreeMap<String, String>,
    /// The schedules, in the order in which they are shown.
    pub entries: Vec<Entry>,
    /// Further tables, shown after the figures.
    pub extra_tables: Vec<Table>,
    pub look: Look,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Name of the schedule; a comparison of several p and m adds these, one of files of one schedule the label.
    pub name: String,
    /// What tells it from the other entries of its schedule, such as the name of a file.
    pub label: Option<String>,
    pub point: Option<ComparisonPoint>,
    /// The simulated timeline.
    pub predicted: Option<Panel>,
    pub measured: Option<Panel>,
    /// Difference between the two.
    pub error: Option<Comparison>,
    /// Figures over all measured or sampled steps, by name.
    pub over_steps: Vec<(&'static str, f64)>,
    /// In what no published step is like the predicted one; `None` if that is unknown.
    pub outside: Option<String>,
    /// Whether a model on hardware fits into memory; `None` if that is unknown.
    pub fits: Option<bool>,
    /// Makespans of all measured steps, in ms.
    pub step_ms: Vec<f64>,
    /// Remarks for the reader, one sentence each.
    pub notes: Vec<String>,
}

/// Position of an entry in a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComparisonPoint {
    pub schedule: String,
    /// Number of the schedule among those asked for, from 0.
    pub number: usize,
    pub devices: u32,
    /// Number of micro-batches m.
    pub microbatches: u32,
    /// The activation cap that it exceeds; such an entry is never marked as best.
    pub above_cap: Option<f64>,
    pub left_out: Option<LeftOut>,
}

/// Why a schedule does not exist for some p and m.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The reason in a few words.
    pub what: &'static str,
    pub why: String,
}

impl ComparisonPoint {
    /// Returns why the schedule does not exist here, in one line without the schedule, p and m.
    pub(crate) fn reason(&self) -> Option<&str> {
        let line = self.left_out.as_ref()?.why.lines().next().unwrap_or_default();
        let numbers = format!("p = {}, m = {}: ", self.devices, self.microbatches);
        Some(line.split_once(&numbers).map_or(line, |(_, line)| line))
    }
}

impl Report {
    /// Returns the title that is shown: the one from [`Look`], else the report's own.
    pub fn headline(&self) -> &str {
        self.look.title.as_deref().unwrap_or(&self.title)
    }

    /// Returns the panels of all entries.
    pub fn panels(&self) -> impl Iterator<Item = &Panel> + Clone {
        self.entries.iter().flat_map(Entry::panels)
    }
}

impl Entry {
    /// Returns the schedule's name, without p and m.
    pub fn schedule(&self) -> &str {
        self.point.as_ref().map_or(&self.name, |point| &point.schedule)
    }

    /// Returns why there is no prediction, if there is none.
    pub fn left_out(&self) -> Option<&LeftOut> {
        self.point.as_ref()?.left_out.as_ref()
    }

    /// Returns the existing panels, the predicted one first.
    pub fn panels(&self) -> impl Iterator<Item = &Panel> + Clone {
        self.predicted.iter().chain(&self.measured)
    }
}

/// A timeline with its figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub timeline: Timeline,
    /// Figures in the timeline's unit.
    pub metrics: Metrics,
    /// Causes of idle time by device and time, in the timeline's unit; empty if unknown.
    pub idle: Vec<IdleSpan>,
    /// Activation cap per device, if one was set.
    pub memory_cap: Option<f64>,
    /// Sub-ops by device, if pairs run on two streams.
    pub streams: Vec<StreamSpan>,
}

impl Panel {
    /// Returns a panel without causes of idle time and without a cap.
    pub fn new(timeline: Timeline, metrics: Metrics) -> Panel {
        Panel { timeline, metrics, idle: Vec::new(), memory_cap: None, streams: Vec::new() }
    }

    /// Returns the share of the makespan in which `device` computes; `None` if its trace is missing or cut off.
    pub fn busy_share(&self, device: &DeviceMetrics) -> Option<f64> {
        let share = if self.metrics.makespan > 0.0 { device.busy / self.metrics.makespan } else { 0.0 };
        (!self.timeline.incomplete_devices.contains(&device.device)).then_some(share)
    }

    /// Returns the iteration time in the timeline's unit, step ops included.
    pub fn iteration(&self) -> f64 {
        self.timeline.end_ns() as f64 / self.timeline.unit_ns.max(1) as f64
    }
}

/// Difference between a prediction and its measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Predicted / measured - 1, of the two timelines.
    pub makespan: f64,
    /// Number of measured steps; the measured timeline is their median. None if only timelines are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Half the 95 % interval of predicted / measured over those steps (below six steps: half the range), as a share;
    /// none below three steps.
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
    /// Makespan error when the run's own durations are fed back into the simulation, median over steps; none if only
    /// timelines are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_replay: Option<f64>,
    /// Mean durations by kind of op.
    pub per_kind: Vec<KindError>,
    /// Measured time that each device waited for data, in ms.
    pub wait_ms_per_device: Vec<f64>,
    /// Measured time of each device's transfers, in ms.
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
    /// Number of ops compared.
    pub count: u64,
}

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub caption: String,
    pub header: Vec<String>,
    /// Rows; short ones are filled with empty cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(caption: impl Into<String>, header: &[impl ToString], rows: Vec<Vec<String>>) -> Table {
        Table { caption: caption.into(), header: header.iter().map(ToString::to_string).collect(), rows }
    }
}
