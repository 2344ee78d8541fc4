//! Warm-up: every op runs once when a shard is created, and the memory of a step is allocated before its first op.

use super::shard::Shard;
use super::timing::EventTimer;
use crate::model_spec::{self, EMBEDDING, HEAD};
use crate::op::{Kind, Op};
use anyhow::{Result, ensure};
use pipesim_cuda::api::{Buffer, Unsupported, mib};

impl Shard {
    /// Runs every op of every stage once, on tokens 0 and zero hidden states, and records what each takes from the pool.
    pub(super) fn warm_up(&mut self) -> Result<()> {
        let tokens = vec![0; self.microbatches * self.shape.rows()];
        self.begin(&tokens, &tokens)?;
        let gpu = self.operations.gpu.clone();
        let mut marks = EventTimer::new(&gpu);
        let hidden =
            [Buffer::new(gpu.context(), self.hidden_bytes())?, Buffer::new(gpu.context(), self.hidden_bytes())?];
        gpu.compute.clear(hidden[0].address(), hidden[0].bytes())?;
        let stages: Vec<(u32, model_spec::Stage)> =
            self.stages.iter().map(|(id, held)| (*id, held.layers.clone())).collect();
        for (stage, layers) in stages {
            let input = (!layers.has(EMBEDDING)).then_some(hidden[0].address());
            let output = (!layers.has(HEAD)).then_some(hidden[1].address());
            self.operations.pool.watch();
            self.forward(stage, 0, input, output, &mut marks)?;
            self.moves.insert((stage, Kind::F), self.operations.pool.seen());
            let gradient = (!layers.has(HEAD)).then_some(hidden[0].address());
            let output = (!layers.has(EMBEDDING)).then_some(hidden[1].address());
            self.operations.pool.watch();
            self.backward_input(stage, 0, gradient, output, &mut marks)?;
            self.moves.insert((stage, Kind::I), self.operations.pool.seen());
            self.operations.pool.watch();
            self.backward_weight(stage, 0, &mut marks)?;
            self.moves.insert((stage, Kind::W), self.operations.pool.seen());
        }
        self.zero_gradients()?;
        gpu.compute.set(self.step.scale.address(), 1.0)?;
        gpu.compute.clear(self.losses.address(), self.losses.bytes())?;
        gpu.compute.synchronize()?;
        self.peak_held_bytes = 0;
        Ok(())
    }

    /// Allocates everything that a step of these ops, in this order, takes from the pool, because an allocation during the step
    /// could wait for the device. Ops of other devices' stages are ignored.
    ///
    /// # Errors
    /// There is too little memory: the error has the numbers.
    pub fn reserve(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let calls = ops.into_iter().flat_map(|op| {
            let kinds: &[Kind] = match op.kind() {
                Kind::F => &[Kind::F],
                Kind::I => &[Kind::I],
                Kind::W => &[Kind::W],
                Kind::B => &[Kind::I, Kind::W],
            };
            kinds.iter().map(move |&kind| (op.stage(), kind))
        });
        let moves = calls.filter_map(|call| self.moves.get(&call)).flatten().copied();
        let lacking = self.operations.pool.lacking(moves);
        let bytes: usize = lacking.iter().map(|(bytes, count)| bytes * count).sum();
        let (free, total) = self.operations.gpu.memory()?;
        ensure!(
            bytes <= free,
            Unsupported(format!(
                "expected {} MiB more of device memory for what this schedule keeps in flight, found {} of {} MiB free: choose a \
             schedule that keeps less, smaller micro-batches, bfloat16, or more stages",
                mib(bytes),
                free >> 20,
                total >> 20
            ))
        );
        self.operations.pool.reserve(&lacking)
    }
}
