//! Times of stages, when a model's layers are cut into other stages.

use super::gcd;

/// Stage times after another cut, in ticks that are finer by `scale`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recut {
    /// Ticks of each stage.
    pub times: Vec<u64>,
    /// Number of ticks per tick of the times before.
    pub scale: u64,
}

/// Returns the scale of [`recut`] for stages of these sizes: their least common multiple. `None` on overflow.
pub(super) fn scale(own: &[u64]) -> Option<u64> {
    own.iter().filter(|&&size| size > 0).try_fold(1_u64, |all, &size| (all / gcd(all, size)).checked_mul(size))
}

/// Returns the sizes of `from` stages that have `own` layers and of `to` stages that have `new`: in layers if both are known, otherwise in
/// equal pieces of the model.
pub(super) fn sizes(from: usize, own: Option<&[usize]>, to: usize, new: Option<&[usize]>) -> [Vec<u64>; 2] {
    let pieces = |layers: &[usize]| layers.iter().map(|&count| count as u64).collect();
    own.zip(new).map_or_else(|| even(from, to), |(own, new)| [pieces(own), pieces(new)])
}

/// Returns sizes, in equal pieces of the model, of `from` stages that cover it evenly, and of `to` such stages.
pub fn even(from: usize, to: usize) -> [Vec<u64>; 2] {
    let common = gcd(from as u64, to as u64).max(1);
    [vec![to as u64 / common; from], vec![from as u64 / common; to]]
}

/// Cuts a model whose stages have `own` layers and take `times` into stages of `new` layers.
///
/// A layer takes the same share of its stage's time as the others. What the first and the last stage take beyond the (lower) median of the
/// inner stages' layers is due to the embedding and the head, and stays in the first and the last stage. `None` if the numbers of layers
/// differ or times overflow.
pub fn recut(times: &[u64], own: &[u64], new: &[u64]) -> Option<Recut> {
    let scale = scale(own)?;
    if own == new {
        let times = times.iter().map(|time| time.checked_mul(scale)).collect::<Option<_>>()?;
        return Some(Recut { times, scale });
    }
    let (all, last) = (own.iter().sum::<u64>(), own.len().checked_sub(1)?);
    if all != new.iter().sum::<u64>() || new.is_empty() || times.len() != own.len() {
        return None;
    }
    let each = |stage: usize| Some(times[stage].checked_mul(scale)?.checked_div(own[stage]).unwrap_or(0));
    let mut layer = (0..own.len()).map(each).collect::<Option<Vec<u64>>>()?;
    let mut inner: Vec<u64> = layer.get(1..last).unwrap_or_default().to_vec();
    inner.sort_unstable();
    let typical = inner.get(inner.len().saturating_sub(1) / 2).copied();
    let mut fixed = [0, 0];
    for (number, stage) in [0, last].into_iter().enumerate() {
        let whole = times[stage].checked_mul(scale)?;
        let usual = typical.filter(|&typical| typical < layer[stage] || own[stage] == 0).unwrap_or(layer[stage]);
        layer[stage] = usual;
        fixed[number] = whole.saturating_sub(usual.checked_mul(own[stage])?);
    }
    let mut times = vec![0_u64; new.len()];
    times[0] = fixed[0];
    *times.last_mut()? += if last > 0 { fixed[1] } else { 0 };
    let (mut stage, mut left) = (0, own[0]);
    for (time, &size) in times.iter_mut().zip(new) {
        let mut size = size;
        while size > 0 {
            while left == 0 {
                stage += 1;
                left = own[stage];
            }
            let taken = size.min(left);
            *time = time.checked_add(layer[stage].checked_mul(taken)?)?;
            (size, left) = (size - taken, left - taken);
        }
    }
    Some(Recut { times, scale })
}
