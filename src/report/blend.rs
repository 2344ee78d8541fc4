//! Ops too narrow to be seen: what lies in a column of a row is mixed by area, so that a row has the colours of its ops in
//! proportion to their times however narrow they are.
//!
//! Colours are mixed as sRGB numbers, as every browser and viewer mixes them where it smooths an edge or makes a picture
//! smaller: a picture drawn small looks like a large one made small, and the mean colour of a row, which any image program
//! gives, is the mean of its ops' colours weighted with their times. What stays free is left transparent.

use super::palette::Rgb;

/// A narrow box: its edges, the share of the row's height that it takes, and its colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sliver<T> {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) height: f64,
    pub(super) color: Rgb,
    /// What it is drawn with where it fills a column alone.
    pub(super) ink: T,
}

/// What a part of a row is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill<T> {
    /// One ink.
    Plain(T),
    /// Red, green, blue and opacity.
    Mixed([u8; 4]),
}

/// A part of a row: left and right edge and what it is filled with.
pub(super) type Part<T> = (f64, f64, Fill<T>);

/// Red, green and blue, each times the share of the area that is covered, and that share; 0 to 1.
type Light = [f64; 4];

/// Columns whose surroundings differ by less have the same colour for an eye.
const SAME: f64 = 0.04;
/// Two columns together that differ by more from their surroundings can be seen.
const SEEN: f64 = 0.2;
/// Surroundings of a column, in columns to each side.
const AROUND: usize = 4;

/// A stretch of narrow boxes, sorted by left edge, as parts without gaps: columns one wide, those that an eye cannot tell apart
/// put together. Each part has the mean colour of what lies in it, but for rounding that the next part makes good.
pub(super) fn blend<T: Copy + PartialEq>(slivers: &[Sliver<T>]) -> Vec<Part<T>> {
    let Some(first) = slivers.first() else { return Vec::new() };
    let right = slivers.iter().map(|s| s.right).fold(first.left, f64::max);
    let columns = Columns::of(slivers, first.left, right);
    let mut parts: Vec<Part<T>> = Vec::new();
    let mut owed = [0.0; 4];
    let mut from = 0;
    while from < columns.count() {
        let around = columns.around(from);
        let mut to = from + 1;
        while to < columns.count()
            && columns.is_even(to - 1)
            && columns.is_even(to)
            && apart(columns.around(to), around) <= SAME
        {
            to += 1;
        }
        let (left, right) = (columns.edge(from), columns.edge(to));
        let fill = match columns.alone(slivers, from, to) {
            Some(ink) => Fill::Plain(ink),
            None => Fill::Mixed(rounded(columns.mean(from, to), right - left, &mut owed)),
        };
        match parts.last_mut() {
            Some(last) if last.2 == fill => last.1 = right,
            _ if fill == Fill::Mixed([0; 4]) => {}
            _ => parts.push((left, right, fill)),
        }
        from = to;
    }
    parts
}

/// The columns of a stretch: the first and the last one may be narrower than 1.
struct Columns {
    left: f64,
    right: f64,
    /// The area covered left of each column's left edge, by colour; then that of all.
    sums: Vec<Light>,
    /// Which slivers touch a column: first and last.
    touching: Vec<(usize, usize)>,
}

impl Columns {
    fn of<T>(slivers: &[Sliver<T>], left: f64, right: f64) -> Columns {
        let count = ((right.ceil() - left.floor()) as usize).max(1);
        let mut lights = vec![[0.0; 4]; count];
        let mut touching = vec![(usize::MAX, 0); count];
        for (number, sliver) in slivers.iter().enumerate() {
            let column = |x: f64| ((x - left.floor()) as usize).min(count - 1);
            for i in column(sliver.left)..=column(sliver.right) {
                let start = left.floor() + i as f64;
                let area = (sliver.right.min(start + 1.0) - sliver.left.max(start)) * sliver.height;
                if area > 0.0 {
                    let [r, g, b] = sliver.color.map(|c| f64::from(c) / 255.0 * area);
                    lights[i] = add(lights[i], [r, g, b, area]);
                    touching[i] = (touching[i].0.min(number), number);
                }
            }
        }
        let mut sums = vec![[0.0; 4]];
        for light in lights {
            sums.push(add(sums[sums.len() - 1], light));
        }
        Columns { left, right, sums, touching }
    }

    fn count(&self) -> usize {
        self.touching.len()
    }

    /// The left edge of column `i`.
    fn edge(&self, i: usize) -> f64 {
        (self.left.floor() + i as f64).clamp(self.left, self.right)
    }

    /// The mean colour from column `from` to before `to`.
    fn mean(&self, from: usize, to: usize) -> Light {
        let width = (self.edge(to) - self.edge(from)).max(1e-9);
        std::array::from_fn(|i| (self.sums[to][i] - self.sums[from][i]) / width)
    }

    fn around(&self, i: usize) -> Light {
        self.mean(i.saturating_sub(AROUND), (i + AROUND).min(self.count()))
    }

    /// Whether column `i` with either neighbour looks like its surroundings.
    fn is_even(&self, i: usize) -> bool {
        let around = self.around(i);
        let before = i == 0 || apart(self.mean(i - 1, i + 1), around) <= SEEN;
        before && (i + 2 > self.count() || apart(self.mean(i, i + 2), around) <= SEEN)
    }

    /// The one ink that fills these columns, if one does.
    fn alone<T: Copy + PartialEq>(&self, slivers: &[Sliver<T>], from: usize, to: usize) -> Option<T> {
        if self.mean(from, to)[3] < 1.0 - 1e-6 {
            return None;
        }
        let first = self.touching[from..to].iter().map(|t| t.0).min()?;
        let last = self.touching[from..to].iter().map(|t| t.1).max()?;
        let ink = slivers.get(first)?.ink;
        slivers.get(first..=last)?.iter().all(|sliver| sliver.ink == ink).then_some(ink)
    }
}

fn add(one: Light, other: Light) -> Light {
    std::array::from_fn(|i| one[i] + other[i])
}

fn apart(one: Light, other: Light) -> f64 {
    (0..4).map(|i| (one[i] - other[i]).abs()).fold(0.0, f64::max)
}

/// A part's colour in whole numbers, coarse where it is narrow, so that parts share colours and files stay small; what rounding
/// takes or gives is `owed` to the next part.
fn rounded(light: Light, width: f64, owed: &mut Light) -> [u8; 4] {
    let settles = (0.5..64.0).contains(&width);
    let wanted: Light = if settles { std::array::from_fn(|i| light[i] + owed[i] / width) } else { light };
    let step = if width < 3.0 { 15.0 } else { 1.0 };
    let coarse = |share: f64| (share.clamp(0.0, 1.0) * 255.0 / step).round() * step;
    let opacity = coarse(wanted[3]);
    let ink = [0, 1, 2].map(|i| coarse(wanted[i] * 255.0 / opacity.max(1.0)));
    if settles {
        let shown = [ink[0], ink[1], ink[2], 255.0].map(|c| c / 255.0 * opacity / 255.0);
        // Debts that cannot be paid are forgiven.
        *owed = std::array::from_fn(|i| ((wanted[i] - shown[i]) * width).clamp(-0.5, 0.5));
    }
    if opacity == 0.0 { [0; 4] } else { [ink[0] as u8, ink[1] as u8, ink[2] as u8, opacity as u8] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sliver(left: f64, right: f64, ink: u8) -> Sliver<u8> {
        Sliver { left, right, height: 1.0, color: [ink, 255 - ink, 0], ink }
    }

    /// Area times colour.
    fn light(parts: &[Part<u8>]) -> Light {
        parts.iter().fold([0.0; 4], |sum, &(left, right, fill)| {
            let [r, g, b, a] = match fill {
                Fill::Plain(ink) => [ink, 255 - ink, 0, 255],
                Fill::Mixed(mixed) => mixed,
            }
            .map(|c| f64::from(c) / 255.0);
            add(sum, [r * a, g * a, b * a, a].map(|c| c * (right - left)))
        })
    }

    #[test]
    fn what_repeats_within_a_column_is_one_part_of_the_mean_colour() {
        let slivers: Vec<_> = (0..3000).map(|i| (f64::from(i) * 0.1, i % 3)).collect();
        let slivers: Vec<_> = slivers.iter().map(|&(x, i)| sliver(x, x + 0.1, if i == 0 { 255 } else { 0 })).collect();
        let parts = blend(&slivers);
        assert!(parts.len() < 4, "{parts:?}");
        assert_eq!((parts[0].0, parts[parts.len() - 1].1.round()), (0.0, 300.0));
        let [red, green, ..] = light(&parts);
        assert!((red - 100.0).abs() < 1.0 && (green - 200.0).abs() < 1.0, "{red} {green}");
    }

    #[test]
    fn what_is_alone_keeps_its_ink_and_its_edges() {
        assert_eq!(blend(&[sliver(0.25, 0.5, 7)]), [(0.25, 0.5, Fill::Plain(7))]);
        let parts = blend(&[sliver(0.5, 1.5, 7), sliver(1.5, 3.0, 7)]);
        assert_eq!(parts, [(0.5, 3.0, Fill::Plain(7))]);
        assert_eq!(blend::<u8>(&[]), []);
    }

    #[test]
    fn stripes_that_can_be_seen_stay() {
        let ink = |i: u32| if i % 4 < 2 { 255 } else { 0 };
        let slivers = (0..100).map(|i| sliver(f64::from(i) * 1.5, f64::from(i) * 1.5 + 1.5, ink(i)));
        assert_eq!(blend(&slivers.collect::<Vec<_>>()).len(), 50);
    }
}
