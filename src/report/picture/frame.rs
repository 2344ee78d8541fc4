//! What all parts of a still picture share: its columns, the styles of texts, and texts of several lines.

use crate::PictureColumn;
use crate::picture::canvas::{Anchor, Ink, Picture, Style};
use crate::text::lines_of_pixels;

/// Width of a figure of each device.
const COLUMN: f64 = 42.0;

pub const TITLE: Style = Style { ink: Ink::Text, size: 17.0, anchor: Anchor::Start, bold: true };
pub const HEAD: Style = Style { ink: Ink::Text, size: 14.0, anchor: Anchor::Start, bold: true };
pub const BODY: Style = Style { ink: Ink::Text, size: 11.5, anchor: Anchor::Start, bold: false };
pub const MUTED: Style = Style { ink: Ink::Muted, size: 10.5, anchor: Anchor::Start, bold: false };
pub const SMALL: Style = Style { ink: Ink::Muted, size: 9.5, anchor: Anchor::Start, bold: false };

/// Columns of a picture, in pixels at the usual text size.
#[derive(Clone, Copy)]
pub struct PictureFrame {
    pub width: f64,
    pub margin: f64,
    /// Left and right edge of the time axis.
    pub left: f64,
    pub right: f64,
    /// Whether there is room for words: device names, figures next to rows, all figures in the heading.
    pub wide: bool,
    /// Figures of each device, right of its row.
    of_devices: [bool; 2],
}

impl PictureFrame {
    /// Returns the frame of a picture; `both`: predicted and measured are shown.
    pub fn new(width: f64, both: bool, columns: Option<&[PictureColumn]>) -> PictureFrame {
        let wide = width >= 640.0;
        let of_devices = [PictureColumn::Busy, PictureColumn::Peak]
            .map(|one| columns.map_or(wide, |columns| columns.contains(&one)));
        let figures = COLUMN * of_devices.iter().filter(|shown| **shown).count() as f64;
        if wide {
            return PictureFrame { width, margin: 16.0, left: 124.0, right: width - 24.0 - figures, wide, of_devices };
        }
        let margin = 6.0;
        let left = margin + if both { 84.0 } else { 34.0 };
        PictureFrame { width, margin, left, right: width - margin - 2.0 - figures, wide, of_devices }
    }

    /// Right edges of the figures of each device, if they are shown: busy share and activation peak.
    pub fn edges(&self) -> [Option<f64>; 2] {
        let end = self.width - self.margin;
        let [busy, peak] = self.of_devices;
        [busy.then_some(if peak { end - COLUMN } else { end }), peak.then_some(end)]
    }

    /// Left edge and width of the time axis.
    pub fn room(&self) -> (f64, f64) {
        (self.left, self.right - self.left)
    }

    /// Width of a text that begins at the left margin.
    pub fn text(&self) -> f64 {
        self.width - 2.0 * self.margin
    }
}

/// Writes a text in as many lines as needed, `step` apart, the first at `y`; returns the y of the next line.
pub fn lines(picture: &mut Picture, style: Style, x: f64, y: f64, width: f64, step: f64, text: &str) -> f64 {
    let lines = lines_of_pixels(text, width, style.size);
    for (number, line) in lines.iter().enumerate() {
        picture.text(style, x, y + step * number as f64, line);
    }
    y + step * lines.len() as f64
}
