//! Colours and their names: one table for pictures, pages and the terminal.
//!
//! Two kinds of op, or causes of idle time, differ in their hatch, or else by at least 20 in CIEDE2000 for every
//! reader: with normal sight, without red or green cones, and in print without colours. The two chunks of a device
//! differ by at least 9, and neighbours among five to eight by at least 4.5. Every shade differs by at least 9.5 from the white
//! and the dark background. Letters in the boxes say the rest. `tests/simulation/vision.rs` computes it.

use crate::scene::look::Palette;
use pipesim_schedule::op::{Kind, Op};
use pipesim_schedule::sharding::CollectiveKind;
use pipesim_schedule::timeline::{Queue, Span};
use pipesim_sim::Cause;

pub type Rgb = [u8; 3];

/// What boxes of one colour show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Op(Kind),
    Step,
    Send,
    Receive,
    /// Gathers of parameters between ops.
    Gather,
    /// Reductions of gradients between ops.
    Reduce,
}

/// Lines over a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hatch {
    Plain,
    /// `/`
    Rising,
    /// `\`
    Falling,
    /// `|`
    Upright,
    /// `-`
    Level,
    /// `/` and `\`
    Crossed,
    /// `|` and `-`
    Squared,
}

/// How a box is filled and labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tone {
    /// Mean of ground and lines, which is what an eye sees from afar.
    pub color: Rgb,
    /// Colour between the lines.
    pub ground: Rgb,
    /// Colour of texts on it: white or nearly black.
    pub text: Rgb,
    pub hatch: Hatch,
    /// Colour of the hatch's lines.
    pub line: Rgb,
}

const KINDS: usize = Kind::ALL.len();

/// Number of shades of a class.
pub const SHADES: u8 = 8;

/// By shade: its share of the last chunk's colour. Up to four chunks have the first four, from dark to light.
const SHARES: [f64; SHADES as usize] = [0.0, 0.39, 0.73, 1.0, 0.14, 0.27, 0.56, 0.86];

/// Shades of more than four chunks: dark and light alternate, which tells neighbours apart.
const ALTERNATING: [u8; SHADES as usize] = [0, 6, 4, 2, 5, 7, 1, 3];

/// What is no op: stem in style sheets and name in legends.
const OTHERS: [(Class, &str, &str); 5] = [
    (Class::Step, "step", "step ops"),
    (Class::Send, "send", "send"),
    (Class::Receive, "receive", "wait for data"),
    (Class::Gather, "gather", "u gather of parameters (UNSHARD)"),
    (Class::Reduce, "reduce", "r reduction of gradients (REDUCE_GRAD)"),
];

/// By class: the nearest of a terminal's eight colours.
const NEAR: [u8; Class::COUNT] = [4, 6, 2, 3, 4, 3, 6, 5, 7, 7, 7, 1, 5, 2, 5];

/// By class: the colours of the first and of the last chunk, and the hatch.
type Tones = [(Rgb, Rgb, Hatch); Class::COUNT];

const DEFAULT: Tones = [
    ([0x14, 0x10, 0xa1], [0x07, 0x6c, 0xcc], Hatch::Plain),
    ([0x07, 0x78, 0x79], [0x70, 0xca, 0xd4], Hatch::Plain),
    ([0x6e, 0xb0, 0x33], [0x55, 0xea, 0xa8], Hatch::Falling),
    ([0xf1, 0x88, 0x37], [0xef, 0xcb, 0xa5], Hatch::Plain),
    ([0xc5, 0x94, 0xd2], [0xc5, 0x94, 0xd2], Hatch::Upright),
    ([0x8b, 0x65, 0x33], [0x8b, 0x65, 0x33], Hatch::Level),
    ([0xb8, 0xa1, 0x91], [0xb8, 0xa1, 0x91], Hatch::Level),
    ([0xe0, 0x8c, 0xc0], [0xe0, 0x8c, 0xc0], Hatch::Rising),
    ([0x44, 0x60, 0x7c], [0x44, 0x60, 0x7c], Hatch::Squared),
    ([0xb5, 0xcb, 0xe0], [0xb5, 0xcb, 0xe0], Hatch::Squared),
    ([0xa4, 0x9d, 0xbb], [0xa4, 0x9d, 0xbb], Hatch::Crossed),
    ([0xd2, 0x36, 0x3b], [0xd2, 0x36, 0x3b], Hatch::Plain),
    ([0x97, 0x5b, 0xc6], [0x97, 0x5b, 0xc6], Hatch::Plain),
    ([0x62, 0xa0, 0x80], [0x62, 0xa0, 0x80], Hatch::Upright),
    ([0xb5, 0x8a, 0xc8], [0xb5, 0x8a, 0xc8], Hatch::Falling),
];

/// Sky blue, reddish purple and orange are close to Okabe and Ito's palette.
const COLOUR_BLIND: Tones = [
    ([0x00, 0x3a, 0x6c], [0x2a, 0x67, 0x9c], Hatch::Plain),
    ([0x3f, 0x9c, 0xd3], [0x9f, 0xd4, 0xf3], Hatch::Rising),
    ([0xcc, 0x79, 0xa7], [0xe9, 0xc2, 0xd7], Hatch::Falling),
    ([0xd1, 0x8e, 0x00], [0xf0, 0xcd, 0x88], Hatch::Plain),
    ([0x7f, 0x9f, 0xd0], [0x7f, 0x9f, 0xd0], Hatch::Upright),
    ([0x7d, 0x67, 0x40], [0x7d, 0x67, 0x40], Hatch::Level),
    ([0xa9, 0xa3, 0x9b], [0xa9, 0xa3, 0x9b], Hatch::Level),
    ([0x5c, 0x5a, 0x28], [0x5c, 0x5a, 0x28], Hatch::Crossed),
    ([0xa2; 3], [0xa2; 3], Hatch::Squared),
    ([0xf8; 3], [0xf8; 3], Hatch::Squared),
    ([0xa4; 3], [0xa4; 3], Hatch::Crossed),
    ([0xd5, 0x5e, 0x00], [0xd5, 0x5e, 0x00], Hatch::Plain),
    ([0x6b, 0x6b, 0x6b], [0x6b, 0x6b, 0x6b], Hatch::Plain),
    ([0x23, 0x79, 0x54], [0x23, 0x79, 0x54], Hatch::Upright),
    ([0x44, 0x60, 0x7c], [0x44, 0x60, 0x7c], Hatch::Squared),
];

const GREY: Tones = [
    ([0x30; 3], [0x58; 3], Hatch::Plain),
    ([0x98; 3], [0xcc; 3], Hatch::Rising),
    ([0x94; 3], [0xce; 3], Hatch::Falling),
    ([0x9c; 3], [0xcc; 3], Hatch::Plain),
    ([0xa8; 3], [0xa8; 3], Hatch::Upright),
    ([0x6c; 3], [0x6c; 3], Hatch::Level),
    ([0xa5; 3], [0xa5; 3], Hatch::Level),
    ([0xa4; 3], [0xa4; 3], Hatch::Squared),
    ([0x58; 3], [0x58; 3], Hatch::Squared),
    ([0xf8; 3], [0xf8; 3], Hatch::Squared),
    ([0xa4; 3], [0xa4; 3], Hatch::Crossed),
    ([0x3c; 3], [0x3c; 3], Hatch::Plain),
    ([0x9a; 3], [0x9a; 3], Hatch::Plain),
    ([0x6c; 3], [0x6c; 3], Hatch::Upright),
    ([0x6c; 3], [0x6c; 3], Hatch::Falling),
];

/// Lines of causes of idle time, in the order of [`Cause::ALL`]. Gaps are hatched to tell them from ops.
const CAUSES: [(Rgb, Hatch); Cause::ALL.len()] = [
    ([0x64, 0x74, 0x8b], Hatch::Rising),
    ([0xa1, 0x80, 0x5a], Hatch::Falling),
    ([0x0e, 0x9f, 0xd8], Hatch::Upright),
    ([0xe1, 0x1d, 0x48], Hatch::Level),
    ([0xb4, 0x8a, 0x00], Hatch::Crossed),
    ([0x5a, 0x0c, 0x66], Hatch::Rising),
    ([0x1f, 0x52, 0x0a], Hatch::Falling),
    ([0xff, 0x6a, 0x00], Hatch::Upright),
    ([0x2b, 0x2b, 0x8f], Hatch::Level),
];

/// Distance between the lines of a hatch, in pixels.
pub const PERIOD: f64 = 5.0;
/// Width of the lines of a hatch, in pixels.
pub const THICK: f64 = 1.4;

/// Texts on dark boxes.
pub const WHITE: Rgb = [0xff; 3];
const BLACK: Rgb = [0x11; 3];

impl Palette {
    /// How a class's boxes look; `shade` is the shade of their chunk, below [`SHADES`].
    pub(crate) fn tone(self, class: Class, shade: u8) -> Tone {
        let (first, last, hatch) = match self {
            Palette::Default => DEFAULT,
            Palette::ColourBlind => COLOUR_BLIND,
            Palette::Grey => GREY,
        }[class.number()];
        let color = mix(first, last, SHARES[usize::from(shade.min(SHADES - 1))]);
        let text = if contrast(color, WHITE) >= contrast(color, BLACK) { WHITE } else { BLACK };
        // Lines are never nearer to the text's colour than may be read.
        let darker = mix(color, [0; 3], 0.22);
        let line = if contrast(darker, text) >= 4.5 { darker } else { mix(color, WHITE, 0.55) };
        Tone { color, ground: ground(color, line, hatch), text, hatch, line }
    }

    /// How idle time of a known cause looks.
    pub(crate) fn cause(self, cause: Cause) -> Tone {
        let (line, hatch) = CAUSES[cause as usize];
        let line = if self == Palette::Grey { grey(line) } else { line };
        let ground = mix(line, WHITE, 0.97);
        Tone { color: ground, ground, text: BLACK, hatch, line }
    }

    /// Idle time of unknown cause.
    pub(crate) fn idle(self) -> Tone {
        Tone { color: WHITE, ground: WHITE, text: BLACK, hatch: Hatch::Rising, line: [0xc3, 0xc8, 0xd0] }
    }
}

/// Returns the colour between lines that gives the mean `color`.
fn ground(color: Rgb, line: Rgb, hatch: Hatch) -> Rgb {
    let free = (1.0 - THICK / PERIOD).powi(hatch.across().len() as i32);
    std::array::from_fn(|i| {
        let (mean, line) = (f64::from(color[i]), f64::from(line[i]));
        ((mean - line * (1.0 - free)) / free).round().clamp(0.0, 255.0) as u8
    })
}

impl Tone {
    /// Returns the dark or the light side of the border between two boxes. Their mean is the boxes' own colour.
    pub(crate) fn border(&self, light: bool) -> Rgb {
        self.color.map(|value| {
            let away = (f64::from(value.min(u8::MAX - value)) * 0.85).round() as u8;
            if light { value + away } else { value - away }
        })
    }
}

impl Hatch {
    /// Returns the mark in files: ``, `/`, `\`, `|`, `-`, `x` or `+`.
    pub fn mark(self) -> &'static str {
        match self {
            Hatch::Plain => "",
            Hatch::Rising => "/",
            Hatch::Falling => "\\",
            Hatch::Upright => "|",
            Hatch::Level => "-",
            Hatch::Crossed => "x",
            Hatch::Squared => "+",
        }
    }

    /// Returns unit vectors across the lines, with y downwards.
    pub fn across(self) -> &'static [(f64, f64)] {
        const D: f64 = std::f64::consts::FRAC_1_SQRT_2;
        match self {
            Hatch::Plain => &[],
            Hatch::Rising => &[(D, D)],
            Hatch::Falling => &[(D, -D)],
            Hatch::Upright => &[(1.0, 0.0)],
            Hatch::Level => &[(0.0, 1.0)],
            Hatch::Crossed => &[(D, D), (D, -D)],
            Hatch::Squared => &[(1.0, 0.0), (0.0, 1.0)],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Colors {
    None,
    /// Eight, each dark and bright.
    Sixteen,
    /// A cube of 6 x 6 x 6 and 24 greys.
    Cube,
    /// 24 bits.
    True,
}

/// A colour, and the nearest of a terminal's sixteen.
pub type Ink = (Rgb, u8);

impl Colors {
    /// Returns the escape sequence that sets the foreground or background colour.
    pub fn pen(self, (rgb, near): Ink, back: bool) -> String {
        let (base, bright) = if back { (40, 92) } else { (30, 82) };
        match (self, rgb) {
            (Colors::None, _) => String::new(),
            (Colors::Sixteen, _) if near < 8 => format!("\x1b[{}m", base + near),
            (Colors::Sixteen, _) => format!("\x1b[{}m", bright + near),
            (Colors::Cube, rgb) => format!("\x1b[{};5;{}m", base + 8, nearest(rgb).0),
            (Colors::True, [r, g, b]) => format!("\x1b[{};2;{r};{g};{b}m", base + 8),
        }
    }

    /// Returns the colour that the terminal shows.
    pub fn shown(self, rgb: Rgb) -> Rgb {
        if self == Colors::Cube { nearest(rgb).1 } else { rgb }
    }
}

/// Returns the nearest of xterm's colours 16 to 255, and its RGB.
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
    pub const COUNT: usize = KINDS + OTHERS.len();

    /// Returns every class, in the order of legends and of [`Class::number`].
    pub fn all() -> [Class; Class::COUNT] {
        std::array::from_fn(|number| match number.checked_sub(KINDS) {
            None => Class::Op(Kind::ALL[number]),
            Some(other) => OTHERS[other].0,
        })
    }

    /// Returns its number, below [`Class::COUNT`]; an op has the number of its kind.
    pub fn number(self) -> usize {
        let at = |class| OTHERS.iter().position(|other| other.0 == class).unwrap_or_default();
        if let Class::Op(kind) = self { kind as usize } else { KINDS + at(self) }
    }

    /// Returns the class of `span`; `op` is the op that the span's name denotes, if any.
    pub fn of(span: &Span, op: Option<Op>) -> Class {
        match (span.queue, op) {
            (Queue::Send, _) => Class::Send,
            (Queue::Receive, _) => Class::Receive,
            (Queue::Collective, _) if span.op.ends_with(CollectiveKind::ReduceGrad.name()) => Class::Reduce,
            (Queue::Collective, _) => Class::Gather,
            (Queue::Compute | Queue::Copy, Some(op)) => Class::Op(op.kind()),
            (Queue::Copy, None) => Class::Op(Kind::O),
            (Queue::Compute, None) => Class::Step,
        }
    }

    /// Letter in boxes; `None` for what has a name or no letter.
    pub fn letter(self) -> Option<char> {
        match self {
            Class::Op(kind) => Some(kind.letter()),
            Class::Gather => Some('u'),
            Class::Reduce => Some('r'),
            Class::Step | Class::Send | Class::Receive => None,
        }
    }

    /// Stem of style sheet classes.
    pub fn stem(self) -> String {
        match self {
            Class::Op(kind) => kind.letter().to_string(),
            _ => OTHERS[self.number() - KINDS].1.to_string(),
        }
    }

    /// Name in legends.
    pub fn name(self) -> String {
        match self {
            Class::Op(kind) => format!("{} {}", kind.letter(), kind.title()),
            _ => OTHERS[self.number() - KINDS].2.to_string(),
        }
    }

    /// Nearest of a terminal's eight colours.
    pub fn near(self) -> u8 {
        NEAR[self.number()]
    }
}

/// Returns `a` with a share of `b`.
pub fn mix(a: Rgb, b: Rgb, share: f64) -> Rgb {
    std::array::from_fn(|i| (f64::from(a[i]) * (1.0 - share) + f64::from(b[i]) * share).round() as u8)
}

/// Returns the linear light of an sRGB number, 0 to 1 (IEC 61966-2-1).
pub fn linear(number: u8) -> f64 {
    let value = f64::from(number) / 255.0;
    if value <= 0.04045 { value / 12.92 } else { libm::pow((value + 0.055) / 1.055, 2.4) }
}

/// Relative luminance, 0 to 1.
fn luminance(color: Rgb) -> f64 {
    let [r, g, b] = color.map(linear);
    0.2126 * r + 0.7152 * g + 0.0722 * b
}

/// Contrast ratio, 1 to 21, as WCAG 2 defines it; texts need 4.5.
pub fn contrast(a: Rgb, b: Rgb) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// Returns the grey of the same luminance.
pub fn grey(color: Rgb) -> Rgb {
    let light = luminance(color);
    let value = if light <= 0.003_130_8 { 12.92 * light } else { 1.055 * libm::pow(light, 1.0 / 2.4) - 0.055 };
    [(value * 255.0).round() as u8; 3]
}

/// Returns the shade of a chunk. The first chunk is the darkest; of up to four, later ones are lighter.
pub fn shade(chunk: usize, chunks: usize) -> u8 {
    match chunks {
        0 | 1 => 0,
        2 => [0, 2][chunk.min(1)],
        3 | 4 => ((chunk * 3 + (chunks - 1) / 2) / (chunks - 1)).min(3) as u8,
        _ => ALTERNATING[chunk % ALTERNATING.len()],
    }
}

/// `#rrggbb`.
pub fn hex(color: Rgb) -> String {
    format!("#{:02x}{:02x}{:02x}", color[0], color[1], color[2])
}
