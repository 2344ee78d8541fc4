//! The calls of a model's layers on a GPU.

use super::estimate::check_address;
use super::operation::{FusedShape, NormOperands};
use super::{Activations, Cuda, EventTimer, Group};
use crate::compute::{
    Activated, Attended, Attention, Classified, Classifier, Compute, Embedded, Embedding, Function, Linear, Multiplied,
    Norm, Normalized, Rotation, Side,
};
use anyhow::{Result, bail};
use pipesim_cuda::api::Address;
use pipesim_cuda::blas::Sizes;

impl Cuda {
    /// A buffer of `count` activations.
    fn activations(&mut self, count: usize) -> Result<Activations> {
        Ok(Activations::Pooled(self.operations.activations(count)?))
    }

    fn floats(&mut self, count: usize) -> Result<Activations> {
        Ok(Activations::Pooled(self.operations.floats(count)?))
    }

    fn sizes(&self, layer: &Linear) -> Sizes {
        Sizes { rows: self.rows(), outputs: layer.outputs, inputs: layer.inputs }
    }

    fn logits(&self, layer: &Classifier) -> Sizes {
        Sizes { rows: self.rows(), outputs: layer.rows, inputs: layer.width }
    }

    fn shape(&self, layer: &Attention) -> FusedShape {
        let (micro, &Attention { heads, size, .. }) = (self.workload.micro_batch, layer);
        FusedShape { sequences: micro.sequences, tokens: micro.tokens, heads, size }
    }
}

/// Addresses of a layer's weight and bias; null without a bias.
fn parameters(group: &Group, layer: &Linear) -> [Address; 2] {
    let bias = if layer.has_bias { group.tensor(layer.weight + 1) } else { Address::NULL };
    [group.tensor(layer.weight), bias]
}

impl Compute for Cuda {
    type Buffer = Activations;
    type Timer = EventTimer;

    fn begin(&mut self, inputs: &[u32], targets: &[u32]) -> Result<()> {
        self.batch.begin(inputs, targets)
    }

    fn take(&mut self, width: usize, output: Option<&Address>) -> Result<Activations> {
        match output {
            Some(&address) => {
                check_address(address, "output")?;
                Ok(Activations::Placed(address))
            }
            None => self.activations(self.rows() * width),
        }
    }

    fn give(&mut self, buffer: Activations) {
        if let Activations::Pooled(buffer) = buffer {
            self.operations.pool.give([buffer]);
        }
    }

    fn receive(&mut self, message: Address, width: usize) -> Result<Activations> {
        check_address(message, "message")?;
        let buffer = self.operations.activations(self.rows() * width)?;
        self.operations.gpu.compute.copy(buffer.address(), message, buffer.bytes())?;
        Ok(Activations::Pooled(buffer))
    }

    fn send(&mut self, buffer: Activations, output: Address) -> Result<()> {
        if let Activations::Pooled(buffer) = buffer {
            check_address(output, "output")?;
            self.operations.gpu.compute.copy(output, buffer.address(), buffer.bytes())?;
            self.operations.pool.give([buffer]);
        }
        Ok(())
    }

    /// Ids are stored with the step's batch, so nothing is kept.
    fn embed(&mut self, out: &mut Activations, layer: Embedding<&Group>, microbatch: usize) -> Result<Activations> {
        let positions = layer.positions.map_or(Address::NULL, |group| group.tensor(0));
        let places = [out.address(), self.batch.inputs(microbatch), layer.tokens.tensor(0), positions];
        self.operations.embedding_forward(places, [self.rows(), self.workload.micro_batch.tokens, layer.width])?;
        Ok(Activations::Placed(Address::NULL))
    }

    fn embed_weight(
        &mut self,
        layer: Embedding<&mut Group>,
        microbatch: usize,
        operands: Embedded<Activations>,
    ) -> Result<()> {
        let (index, gradient) = (self.batch.index(microbatch), operands.gradient.address());
        let into = layer.tokens.gradient(0, Side::Own);
        self.operations.embedding_backward_token(into, gradient, index, layer.width)?;
        let Some(positions) = layer.positions else { return Ok(()) };
        let micro = self.workload.micro_batch;
        let dimensions = [micro.sequences, micro.tokens, layer.width];
        self.operations.embedding_backward_position([positions.gradient(0, Side::Own), gradient], dimensions)
    }

    fn norm(&mut self, out: &mut Activations, group: &Group, layer: &Norm, input: &Activations) -> Result<Activations> {
        let statistics = self.floats(self.rows() * 2)?;
        let parameters = [group.tensor(layer.weight), group.tensor(layer.weight + 1)];
        let places = [out.address(), statistics.address(), input.address()];
        self.operations.layernorm_forward(places, parameters, [self.rows(), layer.width])?;
        Ok(statistics)
    }

    fn norm_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Norm,
        operands: Normalized<Activations>,
    ) -> Result<Activations> {
        let dimensions = [self.rows(), layer.width];
        let others = [group.tensor(layer.weight), operands.residual.map_or(Address::NULL, Activations::address)];
        let operands = NormOperands {
            gradient: operands.gradient.address(),
            input: operands.input.address(),
            statistics: operands.statistics.address(),
        };
        let sums = self.operations.layernorm_backward_sums(operands, dimensions)?;
        self.operations.layernorm_backward_input(out.address(), operands, others, dimensions)?;
        Ok(Activations::Pooled(sums))
    }

    fn norm_weight(&mut self, group: &mut Group, layer: &Norm, sums: &Activations) -> Result<()> {
        let into = [layer.weight, layer.weight + 1].map(|tensor| group.gradient(tensor, Side::Own));
        self.operations.layernorm_backward_weight(into, sums.address(), [self.rows(), layer.width])
    }

    fn linear(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Linear,
        input: &Activations,
        residual: Option<&Activations>,
    ) -> Result<()> {
        let (places, residual) = ([out.address(), input.address()], residual.map(Activations::address));
        self.operations.linear_forward(places, parameters(group, layer), residual, self.sizes(layer))
    }

    /// Keeps the activation's input.
    fn activated(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Activated,
        input: &Activations,
    ) -> Result<Activations> {
        let kept = self.activations(self.rows() * layer.linear.outputs)?;
        let (parameters, sizes) = (parameters(group, &layer.linear), self.sizes(&layer.linear));
        match layer.function {
            Function::Gelu => {
                let places = [out.address(), kept.address(), input.address()];
                self.operations.linear_gelu_forward(places, parameters, sizes)?;
            }
            Function::SwiGlu => bail!("expected GELU on a GPU, found SwiGLU: train this model with --device cpu"),
        }
        Ok(kept)
    }

    fn linear_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Linear,
        gradient: &Activations,
    ) -> Result<()> {
        let places = [out.address(), gradient.address(), group.tensor(layer.weight)];
        self.operations.linear_backward_input(places, self.sizes(layer))
    }

    fn activation_input(
        &mut self,
        group: &Group,
        layer: &Activated,
        after: &Linear,
        gradient: &Activations,
        kept: Activations,
    ) -> Result<Activations> {
        let out = self.activations(self.rows() * layer.linear.outputs)?;
        let places = [out.address(), gradient.address(), group.tensor(after.weight), kept.address()];
        self.operations.linear_gelu_backward_input(places, self.sizes(after))?;
        self.give(kept);
        Ok(out)
    }

    fn linear_weight(&mut self, group: &mut Group, layer: &Linear, operands: Multiplied<Activations>) -> Result<()> {
        let bias = if layer.has_bias { group.gradient(layer.weight + 1, Side::Own) } else { Address::NULL };
        let into = [group.gradient(layer.weight, Side::Own), bias];
        let places = [operands.gradient.address(), operands.input.address()];
        self.operations.linear_backward_weight(into, places, self.sizes(layer))
    }

    fn rotate(&mut self, _fused: &mut Activations, _layer: &Rotation, _backwards: bool) -> Result<()> {
        bail!("expected learned positions on a GPU, found rotary ones: train this model with --device cpu")
    }

    fn attention(&mut self, out: &mut Activations, layer: &Attention, fused: &Activations) -> Result<Activations> {
        let log_sums = self.floats(self.rows() * layer.heads)?;
        let places = [out.address(), log_sums.address(), fused.address()];
        self.operations.attention_forward(places, &self.shape(layer))?;
        Ok(log_sums)
    }

    fn attention_input(
        &mut self,
        out: &mut Activations,
        layer: &Attention,
        operands: Attended<Activations>,
    ) -> Result<()> {
        let Attended { gradient, fused, output, kept } = operands;
        let places = [gradient, fused, output, kept].map(Activations::address);
        self.operations.attention_backward(out.address(), places, &self.shape(layer))
    }

    fn classify(
        &mut self,
        group: &Group,
        layer: &Classifier,
        input: &Activations,
        microbatch: usize,
        weight: f32,
    ) -> Result<Activations> {
        let (rows, sizes) = (self.rows(), self.logits(layer));
        let logits = self.activations(rows * layer.rows)?;
        let places = [logits.address(), input.address()];
        self.operations.linear_forward(places, [group.tensor(layer.weight), Address::NULL], None, sizes)?;
        let losses = self.operations.floats(rows)?;
        let places = [logits.address(), losses.address(), self.batch.targets(microbatch)];
        self.operations.classifier_forward(places, weight, [rows, layer.vocabulary, layer.rows])?;
        let loss = self.losses.address().offset(microbatch * size_of::<f32>());
        self.operations.loss_mean(loss, losses.address(), rows)?;
        self.operations.pool.give([losses]);
        Ok(logits)
    }

    fn classify_input(
        &mut self,
        out: &mut Activations,
        group: &Group,
        layer: &Classifier,
        logits_gradient: &Activations,
    ) -> Result<()> {
        let places = [out.address(), logits_gradient.address(), group.tensor(layer.weight)];
        self.operations.linear_backward_input(places, self.logits(layer))
    }

    fn classify_weight(
        &mut self,
        group: &mut Group,
        layer: &Classifier,
        operands: Classified<Activations>,
    ) -> Result<()> {
        let into = [group.gradient(layer.weight, layer.side), Address::NULL];
        let places = [operands.logits_gradient.address(), operands.input.address()];
        self.operations.linear_backward_weight(into, places, self.logits(layer))
    }

    fn losses(&mut self) -> Result<Vec<f32>> {
        let mut losses = vec![0.0; self.workload.microbatches];
        self.operations.download(&mut losses, self.losses.address())?;
        Ok(losses)
    }
}
