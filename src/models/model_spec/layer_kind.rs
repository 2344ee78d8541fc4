//! Kinds of layers: what mixes the tokens of a layer, and what follows it.

use super::mixers::Scan;
use super::mixture::in_range;
use super::operation::Window;
use super::sizes::{InvalidSizes, TensorRanksError};
use std::sync::{Mutex, PoisonError};

/// Softmax attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelfAttention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub groups: usize,
    /// Channels per query and key.
    pub size: usize,
    /// Channels per value.
    pub value: usize,
    /// Keys that a query attends to, if not all before it.
    pub window: Option<Window>,
    /// Whether values are the keys, without weights of their own: Gemma 4.
    pub keys_are_values: bool,
    /// Whether each head has a learned score that no key has.
    pub has_sinks: bool,
    /// Whether a gate, made with the queries, scales each channel of the output: Qwen3-Next.
    pub gate: Gate,
    /// Whether queries, keys and values come from narrow rows, as the model's latent attention says.
    pub is_latent: bool,
    /// Choice of keys, in place of `window`.
    pub sparse: Option<Sparse>,
}

/// Gate of an attention's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// None.
    None,
    /// One number per head.
    Heads,
    /// One number per channel.
    Channels,
}

impl Gate {
    /// Returns the numbers per token, of `heads` heads with `value` channels.
    pub const fn width(self, heads: usize, value: usize) -> usize {
        match self {
            Gate::None => 0,
            Gate::Heads => heads,
            Gate::Channels => heads * value,
        }
    }
}

/// Attention to keys that an indexer chooses (DeepSeek-V3.2, arXiv 2512.02556).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparse {
    /// Keys per query.
    pub chosen: usize,
    /// Heads of the indexer.
    pub heads: usize,
    /// Channels per head of the indexer.
    pub size: usize,
    /// Whether the layer uses the choice of an earlier one, and has no indexer.
    pub is_shared: bool,
}

/// What follows the mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// Nothing.
    None,
    /// An MLP of this width.
    Dense(usize),
    /// The model's experts.
    Experts,
    /// Both, next to each other, with norms of their own: Gemma 4.
    Both(usize),
}

/// A layer: attention, a scan, or both on the same input; then an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerKind {
    /// Attention, if any.
    pub attention: Option<SelfAttention>,
    /// Scan or convolution, if any.
    pub scan: Option<Scan>,
    /// MLP.
    pub mlp: Mlp,
}

/// Layers of a model that differ from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerPattern {
    /// Different kinds, by first appearance.
    pub kinds: Vec<LayerKind>,
    /// Index of the kind of each layer, in model order.
    pub layers: Vec<usize>,
    /// Kinds of the layers in one prediction of further tokens; empty: one like the model's last layer.
    pub predictions: Vec<LayerKind>,
}

impl LayerKind {
    /// Returns whether it has experts.
    pub fn has_experts(&self) -> bool {
        matches!(self.mlp, Mlp::Experts | Mlp::Both(_))
    }

    /// Returns the letter of a layer with one part in Megatron's `--hybrid-layer-pattern`; `None` for others.
    pub fn letter(&self) -> Option<char> {
        match (&self.attention, &self.scan, self.mlp) {
            (None, Some(Scan::Mamba(_)), Mlp::None) => Some('M'),
            (Some(_), None, Mlp::None) => Some('*'),
            (None, None, Mlp::Experts) => Some('E'),
            (None, None, Mlp::Dense(_)) => Some('-'),
            _ => None,
        }
    }

    /// Returns what it has besides softmax attention to all keys or a window, and an MLP or experts.
    pub(super) fn rare_parts(&self, usual: &SelfAttention) -> Vec<&'static str> {
        let attention = self.attention.as_ref();
        let is_unlike =
            |own: &SelfAttention| [own.heads, own.groups, own.size] != [usual.heads, usual.groups, usual.size];
        let has_width = |own: &SelfAttention| !own.is_latent && own.value != own.size || own.keys_are_values;
        [
            self.scan.map(|scan| scan.plural()),
            attention.and_then(|own| own.sparse).map(|_| "sparse attention"),
            attention.filter(|own| own.gate != Gate::None).map(|_| "gated attention"),
            attention.filter(|own| is_unlike(own) || has_width(own)).map(|_| "attention of unlike layers"),
            matches!(self.mlp, Mlp::Both(_)).then_some("experts next to an MLP"),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns the name of its part, without a number.
    pub(super) fn name(&self) -> String {
        let attention = self.attention.map(|attention| match (attention.sparse, attention.window) {
            (Some(Sparse { is_shared: true, .. }), _) => "shared sparse",
            (Some(_), _) => "sparse",
            (None, Some(_)) => "window",
            _ if self.scan.is_some() || self.mlp == Mlp::None => "attention",
            _ => "",
        });
        let scan = self.scan.map(|scan| scan.name());
        let mlp = match self.mlp {
            _ if attention.is_none() && scan.is_none() && self.has_experts() => "experts",
            Mlp::None => "",
            Mlp::Dense(_) if attention.is_none() && scan.is_none() => "mlp",
            Mlp::Dense(_) => "block",
            Mlp::Experts | Mlp::Both(_) => "mixture",
        };
        let words = [scan, attention, Some(mlp)].into_iter().flatten().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }

    /// Checks that a layer of these sizes can exist.
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        if let Some(SelfAttention { heads, groups, size, value, .. }) = self.attention {
            in_range("attention", [("heads", heads), ("head size", size), ("channels of values", value)])?;
            if groups == 0 || !heads.is_multiple_of(groups) {
                let (of, what) = ("heads", "key and value heads");
                return Err(InvalidSizes::Multiple { of, of_size: heads, what, size: groups });
            }
        }
        self.scan.map_or(Ok(()), |scan| scan.check())
    }

    /// Checks that `ranks` tensor-parallel ranks can share it.
    pub(super) fn check_ranks(&self, ranks: usize) -> Result<(), TensorRanksError> {
        let attention = self.attention.map(|attention| ("heads", attention.heads));
        let scan = self.scan.map(|scan| scan.shared()).unwrap_or_default();
        let mlp = match self.mlp {
            Mlp::Dense(width) | Mlp::Both(width) => Some(("channels of the MLP", width)),
            Mlp::None | Mlp::Experts => None,
        };
        let uneven = attention.into_iter().chain(scan).chain(mlp).find(|(_, size)| !size.is_multiple_of(ranks));
        if let Some((what, size)) = uneven {
            return Err(TensorRanksError::Uneven { what, size, or: "", ranks });
        }
        match self.attention {
            Some(SelfAttention { groups, .. }) if !groups.is_multiple_of(ranks) && !ranks.is_multiple_of(groups) => {
                let (what, or) = ("key and value heads", ", or the reverse");
                Err(TensorRanksError::Uneven { what, size: groups, or, ranks })
            }
            _ => Ok(()),
        }
    }
}

impl LayerPattern {
    /// Makes the pattern of these layers. Equal patterns are kept once, so that sizes of models can be copied.
    pub fn of(layers: impl IntoIterator<Item = LayerKind>, predictions: Vec<LayerKind>) -> &'static LayerPattern {
        let mut pattern = LayerPattern { predictions, ..LayerPattern::default() };
        for kind in layers {
            let known = pattern.kinds.iter().position(|known| *known == kind);
            pattern.layers.push(known.unwrap_or(pattern.kinds.len()));
            pattern.kinds.extend(known.is_none().then_some(kind));
        }
        kept(&PATTERNS, pattern)
    }

    /// Returns the kind of a layer.
    pub fn kind(&self, layer: usize) -> LayerKind {
        self.kinds[self.layers[layer]]
    }

    /// Returns Megatron's `--hybrid-layer-pattern` with `predictions` of further tokens, if each layer has one part.
    pub fn letters(&self, predictions: usize) -> Option<String> {
        let main: Option<String> = (0..self.layers.len()).map(|layer| self.kind(layer).letter()).collect();
        let each: Option<String> = self.predictions.iter().map(LayerKind::letter).collect();
        Some(main? + &format!("/{}", each?).repeat(predictions))
    }
}

static PATTERNS: Mutex<Vec<&'static LayerPattern>> = Mutex::new(Vec::new());
static NAMES: Mutex<Vec<&'static String>> = Mutex::new(Vec::new());

/// Returns a name that lasts as long as the program.
pub(super) fn lasting(name: String) -> &'static str {
    kept(&NAMES, name).as_str()
}

fn kept<T: PartialEq>(all: &Mutex<Vec<&'static T>>, value: T) -> &'static T {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|known| ***known == value) {
        return known;
    }
    let value: &'static T = Box::leak(Box::new(value));
    all.push(value);
    value
}
