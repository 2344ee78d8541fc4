//! What the backward recomputes instead of saving it.

use super::error::ParallelConfigError;
use crate::model_spec::{ModelSpec, Stage};
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
    /// The first layers of each stage, each from its input: Megatron's `--recompute-method block`.
    Block(u32),
    /// Every k-th layer of a stage, from its input: torchtitan's `selective_ac_option`.
    Every(u32),
    /// Every layer, from its input.
    Full,
    /// Every layer, in groups of so many from the input of the first: Megatron's `--recompute-method uniform`.
    Uniform(u32),
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
            Recompute::Parts(parts) => parts.has(part),
            Recompute::Block(_) | Recompute::Every(_) | Recompute::Full | Recompute::Uniform(_) => true,
        }
    }

    /// Returns whether it recomputes whole layers.
    pub fn is_of_layers(self) -> bool {
        matches!(self, Recompute::Block(_) | Recompute::Every(_) | Recompute::Full | Recompute::Uniform(_))
    }

    /// Returns whether some layers of a stage are recomputed, and others not.
    pub fn is_of_some(self) -> bool {
        matches!(self, Recompute::Block(_) | Recompute::Every(_))
    }

    /// Returns what a single layer recomputes that is, or is not, among those that are recomputed as a whole.
    pub fn of_layer(self, is_whole: bool) -> Recompute {
        match (self.is_of_layers(), is_whole) {
            (false, _) => self,
            (true, true) => Recompute::Full,
            (true, false) => Recompute::None,
        }
    }

    /// Returns how many repetitions of part `number` of a stage are recomputed as whole layers. Megatron does not recompute layers that
    /// predict further tokens with `block`.
    pub fn whole(self, spec: &ModelSpec, stage: &Stage, number: usize) -> usize {
        let is_whole = |place: usize| match self {
            Recompute::Block(first) => place < first as usize,
            Recompute::Every(step) => (place + 1).is_multiple_of(step as usize),
            _ => false,
        };
        match self {
            Recompute::Block(0) => 0,
            Recompute::Block(_) | Recompute::Every(_) => {
                let layers = spec.layers_of(stage).enumerate();
                let whole = layers.filter(|&(place, part)| part == number && is_whole(place)).count();
                // stages that a search tries need not follow the order of layers
                whole.min(stage.count(spec.parts[number].name))
            }
            _ if self.is_of_layers() && spec.parts[number].is_layer() => stage.count(spec.parts[number].name),
            _ => 0,
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recompute::None => f.write_str("none"),
            Recompute::Selective => f.write_str("selective"),
            Recompute::Full => f.write_str("full"),
            Recompute::Block(layers) => write!(f, "block:{layers}"),
            Recompute::Every(step) => write!(f, "every:{step}"),
            Recompute::Uniform(layers) => write!(f, "uniform:{layers}"),
            Recompute::Parts(parts) => {
                let named = RecomputePart::ALL.into_iter().filter(|(_, part)| parts.has(*part));
                f.write_str(&named.map(|(name, _)| name).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for Recompute {
    type Err = ParallelConfigError;

    /// Reads `none`, `selective`, `full`, layers as in `block:5`, `uniform:2` and `every:2`, or names of parts with commas between them.
    fn from_str(text: &str) -> Result<Recompute, ParallelConfigError> {
        if let Some(known) = Recompute::ALL.iter().find(|known| known.to_string() == text) {
            return Ok(*known);
        }
        if let Some((method, number)) = text.split_once(':') {
            let number = number.trim().parse::<u32>().ok().filter(|number| *number <= 1 << 16);
            let layers = match (method, number) {
                ("block", Some(0)) => Some(Recompute::None),
                ("block", Some(first)) => Some(Recompute::Block(first)),
                ("every" | "uniform", Some(1)) => Some(Recompute::Full),
                ("every", Some(step)) if step > 0 => Some(Recompute::Every(step)),
                ("uniform", Some(layers)) if layers > 0 => Some(Recompute::Uniform(layers)),
                _ => None,
            };
            return layers.ok_or_else(|| ParallelConfigError::Name {
                expected: "layers to recompute as in block:5, uniform:2 or every:2".to_string(),
                found: format!("'{text}'"),
            });
        }
        let part = |name: &str| {
            let known = RecomputePart::ALL.iter().find(|(known, _)| *known == name.trim());
            known.map(|(_, part)| *part).ok_or_else(|| {
                let names = RecomputePart::ALL.map(|(name, _)| name).join(", ");
                let found = match name.trim() {
                    alone @ ("none" | "selective" | "full") => format!("'{alone}' among others; write it alone"),
                    other => format!("'{other}'"),
                };
                let expected =
                    format!("none, selective, full, block:N, uniform:N, every:N, or a comma list of {names}");
                ParallelConfigError::Name { expected, found }
            })
        };
        Ok(Recompute::Parts(RecomputeParts::new(text.split(',').map(part).collect::<Result<Vec<_>, _>>()?)))
    }
}
