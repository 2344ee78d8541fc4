//! Plots as data: charts with two axes, and heat maps. `draw` draws them with plotters, `figures` makes the plots of a report.

pub mod draw;
pub mod figures;

use crate::scene::look::Look;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plots {
    /// Headline; none if empty.
    pub title: String,
    /// The plots, in rows from left to right.
    pub plots: Vec<Plot>,
    /// Sentences under the plots.
    pub notes: Vec<String>,
    /// Width, font size and palette; the rest is about timelines.
    pub look: Look,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Plot {
    /// Series over two axes.
    Chart(Chart),
    /// Numbers by row and column.
    HeatMap(HeatMap),
}

/// Series over two axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x: PlotAxis,
    pub y: PlotAxis,
    pub series: Vec<Series>,
    /// Dashed straight lines between two points, such as the line on which prediction equals measurement.
    pub guides: Vec<[(f64, f64); 2]>,
}

/// An axis of a chart; its range is the range of the data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlotAxis {
    pub label: String,
    /// Logarithmic; values that are not positive are left out.
    pub log: bool,
    /// Whether the axis begins at 0.
    pub from_zero: bool,
    /// Where ticks are; round numbers unless given.
    pub ticks: Option<Vec<f64>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub style: SeriesStyle,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesStyle {
    /// Dots joined by lines.
    Line,
    Dots,
    /// A line of steps: each point's y holds until the next point's x.
    Steps,
}

/// Numbers by row and column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    pub title: String,
    /// Names of columns, from left to right.
    pub columns: Vec<String>,
    /// Names of rows, from top to bottom.
    pub rows: Vec<String>,
    /// By row and column: the number and its text, if any.
    pub cells: Vec<Vec<Option<(f64, String)>>>,
    /// The numbers at the ends of the colour scale.
    pub range: (f64, f64),
    /// Names of series; if there are any, the number in a cell is the index of one, and the cell has its colour and mark.
    pub series: Vec<String>,
}
