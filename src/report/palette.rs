//! Colours and their names: one table for pictures, pages and the terminal.
//!
//! Kinds differ in lightness as well as in hue, so that they stay apart in greyscale and for colour-blind readers; letters
//! in the boxes say the rest.

use crate::op::Kind;
use crate::sim::Cause;
use crate::timeline::Queue;

/// Red, green, blue.
pub(super) type Rgb = [u8; 3];

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Forward,
    BackwardInput,
    BackwardWeight,
    Backward,
    Step,
    Send,
    Receive,
}

/// By class: its stem in style sheets, its name in legends, the colour of chunk 0, and the nearest of a terminal's eight.
const LOOKS: [(Class, &str, &str, Rgb, u8); 7] = [
    (Class::Forward, "F", "F forward", [0x2f, 0x62, 0xc4], 4),
    (Class::BackwardInput, "I", "I backward for the input", [0x0d, 0x86, 0x86], 6),
    (Class::BackwardWeight, "W", "W backward for the weights", [0x86, 0xbf, 0x45], 2),
    (Class::Backward, "B", "B full backward", [0xee, 0x8a, 0x21], 3),
    (Class::Step, "step", "step ops", [0x8b, 0x82, 0xa6], 7),
    (Class::Send, "send", "send", [0xd2, 0x36, 0x3b], 1),
    (Class::Receive, "receive", "wait for data", [0x97, 0x5b, 0xc6], 5),
];

/// The colours of causes of idle time, as in [`Cause::ALL`]. Gaps are hatched in them, so that they are taken for no kind of op.
const CAUSES: [(Rgb, &str); Cause::ALL.len()] = [
    ([0x64, 0x74, 0x8b], "/"),
    ([0xa1, 0x80, 0x5a], "\\"),
    ([0x0e, 0x9f, 0xd8], "x"),
    ([0xdc, 0x26, 0x26], "|"),
    ([0xb4, 0x8a, 0x00], "-"),
    ([0xc0, 0x26, 0xd3], "/"),
    ([0x4d, 0x8b, 0x0f], "\\"),
];

/// The colour of the lines of a cause of idle time, and how they lie.
pub(super) fn cause_hatch(cause: Cause) -> (Rgb, &'static str) {
    CAUSES[cause as usize]
}

/// The colours that a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Colors {
    /// None.
    None,
    /// Eight, each dark and bright.
    Sixteen,
    /// A cube of 6 x 6 x 6 and 24 greys.
    Cube,
    /// 24 bits.
    True,
}

/// A colour, and the nearest of a terminal's sixteen.
pub(super) type Ink = (Rgb, u8);

impl Colors {
    /// The escape sequence that makes it the front colour, or the back one.
    pub(super) fn pen(self, (rgb, near): Ink, back: bool) -> String {
        let (base, bright) = if back { (40, 92) } else { (30, 82) };
        match (self, rgb) {
            (Colors::None, _) => String::new(),
            (Colors::Sixteen, _) if near < 8 => format!("\x1b[{}m", base + near),
            (Colors::Sixteen, _) => format!("\x1b[{}m", bright + near),
            (Colors::Cube, rgb) => format!("\x1b[{};5;{}m", base + 8, cube(rgb)),
            (Colors::True, [r, g, b]) => format!("\x1b[{};2;{r};{g};{b}m", base + 8),
        }
    }

    /// What the terminal shows for a colour.
    pub(super) fn shown(self, rgb: Rgb) -> Rgb {
        if self == Colors::Cube { nearest(rgb).1 } else { rgb }
    }
}

/// The nearest of xterm's colours 16 to 255.
fn cube(rgb: Rgb) -> u8 {
    nearest(rgb).0
}

/// The same and what it looks like.
fn nearest(rgb: Rgb) -> (u8, Rgb) {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let colors = (16..=255u8).map(|number| match number {
        16..232 => (number, [36, 6, 1].map(|step| LEVELS[usize::from((number - 16) / step % 6)])),
        grey => (grey, [8 + 10 * (grey - 232); 3]),
    });
    let away = |other: Rgb| (0..3).map(|i| u32::from(rgb[i].abs_diff(other[i])).pow(2)).sum::<u32>();
    colors.min_by_key(|&(_, other)| away(other)).unwrap_or((16, [0; 3]))
}

impl Class {
    /// How many there are.
    pub(super) const COUNT: usize = LOOKS.len();

    /// Every class, in the order of legends.
    pub(super) fn all() -> [Class; 7] {
        LOOKS.map(|(class, ..)| class)
    }

    /// The class of a span of `queue`, `kind` being that of its op.
    pub(super) fn of(queue: Queue, kind: Option<Kind>) -> Class {
        match (queue, kind) {
            (Queue::Send, _) => Class::Send,
            (Queue::Receive, _) => Class::Receive,
            (Queue::Compute, Some(Kind::F)) => Class::Forward,
            (Queue::Compute, Some(Kind::I)) => Class::BackwardInput,
            (Queue::Compute, Some(Kind::W)) => Class::BackwardWeight,
            (Queue::Compute, Some(Kind::B)) => Class::Backward,
            (Queue::Compute, None) => Class::Step,
        }
    }

    /// For style sheets.
    pub(super) fn stem(self) -> &'static str {
        LOOKS[self as usize].1
    }

    /// For legends.
    pub(super) fn name(self) -> &'static str {
        LOOKS[self as usize].2
    }

    /// The nearest of a terminal's eight colours.
    pub(super) fn near(self) -> u8 {
        LOOKS[self as usize].4
    }

    /// The colour of a chunk's shade, 0 to 3.
    pub(super) fn color(self, shade: u8) -> Rgb {
        mix(LOOKS[self as usize].3, [255; 3], [0.0, 0.24, 0.45, 0.62][usize::from(shade.min(3))])
    }
}

/// `a` with a share of `b`.
pub(super) fn mix(a: Rgb, b: Rgb, share: f64) -> Rgb {
    std::array::from_fn(|i| (f64::from(a[i]) * (1.0 - share) + f64::from(b[i]) * share).round() as u8)
}

/// Whether white text is easier to read than black on `color`.
pub(super) fn wants_white_text(color: Rgb) -> bool {
    let linear = |c: u8| (f64::from(c) / 255.0).powf(2.2);
    let luminance = 0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2]);
    luminance < 0.30
}

/// The shade of chunk `chunk` of `chunks`: the first is the darkest.
pub(super) fn shade(chunk: usize, chunks: usize) -> u8 {
    match chunks {
        0 | 1 => 0,
        2 => [0, 2][chunk.min(1)],
        _ => ((chunk * 3 + (chunks - 1) / 2) / (chunks - 1)).min(3) as u8,
    }
}

/// `#rrggbb`.
pub(super) fn hex(color: Rgb) -> String {
    format!("#{:02x}{:02x}{:02x}", color[0], color[1], color[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_get_the_colours_they_have() {
        let ink = ([255, 0, 0], 9);
        let pens = [Colors::None, Colors::Sixteen, Colors::Cube, Colors::True].map(|colors| colors.pen(ink, true));
        assert_eq!(pens, ["", "\x1b[101m", "\x1b[48;5;196m", "\x1b[48;2;255;0;0m"]);
        assert_eq!(
            Colors::Sixteen.pen(([0; 3], 0), false) + &Colors::Sixteen.pen(([255; 3], 15), false),
            "\x1b[30m\x1b[97m"
        );
        assert_eq!([cube([0; 3]), cube([255; 3]), cube([128; 3])], [16, 231, 244]);
    }

    #[test]
    fn shades_are_in_order() {
        assert_eq!([shade(0, 2), shade(1, 2)], [0, 2]);
        assert_eq!([shade(0, 4), shade(1, 4), shade(2, 4), shade(3, 4)], [0, 1, 2, 3]);
        assert_eq!([shade(0, 3), shade(1, 3), shade(2, 3)], [0, 2, 3]);
        assert!(shade(99, 100) == 3 && shade(7, 1) == 0);
    }
}
