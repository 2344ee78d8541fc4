//! The clocks of ranks, aligned by their messages.
//!
//! No data arrives before it is sent, and with gloo no send completes before its receive is posted: each such pair of events
//! bounds the difference of two clocks. Offsets that satisfy all bounds are a system of difference constraints; shortest paths give
//! its extreme solutions, and the mean of two solutions is one, too. Drift is the slope of the middle of the bounds over the steps.

/// An event of rank `to` at `after` that cannot precede the event of rank `from` at `before`, each in ns on its rank's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub from: usize,
    pub to: usize,
    pub before: i64,
    pub after: i64,
    /// Number of the step, from 0.
    pub step: usize,
}

/// One clock: what it shows at `origin` is `offset_ns` ahead of the reference, and it runs `drift` too fast.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    pub origin: i64,
    pub offset_ns: i64,
    pub drift: f64,
    /// Whether messages tie it to the reference.
    pub is_tied: bool,
}

impl Clock {
    /// Returns the offset at `local`, in ns.
    pub fn offset_at(&self, local: i64) -> i64 {
        self.offset_ns.saturating_add(self.gained(local))
    }

    /// Returns the time of the reference when this clock shows `local`.
    pub fn aligned(&self, local: i64) -> i64 {
        local.saturating_sub(self.offset_at(local))
    }

    fn gained(&self, local: i64) -> i64 {
        (local.saturating_sub(self.origin) as f64 * self.drift) as i64
    }
}

/// The clocks of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    pub clocks: Vec<Clock>,
    /// By step: by how much an offset may be wrong at most, in ns, over the ranks that are tied to the reference.
    pub residual_ns: Vec<u64>,
}

/// Ranks whose messages contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    pub ranks: (usize, usize),
    /// By how much at least, in ns.
    pub ns: i64,
}

/// Readings of a clock may be wrong by this much.
const PRECISION_NS: i64 = 20_000;
/// Drift is always estimated if steps span this long; before, it is less than what messages show.
const LONG_NS: f64 = 5e9;
/// How much clocks may drift apart in addition to the drift that was found, per ns.
const MOST_DRIFT: f64 = 1e-4;
/// No bound.
const NONE: i64 = i64::MAX / 4;

/// Least differences between clocks, by rank: entry (a, b) bounds offset of b minus offset of a from above.
#[derive(Clone)]
struct Differences {
    count: usize,
    most: Vec<i64>,
}

impl Differences {
    fn new(count: usize) -> Differences {
        let mut most = vec![NONE; count * count];
        (0..count).for_each(|rank| most[rank * count + rank] = 0);
        Differences { count, most }
    }

    fn get(&self, from: usize, to: usize) -> i64 {
        self.most[from * self.count + to]
    }

    fn lower(&mut self, from: usize, to: usize, most: i64) {
        let entry = &mut self.most[from * self.count + to];
        *entry = most.min(*entry);
    }

    /// Adds what follows from chains of bounds (Floyd and Warshall).
    fn close(&mut self) {
        for through in 0..self.count {
            for from in 0..self.count {
                let first = self.get(from, through);
                if first >= NONE {
                    continue;
                }
                for to in 0..self.count {
                    let second = self.get(through, to);
                    if second < NONE {
                        self.lower(from, to, first.saturating_add(second).max(-NONE));
                    }
                }
            }
        }
    }

    /// Returns the least and largest offset of `rank` from `reference`; `None` unless both exist.
    fn interval(&self, reference: usize, rank: usize) -> Option<(i64, i64)> {
        let (high, low) = (self.get(reference, rank), self.get(rank, reference));
        (high < NONE && low < NONE).then_some((-low, high))
    }

    /// Returns the middle of all offsets of `rank` from `reference`.
    fn middle(&self, reference: usize, rank: usize) -> Option<i64> {
        self.interval(reference, rank).map(|(low, high)| low + (high - low) / 2)
    }
}

/// Aligns `origins.len()` clocks to the clock of rank `reference`; `origins` are times near the first step on each clock.
///
/// # Errors
/// No clocks satisfy the bounds.
pub fn align(origins: &[i64], reference: usize, bounds: &[Bound], steps: usize) -> Result<Clocks, Contradiction> {
    let clocks: Vec<Clock> = origins.iter().map(|&origin| Clock { origin, ..Clock::default() }).collect();
    let by_step = by_step(bounds, steps);
    let drifts = drifts(&clocks, reference, &by_step);
    let drifting = clocks.iter().zip(drifts).map(|(clock, drift)| Clock { drift, ..*clock }).collect();
    // Each drift fits its own clock's bounds; together they may contradict bounds that none contradicts.
    aligned(drifting, reference, bounds, &by_step)
        .or_else(|contradiction| aligned(clocks, reference, bounds, &by_step).map_err(|_| contradiction))
}

/// Aligns clocks whose drifts are known.
fn aligned(
    mut clocks: Vec<Clock>,
    reference: usize,
    bounds: &[Bound],
    by_step: &[Vec<Bound>],
) -> Result<Clocks, Contradiction> {
    let mut all = differences(&clocks, bounds.iter());
    check(&all)?;
    all.close();
    if let Some(rank) = (0..all.count).find(|&rank| all.get(rank, rank) < -PRECISION_NS) {
        let others = (0..all.count).filter(|&other| other != rank);
        let other = others.min_by_key(|&other| all.get(rank, other).saturating_add(all.get(other, rank)));
        return Err(Contradiction { ranks: (rank, other.unwrap_or(rank)), ns: -all.get(rank, rank) });
    }
    for (rank, clock) in clocks.iter_mut().enumerate() {
        if let Some(middle) = all.middle(reference, rank) {
            (clock.offset_ns, clock.is_tied) = (middle, true);
        }
    }
    let residual_ns = residuals(&clocks, reference, by_step);
    Ok(Clocks { clocks, residual_ns })
}

fn by_step(bounds: &[Bound], steps: usize) -> Vec<Vec<Bound>> {
    let mut by_step = vec![Vec::new(); steps];
    for bound in bounds {
        if let Some(step) = by_step.get_mut(bound.step) {
            step.push(*bound);
        }
    }
    by_step
}

/// Returns the bounds on differences of offsets, after each clock's drift.
fn differences<'a>(clocks: &[Clock], bounds: impl Iterator<Item = &'a Bound>) -> Differences {
    let mut differences = Differences::new(clocks.len());
    for bound in bounds {
        let before = bound.before.saturating_sub(clocks[bound.from].gained(bound.before));
        let after = bound.after.saturating_sub(clocks[bound.to].gained(bound.after));
        differences.lower(bound.from, bound.to, after.saturating_sub(before).clamp(-NONE / 2, NONE / 2));
    }
    differences
}

/// Rejects two ranks whose messages alone contradict each other.
fn check(differences: &Differences) -> Result<(), Contradiction> {
    for one in 0..differences.count {
        for other in one + 1..differences.count {
            let (there, back) = (differences.get(one, other), differences.get(other, one));
            if there < NONE && back < NONE && there.saturating_add(back) < -PRECISION_NS {
                return Err(Contradiction { ranks: (one, other), ns: -there.saturating_add(back) });
            }
        }
    }
    Ok(())
}

/// Returns how wrong offsets may be, by step. The step's own bounds hold without any drift; the bounds of other steps are widened by as
/// much as clocks may have drifted in between.
fn residuals(clocks: &[Clock], reference: usize, by_step: &[Vec<Bound>]) -> Vec<u64> {
    let points = points(clocks, reference, by_step);
    let residual = |step: usize| {
        let away = |(rank, clock): (usize, &Clock)| {
            let own = &points[rank];
            let time = own.iter().find(|point| point.step == step).map(|point| point.time)?;
            let slack = |point: &Point| ((point.time - time).abs() as f64 * MOST_DRIFT) as i64;
            let low = own.iter().map(|point| point.low.saturating_sub(slack(point))).max()?;
            let high = own.iter().map(|point| point.high.saturating_add(slack(point))).min()?;
            Some((high - clock.offset_ns).max(clock.offset_ns - low).max(0) as u64)
        };
        clocks.iter().enumerate().filter(|(_, clock)| clock.is_tied).filter_map(away).max()
    };
    let all: Vec<Option<u64>> = (0..by_step.len()).map(residual).collect();
    // A step that bounds nothing by itself is as uncertain as the worst one.
    let worst = all.iter().flatten().max().copied().unwrap_or_default();
    all.into_iter().map(|residual| residual.unwrap_or(worst)).collect()
}

/// Least and largest offset of a clock in one step.
#[derive(Clone, Copy, Debug)]
struct Point {
    step: usize,
    /// Time on the clock, from its origin.
    time: i64,
    low: i64,
    high: i64,
}

/// Returns, by clock, its bounds in each step that bounds it from both sides.
fn points(clocks: &[Clock], reference: usize, by_step: &[Vec<Bound>]) -> Vec<Vec<Point>> {
    let mut points: Vec<Vec<Point>> = vec![Vec::new(); clocks.len()];
    for (step, bounds) in by_step.iter().enumerate() {
        let mut differences = differences(clocks, bounds.iter());
        differences.close();
        for (rank, clock) in clocks.iter().enumerate() {
            let Some((low, high)) = differences.interval(reference, rank) else { continue };
            let own = bounds.iter().filter(|bound| bound.to == rank).map(|bound| bound.after).min();
            let time = own.map_or(0, |time| time.saturating_sub(clock.origin));
            points[rank].push(Point { step, time, low, high });
        }
    }
    points
}

/// Returns each clock's drift against the reference: the slope of the middle of its bounds over the steps, if these span a long time
/// or no single offset satisfies them.
fn drifts(clocks: &[Clock], reference: usize, by_step: &[Vec<Bound>]) -> Vec<f64> {
    let drift = |points: &Vec<Point>| {
        let middles: Vec<(f64, f64)> =
            points.iter().map(|point| (point.time as f64, (point.low + (point.high - point.low) / 2) as f64)).collect();
        let (slope, span) = slope(&middles)?;
        let low = points.iter().map(|point| point.low).max()?;
        let high = points.iter().map(|point| point.high).min()?;
        let is_shown = span >= LONG_NS || low > high.saturating_add(PRECISION_NS);
        let slope = if is_shown { possible(points, slope)? } else { 0.0 };
        (slope.abs() < 0.01).then_some(slope)
    };
    points(clocks, reference, by_step).iter().map(|points| drift(points).unwrap_or_default()).collect()
}

/// Returns the slope nearest to `slope` of a straight line that stays within all bounds; `None` if there is no such line. Bounds of
/// two steps limit it: the middles of wide bounds say little.
fn possible(points: &[Point], slope: f64) -> Option<f64> {
    let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
    for (at, one) in points.iter().enumerate() {
        for other in points[at + 1..].iter().filter(|other| other.time > one.time) {
            let span = (other.time - one.time) as f64;
            least = least.max(other.low.saturating_sub(one.high).saturating_sub(PRECISION_NS) as f64 / span);
            most = most.min(other.high.saturating_sub(one.low).saturating_add(PRECISION_NS) as f64 / span);
        }
    }
    (least <= most).then(|| slope.clamp(least, most))
}

/// Returns the slope of a straight line through `points` by least squares, and their span.
fn slope(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    if points.len() < 2 {
        return None;
    }
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let product: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let extent = |least: f64, most: f64| most - least;
    let least = points.iter().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    (square > 0.0).then(|| (product / square, extent(least, most)))
}
