//! Adapters of low rank next to frozen weights (Hu et al., arXiv 2106.09685): y = W x + B A x, of which A and B are trained.

use super::operation::Operation;
use super::part::Initial::{Normal, Zero};
use super::part::Tensor;
use super::split::Block;
use std::str::FromStr;

/// Adapters of one rank on some of a layer's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lora {
    /// Inner dimension of an adapter.
    pub rank: u32,
    /// Set of the places in [`TARGETS`].
    targets: u16,
}

/// Products that can have an adapter, as Megatron-Bridge and then Hugging Face's models call them; which product of a layer: into and out of
/// the attention, into and out of the MLP; and which of its outputs, queries, keys or values, gate or up: `None` for all.
const TARGETS: [(&str, usize, Option<usize>); 11] = [
    ("linear_qkv", 0, None),
    ("linear_proj", 1, None),
    ("linear_fc1", 2, None),
    ("linear_fc2", 3, None),
    ("q_proj", 0, Some(0)),
    ("k_proj", 0, Some(1)),
    ("v_proj", 0, Some(2)),
    ("o_proj", 1, None),
    ("gate_proj", 2, Some(0)),
    ("up_proj", 2, Some(1)),
    ("down_proj", 3, None),
];

/// The default of Megatron-Bridge: its four names.
const USUAL: u16 = 0b1111;

/// What PEFT calls `all-linear`: Hugging Face's seven names.
const ALL_LINEAR: u16 = 0b111_1111_0000;

/// Largest rank.
const MOST: u32 = 1 << 14;

impl FromStr for Lora {
    type Err = String;

    /// Parses `16` or `16:q_proj,v_proj`.
    fn from_str(text: &str) -> Result<Lora, String> {
        let (rank, names) = text.split_once(':').map_or((text, None), |(rank, names)| (rank, Some(names)));
        let rank = rank.trim().parse().ok().filter(|rank| (1..=MOST).contains(rank)).ok_or_else(|| {
            format!("expected a rank from 1 to {MOST}, alone or with targets, found '{text}'; write it as in 16 or 16:q_proj,v_proj")
        })?;
        let Some(names) = names else { return Ok(Lora { rank, targets: USUAL }) };
        let mut targets = 0;
        for name in names.split(',').map(str::trim) {
            targets |= match TARGETS.iter().position(|(known, ..)| *known == name) {
                Some(place) => 1 << place,
                None if name == "all-linear" => ALL_LINEAR,
                None => {
                    let known = TARGETS.map(|(name, ..)| name).join(", ");
                    return Err(format!("expected targets among {known} and all-linear, found '{name}'; correct it"));
                }
            };
        }
        Ok(Lora { rank, targets })
    }
}

impl Lora {
    /// Returns the adapters of the product at `place` with a weight of this `shape`, whose `axis` is split into `blocks`: A, B, and what they
    /// compute. As in Megatron-Bridge, ranks share the rank of A or its inputs, as they share W, and the outputs of B.
    pub(super) fn adapters(
        &self,
        place: usize,
        shape: [usize; 2],
        axis: usize,
        blocks: &[Block],
    ) -> Vec<([Tensor; 2], Operation)> {
        let (rank, [outputs, inputs]) = (self.rank as usize, shape);
        let whole = [Block::new(outputs, 1)];
        let adapter = |block: Option<usize>| {
            let own = if axis == 0 { blocks } else { &whole[..] };
            let own = block.map_or(Some(own), |block| own.get(block..=block))?;
            let outputs: usize = own.iter().map(|block| block.pieces * block.size).sum();
            let first = Tensor::new("lora_a", [rank, inputs], Normal(0.02));
            let first = if axis == 0 { first.split(0, &[Block::new(rank, 1)]) } else { first.split(1, blocks) };
            let tensors = [first, Tensor::new("lora_b", [outputs, rank], Zero).split(0, own)];
            // the input of the second product of an attention is the attention's output, which its backward needs anyway
            let (has_split_inputs, keeps_input) = (axis == 1, place != 1);
            let operation = Operation::Adapt { inputs, outputs, rank, has_split_inputs, keeps_input };
            Some((tensors.map(|tensor| Tensor { is_adapter: true, ..tensor }), operation))
        };
        let chosen =
            TARGETS.iter().enumerate().filter(|&(number, target)| self.targets >> number & 1 == 1 && target.1 == place);
        chosen.filter_map(|(_, &(_, _, block))| adapter(block)).collect()
    }
}
