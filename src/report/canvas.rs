//! A picture as a list of shapes: what `layout` makes, and `svg` and `png` write.

use super::palette::Class;

/// What a shape is drawn with; each format has its own table of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ink {
    /// A box of a class in one of its shades.
    Box(Class, u8),
    /// Boxes too narrow to be seen, mixed: red, green, blue and opacity over what lies below.
    Mixed([u8; 4]),
    /// Text on such a box.
    On(Class, u8),
    /// Idle time, hatched.
    Idle,
    /// The area under the curve of activations.
    Memory,
    /// The axis and its ticks.
    Axis,
    /// Lines through the rows at the ticks.
    Grid,
    /// The line above a row that marks a phase; phases alternate.
    Phase(bool),
    /// Text.
    Text,
    /// Less important text.
    Muted,
}

/// Left, top, width, height.
pub(super) type Rect = [f64; 4];

/// Where a text's x lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How texts are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Style {
    pub(super) ink: Ink,
    pub(super) size: f64,
    pub(super) anchor: Anchor,
    pub(super) bold: bool,
}

/// One thing to draw. Coordinates are pixels from the top left corner; a text's y is its baseline.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    /// Filled rectangles of one ink.
    Boxes(Ink, Vec<Rect>),
    /// Straight lines.
    Lines(Ink, Vec<[f64; 4]>),
    /// A filled curve of steps: points from left to right, closed along `y = base`.
    Steps { ink: Ink, base: f64, points: Vec<(f64, f64)> },
    /// Texts of one style.
    Texts(Style, Vec<(f64, f64, String)>),
}

/// A finished picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Picture {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Said to readers who cannot see it.
    pub(super) title: String,
    pub(super) shapes: Vec<Shape>,
}

impl Picture {
    /// Adds boxes, if there are any.
    pub(super) fn boxes(&mut self, ink: Ink, rects: Vec<Rect>) {
        if !rects.is_empty() {
            self.shapes.push(Shape::Boxes(ink, rects));
        }
    }

    /// Adds lines, if there are any.
    pub(super) fn lines(&mut self, ink: Ink, lines: Vec<[f64; 4]>) {
        if !lines.is_empty() {
            self.shapes.push(Shape::Lines(ink, lines));
        }
    }

    /// Adds texts, if there are any.
    pub(super) fn texts(&mut self, style: Style, texts: Vec<(f64, f64, String)>) {
        if !texts.is_empty() {
            self.shapes.push(Shape::Texts(style, texts));
        }
    }

    /// Adds one text; an empty one is left out.
    pub(super) fn text(&mut self, style: Style, x: f64, y: f64, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.texts(style, vec![(x, y, text)]);
        }
    }
}
