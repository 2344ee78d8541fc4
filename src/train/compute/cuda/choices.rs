//! Choices between kernels that compute the same. No GPU has timed them: the defaults follow from registers, bytes and launches, and
//! `tests/gpu choices` times both sides of each.

/// Who sums the gradient of a linear layer's bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BiasGradient {
    /// One kernel, a column per thread.
    Columns,
    /// A kernel for groups of rows with wide reads, and one for the groups.
    Groups,
    /// cuBLASLt's product for the weights, if it supports that, and a kernel that adds the sums; otherwise [`BiasGradient::Groups`].
    Product,
}

/// The kernels that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Blocks per multiprocessor from which on attention takes wide tiles, which make half as many blocks; `None`: never.
    pub wide_attention: Option<usize>,
    /// Whether attention is compiled for the model's head size only.
    pub own_head_size: bool,
    /// Whether the backward of a LayerNorm reads its operands once, where the kernel can.
    pub one_pass_norm: bool,
    pub bias: BiasGradient,
    /// Whether a thread of the classifier keeps two reads under way instead of one.
    pub paired_reads: bool,
    /// Whether products take the fastest of up to eight algorithms of cuBLASLt, timed, instead of its first proposal.
    pub timed_products: bool,
    /// Whether cuDNN computes attention.
    pub cudnn_attention: bool,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices {
            wide_attention: Some(2),
            own_head_size: true,
            one_pass_norm: true,
            bias: BiasGradient::Groups,
            paired_reads: true,
            timed_products: false,
            cudnn_attention: false,
        }
    }
}
