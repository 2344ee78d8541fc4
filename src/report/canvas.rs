//! A picture as a list of shapes: what `layout` makes, and `svg`, `png` and `pdf` write.

use super::look::Palette;
use super::palette::{Class, Rgb, THICK, Tone, grey, mix};
use crate::sim::Cause;

/// What a shape is drawn with.
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
    /// The frame around it.
    Frame,
    /// Idle time of a known cause, hatched.
    Cause(Cause),
    /// The area under the curve of activations.
    Memory,
    /// The line of the most activations that may be held.
    Cap,
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
    /// The colours of kinds and causes.
    pub(super) palette: Palette,
}

impl Picture {
    /// The colour of an ink on white; of a hatched one that of its ground.
    pub(super) fn color(&self, ink: Ink) -> Rgb {
        let color = match ink {
            Ink::Box(class, shade) => self.palette.tone(class, shade).ground,
            Ink::Mixed([r, g, b, _]) => [r, g, b],
            Ink::On(class, shade) => self.palette.tone(class, shade).text,
            Ink::Cause(cause) => self.palette.cause(cause).ground,
            Ink::Idle => self.palette.idle().ground,
            Ink::Frame => [0xd7, 0xdb, 0xe1],
            Ink::Memory => [0xa9, 0xb4, 0xc6],
            Ink::Axis | Ink::Muted | Ink::Phase(false) => [0x59, 0x63, 0x6e],
            Ink::Grid => [0xe6, 0xe9, 0xed],
            Ink::Phase(true) => mix([0x59, 0x63, 0x6e], [0xff; 3], 0.45),
            Ink::Cap | Ink::Text => [0x1f, 0x23, 0x28],
        };
        if self.palette == Palette::Grey { grey(color) } else { color }
    }

    /// How an ink that may be hatched looks.
    pub(super) fn tone(&self, ink: Ink) -> Option<Tone> {
        match ink {
            Ink::Box(class, shade) => Some(self.palette.tone(class, shade)),
            Ink::Cause(cause) => Some(self.palette.cause(cause)),
            Ink::Idle => Some(self.palette.idle()),
            _ => None,
        }
    }

    /// How thick an ink's hatch is, in pixels.
    pub(super) fn thickness(&self, ink: Ink) -> f64 {
        if ink == Ink::Idle { THICK / 2.0 } else { THICK }
    }

    /// How much of what lies below an ink hides, 0 to 255.
    pub(super) fn opacity(&self, ink: Ink) -> u8 {
        if let Ink::Mixed([.., opacity]) = ink { opacity } else { u8::MAX }
    }

    /// Makes everything larger by a factor.
    pub(super) fn enlarge(&mut self, factor: f64) {
        if factor == 1.0 {
            return;
        }
        (self.width, self.height) = (self.width * factor, (self.height * factor).ceil());
        for shape in &mut self.shapes {
            match shape {
                Shape::Boxes(_, rects) | Shape::Lines(_, rects) => {
                    rects.iter_mut().flatten().for_each(|number| *number *= factor);
                }
                Shape::Steps { base, points, .. } => {
                    *base *= factor;
                    points.iter_mut().for_each(|(x, y)| (*x, *y) = (*x * factor, *y * factor));
                }
                Shape::Texts(style, texts) => {
                    style.size *= factor;
                    texts.iter_mut().for_each(|(x, y, _)| (*x, *y) = (*x * factor, *y * factor));
                }
            }
        }
    }

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
