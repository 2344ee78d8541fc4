//! The heading of a schedule in a picture: name, sizes and figures.

use crate::file::csv::source_name;
use crate::number::{percent, quantity, signed_percent};
use crate::picture::canvas::Picture;
use crate::picture::frame::{BODY, HEAD, MUTED, PictureFrame, lines};
use crate::text::{fit_pixels, pixels, plain};
use crate::{Entry, Panel, PictureColumn};

/// Figures unless others are asked for; narrow pictures have the first three.
const USUAL: [PictureColumn; 6] = [
    PictureColumn::Makespan,
    PictureColumn::Iteration,
    PictureColumn::Bubble,
    PictureColumn::SpanBubble,
    PictureColumn::BubbleOverIdeal,
    PictureColumn::LowerBound,
];

/// Writes name, sizes and figures, one line per panel; below each other if they do not fit side by side.
pub fn heading(
    picture: &mut Picture,
    frame: &PictureFrame,
    entry: &Entry,
    columns: Option<&[PictureColumn]>,
    y: f64,
) -> f64 {
    let name = fit_pixels(&entry.name, frame.text().min(420.0), HEAD.size);
    picture.text(HEAD, frame.margin, y, &*name);
    let mut x = frame.margin + pixels(&name, HEAD.size) * 1.06 + 14.0;
    let Some(first) = entry.panels().next() else {
        let text = entry.left_out().and_then(|left_out| left_out.why.lines().next()).unwrap_or("no timeline");
        picture.text(MUTED, x, y, fit_pixels(text, frame.width - frame.margin - x, MUTED.size));
        return y + 8.0;
    };
    let t = &first.timeline;
    let usual: &[PictureColumn] = if frame.wide { &USUAL } else { &USUAL[..3] };
    let sizes = format!(
        "{} devices · {} micro-batches{}",
        t.devices,
        t.microbatches,
        if t.chunks > 1 { format!(" · {} chunks per device", t.chunks) } else { String::new() }
    );
    let figures: Vec<String> =
        entry.panels().enumerate().map(|(i, panel)| figures(entry, panel, i, columns.unwrap_or(usual))).collect();
    let end = frame.width - frame.margin;
    let after = x + pixels(&sizes, MUTED.size) * 1.03 + 18.0;
    if figures.iter().all(|line| after + pixels(line, BODY.size) <= end) {
        picture.text(MUTED, x, y, sizes);
        for (i, line) in figures.iter().enumerate() {
            picture.text(BODY, after, y + 15.0 * i as f64, line);
        }
        return y + 15.0 * (figures.len() - 1) as f64;
    }
    let mut y = y;
    if x + pixels(&sizes, MUTED.size) > end {
        (x, y) = (frame.margin, y + 15.0);
    }
    picture.text(MUTED, x, y, fit_pixels(&sizes, end - x, MUTED.size));
    for line in figures {
        y = lines(picture, BODY, frame.margin, y + 15.0, frame.text(), 15.0, &line) - 15.0;
    }
    y
}

/// Returns a panel's figures in one line.
fn figures(entry: &Entry, panel: &Panel, i: usize, columns: &[PictureColumn]) -> String {
    let (m, unit) = (&panel.metrics, plain(&panel.timeline.time_unit));
    let time = |value: f64| quantity(value, &unit);
    let figure = |column: &PictureColumn| match column {
        PictureColumn::Makespan => Some(format!("makespan {}", time(m.makespan))),
        PictureColumn::Iteration => {
            let iteration = entry.iteration().map(time).filter(|shown| i == 0 && *shown != time(m.makespan));
            iteration.map(|shown| format!("iteration {shown}"))
        }
        PictureColumn::Bubble => Some(format!("bubble {}", percent(m.bubble))),
        PictureColumn::SpanBubble => Some(format!("span bubble {}", percent(m.span_bubble))),
        PictureColumn::BubbleOverIdeal => Some(format!("bubble over ideal {}", percent(m.bubble_over_ideal))),
        // The bound belongs to the order, not to a step, so it is written once.
        PictureColumn::LowerBound => m.lower_bound.filter(|_| i == 0).map(|bound| match &m.typical_speed {
            Some(typical) => {
                format!("at median speed makespan {}, lower bound {}", time(typical.makespan), time(bound))
            }
            None => format!("lower bound {}", time(bound)),
        }),
        PictureColumn::Busy | PictureColumn::Peak => None,
    };
    let mut line = columns.iter().filter_map(figure).collect::<Vec<_>>().join(" · ");
    if entry.predicted.is_some() && entry.measured.is_some() {
        line = format!("{} {line}", source_name(panel.timeline.source));
    }
    if i == 1
        && let Some(error) = &entry.error
    {
        line += &format!(" · makespan error {}", signed_percent(error.makespan));
    }
    line
}
