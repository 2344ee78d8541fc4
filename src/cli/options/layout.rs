//! `--layout`: what each pipeline stage holds.

use crate::cli::Failure;
use crate::model_spec::StageLayout;

/// The value of --layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutOption {
    Stages(StageLayout),
    /// torchtitan's automatic split: layers less in the first and the last stage.
    Torchtitan([usize; 2]),
}

impl LayoutOption {
    pub fn parse(text: &str) -> Result<LayoutOption, String> {
        let Some(less) = text.strip_prefix("torchtitan") else {
            return Ok(LayoutOption::Stages(StageLayout::parse(text).map_err(|error| error.to_string())?));
        };
        if less.is_empty() {
            return Ok(LayoutOption::Torchtitan([1, 1]));
        }
        let numbers = less.strip_prefix(':').and_then(|less| less.split_once(','));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&less| less <= 1 << 16);
        let both = numbers.and_then(|(first, last)| Some([number(first)?, number(last)?]));
        both.map(LayoutOption::Torchtitan).ok_or_else(|| {
            format!("expected torchtitan or torchtitan:FIRST,LAST, found '{text}'; write torchtitan:1,1")
        })
    }

    /// Returns the stages, on `devices` devices with --chunks.
    pub fn stages(&self, devices: u32, chunks: Option<u32>, layers: usize) -> Result<StageLayout, Failure> {
        match self {
            LayoutOption::Stages(layout) => Ok(layout.clone()),
            LayoutOption::Torchtitan(less) => {
                let stages = devices.saturating_mul(chunks.unwrap_or(1)) as usize;
                StageLayout::torchtitan(stages, layers, *less)
                    .map_err(|error| Failure::Usage(format!("--layout: {error}")))
            }
        }
    }
}
