//! What the backward recomputes instead of saving it.

use super::error::ParallelConfigError;
use std::fmt;
use std::str::FromStr;

/// What the backward recomputes instead of saving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recompute {
    /// Nothing.
    None,
    /// The attention between its products.
    Selective,
    /// Parts of layers, as Megatron's `--recompute-modules`.
    Parts(RecomputeParts),
    /// Every layer, from its input.
    Full,
}

/// A set of parts of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecomputeParts(u8);

/// A part of a layer that can be recomputed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecomputePart {
    /// The attention between its products.
    CoreAttention,
    /// The products of latent attention that make queries, keys and values from narrow rows.
    LatentUp,
    /// The activation between an expert's products.
    ExpertActivation,
    /// Norms before attention and MLP.
    Norms,
    /// The MLP of dense layers.
    Mlp,
    /// Experts and router of a mixture, with their communication.
    Mixture,
    /// The shared experts of a mixture.
    SharedExperts,
}

impl RecomputePart {
    /// All of them, with Megatron's names.
    pub const ALL: [(&'static str, RecomputePart); 7] = [
        ("core_attn", RecomputePart::CoreAttention),
        ("mla_up_proj", RecomputePart::LatentUp),
        ("moe_act", RecomputePart::ExpertActivation),
        ("layernorm", RecomputePart::Norms),
        ("mlp", RecomputePart::Mlp),
        ("moe", RecomputePart::Mixture),
        ("shared_experts", RecomputePart::SharedExperts),
    ];
}

impl RecomputeParts {
    /// Returns the set of `parts`.
    pub fn new(parts: impl IntoIterator<Item = RecomputePart>) -> RecomputeParts {
        RecomputeParts(parts.into_iter().fold(0, |set, part| set | 1 << part as u8))
    }

    /// Returns whether `part` is in the set.
    pub fn has(self, part: RecomputePart) -> bool {
        self.0 & 1 << part as u8 != 0
    }
}

impl Recompute {
    /// The values that are not sets of parts.
    pub const ALL: &[Recompute] = &[Recompute::None, Recompute::Selective, Recompute::Full];

    /// Returns whether `part` runs again in the backward, alone or with its layer.
    pub fn repeats(self, part: RecomputePart) -> bool {
        match self {
            Recompute::None => false,
            Recompute::Selective => part == RecomputePart::CoreAttention,
            Recompute::Full => true,
            Recompute::Parts(parts) => parts.has(part),
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::None => f.write_str("none"),
            Recompute::Selective => f.write_str("selective"),
            Recompute::Full => f.write_str("full"),
            Recompute::Parts(parts) => {
                let named = RecomputePart::ALL.into_iter().filter(|(_, part)| parts.has(*part));
                f.write_str(&named.map(|(name, _)| name).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for Recompute {
    type Err = ParallelConfigError;

    /// Reads `none`, `selective`, `full`, or names of parts with commas between them.
    fn from_str(text: &str) -> Result<Recompute, ParallelConfigError> {
        if let Some(known) = Recompute::ALL.iter().find(|known| known.to_string() == text) {
            return Ok(*known);
        }
        let part = |name: &str| {
            let known = RecomputePart::ALL.iter().find(|(known, _)| *known == name.trim());
            known.map(|(_, part)| *part).ok_or_else(|| {
                let names = RecomputePart::ALL.map(|(name, _)| name).join(", ");
                let found = match name.trim() {
                    alone @ ("none" | "selective" | "full") => format!("'{alone}' among others; write it alone"),
                    other => format!("'{other}'"),
                };
                let expected = format!("none, selective, full, or a comma list of {names}");
                ParallelConfigError::Name { expected, found }
            })
        };
        Ok(Recompute::Parts(RecomputeParts::new(text.split(',').map(part).collect::<Result<Vec<_>, _>>()?)))
    }
}
