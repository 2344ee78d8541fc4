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

#[cfg(feature = "internals")]
/// One choice, everything else as by default.
#[derive(Clone, Copy, Debug)]
pub struct Alternative {
    pub name: &'static str,
    /// Beginnings of the names of the kernels, and products, that differ.
    pub kernels: &'static [&'static str],
    pub before: Choices,
    pub after: Choices,
}

#[cfg(feature = "internals")]
impl Choices {
    /// Each choice with its predecessor. Wide attention is taken whatever the number of blocks, without wide attention nowhere else.
    pub fn alternatives() -> [Alternative; 8] {
        let all = Choices::default();
        let narrow = Choices { wide_attention: None, ..all };
        let alternative = |name, kernels, before, after| Alternative { name, kernels, before, after };
        let attention: &[&str] = &["attention_forward", "attention_backward_keys", "attention_backward_queries"];
        let biases: &[&str] = &["bias", "add", "product backward for the weights"];
        [
            alternative("attention with wide tiles", attention, narrow, Choices { wide_attention: Some(0), ..all }),
            alternative("attention for one head size", attention, Choices { own_head_size: false, ..narrow }, narrow),
            alternative(
                "LayerNorm backward in one pass",
                &["layernorm_backward"],
                Choices { one_pass_norm: false, ..all },
                all,
            ),
            alternative(
                "biases in groups of rows",
                biases,
                Choices { bias: BiasGradient::Columns, ..all },
                Choices { bias: BiasGradient::Groups, ..all },
            ),
            alternative(
                "biases in products",
                biases,
                Choices { bias: BiasGradient::Groups, ..all },
                Choices { bias: BiasGradient::Product, ..all },
            ),
            alternative(
                "classifier with paired reads",
                &["classifier_forward"],
                Choices { paired_reads: false, ..all },
                all,
            ),
            alternative("products timed", &["product"], all, Choices { timed_products: true, ..all }),
            alternative(
                "attention by cuDNN",
                &["attention", "cudnn attention"],
                all,
                Choices { cudnn_attention: true, ..all },
            ),
        ]
    }
}
