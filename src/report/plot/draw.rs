//! Draws plots with plotters: as SVG, on its bitmap backend, and on the PDF page, which is a backend of ours.

use super::{Chart, HeatMap, Plot, PlotAxis, Plots, SeriesStyle};
use crate::WriteError;
use crate::number::{number, spacing, trimmed};
use crate::picture::font::Letters;
use crate::picture::pdf::document;
use crate::picture::png::bitmap;
use crate::scene::look::Palette;
use crate::scene::palette::{Rgb, WHITE, contrast, grey, mix};
use crate::text::{escape, fit_pixels, lines_of_pixels, pixels, plain};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, Color, Cross, DashedLineSeries, DrawingArea, DrawingAreaErrorKind,
    DrawingBackend, IntoDrawingArea, IntoFont, LineSeries, RGBColor, Ranged, Rectangle, SVGBackend, TextStyle,
    TriangleMarker,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;

/// Colours that readers without red or green cones tell apart, too (Okabe and Ito).
const COLORS: [Rgb; 8] = [
    [0x00, 0x72, 0xb2],
    [0xd5, 0x5e, 0x00],
    [0x00, 0x9e, 0x73],
    [0xcc, 0x79, 0xa7],
    [0xe6, 0x9f, 0x00],
    [0x56, 0xb4, 0xe9],
    [0x11, 0x11, 0x11],
    [0x8a, 0x6d, 0x3b],
];
const TEXT: Rgb = [0x1f, 0x23, 0x28];
const MUTED: Rgb = [0x59, 0x63, 0x6e];
const GRID: Rgb = [0xe6, 0xe9, 0xed];
/// The colours of the least and of the largest number of a heat map.
const HEAT: [Rgb; 2] = [[0xf2, 0xf6, 0xfb], [0x1a, 0x2d, 0x96]];

/// Width of a sheet unless given, and of the narrowest plot, in CSS pixels at the usual text size.
const WIDTH: f64 = 1200.0;
const NARROWEST: f64 = 380.0;
/// The usual text size.
const SIZE: f64 = 11.5;
/// Units of an SVG per CSS pixel: plotters' coordinates are whole numbers.
const FINE: f64 = 8.0;

type Area<DB> = DrawingArea<DB, Shift>;
type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

fn failed(error: impl std::fmt::Display) -> WriteError {
    WriteError::Format(format!("expected to draw a plot, but could not: {error}"))
}

impl Plots {
    /// Returns the plots as SVG.
    pub fn svg(&self) -> Result<String, WriteError> {
        Letters::new()?; // measures texts
        let sheet = PlotSheet::new(self);
        let [width, height] = sheet.size();
        let mut svg = String::new();
        let fine = ((width * FINE) as u32, (height * FINE) as u32);
        let root = SVGBackend::with_string(&mut svg, fine).into_drawing_area();
        sheet.draw(&root, FINE).and_then(|()| root.present()).map_err(failed)?;
        drop(root);
        let (title, head) = (escape(&self.title), format!("<svg width=\"{}\" height=\"{}\"", fine.0, fine.1));
        let label = format!("<svg role=\"img\" aria-label=\"{title}\" width=\"{width}\" height=\"{height}\"");
        Ok(svg.replacen(&head, &label, 1))
    }

    /// Returns the plots as a PNG file's bytes, with two pixels per CSS pixel.
    pub fn png(&self) -> Result<Vec<u8>, WriteError> {
        let sheet = PlotSheet::new(self);
        bitmap(sheet.size(), |bitmap, scale| {
            let root = bitmap.into_drawing_area();
            sheet.draw(&root, scale).and_then(|()| root.present())
        })
    }

    /// Returns the plots as a PDF file's bytes.
    pub fn pdf(&self) -> Result<Vec<u8>, WriteError> {
        let sheet = PlotSheet::new(self);
        document(sheet.size(), FINE, &self.title, |page| sheet.draw(&DrawingArea::from(page), FINE).map_err(failed))
    }
}

/// Plots with their places, in CSS pixels at the usual text size.
struct PlotSheet<'a> {
    plots: &'a Plots,
    /// How much larger everything is than at the usual text size.
    zoom: f64,
    width: f64,
    columns: usize,
    /// Bottom of the headline.
    top: f64,
    /// Height of a row of plots.
    row: f64,
    notes: Vec<String>,
}

impl PlotSheet<'_> {
    fn new(plots: &Plots) -> PlotSheet<'_> {
        let zoom = plots.look.font_size.map_or(1.0, |size| size / SIZE);
        let width = plots.look.width.unwrap_or(WIDTH) / zoom;
        let most = ((width / NARROWEST) as usize).clamp(1, plots.plots.len().max(1));
        // Rows are filled evenly.
        let columns = plots.plots.len().div_ceil(plots.plots.len().div_ceil(most).max(1)).max(1);
        let row = (width / columns as f64 * 0.66).clamp(220.0, 380.0);
        let top = if plots.title.is_empty() { 6.0 } else { 36.0 };
        let notes = plots.notes.iter().flat_map(|note| lines_of_pixels(note, width - 32.0, 9.5)).collect();
        PlotSheet { plots, zoom, width, columns, top, row, notes }
    }

    /// Width and height in CSS pixels.
    fn size(&self) -> [f64; 2] {
        let rows = self.plots.plots.len().div_ceil(self.columns);
        let height = self.top + rows as f64 * self.row + 14.0 * self.notes.len() as f64 + 10.0;
        [(self.width * self.zoom).round(), (height * self.zoom).ceil()]
    }

    fn draw<DB: DrawingBackend>(&self, root: &Area<DB>, scale: f64) -> Drawn<DB> {
        let pen = Pen { unit: scale * self.zoom, palette: self.plots.look.palette };
        root.fill(&rgb(WHITE))?;
        let title = fit_pixels(&self.plots.title, self.width - 32.0, 17.0);
        pen.text(root, &title, 17.0, TEXT, [16.0, 14.0], Pos::new(HPos::Left, VPos::Top))?;
        let (width, rows) = (self.width / self.columns as f64, self.plots.plots.len().div_ceil(self.columns));
        for (number, plot) in self.plots.plots.iter().enumerate() {
            let (column, row) = ((number % self.columns) as f64, (number / self.columns) as f64);
            let at = (width * column, self.top + self.row * row);
            let [left, top, right, bottom] = [at.0, at.1, at.0 + width, at.1 + self.row].map(|length| pen.px(length));
            let (end, below) = root.dim_in_pixel();
            let area = root.margin(top, below as i32 - bottom, left, end as i32 - right);
            match plot {
                Plot::Chart(chart) => pen.chart(&area, chart, width, self.row)?,
                Plot::HeatMap(map) => pen.heat_map(&area, map, width, self.row)?,
            }
        }
        let below = self.top + self.row * rows as f64 + 6.0;
        for (number, note) in self.notes.iter().enumerate() {
            let at = [16.0, below + 14.0 * number as f64];
            pen.text(root, note, 9.5, MUTED, at, Pos::new(HPos::Left, VPos::Top))?;
        }
        Ok(())
    }
}

/// What every part of a plot is drawn with.
#[derive(Clone, Copy)]
struct Pen {
    /// Backend pixels per CSS pixel at the usual text size.
    unit: f64,
    palette: Palette,
}

fn rgb([r, g, b]: Rgb) -> RGBColor {
    RGBColor(r, g, b)
}

type Context<'a, DB> = ChartContext<'a, DB, Cartesian2d<Ticked, Ticked>>;

impl Pen {
    fn px(&self, length: f64) -> i32 {
        (length * self.unit).round() as i32
    }

    fn stroke(&self, color: Rgb, width: f64) -> plotters::style::ShapeStyle {
        rgb(self.shown(color)).stroke_width(self.px(width).max(1) as u32)
    }

    fn shown(&self, color: Rgb) -> Rgb {
        if self.palette == Palette::Grey { grey(color) } else { color }
    }

    fn color(&self, number: usize) -> Rgb {
        self.shown(COLORS[number % COLORS.len()])
    }

    fn font(&self, size: f64, color: Rgb) -> TextStyle<'static> {
        // plotters takes the height of a line, which is 1.24 times the text size.
        ("sans-serif", size * self.unit * 1.24).into_font().color(&rgb(self.shown(color)))
    }

    fn text<DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        text: &str,
        size: f64,
        color: Rgb,
        [x, y]: [f64; 2],
        place: Pos,
    ) -> Drawn<DB> {
        area.draw_text(&plain(text), &self.font(size, color).pos(place), (self.px(x), self.px(y)))
    }

    fn chart<DB: DrawingBackend>(&self, area: &Area<DB>, chart: &Chart, width: f64, height: f64) -> Drawn<DB> {
        let left = Pos::new(HPos::Left, VPos::Center);
        self.text(area, &fit_pixels(&chart.title, width - 32.0, 13.0), 13.0, TEXT, [16.0, 12.0], left)?;
        let names = chart.series.iter().map(|series| (&*series.name, series.style));
        let legend = if names.len() > 1 { self.legend(area, names.enumerate(), width)? } else { 20.0 };
        let (x, y) =
            (AxisRange::new(&chart.x, chart, |point| point.0), AxisRange::new(&chart.y, chart, |point| point.1));
        let plot = area.margin(self.px(legend + 8.0), self.px(2.0), self.px(16.0), self.px(18.0));
        let labels = y.ticks.iter().map(|&tick| pixels(&y.label(tick), 10.5)).fold(0.0, f64::max);
        let mut context = ChartBuilder::on(&plot)
            .x_label_area_size(self.px(42.0))
            .y_label_area_size(self.px(labels + 30.0))
            .build_cartesian_2d(x.ticked(), y.ticked())?;
        context
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(self.stroke(GRID, 1.0))
            .axis_style(self.stroke(MUTED, 1.0))
            .label_style(self.font(10.5, MUTED))
            .axis_desc_style(self.font(11.0, TEXT))
            .set_all_tick_mark_size(self.px(4.0))
            .x_desc(fit_pixels(&chart.x.label, width - 100.0, 11.0))
            .y_desc(fit_pixels(&chart.y.label, height - legend - 60.0, 11.0))
            .x_label_formatter(&|at| x.label(*at))
            .y_label_formatter(&|at| y.label(*at))
            .draw()?;
        for guide in &chart.guides {
            let points = guide.map(|(a, b)| (x.at(a), y.at(b)));
            let style = self.stroke(MUTED, 1.0);
            context.draw_series(DashedLineSeries::new(points, self.px(5.0), self.px(4.0), style))?;
        }
        for (number, series) in chart.series.iter().enumerate() {
            let shown = |(a, b): &&(f64, f64)| x.shows(*a) && y.shows(*b);
            let points: Vec<(f64, f64)> =
                series.points.iter().filter(shown).map(|&(a, b)| (x.at(a), y.at(b))).collect();
            self.series(&mut context, number, series.style, &points)?;
        }
        Ok(())
    }

    fn series<DB: DrawingBackend>(
        &self,
        context: &mut Context<'_, DB>,
        number: usize,
        style: SeriesStyle,
        points: &[(f64, f64)],
    ) -> Drawn<DB> {
        let line = self.stroke(self.color(number), 1.6);
        match style {
            SeriesStyle::Steps => {
                let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
                let corners = corners.chain(points.last().copied());
                context.draw_series(LineSeries::new(corners, line))?;
            }
            SeriesStyle::Line => {
                context.draw_series(LineSeries::new(points.iter().copied(), line))?;
            }
            SeriesStyle::Dots => {}
        }
        if style != SeriesStyle::Steps {
            let area = context.plotting_area();
            for at in points {
                self.marker(&area.use_screen_coord(), number, area.map_coordinate(at), 3.2)?;
            }
        }
        Ok(())
    }

    /// Draws the mark of a series. Shapes differ as well as colours, to distinguish greys.
    fn marker<DB: DrawingBackend>(&self, area: &Area<DB>, number: usize, at: (i32, i32), size: f64) -> Drawn<DB> {
        let (size, color) = (self.px(size), rgb(self.color(number)));
        let corners = [(at.0 - size, at.1 - size), (at.0 + size, at.1 + size)];
        // Colours repeat after eight series; then each gets another shape.
        match (number + number / COLORS.len()) % 4 {
            0 => area.draw(&Circle::new(at, size, color.filled())),
            1 => area.draw(&Rectangle::new(corners, color.filled())),
            2 => area.draw(&TriangleMarker::new(at, size + size / 3, color.filled())),
            _ => area.draw(&Cross::new(at, size, self.stroke(self.color(number), 1.5))),
        }
    }

    /// Draws the names of series in lines, and returns where the last one ends.
    fn legend<'a, DB: DrawingBackend>(
        &self,
        area: &Area<DB>,
        series: impl Iterator<Item = (usize, (&'a str, SeriesStyle))>,
        width: f64,
    ) -> Result<f64, DrawingAreaErrorKind<DB::ErrorType>> {
        let (mut x, mut y) = (16.0, 32.0);
        for (number, (name, style)) in series {
            let name = fit_pixels(name, width - 60.0, 10.5);
            let needed = pixels(&name, 10.5) + 34.0;
            if x + needed > width && x > 16.0 {
                (x, y) = (16.0, y + 16.0);
            }
            let [from, to] = [x, x + 14.0].map(|x| (self.px(x), self.px(y)));
            if style != SeriesStyle::Dots {
                let line = self.stroke(self.color(number), 1.6);
                area.draw(&plotters::element::PathElement::new(vec![from, to], line))?;
            }
            if style != SeriesStyle::Steps {
                self.marker(area, number, (self.px(x + 7.0), self.px(y)), 3.0)?;
            }
            self.text(area, &name, 10.5, TEXT, [x + 19.0, y], Pos::new(HPos::Left, VPos::Center))?;
            x += needed;
        }
        Ok(y + 10.0)
    }

    fn heat_map<DB: DrawingBackend>(&self, area: &Area<DB>, map: &HeatMap, width: f64, height: f64) -> Drawn<DB> {
        let start = Pos::new(HPos::Left, VPos::Center);
        self.text(area, &fit_pixels(&map.title, width - 32.0, 13.0), 13.0, TEXT, [16.0, 12.0], start)?;
        let left = map.rows.iter().map(|name| pixels(name, 10.5)).fold(0.0, f64::max) + 24.0;
        let of_series = |cell: &Option<(f64, String)>| {
            let number = cell.as_ref().map_or(0.0, |(number, _)| *number) as usize;
            (cell.is_some() && number < map.series.len()).then_some(number)
        };
        let shown: BTreeSet<usize> = map.cells.iter().flatten().filter_map(of_series).collect();
        let names = shown.into_iter().map(|number| (number, (&*map.series[number], SeriesStyle::Dots)));
        let top = if map.series.is_empty() { 26.0 } else { self.legend(area, names, width)? + 4.0 };
        let (right, bottom) = (width - 16.0, height - 28.0);
        let across = (right - left) / map.columns.len().max(1) as f64;
        let down = (bottom - top) / map.rows.len().max(1) as f64;
        for (row, name) in map.rows.iter().enumerate() {
            let middle = top + down * (row as f64 + 0.5);
            self.text(area, name, 10.5, MUTED, [left - 6.0, middle], Pos::new(HPos::Right, VPos::Center))?;
            for (column, cell) in map.cells[row].iter().enumerate() {
                let x = left + across * column as f64;
                let (value, text) = cell.as_ref().map_or((None, "–"), |(value, text)| (Some(*value), text));
                let share = value.map(|value| (value - map.range.0) / (map.range.1 - map.range.0).max(1e-12));
                let winner = of_series(cell);
                let ground = match (winner, share) {
                    (Some(number), _) => mix(WHITE, COLORS[number % COLORS.len()], 0.3),
                    (None, share) => share.map_or(WHITE, |share| mix(HEAT[0], HEAT[1], share.clamp(0.0, 1.0))),
                };
                let [from, to] = [(x, middle - down / 2.0), (x + across - 1.0, middle + down / 2.0 - 1.0)]
                    .map(|(x, y)| (self.px(x), self.px(y)));
                area.draw(&Rectangle::new([from, to], rgb(self.shown(ground)).filled()))?;
                let ink = if contrast(ground, TEXT) >= 4.5 { TEXT } else { WHITE };
                let mark = if winner.is_some() { 16.0 } else { 0.0 };
                let size = ((across - mark) / pixels(text, 1.0).max(1.0) * 0.9).min(10.5);
                if let Some(number) = winner {
                    let aside = if size >= 6.0 { pixels(text, size) / 2.0 } else { 0.0 };
                    self.marker(area, number, (self.px(x + (across - 1.0) / 2.0 - aside), self.px(middle)), 3.2)?;
                }
                if size >= 6.0 {
                    let at = [x + (across - 1.0 + mark) / 2.0, middle];
                    self.text(area, text, size, ink, at, Pos::new(HPos::Center, VPos::Center))?;
                }
            }
        }
        let mut free = 0.0;
        for (column, name) in map.columns.iter().enumerate() {
            let (middle, half) = (left + across * (column as f64 + 0.5), pixels(name, 10.5) / 2.0);
            if middle - half >= free {
                free = middle + half + 6.0;
                self.text(area, name, 10.5, MUTED, [middle, bottom + 6.0], Pos::new(HPos::Center, VPos::Top))?;
            }
        }
        Ok(())
    }
}

/// What an axis shows, in powers of ten if it is logarithmic.
struct AxisRange<'a> {
    axis: &'a PlotAxis,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    decimals: usize,
}

impl<'a> AxisRange<'a> {
    fn new(axis: &'a PlotAxis, chart: &Chart, of: impl Fn(&(f64, f64)) -> f64) -> AxisRange<'a> {
        let mut range = AxisRange { axis, from: 0.0, to: 1.0, ticks: Vec::new(), decimals: 0 };
        let values = chart.series.iter().flat_map(|series| &series.points).map(of).filter(|value| range.shows(*value));
        let values: Vec<f64> = values.map(|value| range.at(value)).collect();
        let (mut from, mut to) =
            values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
        if axis.from_zero && !axis.log {
            (from, to) = (from.min(0.0), to.max(0.0));
        }
        if !(from.is_finite() && to.is_finite()) {
            (from, to) = (0.0, 1.0);
        }
        let margin = if to - from > 1e-9 { (to - from) * 0.05 } else { from.abs().max(1.0) * 0.05 };
        let touches_zero = axis.from_zero && from >= 0.0 && !axis.log;
        (range.from, range.to) = (if touches_zero { 0.0 } else { from - margin }, to + margin);
        (range.ticks, range.decimals) = range.round_ticks();
        if let Some(ticks) = &axis.ticks {
            range.ticks = ticks.iter().map(|&tick| range.at(tick)).collect();
            // A number needs about a twelfth of the axis.
            let near = (range.to - range.from) / 12.0;
            let mut last = f64::NEG_INFINITY;
            range.ticks.retain(|&tick| {
                let kept = tick - last >= near;
                last = if kept { tick } else { last };
                kept
            });
        }
        range
    }

    fn round_ticks(&self) -> (Vec<f64>, usize) {
        if self.axis.log && self.to - self.from > 1.0 {
            let decades = (self.from.ceil() as i32)..=(self.to.floor() as i32);
            return (decades.map(f64::from).collect(), 0);
        }
        let (from, to) =
            if self.axis.log { (libm::pow(10.0, self.from), libm::pow(10.0, self.to)) } else { (self.from, self.to) };
        let (step, decimals) = spacing(to - from, 5);
        let ticks = (from / step).ceil() as i64..=(to / step).floor() as i64;
        (ticks.take(100).map(|tick| self.at(tick as f64 * step)).collect(), decimals)
    }

    fn shows(&self, value: f64) -> bool {
        value.abs() < 1e100 && (value > 0.0 || !self.axis.log)
    }

    fn at(&self, value: f64) -> f64 {
        if self.axis.log { libm::log10(value.max(f64::MIN_POSITIVE)) } else { value }
    }

    fn label(&self, at: f64) -> String {
        if self.axis.log || self.axis.ticks.is_some() {
            return number(if self.axis.log { libm::pow(10.0, at) } else { at });
        }
        trimmed(at, self.decimals)
    }

    fn ticked(&self) -> Ticked {
        Ticked { range: self.from..self.to, ticks: self.ticks.clone() }
    }
}

/// The same for plotters.
struct Ticked {
    range: std::ops::Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.clone()
    }
}
