//! The picture as SVG: text as text, colours as CSS classes, light and dark.

use super::Report;
use super::canvas::{Anchor, Ink, Picture, Shape};
use super::layout;
use super::palette::{hex, wants_white_text};
use super::text::escape;
use std::collections::BTreeSet;
use std::fmt::Write;

impl Report {
    /// The picture as SVG.
    pub fn svg(&self) -> String {
        svg(self)
    }
}

/// A picture for papers, issues and READMEs.
pub fn svg(report: &Report) -> String {
    write_picture(&layout::picture(report))
}

fn write_picture(picture: &Picture) -> String {
    let (width, height) = (coordinate(picture.width), coordinate(picture.height));
    let title = escape(&picture.title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{}</style>\n\
         <defs><pattern id=\"h\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <path class=\"hatch\" d=\"M0 0v5\"/></pattern></defs>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
        style(picture)
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
        Ink::Mixed(_) => String::new(),
        Ink::On(class, shade) => format!("o{}{shade}", class.stem()),
        Ink::Idle => "idle".into(),
        Ink::Memory => "memory".into(),
        Ink::Axis => "axis".into(),
        Ink::Grid => "grid".into(),
        Ink::Phase(false) => "phase".into(),
        Ink::Phase(true) => "phase2".into(),
        Ink::Text => "text".into(),
        Ink::Muted => "muted".into(),
    }
}

/// Rules for the classes that occur.
fn style(picture: &Picture) -> String {
    let mut inks = BTreeSet::new();
    for shape in &picture.shapes {
        inks.insert(match shape {
            Shape::Boxes(ink, _) | Shape::Lines(ink, _) | Shape::Steps { ink, .. } => *ink,
            Shape::Texts(style, _) => style.ink,
        });
    }
    let mut out = String::from(
        "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}.bold{font-weight:650}\
         .middle{text-anchor:middle}.end{text-anchor:end}.ground{fill:#fff}.hatch{stroke:#c3c8d0;stroke-width:1.2}\
         .idle{fill:url(#h);stroke:#d7dbe1;stroke-width:.5}.memory{fill:#a9b4c6}.axis{stroke:#59636e;fill:none}\
         .grid{stroke:#e6e9ed;fill:none}.phase{fill:#59636e}.phase2{fill:#a9b1bb}.text{fill:#1f2328}.muted{fill:#59636e}",
    );
    for ink in inks {
        if let Ink::Box(class_, shade) = ink {
            let color = class_.color(shade);
            let on = if wants_white_text(color) { "#fff" } else { "#111" };
            let _ = write!(out, ".{}{{fill:{}}}", class(ink), hex(color));
            let _ = write!(out, ".{}{{fill:{on}}}", class(Ink::On(class_, shade)));
        }
    }
    out.push_str(
        "@media(prefers-color-scheme:dark){.ground{fill:#0d1117}.hatch{stroke:#30363d}.idle{stroke:#30363d}\
         .memory{fill:#4a5568}.axis{stroke:#8b949e}.grid{stroke:#1c2229}.phase{fill:#9aa4af}.phase2{fill:#545d68}\
         .text{fill:#e6edf3}.muted{fill:#9198a1}}",
    );
    out
}

fn write_shape(out: &mut String, shape: &Shape) {
    match shape {
        Shape::Boxes(ink, rects) => {
            out.push_str("<path ");
            match ink {
                Ink::Mixed([r, g, b, opacity]) => {
                    let _ = write!(out, "fill=\"{}\"", hex([*r, *g, *b]));
                    if *opacity < 255 {
                        let _ = write!(out, " fill-opacity=\"{:.3}\"", f64::from(*opacity) / 255.0);
                    }
                }
                _ => {
                    let _ = write!(out, "class=\"{}\"", class(*ink));
                }
            }
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
                // Horizontal and vertical lines lie in the middle of a pixel, so that they are sharp.
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

/// Two decimals at most, no trailing zeros.
fn coordinate(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".into() } else { text.into() }
}

fn sharp(value: f64) -> String {
    coordinate(value.floor() + 0.5)
}
