//! The hull of the published steps: what others have measured, by kind of model, and how a question outside of it is said.

use crate::hardware::{Hardware, Stack};
use crate::layout::{ParallelConfig, Zero};
use crate::model_spec::ModelSpec;
use crate::model_spec::transformer::Config;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Written by `pipesim-validation left-out`.
const TEXT: &str = include_str!("../../hardware/hull.toml");

/// Groups of a publication, model, precision and GPU that must have run something before it counts as known: a row is inside if others
/// than its own group are.
pub const GROUPS: usize = 2;

/// What has a name: its key in the file, and what a run with it does.
const NAMED: [(&str, &str); 6] = [
    ("hardware", "is on {}"),
    ("software", "uses {}"),
    ("precision", "is in {}"),
    ("beyond-node", "has tensor parallelism beyond one node with {}"),
    ("zero-3", "shards {} with ZeRO-3"),
    ("layers", "has {}"),
];

/// What has a size: its key in the file, and what a run above and below a limit has; no text where a side is always known.
const SIZED: [(&str, &str, &str); 13] = [
    ("gigaparameters", "has more than {} G parameters", "has fewer than {} G parameters"),
    ("hidden", "has a hidden size above {}", "has a hidden size below {}"),
    ("vocabulary-percent", "has more than {} % of its parameters in embedding and head", ""),
    ("experts", "has more than {} experts per layer", ""),
    ("gpus", "has more than {} GPUs", ""),
    ("tp", "has more than {} tensor-parallel ranks", ""),
    ("pp", "has more than {} devices per pipeline", ""),
    ("cp", "has more than {} context-parallel ranks", ""),
    ("ep", "has more than {} expert-parallel ranks", ""),
    ("chunks", "has more than {} virtual stages per device", ""),
    ("micro-batch-size", "has more than {} sequences per micro-batch", ""),
    ("micro-tokens", "has more than {} tokens per micro-batch", ""),
    ("sequence", "has more than {} tokens per sequence", "has fewer than {} tokens per sequence"),
];

/// A question, or a published row, as the hull sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct HullPoint {
    /// Whether the model is a mixture of experts.
    pub is_mixture: bool,
    names: [Option<String>; NAMED.len()],
    sizes: [f64; SIZED.len()],
}

/// What one group of published runs or more have covered, of one kind of model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Hull {
    /// Number of groups by axis and name.
    pub names: BTreeMap<String, BTreeMap<String, usize>>,
    /// By axis: least and most of what [`GROUPS`] groups reach, least and most of all.
    pub sizes: BTreeMap<String, [f64; 4]>,
}

static PUBLISHED: LazyLock<BTreeMap<String, Hull>> = LazyLock::new(|| toml::from_str(TEXT).unwrap_or_default());

/// Returns a number of a sentence, with as many digits as matter.
fn number(value: f64) -> String {
    let digits = if value >= 100.0 || value.fract() == 0.0 { 0 } else { 2 };
    format!("{value:.digits$}")
}

impl HullPoint {
    /// Returns the point of a model on hardware under a layout.
    pub fn new(
        model: &Config,
        spec: &ModelSpec,
        hardware: &Hardware,
        stack: &Stack,
        layout: &ParallelConfig,
    ) -> HullPoint {
        let bytes = layout.precision.bytes();
        let precision = if !layout.precision.is_narrow() && bytes == 2 { "16 bits" } else { layout.precision.name() };
        let is_beyond = f64::from(layout.tp) > hardware.gpus_per_node;
        let shards = if layout.tp > 1 { "weights of tensor-parallel ranks" } else { "weights" };
        let name = |text: &str| Some(text.to_string());
        let parameters = spec.parameters() as f64;
        let vocabulary = (model.vocabulary * model.channels) as f64 * if model.tied { 1.0 } else { 2.0 };
        HullPoint {
            is_mixture: model.experts.is_some(),
            names: [
                name(&hardware.chip),
                name(&stack.name),
                name(precision),
                is_beyond.then(|| stack.name.clone()),
                (layout.zero == Zero::Weights).then(|| shards.to_string()),
                Some(model.rare_parts().join(", ")).filter(|parts| !parts.is_empty()),
            ],
            sizes: [
                parameters / 1e9,
                model.channels as f64,
                100.0 * vocabulary / parameters.max(1.0),
                model.experts.map_or(0.0, |experts| experts.count as f64),
                layout.gpus() as f64,
                f64::from(layout.tp),
                f64::from(layout.pp),
                f64::from(layout.cp),
                f64::from(layout.ep),
                f64::from(layout.chunks),
                f64::from(layout.micro_batch_size),
                f64::from(layout.micro_batch_size) * f64::from(layout.sequence),
                f64::from(layout.sequence),
            ],
        }
    }

    /// Returns its names by axis.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, &str)> {
        NAMED.iter().zip(&self.names).filter_map(|((key, _), name)| Some((*key, name.as_deref()?)))
    }

    /// Returns its sizes by axis.
    pub fn sizes(&self) -> impl Iterator<Item = (&'static str, f64)> {
        SIZED.iter().zip(&self.sizes).map(|((key, ..), size)| (*key, *size))
    }

    /// Says where it is outside of the hull of published steps and of the `known` points of a user's own runs: one sentence per axis,
    /// without a full stop.
    pub fn outside(&self, known: &[HullPoint]) -> Vec<String> {
        let kind = if self.is_mixture { "mixture" } else { "dense" };
        PUBLISHED.get(kind).map_or_else(Vec::new, |hull| hull.outside(self, known))
    }
}

impl Hull {
    /// Says where a point is outside of this hull and of the `known` points.
    pub fn outside(&self, point: &HullPoint, known: &[HullPoint]) -> Vec<String> {
        let run = if point.is_mixture { ["run of a mixture", "runs of mixtures"] } else { ["dense run", "dense runs"] };
        let said = |any: bool, words: String| match any {
            false => format!("no published {} {words}", run[0]),
            true => format!("only one group of published {} {words}", run[1]),
        };
        let named = NAMED.iter().zip(&point.names).enumerate().filter_map(|(axis, ((key, words), name))| {
            let name = name.as_ref()?;
            let groups = self.names.get(*key).and_then(|names| names.get(name)).copied().unwrap_or(0);
            let is_known = groups >= GROUPS || known.iter().any(|other| other.names[axis].as_ref() == Some(name));
            (!is_known).then(|| said(groups > 0, words.replace("{}", name)))
        });
        let sized = SIZED.iter().zip(&point.sizes).enumerate().filter_map(|(axis, ((key, above, below), size))| {
            let [least, most, least_of_all, most_of_all] = *self.sizes.get(*key)?;
            let slack = 1e-9 * size.abs();
            let own = || known.iter().map(|other| other.sizes[axis]);
            let (limit, any, words) = if size - slack > most && own().all(|own| own + slack < *size) {
                let any = *size - slack <= most_of_all;
                (if any { most } else { most_of_all }, any, above)
            } else if size + slack < least && !below.is_empty() && own().all(|own| own - slack > *size) {
                let any = *size + slack >= least_of_all;
                (if any { least } else { least_of_all }, any, below)
            } else {
                return None;
            };
            Some(said(any, words.replace("{}", &number(limit))))
        });
        named.chain(sized).collect()
    }
}
