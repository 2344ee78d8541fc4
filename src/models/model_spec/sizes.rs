//! Sizes that no model has, and sizes that ranks cannot share, with checks for them.

/// Largest number of layers where anything is kept per layer.
pub(super) const MOST_LAYERS: usize = 1 << 16;

/// Sizes that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum InvalidSizes {
    /// A size is out of range.
    #[error("expected a model whose {name} is between 1 and 2^31 - 129, found {size}: correct that size")]
    Size { name: &'static str, size: usize },
    /// A size is not a multiple of another.
    #[error(
        "expected {of} to be a multiple of {what}, found {of_size} {of} and {size} {what}: choose another number of {what}"
    )]
    Multiple { of: &'static str, of_size: usize, what: &'static str, size: usize },
    /// A size of experts or of latent attention is out of range.
    #[error("expected {of} whose {name} is between 1 and 2^24, found {size}: correct that size")]
    Part { of: &'static str, name: &'static str, size: usize },
    #[error("expected shared experts of at most 2^24 channels, found {found}: correct it")]
    SharedExperts { found: usize },
    #[error("expected at most the model's {experts} experts per token, found {found}: correct one of them")]
    ExpertsPerToken { experts: usize, found: usize },
    #[error(
        "expected router groups that divide the {experts} experts, and at most as many groups per token, found {groups} and {per_token}: \
         correct them"
    )]
    RouterGroups { experts: usize, groups: usize, per_token: usize },
    #[error(
        "expected at most the {within} experts of a token's {groups} router groups per token, found {found}: correct one of them"
    )]
    GroupExperts { groups: usize, within: usize, found: usize },
    #[error(
        "expected experts in some of the {layers} layers, found none: the first {dense_first} are dense, and every {every}th of the others \
         has experts; correct these"
    )]
    NoExperts { layers: usize, dense_first: usize, every: usize },
    #[error("expected at most {most} layers, found {found}: choose fewer")]
    Layers { most: usize, found: usize },
    #[error("expected a window of at least 1 token, found 0: leave it out")]
    Window,
    /// Too many parameters for any machine.
    #[error("expected a model of at most 2^42 parameters, found {0}: choose smaller sizes")]
    Parameters(u128),
}

/// Maximum number of parameters: 2^42, 16 TiB in float32. Known models are smaller.
const MOST_PARAMETERS: u128 = 1 << 42;

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

/// Why tensor-parallel ranks cannot share a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum TensorRanksError {
    #[error("expected the model's {size} {what} to be a multiple of `tp`{or}, found {ranks}; choose another `tp`")]
    Uneven { what: &'static str, size: usize, or: &'static str, ranks: usize },
    #[error("expected `tp` to be at most the model's vocabulary of {vocabulary}, found {ranks}; choose a smaller `tp`")]
    Vocabulary { vocabulary: usize, ranks: usize },
    #[error(
        "expected a {of}'s {rows} tokens to be a multiple of `tp` {ranks} under `sequence-parallel`; choose another `sequence`"
    )]
    Rows { of: &'static str, rows: usize, ranks: usize },
}

/// Checks that `ranks` ranks can share the rows of a micro-batch, slice or rank, which `of` names.
///
/// # Errors
/// The ranks do not divide them.
pub fn check_rows(of: &'static str, rows: usize, ranks: usize) -> Result<(), TensorRanksError> {
    if rows.is_multiple_of(ranks) { Ok(()) } else { Err(TensorRanksError::Rows { of, rows, ranks }) }
}
