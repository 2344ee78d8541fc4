//! The parts of a decoder, from its sizes: tensors and operations of embedding, of each kind of layer, and of the head.

use super::layer_kind::{LayerKind, Mlp, lasting};
use super::layer_piece::LayerPiece;
use super::mixture::Experts;
use super::operation::Operation;
use super::part::Initial::{Normal, One, Zero};
use super::part::{BLOCK, EMBEDDING, HEAD, Initial, MIXTURE, PREDICTION, Part, Tensor};
use super::spec::ModelSpec;
use super::split::Block;
use super::transformer::{Activation, Biases, Config, Norms, Style};

impl Config {
    /// Returns the model: L times x += o(attention(qkv(norm(x)))), x += down(activation(up(norm(x)))) or the weighted sum of a
    /// token's experts; logits = norm(x) · outputᵀ. Products with the same input are one: queries, keys, values; gate, up.
    /// Weights start as N(0, 0.02), the two projections into the residual stream as N(0, 0.02 / √(2L)), biases 0, norms 1,
    /// padding rows 0.
    pub fn spec(&self) -> ModelSpec {
        let (width, names) = (self.channels, TensorNames::of(self.style));
        let decoder = Decoder { config: self, names };
        let token = decoder.table(decoder.names.token);
        let mut parts = vec![decoder.embedding(token.clone())];
        let mut order = Vec::new();
        if self.is_uniform() {
            let kind = self.kind(0);
            let name = if self.pattern.is_some() { lasting(kind.name()) } else { decoder.usual_name(kind) };
            parts.push(decoder.layer(kind, name, self.layers));
        } else {
            let mut kinds: Vec<LayerKind> = Vec::new();
            for kind in (0..self.layers).map(|layer| self.kind(layer)) {
                let place = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
                if place == kinds.len() {
                    let alike = kinds.iter().filter(|known| known.name() == kind.name()).count();
                    let number = if alike > 0 { format!(" {}", alike + 1) } else { String::new() };
                    kinds.push(kind);
                    parts.push(decoder.layer(kind, lasting(kind.name() + &number), 0));
                }
                parts[place + 1].count += 1;
                order.push(place + 1);
            }
        }
        if self.prediction_layers > 0 {
            parts.push(decoder.prediction(&token));
        }
        parts.push(decoder.head(&token));
        ModelSpec { width, parts, order }
    }
}

/// Builder of a decoder's parts.
pub(super) struct Decoder<'a> {
    pub(super) config: &'a Config,
    names: TensorNames,
}

impl Decoder<'_> {
    pub(super) fn projection(&self) -> Initial {
        Normal(0.02 / (2.0 * self.config.layers as f64).sqrt())
    }

    fn table(&self, name: &'static str) -> Tensor {
        let rows = self.config.padded_vocabulary();
        let table = Tensor::new(name, [rows, self.config.channels], Normal(0.02)).padded(rows - self.config.vocabulary);
        table.split(0, &[Block::new(rows, 1)])
    }

    /// Adds the weighted sum of earlier outputs: a norm of each, and a vector that scores it.
    fn residual_scores(&self, piece: &mut LayerPiece, names: [&'static str; 2]) {
        if self.config.has_residual_scores {
            let width = self.config.channels;
            let tensors = names.map(|name| Tensor::new(name, [width], One));
            piece.add(tensors, Operation::Norm { width, statistics: 1, vectors: 2 });
        }
    }

    pub(super) fn norm(&self, piece: &mut LayerPiece, names: [&'static str; 2], width: usize) {
        let mut tensors = vec![Tensor::new(names[0], [width], One)];
        if self.config.biases.norms {
            tensors.push(Tensor::new(names[1], [width], Zero));
        }
        let statistics = if self.config.style == Style::Gpt { 2 } else { 1 };
        piece.add(tensors, Operation::Norm { width, statistics, vectors: 1 + usize::from(self.config.biases.norms) });
    }

    /// Adds the norm before attention, MLP and head, or after the embedding.
    fn norm_at(&self, piece: &mut LayerPiece, place: usize) {
        self.norm(piece, [self.names.norms[place], self.names.biases[place]], self.config.channels);
    }

    fn norm_before(&self, piece: &mut LayerPiece, place: usize) {
        match self.config.norms {
            Norms::Before | Norms::Both => self.norm_at(piece, place),
            Norms::One if place == 0 => self.norm_at(piece, place),
            Norms::One | Norms::After => {}
        }
    }

    fn norm_after(&self, piece: &mut LayerPiece, name: &'static str) {
        if matches!(self.config.norms, Norms::After | Norms::Both) {
            self.norm(piece, [name, "post_norm_bias"], self.config.channels);
        }
    }

    /// Makes one of the four weights of a layer, whose bias its `place` determines.
    pub(super) fn weight(
        &self,
        piece: &mut LayerPiece,
        place: usize,
        shape: [usize; 2],
        initial: Initial,
        axis: usize,
        blocks: &[Block],
    ) {
        let Biases { qkv, projection, mlp, .. } = self.config.biases;
        let weight = Tensor::new(self.names.weights[place], shape, initial).split(axis, blocks);
        let has_bias = [qkv, projection, mlp, mlp][place];
        let adapters = self.config.lora.map(|lora| lora.adapters(place, shape, axis, blocks)).unwrap_or_default();
        // the activation stays next to its products
        let (first, last) = if axis == 0 { (adapters, Vec::new()) } else { (Vec::new(), adapters) };
        first.into_iter().for_each(|(tensors, operation)| piece.add(tensors, operation));
        piece.product_with(weight, has_bias.then_some(self.names.weight_biases[place]));
        last.into_iter().for_each(|(tensors, operation)| piece.add(tensors, operation));
    }

    fn embedding(&self, token: Tensor) -> Part {
        let Config { channels, positions, embedding_norm, .. } = *self.config;
        let mut groups = vec![vec![token]];
        if positions > 0 {
            groups.push(vec![Tensor::new("wpe", [positions, channels], Normal(0.02))]);
        }
        let mut operations = vec![Operation::Lookup { width: channels }];
        if embedding_norm {
            let mut piece = LayerPiece::default();
            self.norm_at(&mut piece, 3);
            groups.push(piece.tensors);
            operations.extend(piece.operations);
        }
        Part { name: EMBEDDING, count: 1, groups, operations }
    }

    /// Returns the name of layers that are all alike.
    fn usual_name(&self, kind: LayerKind) -> &'static str {
        if kind.has_experts() { MIXTURE } else { BLOCK }
    }

    /// Makes `count` layers of this kind.
    fn layer(&self, kind: LayerKind, name: &'static str, count: usize) -> Part {
        let mut piece = LayerPiece::default();
        self.add_layer(&mut piece, kind);
        Part { name, count, groups: vec![piece.tensors], operations: piece.operations }
    }

    fn add_layer(&self, piece: &mut LayerPiece, kind: LayerKind) {
        let width = self.config.channels;
        if kind.attention.is_some() || kind.scan.is_some() {
            self.residual_scores(piece, ["residual_norm", "residual_query"]);
            self.norm_before(piece, 0);
            kind.attention.iter().for_each(|attention| self.add_attention(piece, attention));
            kind.scan.iter().for_each(|scan| scan.add(piece, width));
            self.norm_after(piece, "post_attention_norm");
            piece.operations.push(Operation::Add { width });
        }
        if kind.mlp == Mlp::None {
            return;
        }
        self.residual_scores(piece, ["mlp_residual_norm", "mlp_residual_query"]);
        self.norm_before(piece, 1);
        match (kind.mlp, &self.config.experts) {
            (Mlp::Dense(mlp), _) => self.add_mlp(piece, mlp),
            (Mlp::Experts, Some(experts)) => self.add_experts(piece, experts),
            (Mlp::Both(mlp), Some(experts)) => self.add_both(piece, mlp, experts),
            _ => {}
        }
        self.norm_after(piece, "post_ffn_norm");
        piece.operations.push(Operation::Add { width });
    }

    /// An MLP and experts on the same input, each with a norm after it, and the experts with one before; the router scales its input.
    fn add_both(&self, piece: &mut LayerPiece, mlp: usize, experts: &Experts) {
        let c = self.config.channels;
        self.add_mlp(piece, mlp);
        self.norm(piece, ["post_mlp_norm", "post_mlp_norm_bias"], c);
        self.norm(piece, ["experts_norm", "experts_norm_bias"], c);
        let scales = [Tensor::new("router_scale", [c], One), Tensor::new("expert_scales", [experts.count], One)];
        piece.tensors.extend(scales);
        self.add_experts(piece, experts);
        self.norm(piece, ["post_experts_norm", "post_experts_norm_bias"], c);
        piece.operations.push(Operation::Add { width: c });
    }

    fn is_gated(&self) -> bool {
        self.config.activation == Activation::Gated
    }

    fn add_mlp(&self, piece: &mut LayerPiece, mlp: usize) {
        let c = self.config.channels;
        let halves = [Block::new(mlp, 1); 2];
        let halves = &halves[..1 + usize::from(self.is_gated())];
        let inner = mlp * halves.len();
        self.weight(piece, 2, [inner, c], Normal(0.02), 0, halves);
        piece.operations.push(Operation::Activate { inputs: inner, outputs: mlp });
        self.weight(piece, 3, [c, mlp], self.projection(), 1, &halves[..1]);
    }

    fn add_experts(&self, piece: &mut LayerPiece, experts: &Experts) {
        let c = self.config.channels;
        let &Experts { count, top_k, width: f, shared_width: shared, .. } = experts;
        let gates = 1 + usize::from(self.is_gated());
        if shared > 0 {
            let halves = [Block::new(shared, 1); 2];
            let up = Tensor::new("shared_w13", [gates * shared, c], Normal(0.02)).split(0, &halves[..gates]);
            piece.product(up);
            piece.operations.push(Operation::Activate { inputs: gates * shared, outputs: shared });
            let down = Tensor::new("shared_w2", [c, shared], self.projection()).split(1, &halves[..1]);
            piece.product(down);
            if experts.has_shared_gate {
                piece.product(Tensor::new("shared_gate", [1, c], Normal(0.02)));
            }
        }
        let has_bias = self.config.biases.mlp;
        let router = Tensor::new("router", [count, c], Normal(0.02));
        let bias = has_bias.then(|| Tensor::new("router_bias", [count], Zero));
        let route = Operation::Route { width: c, experts: count, top_k, keeps_input: shared == 0 };
        piece.add([router].into_iter().chain(bias), route);
        let rows = experts.latent.unwrap_or(c);
        if experts.latent.is_some() {
            piece.product(Tensor::new("latent_down", [rows, c], Normal(0.02)));
        }
        piece.operations.push(Operation::Dispatch { width: rows, top_k });
        let halves = [Block::new(f, 1); 2];
        let bias = |name, width, blocks: &[Block]| {
            let bias = Tensor::new(name, [count, width], Zero).of_experts();
            let bias = if blocks.is_empty() { bias } else { bias.split(1, blocks) };
            has_bias.then_some(bias)
        };
        let up = Tensor::new("experts_w13", [count, gates * f, rows], Normal(0.02)).split(1, &halves[..gates]);
        let up = [up.of_experts()].into_iter().chain(bias("experts_b13", gates * f, &halves[..gates]));
        piece.add(up, Operation::Grouped { experts: count, top_k, inputs: rows, outputs: gates * f, axis: 0 });
        piece.operations.push(Operation::ActivateCopies { top_k, inputs: gates * f, outputs: f });
        let down = Tensor::new("experts_w2", [count, rows, f], self.projection()).split(2, &halves[..1]);
        let down = [down.of_experts()].into_iter().chain(bias("experts_b2", rows, &[]));
        piece.add(down, Operation::Grouped { experts: count, top_k, inputs: f, outputs: rows, axis: 1 });
        piece.operations.push(Operation::Combine { width: rows, top_k });
        if experts.has_latent_norm {
            self.norm(piece, ["latent_norm", "latent_norm_bias"], rows);
        }
        if experts.latent.is_some() {
            piece.product(Tensor::new("latent_up", [c, rows], self.projection()));
        }
    }

    /// A layer like the last one, with the hidden state and the embedding of the next token as inputs; it uses the model's head.
    fn prediction(&self, token: &Tensor) -> Part {
        let c = self.config.channels;
        let mut piece = LayerPiece::default();
        // a tied head already shares the embedding with the last device
        let table = if self.config.tied { None } else { Some(Tensor::tied_to("prediction_embeddings", token)) };
        piece.operations.push(Operation::Lookup { width: c });
        self.norm(&mut piece, ["embedding_norm_of_next", "embedding_norm_of_next_bias"], c);
        self.norm(&mut piece, ["hidden_norm", "hidden_norm_bias"], c);
        let joined = Tensor::new("joined", [c, 2 * c], Normal(0.02)).split(0, &[Block::new(c, 1)]);
        piece.product(joined);
        let last = [self.config.kind(self.config.layers.saturating_sub(1))];
        let own = self.config.pattern.map_or(&[][..], |pattern| &pattern.predictions[..]);
        (if own.is_empty() { &last[..] } else { own }).iter().for_each(|&kind| self.add_layer(&mut piece, kind));
        self.norm(&mut piece, ["prediction_norm", "prediction_norm_bias"], c);
        let groups = [piece.tensors].into_iter().chain(table.map(|table| vec![table])).collect();
        Part { name: PREDICTION, count: self.config.prediction_layers, groups, operations: piece.operations }
    }

    /// The last norm and the logits, of the model and of layers that predict further tokens.
    fn head(&self, token: &Tensor) -> Part {
        let Config { channels: width, vocabulary, tied, prediction_layers, .. } = *self.config;
        let output = match tied {
            true => Tensor::tied_to(self.names.output, token),
            false => self.table(self.names.output),
        };
        let mut piece = LayerPiece::default();
        self.residual_scores(&mut piece, ["last_residual_norm", "last_residual_query"]);
        self.norm_at(&mut piece, 2);
        piece.operations.extend(vec![Operation::Classify { width, vocabulary }; 1 + prediction_layers]);
        piece.tensors.extend(self.config.biases.head.then(|| Tensor::new("output_bias", [vocabulary], Zero)));
        Part { name: HEAD, count: 1, groups: vec![piece.tensors, vec![output]], operations: piece.operations }
    }
}

/// Tensor names of a style's checkpoints.
struct TensorNames {
    token: &'static str,
    output: &'static str,
    /// Before attention, MLP and head, and after the embedding.
    norms: [&'static str; 4],
    biases: [&'static str; 4],
    /// Into and out of the attention, into and out of the MLP.
    weights: [&'static str; 4],
    weight_biases: [&'static str; 4],
}

impl TensorNames {
    fn of(style: Style) -> TensorNames {
        match style {
            Style::Gpt => TensorNames {
                token: "wte",
                output: "logits",
                norms: ["ln1w", "ln2w", "lnfw", "lnew"],
                biases: ["ln1b", "ln2b", "lnfb", "lneb"],
                weights: ["qkvw", "attprojw", "fcw", "fcprojw"],
                weight_biases: ["qkvb", "attprojb", "fcb", "fcprojb"],
            },
            Style::Llama => TensorNames {
                token: "tok_embeddings",
                output: "output",
                norms: ["attention_norm", "ffn_norm", "norm", "embedding_norm"],
                biases: ["attention_norm_bias", "ffn_norm_bias", "norm_bias", "embedding_norm_bias"],
                weights: ["wqkv", "wo", "w13", "w2"],
                weight_biases: ["bqkv", "bo", "b13", "b2"],
            },
        }
    }
}
