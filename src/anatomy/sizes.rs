//! What sizes a model may have.

/// Sizes that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSizes {
    /// One is absurd.
    #[error("expected a model whose {name} is between 1 and 2^31 - 129, found {size}: correct that size")]
    Size { name: &'static str, size: usize },
    /// The hidden state does not fall into heads.
    #[error(
        "expected {of} to be a multiple of {what}, found {of_size} {of} and {size} {what}: choose another number of {what}"
    )]
    Multiple { of: &'static str, of_size: usize, what: &'static str, size: usize },
    /// No machine holds so many parameters.
    #[error("expected a model of at most 2^40 parameters, found {0}: choose smaller sizes")]
    Parameters(u128),
}

/// Most parameters of a model: 2^40, four TiB in float32. Those known are smaller.
const MOST_PARAMETERS: u128 = 1 << 40;

/// Whether a model of these sizes, with so many elements, can exist. `shared` are two sizes, by their places, the first a multiple of the second.
pub(super) fn validate(
    sizes: &[(&'static str, usize)],
    shared: &[[usize; 2]],
    elements: impl Fn() -> u128,
) -> Result<(), InvalidSizes> {
    let absurd = sizes.iter().find(|(_, size)| !(1..=i32::MAX as usize - 128).contains(size));
    if let Some(&(name, size)) = absurd {
        return Err(InvalidSizes::Size { name, size });
    }
    for places in shared {
        let [(of, of_size), (what, size)] = places.map(|place| sizes[place]);
        if !of_size.is_multiple_of(size) {
            return Err(InvalidSizes::Multiple { of, of_size, what, size });
        }
    }
    match elements() {
        total if total > MOST_PARAMETERS => Err(InvalidSizes::Parameters(total)),
        _ => Ok(()),
    }
}
