//! How a model's layers are split into stages, and which devices share a tensor.

use super::part::{BLOCK, EMBEDDING, HEAD, PREDICTION, is_layer};
use super::stage_layout::{StageLayout, StagePieces};
use pipesim_schedule::placement::Placement;
use std::fmt;
use std::ops::Range;

/// Names and counts of a model's parts: what costs and devices need to know of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Name and count of each part, in order. A stage holds a run of the layers between the first and the last part; the first
    /// and the last stage also hold the first and the last part, and the last one what predicts further tokens.
    pub parts: Vec<(&'static str, usize)>,
    /// Index of the part of each layer, in model order; empty: the parts follow each other.
    pub order: Vec<usize>,
    /// The two parts that share a tensor, if any.
    pub tied: Option<[&'static str; 2]>,
}

/// What one stage holds of each part, numbered through the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    runs: Vec<(&'static str, Range<usize>)>,
}

/// Which of the two parts that share a tensor a device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TiedSides {
    /// Neither, or no tensor is shared.
    None,
    /// One: side 0 or 1.
    One(usize),
    /// Both.
    Both,
}

/// Why a model cannot be split into stages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each text names its fields
pub enum SplitError {
    /// There are 0 stages.
    #[error("expected at least 1 stage, found 0: ask for one or more")]
    NoStage,
    /// The number of layer counts is not the number of stages.
    #[error("expected layers for {stages} stages, found {found}: give one number for each stage")]
    Stages { stages: usize, found: usize },
    /// The layer counts do not add up to the model's layers.
    #[error("expected layers that add up to the model's {layers}, found {found:?}: change one of them")]
    Sum { layers: usize, found: Vec<usize> },
    /// An inner stage has no layers.
    #[error("expected at least 1 layer in every stage but the first and the last, found {found:?}: move a layer")]
    Empty { found: Vec<usize> },
    /// There are more stages than layers.
    #[error(
        "expected at most as many stages as the model's {layers} layers, found {stages} stages: choose fewer stages or a deeper model"
    )]
    TooMany { layers: usize, stages: usize },
}

impl Outline {
    /// Outline of an embedding, `blocks` blocks, and a head that shares the embedding's tensor if `tied`.
    pub fn transformer(blocks: usize, tied: bool) -> Outline {
        Outline {
            parts: vec![(EMBEDDING, 1), (BLOCK, blocks), (HEAD, 1)],
            order: Vec::new(),
            tied: tied.then_some([EMBEDDING, HEAD]),
        }
    }

    /// Returns the number of layers to split: all parts except the first, the last and what predicts further tokens.
    pub fn layers(&self) -> usize {
        self.parts[self.inner()].iter().map(|&(_, count)| count).sum()
    }

    fn inner(&self) -> Range<usize> {
        let last = self.parts.iter().position(|(name, _)| *name == PREDICTION);
        1..last.unwrap_or(self.parts.len().saturating_sub(1)).max(1)
    }

    /// Splits the layers into `stages` runs, by `explicit` counts or evenly. If the division leaves a remainder, the first
    /// stages take it, since the last one has the head. Only the first and the last stage may have no layers.
    pub fn split(&self, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<Stage>, SplitError> {
        Ok(self.first_layers(&layer_counts(self.layers(), stages, explicit)?))
    }

    /// Returns stages with these numbers of layers, from the first on, which need not be all.
    pub fn first_layers(&self, counts: &[usize]) -> Vec<Stage> {
        let (layers, stages, mut end) = (self.layers(), counts.len(), 0_usize);
        let stage = |(stage, count): (usize, &usize)| {
            let run = end..end.saturating_add(*count).min(layers);
            end = run.end;
            self.stage(run, [stage == 0, stage + 1 == stages, stage + 1 == stages])
        };
        counts.iter().enumerate().map(stage).collect()
    }

    /// Returns whether all layers are alike.
    pub fn is_even(&self) -> bool {
        self.parts[self.inner()].iter().filter(|(_, count)| *count > 0).count() <= 1
    }

    /// Returns the stages of a layout; some may be empty.
    ///
    /// # Errors
    /// The layout has another number of layers.
    pub fn arranged(&self, layout: &StageLayout) -> Result<Vec<Stage>, SplitError> {
        let [layers, _] = layout.layers();
        if layers != self.layers() {
            let found = layout.stages.iter().map(|stage| stage.layers).collect();
            return Err(SplitError::Sum { layers: self.layers(), found });
        }
        let mut end = 0;
        let stages = layout.stages.iter().map(|pieces| {
            let run = end..end + pieces.layers;
            end = run.end;
            self.stage(run, [pieces.embedding, pieces.predictions > 0, pieces.head])
        });
        Ok(stages.collect())
    }

    /// Returns the stage with this run of the layers, and with or without first part, prediction and last part.
    fn stage(&self, run: Range<usize>, [first, prediction, last]: [bool; 3]) -> Stage {
        let inner = self.inner();
        let before = |part: usize, end: usize| self.order[..end].iter().filter(|found| **found == part).count();
        let mut passed = 0;
        let runs = self.parts.iter().enumerate().map(|(number, &(name, count))| {
            let held = if inner.contains(&number) && !self.order.is_empty() {
                before(number, run.start)..before(number, run.end)
            } else if inner.contains(&number) {
                let place = |layer: usize| layer.clamp(passed, passed + count) - passed;
                let held = place(run.start)..place(run.end);
                passed += count;
                held
            } else {
                let has = if number == 0 {
                    first
                } else if name == PREDICTION {
                    prediction
                } else {
                    last
                };
                0..if has { count } else { 0 }
            };
            (name, held)
        });
        Stage { runs: runs.collect() }
    }

    /// Returns whether the parts of `stage` are contiguous in this model, whose parts follow each other.
    pub fn has_run(&self, stage: &Stage) -> bool {
        let mut first = 0;
        let mut end = None;
        self.parts.iter().zip(&stage.runs).all(|(&(name, count), (part, run))| {
            let follows = run.is_empty() || end.is_none_or(|end| end == first + run.start);
            if !run.is_empty() {
                end = Some(first + run.end);
            }
            first += count;
            name == *part && run.start <= run.end && run.end <= count && follows
        })
    }

    /// Returns which sides of the shared tensor a device with these stages holds.
    pub fn tied_sides<'a>(&self, stages: impl IntoIterator<Item = &'a Stage>) -> TiedSides {
        let Some(parts) = self.tied else { return TiedSides::None };
        let mut held = [false; 2];
        for stage in stages {
            held.iter_mut().zip(parts).for_each(|(held, part)| *held |= stage.has(part));
        }
        match held {
            [false, false] => TiedSides::None,
            [true, false] => TiedSides::One(0),
            [false, true] => TiedSides::One(1),
            [true, true] => TiedSides::Both,
        }
    }

    /// Returns the two devices, by side, that exchange the gradient of the shared tensor once per step. `None` if one device
    /// holds both sides, and in bidirectional placements, where the gradient is exchanged with the stages' gradients.
    pub fn exchange(&self, placement: &Placement, stages: &[Stage]) -> Option<[u32; 2]> {
        let device = |side| {
            (0..placement.devices()).find(|&device| {
                let held = placement.stages_of(device).filter_map(|stage| stages.get(stage as usize));
                self.tied_sides(held) == TiedSides::One(side)
            })
        };
        (placement.directions() == 1).then(|| Some([device(0)?, device(1)?])).flatten()
    }
}

/// Returns the layers of each stage: `explicit` ones, or as even as possible with the first stages taking the remainder.
pub fn layer_counts(layers: usize, stages: usize, explicit: Option<&[usize]>) -> Result<Vec<usize>, SplitError> {
    if stages == 0 {
        return Err(SplitError::NoStage);
    }
    let Some(counts) = explicit else {
        if stages > layers {
            return Err(SplitError::TooMany { layers, stages });
        }
        return Ok((0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect());
    };
    let found = || counts.to_vec();
    if counts.len() != stages {
        return Err(SplitError::Stages { stages, found: counts.len() });
    }
    if counts.iter().try_fold(0usize, |sum, &count| sum.checked_add(count)) != Some(layers) {
        return Err(SplitError::Sum { layers, found: found() });
    }
    if counts.get(1..stages - 1).unwrap_or_default().contains(&0) {
        return Err(SplitError::Empty { found: found() });
    }
    Ok(found())
}

impl StageLayout {
    /// Returns the layout of stages.
    pub fn of(stages: &[Stage]) -> StageLayout {
        let pieces = |stage: &Stage| StagePieces {
            embedding: stage.has(EMBEDDING),
            layers: stage.layers(),
            predictions: stage.count(PREDICTION),
            head: stage.has(HEAD),
        };
        StageLayout { stages: stages.iter().map(pieces).collect(), letters: None }
    }
}

impl Stage {
    /// Returns a stage of a transformer: with or without embedding, its blocks, with or without head.
    pub fn transformer(embedding: bool, blocks: Range<usize>, head: bool) -> Stage {
        Stage { runs: vec![(EMBEDDING, 0..usize::from(embedding)), (BLOCK, blocks), (HEAD, 0..usize::from(head))] }
    }

    /// Returns stages of a transformer with these numbers of blocks; the first has the embedding, the last the head.
    pub fn of_layers(layers: &[usize]) -> Vec<Stage> {
        let mut first = 0;
        let stage = |(number, &count): (usize, &usize)| {
            let blocks = first..first + count;
            first = blocks.end;
            Stage::transformer(number == 0, blocks, number + 1 == layers.len())
        };
        layers.iter().enumerate().map(stage).collect()
    }

    /// Returns the indices of the parts with this name that it holds.
    pub fn run(&self, part: &str) -> Range<usize> {
        self.runs.iter().find(|(name, _)| *name == part).map_or(0..0, |(_, run)| run.clone())
    }

    /// Returns the number of parts with this name that it holds.
    pub fn count(&self, part: &str) -> usize {
        self.run(part).len()
    }

    /// Returns the number of layers that it holds, of all kinds but those that predict further tokens.
    pub fn layers(&self) -> usize {
        let layers = self.runs.iter().filter(|(name, _)| is_layer(name) && *name != PREDICTION);
        layers.map(|(_, run)| run.len()).sum()
    }

    /// Returns whether it holds nothing, and passes tensors through.
    pub fn is_empty(&self) -> bool {
        self.runs.iter().all(|(_, run)| run.is_empty())
    }

    /// Returns whether it holds a part with this name.
    pub fn has(&self, part: &str) -> bool {
        self.count(part) > 0
    }

    /// Returns whether both hold a part in common.
    pub fn overlaps(&self, other: &Stage) -> bool {
        self.runs.iter().any(|(part, run)| {
            let others = other.run(part);
            run.start.max(others.start) < run.end.min(others.end)
        })
    }

    /// Returns the number of each part, in the model's order.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.runs.iter().map(|(name, run)| (*name, run.len()))
    }

    /// Returns each part's name with the indices that it holds, in the model's order.
    pub fn runs(&self) -> &[(&'static str, Range<usize>)] {
        &self.runs
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let held = self.runs.iter().filter(|(_, run)| !run.is_empty());
        let words: Vec<String> = held.map(|(name, run)| format!("{name} {run:?}")).collect();
        f.write_str(if words.is_empty() { "nothing" } else { "" })?;
        f.write_str(&words.join(", "))
    }
}
