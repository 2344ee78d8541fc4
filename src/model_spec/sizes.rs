//! Sizes that no model has, and the check for them.

/// Sizes that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSizes {
    /// A size is out of range.
    #[error("expected a model whose {name} is between 1 and 2^31 - 129, found {size}: correct that size")]
    Size { name: &'static str, size: usize },
    /// A size is not a multiple of another.
    #[error(
        "expected {of} to be a multiple of {what}, found {of_size} {of} and {size} {what}: choose another number of {what}"
    )]
    Multiple { of: &'static str, of_size: usize, what: &'static str, size: usize },
    /// A size of experts, latent attention or windows is out of range, or layers are too many.
    #[error("{0}")]
    Mixture(String),
    /// Too many parameters for any machine.
    #[error("expected a model of at most 2^40 parameters, found {0}: choose smaller sizes")]
    Parameters(u128),
}

/// Maximum number of parameters: 2^40, 4 TiB in float32. Known models are smaller.
const MOST_PARAMETERS: u128 = 1 << 40;

/// Checks the sizes of a model. Each pair in `shared` holds the indices of two sizes; the first must be a multiple of the
/// second.
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
