//! A picture as a list of shapes, which `layout` makes and `svg`, `png` and `pdf` write.

use crate::scene::look::Palette;
use crate::scene::palette::{Class, Rgb, THICK, Tone, grey, mix};
use pipesim_sim::Cause;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ink {
    Box(Class, u8),
    /// Mixed narrow boxes: red, green, blue and opacity.
    Mixed([u8; 4]),
    /// The border between two equal boxes: its dark side, and its light one if true.
    Border(Class, u8, bool),
    /// Text on such a box.
    On(Class, u8),
    /// Idle time, hatched.
    Idle,
    /// The frame around idle time.
    Frame,
    /// Idle time of a known cause, hatched.
    Cause(Cause),
    /// The area under the activation curve.
    Memory,
    /// The line of the activation cap.
    Cap,
    Axis,
    /// Vertical lines at the ticks.
    Grid,
    /// The line above a row that marks a phase; phases alternate.
    Phase(bool),
    Text,
    /// Less important text.
    Muted,
}

/// Left, top, width, height.
pub type Rect = [f64; 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// The share of a text's width that is left of its place.
    pub fn share(self) -> f64 {
        f64::from(self as u8) / 2.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    pub ink: Ink,
    pub size: f64,
    pub anchor: Anchor,
    pub bold: bool,
}

/// One thing to draw. Coordinates are pixels from the top left corner; a text's y is its baseline.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Boxes(Ink, Vec<Rect>),
    Lines(Ink, Vec<[f64; 4]>),
    /// A filled step curve: points from left to right, closed along `y = base`.
    Steps {
        ink: Ink,
        base: f64,
        points: Vec<(f64, f64)>,
    },
    Texts(Style, Vec<(f64, f64, String)>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    pub width: f64,
    pub height: f64,
    /// Alternative text.
    pub title: String,
    pub shapes: Vec<Shape>,
    pub palette: Palette,
}

impl Picture {
    /// Returns the colour of an ink on white. For a hatched ink, this is the colour of its ground.
    pub fn color(&self, ink: Ink) -> Rgb {
        let color = match ink {
            Ink::Box(class, shade) => self.palette.tone(class, shade).ground,
            Ink::Mixed([r, g, b, _]) => [r, g, b],
            Ink::Border(class, shade, light) => self.palette.tone(class, shade).border(light),
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

    /// Returns the look of an ink that may be hatched.
    pub fn tone(&self, ink: Ink) -> Option<Tone> {
        match ink {
            Ink::Box(class, shade) => Some(self.palette.tone(class, shade)),
            Ink::Cause(cause) => Some(self.palette.cause(cause)),
            Ink::Idle => Some(self.palette.idle()),
            _ => None,
        }
    }

    /// Returns the line width of an ink's hatch, in pixels.
    pub fn thickness(&self, ink: Ink) -> f64 {
        if ink == Ink::Idle { THICK / 2.0 } else { THICK }
    }

    /// Returns the opacity of an ink, 0 to 255.
    pub fn opacity(&self, ink: Ink) -> u8 {
        if let Ink::Mixed([.., opacity]) = ink { opacity } else { u8::MAX }
    }

    /// Scales everything.
    pub fn enlarge(&mut self, factor: f64) {
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
    pub fn boxes(&mut self, ink: Ink, rects: Vec<Rect>) {
        if !rects.is_empty() {
            self.shapes.push(Shape::Boxes(ink, rects));
        }
    }

    /// Adds lines, if there are any.
    pub fn lines(&mut self, ink: Ink, lines: Vec<[f64; 4]>) {
        if !lines.is_empty() {
            self.shapes.push(Shape::Lines(ink, lines));
        }
    }

    /// Adds texts, if there are any.
    pub fn texts(&mut self, style: Style, texts: Vec<(f64, f64, String)>) {
        if !texts.is_empty() {
            self.shapes.push(Shape::Texts(style, texts));
        }
    }

    /// Adds a text, unless it is empty.
    pub fn text(&mut self, style: Style, x: f64, y: f64, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.texts(style, vec![(x, y, text)]);
        }
    }
}
