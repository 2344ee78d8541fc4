//! What given costs refer to, and the share of them that an op of each stage costs.

use super::CostError;
use pipesim_models::model_spec::layer_counts;
use pipesim_schedule::placement::Placement;

/// What given costs refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// A device's whole share of layers: p devices' worth of model for any p and v.
    #[default]
    Device,
    /// One stage's layers.
    Stage,
    /// One layer.
    Layer,
    /// The whole model: the same for any p and v.
    Model,
}

impl Per {
    /// All of them, by name.
    pub const ALL: [(&'static str, Per); 4] =
        [("device", Per::Device), ("stage", Per::Stage), ("layer", Per::Layer), ("model", Per::Model)];

    /// Returns `device`, `stage`, `layer` or `model`.
    pub fn name(self) -> &'static str {
        Per::ALL[self as usize].0
    }
}

/// Exact shares of the given costs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StageShares {
    /// Share of each stage, in parts.
    pub(super) parts: Vec<u64>,
    /// Number of parts in the given costs.
    pub(super) whole: u64,
    /// What is given, as a multiple of an average device's share.
    pub(super) of_device: f64,
}

const MOST_LAYERS: usize = 1 << 20;

impl StageShares {
    /// Returns the shares of stages that weigh as much as `weights` say; a layer weighs `layer`. `None` on overflow.
    pub(super) fn new(placement: &Placement, per: Per, weights: &[u128], layer: u128) -> Option<StageShares> {
        let (devices, stages) = (u128::from(placement.devices().max(1)), u128::from(placement.stages()));
        let all: u128 = weights.iter().sum();
        let (scale, whole, of_device) = match per {
            Per::Device => (devices, all, 1.0),
            Per::Stage => (stages, all, (stages / devices) as f64),
            Per::Layer => (1, layer, all as f64 / layer as f64 / devices as f64),
            Per::Model => (1, all, 1.0 / devices as f64),
        };
        let common = weights.iter().fold(whole, |common, &part| wide_gcd(common, part * scale));
        let narrow = |parts: u128| u64::try_from(parts / common).ok();
        let parts = weights.iter().map(|part| narrow(part * scale)).collect::<Option<Vec<u64>>>()?;
        Some(StageShares { parts, whole: narrow(whole)?, of_device })
    }

    /// Returns the largest share of a stage, in parts.
    pub(super) fn largest(&self) -> u64 {
        self.parts.iter().copied().max().unwrap_or(1)
    }
}

/// Returns the layers of each stage, of one number for all or one per stage.
pub(super) fn counted(layers: &[usize], stages: usize) -> Result<Vec<u64>, CostError> {
    if layers.iter().any(|&count| count > MOST_LAYERS) {
        return Err(CostError::Stages(format!(
            "`layers`: expected at most {MOST_LAYERS} layers; give smaller numbers"
        )));
    }
    let (all, explicit) = match layers {
        [all] if stages > 1 => (*all, None),
        each => (each.iter().sum(), Some(each)),
    };
    let counts =
        layer_counts(all, stages, explicit).map_err(|error| CostError::Stages(format!("`layers`: {error}")))?;
    if all == 0 {
        return Err(CostError::Stages("`layers`: expected a layer or more; give their number".to_string()));
    }
    Ok(counts.into_iter().map(|count| count as u64).collect())
}

/// Returns the greatest common divisor.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the greatest common divisor of wide numbers.
pub(super) fn wide_gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { wide_gcd(b, a % b) }
}
