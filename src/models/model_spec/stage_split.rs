//! What each pipeline stage holds, as it is asked for.

use super::stage_layout::{LayoutError, StageLayout};
use std::fmt;
use std::str::FromStr;

/// A split of a model over stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageSplit {
    /// The pieces of each stage.
    Stages(StageLayout),
    /// torchtitan's automatic split: layers less in the first and the last stage.
    Torchtitan([usize; 2]),
}

impl FromStr for StageSplit {
    type Err = String;

    fn from_str(text: &str) -> Result<StageSplit, String> {
        let Some(less) = text.strip_prefix("torchtitan") else {
            return Ok(StageSplit::Stages(StageLayout::parse(text).map_err(|error| error.to_string())?));
        };
        if less.is_empty() {
            return Ok(StageSplit::Torchtitan([1, 1]));
        }
        let numbers = less.strip_prefix(':').and_then(|less| less.split_once(','));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&less| less <= 1 << 16);
        let both = numbers.and_then(|(first, last)| Some([number(first)?, number(last)?]));
        both.map(StageSplit::Torchtitan).ok_or_else(|| {
            format!("expected torchtitan or torchtitan:FIRST,LAST, found '{text}'; write torchtitan:1,1")
        })
    }
}

impl fmt::Display for StageSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StageSplit::Stages(layout) => write!(f, "{layout}"),
            StageSplit::Torchtitan([first, last]) => write!(f, "torchtitan:{first},{last}"),
        }
    }
}

impl StageSplit {
    /// Returns the stages, on `devices` devices with `chunks` stages per device.
    ///
    /// # Errors
    /// Too few layers for the stages.
    pub fn stages(&self, devices: u32, chunks: Option<u32>, layers: usize) -> Result<StageLayout, LayoutError> {
        match self {
            StageSplit::Stages(layout) => Ok(layout.clone()),
            StageSplit::Torchtitan(less) => {
                StageLayout::torchtitan(devices.saturating_mul(chunks.unwrap_or(1)) as usize, layers, *less)
            }
        }
    }
}
