//! Attention by cuDNN. It reads fused queries, keys and values where they are, also with fewer heads of keys than of queries.

use super::operation::Operations;
use super::{Activations, Cuda};
use crate::compute::{Attended, Attention};
use anyhow::{Context as _, Result, ensure};
use pipesim_gpu::api::{Address, AttentionOperands, AttentionShape, Pass, Unsupported};
use pipesim_gpu::attention::{HEAD_SIZE_MULTIPLE, takes_cudnn, workspace_bytes};
use pipesim_gpu::kernel::{self, Precision};
use pipesim_models::model_spec::MicroBatch;
use pipesim_models::model_spec::transformer::Config;

/// Returns the most temporary bytes that attention needs on one of `ranks` tensor-parallel ranks: cuDNN's workspace, or the own
/// kernels' slopes.
///
/// # Errors
/// cuDNN is to compute it, and does not support this.
pub fn attention_workspace(
    config: &Config,
    micro: MicroBatch,
    precision: Precision,
    ranks: usize,
    is_sliced: bool,
) -> Result<usize> {
    let (heads, groups) = (config.heads.div_ceil(ranks), config.groups.div_ceil(ranks));
    if !takes_cudnn() {
        let of = |sequences| [sequences, micro.tokens, heads];
        let at_once = kernel::stored_sequences(precision, of(micro.sequences), config.head_size);
        return Ok(kernel::slopes_bytes(of(at_once)));
    }
    let (size, advice) = (config.head_size, "or leave `attention` cudnn out");
    ensure!(
        precision == Precision::Bf16,
        Unsupported(format!(
            "expected activations in bfloat16 for cuDNN's attention, found float32: add `precision` bf16, {advice}"
        ))
    );
    ensure!(
        !is_sliced,
        Unsupported(format!(
            "expected whole sequences for cuDNN's attention, found slices: choose another schedule, {advice}"
        ))
    );
    ensure!(
        size.is_multiple_of(HEAD_SIZE_MULTIPLE),
        Unsupported(format!(
            "expected heads of a multiple of {HEAD_SIZE_MULTIPLE} channels for cuDNN's attention, found {size}: choose another number of \
             heads, {advice}"
        ))
    );
    Ok(workspace_bytes(&AttentionShape { sequences: micro.sequences, tokens: micro.tokens, heads, groups, size }))
}

impl Operations {
    /// Enqueues an operation of cuDNN. The workspace in `operands` is replaced.
    fn fused_attention(&mut self, pass: Pass, shape: &AttentionShape, operands: AttentionOperands) -> Result<()> {
        let fused = self.fused.as_mut().context("expected an open cuDNN, found none")?;
        let workspace = match fused.plan(pass, shape)? {
            0 => None,
            bytes => Some(self.pool.take(bytes, &self.gpu.compute)?),
        };
        let address = workspace.as_ref().map_or(Address::NULL, |buffer| buffer.address());
        let operands = AttentionOperands { workspace: address, ..operands };
        let name = match pass {
            Pass::Forward => "cudnn attention forward",
            Pass::Backward => "cudnn attention backward",
        };
        let stream = &self.gpu.compute;
        self.timing.around(name, &self.gpu, || fused.run(pass, shape, &operands, stream.raw()?))?;
        self.pool.give(workspace);
        Ok(())
    }
}

impl Cuda {
    fn whole_shape(&self, layer: &Attention) -> AttentionShape {
        let (MicroBatch { sequences, tokens }, &Attention { heads, groups, size }) = (self.workload.micro_batch, layer);
        AttentionShape { sequences, tokens, heads, groups, size }
    }

    pub(super) fn fused_attention(&mut self, [out, log_sums, fused]: [Address; 3], layer: &Attention) -> Result<()> {
        let operands = AttentionOperands {
            fused,
            output: out,
            log_sums,
            gradient: Address::NULL,
            fused_gradient: Address::NULL,
            workspace: Address::NULL,
        };
        let shape = self.whole_shape(layer);
        self.operations.fused_attention(Pass::Forward, &shape, operands)
    }

    pub(super) fn fused_attention_input(
        &mut self,
        out: Address,
        layer: &Attention,
        operands: &Attended<Activations>,
    ) -> Result<()> {
        let operands = AttentionOperands {
            fused: operands.fused.address(),
            output: operands.output.address(),
            log_sums: operands.kept.address(),
            gradient: operands.gradient.address(),
            fused_gradient: out,
            workspace: Address::NULL,
        };
        let shape = self.whole_shape(layer);
        self.operations.fused_attention(Pass::Backward, &shape, operands)
    }
}
