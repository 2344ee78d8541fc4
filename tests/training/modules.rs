//! Modules that are alone, and passes of whole micro-batches.

use anyhow::Result;
use pipesim::internals::compute::cuda::{AloneOnDevice, Cuda, DeviceCollective};
use pipesim::internals::compute::{Alone, Collective, Compute};
use pipesim::internals::model::{Cpu, Parameters, SliceOps, StageModule, WorkerShare};
use pipesim::internals::model_spec::Stage;
use pipesim::internals::op::{Kind, Op};
use pipesim_gpu::{Gpu, Precision};
use std::sync::Arc;

pub trait OnCpu: Sized {
    fn on_cpu(parameters: &Parameters, stages: &[(u32, Stage)], sizes: [usize; 3]) -> Result<Self> {
        Self::on_cpu_rank(parameters, stages, sizes, Box::new(Alone) as Box<dyn Collective>)
    }

    fn on_cpu_rank(
        parameters: &Parameters,
        stages: &[(u32, Stage)],
        sizes: [usize; 3],
        share: impl Into<WorkerShare<dyn Collective>>,
    ) -> Result<Self>;
}

impl OnCpu for StageModule<Cpu> {
    fn on_cpu_rank(
        parameters: &Parameters,
        stages: &[(u32, Stage)],
        sizes: [usize; 3],
        share: impl Into<WorkerShare<dyn Collective>>,
    ) -> Result<Self> {
        StageModule::on_cpu_slices(parameters, stages, sizes, &[], share)
    }
}

pub trait OnGpu: Sized {
    fn on_gpu(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, Stage)],
        sizes: [usize; 3],
        precision: Precision,
    ) -> Result<Self>;
}

impl OnGpu for StageModule<Cuda> {
    fn on_gpu(
        gpu: &Arc<Gpu>,
        parameters: &Parameters,
        stages: &[(u32, Stage)],
        sizes: [usize; 3],
        precision: Precision,
    ) -> Result<Self> {
        let alone: Box<dyn DeviceCollective> = Box::new(AloneOnDevice);
        StageModule::on_gpu_rank(gpu, parameters, stages, sizes, SliceOps::default(), precision, alone)
    }
}

/// The schedule's ops by name; a full backward is the second followed by the third.
pub trait Passes<C: Compute> {
    fn pass(
        &mut self,
        op: Op,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()>;

    fn forward(
        &mut self,
        stage: u32,
        microbatch: u32,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        self.pass(Op::new(Kind::F, stage, microbatch), input, output, timer)
    }

    fn backward_input(
        &mut self,
        stage: u32,
        microbatch: u32,
        gradient: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        self.pass(Op::new(Kind::I, stage, microbatch), gradient, output, timer)
    }

    fn backward_weight(&mut self, stage: u32, microbatch: u32, timer: &mut C::Timer) -> Result<()> {
        self.pass(Op::new(Kind::W, stage, microbatch), None, None, timer)
    }
}

impl<C: Compute> Passes<C> for StageModule<C> {
    fn pass(
        &mut self,
        op: Op,
        input: Option<C::Input<'_>>,
        output: Option<C::Output<'_>>,
        timer: &mut C::Timer,
    ) -> Result<()> {
        self.run(op, input, output, timer)
    }
}
