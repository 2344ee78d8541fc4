//! Mixes ops too narrow to be seen by area, so that a row has the colours of its ops in proportion to their times at
//! any width.
//!
//! Colours are mixed as sRGB numbers, as browsers and viewers do for smooth edges and smaller pictures: a picture drawn
//! small looks like a large one scaled down, and the mean colour of a row is the mean of its ops' colours weighted by
//! time. Idle parts stay transparent.

use crate::scene::palette::Rgb;

/// A narrow box: its edges, its share of the row's height, and its colour.
#[derive(Clone, Copy, Debug)]
pub struct Sliver<T> {
    pub left: f64,
    pub right: f64,
    pub height: f64,
    pub color: Rgb,
    /// What it is drawn with if it fills a column alone.
    pub ink: T,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill<T> {
    Plain(T),
    /// Red, green, blue and opacity.
    Mixed([u8; 4]),
}

/// A part of a row: left and right edge, and fill.
pub type Part<T> = (f64, f64, Fill<T>);

/// Red, green and blue, each times the covered share of the area, and that share; 0 to 1.
type Light = [f64; 4];

/// Columns whose surroundings differ by less look the same.
const SAME: f64 = 0.04;
/// A difference from the surroundings over [`GLANCE`] columns that is visible.
const SEEN: f64 = 0.2;
/// Width of the smallest visible detail, in columns.
const GLANCE: f64 = 2.0;
/// Columns on each side that count as surroundings.
const AROUND: f64 = 4.0;
/// The same for comparing colours: wide enough that ops narrower than a column leave no ripple in the mean.
const FAR: f64 = 12.0;
/// Least number of merged columns, so that their mean has no ripple either.
const LEAST: usize = 8;

/// Splits a stretch of narrow boxes, sorted by left edge, into parts without gaps: single columns, or several that look
/// the same. Each part has the mean colour of its boxes; rounding is made up for in the next part. Only a part with
/// idle time is translucent.
pub fn blend<T: Copy + PartialEq>(slivers: &[Sliver<T>]) -> Vec<Part<T>> {
    let Some(first) = slivers.first() else { return Vec::new() };
    let right = slivers.iter().map(|s| s.right).fold(first.left, f64::max);
    let columns = PixelColumns::of(slivers, first.left, right);
    let mut parts: Vec<Part<T>> = Vec::new();
    let mut owed = [0.0; 4];
    for (from, to) in columns.parts() {
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
    }
    parts
}

/// The columns of a stretch; the first and the last may be narrower than 1.
struct PixelColumns {
    area: Area,
    left: f64,
    right: f64,
    /// First and last sliver that touch a column.
    touching: Vec<(usize, usize)>,
}

impl PixelColumns {
    fn of<T>(slivers: &[Sliver<T>], left: f64, right: f64) -> PixelColumns {
        let count = ((right.ceil() - left.floor()) as usize).max(1);
        let mut touching = vec![(usize::MAX, 0); count];
        let column = |x: f64| ((x - left.floor()) as usize).min(count - 1);
        for (number, sliver) in slivers.iter().enumerate() {
            let last = column(sliver.right);
            // A sliver that ends where a column starts is not in it.
            let last = if left.floor() + last as f64 >= sliver.right { last.saturating_sub(1) } else { last };
            for touched in &mut touching[column(sliver.left)..=last.max(column(sliver.left))] {
                *touched = (touched.0.min(number), number);
            }
        }
        PixelColumns { area: Area::of(slivers), left, right, touching }
    }

    fn count(&self) -> usize {
        self.touching.len()
    }

    fn edge(&self, i: usize) -> f64 {
        (self.left.floor() + i as f64).clamp(self.left, self.right)
    }

    /// Mean colour from column `from` to before `to`.
    fn mean(&self, from: usize, to: usize) -> Light {
        self.area.mean(self.edge(from), self.edge(to))
    }

    /// Mean colour `far` to each side of `x`.
    fn around(&self, x: f64, far: f64) -> Light {
        self.area.mean((x - far).max(self.left), (x + far).min(self.right))
    }

    /// Returns the parts of the stretch: first column and the one after the last.
    fn parts(&self) -> Vec<(usize, usize)> {
        let (uneven, busy) = (self.uneven(), self.busy());
        let mut parts = Vec::new();
        let mut from = 0;
        while from < self.count() {
            let end = (from + 1..self.count()).find(|&i| uneven[from] || uneven[i] || busy[i] != busy[from]);
            let end = end.unwrap_or(self.count());
            while from < end {
                let here = self.around(self.edge(from), FAR);
                let splits = |to: usize| apart(self.around(self.edge(to), FAR), here) > SAME;
                let to = (from + LEAST..=end.saturating_sub(LEAST)).find(|&to| splits(to)).unwrap_or(end);
                parts.push((from, to));
                from = to;
            }
        }
        parts
    }

    /// Returns by column whether something differs visibly from its surroundings. Intervals start or end at a box, so
    /// that repeated boxes are treated alike however columns cut them.
    fn uneven(&self) -> Vec<bool> {
        let mut uneven = vec![false; self.count()];
        let wide = GLANCE.min(self.right - self.left);
        for x in self.area.edges.iter().flat_map(|edge| [edge.x, edge.x - wide]) {
            let from = x.clamp(self.left, self.right - wide);
            let here = self.area.mean(from, from + wide);
            if apart(here, self.around(from + wide / 2.0, AROUND)) > SEEN {
                let column = |x: f64| (x - self.left.floor()) as usize;
                let last = (column((from + wide).ceil()).max(1) - 1).min(self.count() - 1);
                uneven[column(from).min(last)..=last].fill(true);
            }
        }
        uneven
    }

    /// Returns by column whether it belongs to a run of fully covered columns.
    fn busy(&self) -> Vec<bool> {
        let full: Vec<bool> = (0..self.count()).map(|i| is_full(self.mean(i, i + 1))).collect();
        let runs = full.chunk_by(|a, b| a == b);
        runs.flat_map(|run| std::iter::repeat_n(run[0] && run.len() >= LEAST, run.len())).collect()
    }

    /// Returns the ink that fills these columns alone, if one does.
    fn alone<T: Copy + PartialEq>(&self, slivers: &[Sliver<T>], from: usize, to: usize) -> Option<T> {
        if !is_full(self.mean(from, to)) {
            return None;
        }
        let first = self.touching[from..to].iter().map(|t| t.0).min()?;
        let last = self.touching[from..to].iter().map(|t| t.1).max()?;
        let ink = slivers.get(first)?.ink;
        slivers.get(first..=last)?.iter().all(|sliver| sliver.ink == ink).then_some(ink)
    }
}

/// Integral of the covered colour.
struct Area {
    /// By position.
    edges: Vec<BoxEdge>,
}

/// A position where a box starts or ends.
struct BoxEdge {
    x: f64,
    /// Covered to the left of it.
    before: Light,
    /// Cover per column to the right of it.
    after: Light,
}

impl Area {
    fn of<T>(slivers: &[Sliver<T>]) -> Area {
        let mut changes: Vec<(f64, Light)> = Vec::new();
        for sliver in slivers {
            let [r, g, b] = sliver.color.map(|c| f64::from(c) / 255.0 * sliver.height);
            changes.push((sliver.left, [r, g, b, sliver.height]));
            changes.push((sliver.right, [-r, -g, -b, -sliver.height]));
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut edges: Vec<BoxEdge> = Vec::new();
        for (x, change) in changes {
            match edges.last_mut() {
                Some(last) if last.x == x => last.after = add(last.after, change),
                Some(last) => {
                    let (before, after) = (last.until(x), add(last.after, change));
                    edges.push(BoxEdge { x, before, after });
                }
                None => edges.push(BoxEdge { x, before: [0.0; 4], after: change }),
            }
        }
        Area { edges }
    }

    fn until(&self, x: f64) -> Light {
        let right = self.edges.partition_point(|edge| edge.x <= x);
        right.checked_sub(1).map_or([0.0; 4], |i| self.edges[i].until(x))
    }

    fn mean(&self, left: f64, right: f64) -> Light {
        let (before, all) = (self.until(left), self.until(right));
        std::array::from_fn(|i| (all[i] - before[i]) / (right - left).max(1e-9))
    }
}

impl BoxEdge {
    fn until(&self, x: f64) -> Light {
        std::array::from_fn(|i| self.before[i] + self.after[i] * (x - self.x))
    }
}

fn add(one: Light, other: Light) -> Light {
    std::array::from_fn(|i| one[i] + other[i])
}

fn apart(one: Light, other: Light) -> f64 {
    (0..4).map(|i| (one[i] - other[i]).abs()).fold(0.0, f64::max)
}

fn is_full(light: Light) -> bool {
    light[3] > 1.0 - 1e-6
}

/// Rounds a part's colour to whole numbers, coarsely in narrow parts, so that parts share colours and files stay small.
/// The rounding error is `owed` to the next part; opacity only to parts with idle time.
fn rounded(light: Light, width: f64, owed: &mut Light) -> [u8; 4] {
    let settles = (0.5..64.0).contains(&width);
    let full = is_full(light);
    let kept: Light = if full { [light[0], light[1], light[2], 1.0].map(|c| c * owed[3]) } else { [0.0; 4] };
    let target: Light = if settles { std::array::from_fn(|i| light[i] + (owed[i] - kept[i]) / width) } else { light };
    let step = if width < 3.0 { 15.0 } else { 1.0 };
    let coarse = |share: f64| (share.clamp(0.0, 1.0) * 255.0 / step).round() * step;
    let opacity = if full { 255.0 } else { coarse(target[3]) };
    let ink = [0, 1, 2].map(|i| coarse(target[i] * 255.0 / opacity.max(1.0)));
    if settles {
        let shown = [ink[0], ink[1], ink[2], 255.0].map(|c| c / 255.0 * opacity / 255.0);
        // Errors that cannot be made up for are dropped.
        *owed = std::array::from_fn(|i| (kept[i] + (target[i] - shown[i]) * width).clamp(-0.5, 0.5));
    }
    if opacity == 0.0 { [0; 4] } else { [ink[0] as u8, ink[1] as u8, ink[2] as u8, opacity as u8] }
}
