//! The picture as SVG: text as text, colours as CSS classes, light and dark.
//!
//! We do not use plotters' SVG backend: it has no patterns for hatches and no style classes (so no dark mode),
//! rounds coordinates to whole units, and writes an element of about 105 bytes per box, where our path takes 20.

use crate::Report;
use crate::picture::canvas::{Anchor, Ink, Picture, Shape};
use crate::picture::layout;
use crate::scene::look::Palette;
use crate::scene::palette::{Hatch, PERIOD, hex};
use crate::text::escape;
use std::collections::BTreeSet;
use std::fmt::Write;

impl Report {
    /// Returns the timelines as SVG, for papers, issues and READMEs.
    pub fn svg(&self) -> String {
        write_picture(&layout::picture(self))
    }
}

fn write_picture(picture: &Picture) -> String {
    let (width, height) = (coordinate(picture.width), coordinate(picture.height));
    let title = escape(&picture.title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{}</style>\n\
         <defs>{}</defs>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
        style(picture),
        hatches(picture)
    );
    for shape in &picture.shapes {
        write_shape(&mut out, shape);
    }
    out.push_str("</svg>\n");
    out
}

fn class(ink: Ink) -> String {
    match ink {
        Ink::Box(class, shade) => format!("{}{shade}", class.stem()),
        Ink::On(class, shade) => format!("o{}{shade}", class.stem()),
        Ink::Border(class, shade, light) => format!("{}{}{shade}", if light { 'l' } else { 'd' }, class.stem()),
        Ink::Mixed(_) => String::new(),
        Ink::Cause(cause) => format!("{cause:?}"),
        Ink::Phase(alternate) => if alternate { "phase2" } else { "phase" }.into(),
        _ => format!("{ink:?}").to_lowercase(),
    }
}

fn inks(picture: &Picture) -> BTreeSet<Ink> {
    let ink = |shape: &Shape| match shape {
        Shape::Boxes(ink, _) | Shape::Lines(ink, _) | Shape::Steps { ink, .. } => *ink,
        Shape::Texts(style, _) => style.ink,
    };
    picture.shapes.iter().map(ink).collect()
}

/// Writes patterns for the hatches that occur, named after their classes.
fn hatches(picture: &Picture) -> String {
    let mut out = String::new();
    for ink in inks(picture) {
        let Some(tone) = picture.tone(ink).filter(|tone| tone.hatch != Hatch::Plain) else { continue };
        let (middle, class) = (PERIOD / 2.0, class(ink));
        let (turn, level) = match tone.hatch {
            Hatch::Plain | Hatch::Upright => (0, false),
            Hatch::Rising => (45, false),
            Hatch::Falling => (-45, false),
            Hatch::Level => (90, false),
            Hatch::Crossed => (45, true),
            Hatch::Squared => (0, true),
        };
        let _ = write!(
            out,
            "<pattern id=\"h{class}\" width=\"{PERIOD}\" height=\"{PERIOD}\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate({turn})\">"
        );
        // On a dark background idle time has no ground of its own, and causes have little.
        let (width, height) = (PERIOD, PERIOD);
        match ink {
            Ink::Idle => {}
            Ink::Cause(_) => {
                let _ = write!(
                    out,
                    "<rect width=\"{width}\" height=\"{height}\" fill=\"{}\" opacity=\".08\"/>",
                    hex(tone.line)
                );
            }
            _ => {
                let _ = write!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"{}\"/>", hex(tone.ground));
            }
        }
        let across = if level { format!("M0 {middle}h{PERIOD}") } else { String::new() };
        let thick = coordinate(picture.thickness(ink));
        let stroke =
            if ink == Ink::Idle { "class=\"hatch\"".to_string() } else { format!("stroke=\"{}\"", hex(tone.line)) };
        let _ = write!(out, "<path {stroke} stroke-width=\"{thick}\" d=\"M{middle} 0v{PERIOD}{across}\"/></pattern>");
    }
    out
}

/// Writes style rules for the classes that occur.
fn style(picture: &Picture) -> String {
    let mut out = String::from(
        "text{font-family:Helvetica,Arial,'Liberation Sans',sans-serif}.bold{font-weight:bold}\
         .middle{text-anchor:middle}.end{text-anchor:end}.ground{fill:#fff}.hatch{stroke:#c3c8d0}\
         .idle{fill:url(#hidle);stroke:#d7dbe1;stroke-width:.5}.memory{fill:#a9b4c6}.axis{stroke:#59636e;fill:none}.cap{stroke:#1f2328;stroke-width:.7}\
         .grid{stroke:#e6e9ed;fill:none}.phase{fill:#59636e}.phase2{fill:#a9b1bb}.text{fill:#1f2328}.muted{fill:#59636e}",
    );
    if picture.palette == Palette::Grey {
        let _ = write!(out, ".memory{{fill:{}}}", hex(picture.color(Ink::Memory)));
    }
    for ink in inks(picture) {
        match (ink, picture.tone(ink)) {
            (Ink::Idle, _) | (_, None) => {}
            (_, Some(tone)) if tone.hatch != Hatch::Plain => {
                // Readers without patterns use the plain colour.
                let _ = write!(out, ".{0}{{fill:{1};fill:url(#h{0})}}", class(ink), hex(tone.color));
            }
            (_, Some(tone)) => {
                let _ = write!(out, ".{}{{fill:{}}}", class(ink), hex(tone.color));
            }
        }
        if let Ink::On(..) | Ink::Border(..) = ink {
            let _ = write!(out, ".{}{{fill:{}}}", class(ink), hex(picture.color(ink)));
        }
    }
    out.push_str(
        "@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.hatch{stroke:#30363d}.idle{stroke:#30363d}\
         .memory{fill:#4a5568}.axis{stroke:#8b949e}.cap{stroke:#e6edf3}.grid{stroke:#1c2229}.phase{fill:#9aa4af}.phase2{fill:#545d68}\
         .text{fill:#e6edf3}.muted{fill:#9198a1}}",
    );
    out
}

fn write_shape(out: &mut String, shape: &Shape) {
    match shape {
        Shape::Boxes(ink, rects) => {
            out.push_str("<path ");
            let _ = match ink {
                Ink::Mixed([r, g, b, opacity]) if *opacity < 255 => {
                    write!(out, "fill=\"{}\" fill-opacity=\"{:.3}\"", hex([*r, *g, *b]), f64::from(*opacity) / 255.0)
                }
                Ink::Mixed([r, g, b, _]) => write!(out, "fill=\"{}\"", hex([*r, *g, *b])),
                _ => write!(out, "class=\"{}\"", class(*ink)),
            };
            out.push_str(" d=\"");
            for [x, y, w, h] in rects {
                let (w, h) = (coordinate(*w), coordinate(*h));
                let _ = write!(out, "M{} {}h{w}v{h}h-{w}z", coordinate(*x), coordinate(*y));
            }
            out.push_str("\"/>\n");
        }
        Shape::Lines(ink, lines) => {
            let _ = write!(out, "<path class=\"{}\" d=\"", class(*ink));
            for [x1, y1, x2, y2] in lines {
                // Horizontal and vertical lines run through the middle of pixels, which keeps them sharp.
                let (x1, y1) = (sharp(*x1), sharp(*y1));
                let _ = write!(out, "M{x1} {y1}L{} {}", sharp(*x2), sharp(*y2));
            }
            out.push_str("\"/>\n");
        }
        Shape::Steps { ink, base, points } => {
            let Some(first) = points.first() else { return };
            let _ = write!(out, "<path class=\"{}\" d=\"M{} {}", class(*ink), coordinate(first.0), coordinate(*base));
            for (x, y) in points {
                let _ = write!(out, "H{}V{}", coordinate(*x), coordinate(*y));
            }
            let _ = writeln!(out, "V{}z\"/>", coordinate(*base));
        }
        Shape::Texts(style, texts) => {
            let anchor = match style.anchor {
                Anchor::Start => "",
                Anchor::Middle => " middle",
                Anchor::End => " end",
            };
            let bold = if style.bold { " bold" } else { "" };
            let attributes =
                format!("class=\"{}{anchor}{bold}\" font-size=\"{}\"", class(style.ink), coordinate(style.size));
            if let [(x, y, text)] = &texts[..] {
                let (x, y, text) = (coordinate(*x), coordinate(*y), escape(text));
                let _ = writeln!(out, "<text {attributes} x=\"{x}\" y=\"{y}\">{text}</text>");
                return;
            }
            let _ = write!(out, "<g {attributes}>");
            for (x, y, text) in texts {
                let (x, y, text) = (coordinate(*x), coordinate(*y), escape(text));
                let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{text}</text>");
            }
            out.push_str("</g>\n");
        }
    }
}

/// Writes at most two decimals, without trailing zeros.
fn coordinate(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".into() } else { text.into() }
}

fn sharp(value: f64) -> String {
    coordinate(value.floor() + 0.5)
}
