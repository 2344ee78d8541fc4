//! How layers fall to stages where nobody says so.

/// Returns the default layers of each stage: equal numbers if that divides; otherwise embedding and head count as one layer
/// each, as in Megatron, and inner stages take the remainder first.
pub fn layers_of_stages(layers: usize, stages: usize) -> Vec<usize> {
    if stages <= 1 || layers.is_multiple_of(stages) {
        return vec![layers / stages.max(1); stages];
    }
    let (each, left) = ((layers + 2) / stages, (layers + 2) % stages);
    let mut counts: Vec<usize> = vec![each; stages];
    let (last, inner) = (stages - 1, 1..stages - 1);
    inner.chain([0, last]).take(left).for_each(|stage| counts[stage] += 1);
    let mut owed = 0;
    for end in [0, last] {
        match counts[end] {
            0 => owed += 1,
            _ => counts[end] -= 1,
        }
    }
    // if an end has no layer to give, the fullest stages give one
    for _ in 0..owed {
        if let Some(fullest) = counts.iter_mut().max_by_key(|count| **count) {
            *fullest = fullest.saturating_sub(1);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::layers_of_stages;

    #[test]
    fn ends_have_a_layer_less_where_that_divides() {
        assert_eq!(layers_of_stages(12, 4), [3, 3, 3, 3]);
        assert_eq!(layers_of_stages(126, 64), [[1].as_slice(), &[2; 62], &[1]].concat()); // Llama 3 405B
        assert_eq!(layers_of_stages(30, 8), [3, 4, 4, 4, 4, 4, 4, 3]); // the zero-bubble paper's 6.2B
        assert_eq!(layers_of_stages(70, 12), [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]); // BLOOM
        for (layers, stages) in [(78, 12), (5, 4), (3, 5), (3, 4), (1, 2), (2, 3)] {
            let counts = layers_of_stages(layers, stages);
            assert_eq!((counts.iter().sum::<usize>(), counts.len()), (layers, stages));
        }
    }
}
