//! Colours and their names: one table for pictures, pages and the terminal.
//!
//! Kinds differ in lightness as well as in hue, so that they stay apart in greyscale and for colour-blind readers; letters
//! in the boxes say the rest.

use crate::op::Kind;
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

/// By class: its stem in style sheets, its name in legends, the colour of chunk 0.
const LOOKS: [(Class, &str, &str, Rgb); 7] = [
    (Class::Forward, "F", "F forward", [0x2f, 0x62, 0xc4]),
    (Class::BackwardInput, "I", "I backward for the input", [0x0d, 0x86, 0x86]),
    (Class::BackwardWeight, "W", "W backward for the weights", [0x86, 0xbf, 0x45]),
    (Class::Backward, "B", "B full backward", [0xee, 0x8a, 0x21]),
    (Class::Step, "step", "step ops", [0x8b, 0x82, 0xa6]),
    (Class::Send, "send", "send", [0xd2, 0x36, 0x3b]),
    (Class::Receive, "receive", "wait for data", [0x97, 0x5b, 0xc6]),
];

impl Class {
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
    fn shades_are_in_order() {
        assert_eq!([shade(0, 2), shade(1, 2)], [0, 2]);
        assert_eq!([shade(0, 4), shade(1, 4), shade(2, 4), shade(3, 4)], [0, 1, 2, 3]);
        assert_eq!([shade(0, 3), shade(1, 3), shade(2, 3)], [0, 2, 3]);
        assert!(shade(99, 100) == 3 && shade(7, 1) == 0);
    }
}
