//! A device that computes nothing: it reads what it is sent and writes what it sends, as every op does, so that messages find memory
//! and caches as in training.

use super::device::{Device, State};
use crate::model::Lap;
use crate::op::Op;
use std::hint::black_box;

/// The device.
pub struct Echo;

impl State for Echo {}

impl Device for Echo {
    fn compute(
        &mut self,
        op: Op,
        input: Option<&[f32]>,
        output: Option<&mut [f32]>,
        _laps: &mut Vec<Lap>,
    ) -> anyhow::Result<()> {
        black_box(input.map(|input| input.iter().sum::<f32>()));
        if let Some(output) = output {
            output.fill(op.microbatch() as f32);
            black_box(output);
        }
        Ok(())
    }
}
