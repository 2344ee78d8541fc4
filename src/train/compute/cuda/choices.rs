//! Choices between kernels that compute the same. No GPU has timed them: the defaults follow from registers, bytes and launches, and
//! `tests/gpu choices` times both sides of each.

/// The kernels that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Blocks per multiprocessor from which on attention takes wide tiles, which make half as many blocks; `None`: never.
    pub wide_attention: Option<usize>,
    /// Whether the backward of wide attention stores slopes, to compute five products instead of seven.
    pub stored_slopes: bool,
    /// Whether cuBLASLt's product for the weights sums the gradient of a linear layer's bias. If it has no algorithm for that, two
    /// kernels do: one for groups of rows, one for the groups.
    pub bias_in_products: bool,
    /// Whether products take the fastest of up to eight algorithms of cuBLASLt, timed, instead of its first proposal.
    pub timed_products: bool,
    /// Whether cuDNN computes attention.
    pub cudnn_attention: bool,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            wide_attention: Some(2),
            stored_slopes: true,
            bias_in_products: true,
            timed_products: false,
            cudnn_attention: false,
        }
    }
}
