//! Robust statistics of measurements.

/// Returns the mean of the middle four fifths: robust against outliers like a median, additive like a mean. 0 for none.
pub fn typical(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let cut = sorted.len() / 10;
    let middle = &sorted[cut..sorted.len() - cut];
    if middle.is_empty() {
        0
    } else {
        (middle.iter().map(|&x| u128::from(x)).sum::<u128>() / middle.len() as u128) as u64
    }
}

/// Returns the mean of the middle half (interquartile mean): robust against outliers like a median, with less scatter without them.
/// 0 for none.
pub fn midmean(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    let middle = &sorted[cut..sorted.len() - cut];
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// Returns the median; of an even number of values the mean of the middle two. 0 for none.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns quantile `q` by linear interpolation. 0 for none.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

/// Least number of values whose range contains the median with 95 % confidence: 1 - 2 / 2^6 = 97 %, of one less 94 %.
pub const LEAST_FOR_CI95: usize = 6;

/// Returns a 95 % confidence interval of the median, by order statistics (binomial, normal approximation); the whole range for
/// fewer than [`LEAST_FOR_CI95`] values.
pub fn median_ci95(values: &[f64]) -> [f64; 2] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return [0.0, 0.0] };
    if sorted.len() < LEAST_FOR_CI95 {
        return [sorted[0], sorted[last]];
    }
    let n = sorted.len() as f64;
    let half = 1.96 * n.sqrt() / 2.0;
    let low = (n / 2.0 - half).floor().max(1.0) as usize - 1;
    let high = ((n / 2.0 + half).ceil() as usize).min(last);
    [sorted[low], sorted[high]]
}

/// Returns the number of the point whose first figure is nearest to the median of first figures; ties are decided by the second
/// figure, then by the lowest number. 0 for none.
pub fn nearest_median(points: &[(f64, f64)]) -> usize {
    let middle = |figure: fn(&(f64, f64)) -> f64| median(&points.iter().map(figure).collect::<Vec<_>>());
    let (a, b) = (middle(|point| point.0), middle(|point| point.1));
    let [first, second] = [|p: &(f64, f64), a: f64| (p.0 - a).abs(), |p: &(f64, f64), b: f64| (p.1 - b).abs()];
    let nearer = |x: &&(f64, f64), y: &&(f64, f64)| {
        first(x, a).total_cmp(&first(y, a)).then(second(x, b).total_cmp(&second(y, b)))
    };
    let nearest = points.iter().enumerate().min_by(|(_, x), (_, y)| nearer(x, y));
    nearest.map_or(0, |(number, _)| number)
}

/// Returns predicted / measured - 1; 0 if nothing was measured.
pub fn relative_error(predicted: f64, measured: f64) -> f64 {
    if measured > 0.0 { predicted / measured - 1.0 } else { 0.0 }
}
