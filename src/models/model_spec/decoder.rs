//! The parts of a decoder, from its sizes: tensors and operations of embedding, of each kind of layer, and of the head.

use super::mixture::{Experts, Latent};
use super::operation::{Operation, Window};
use super::part::Initial::{Normal, One, Zero};
use super::part::{BLOCK, EMBEDDING, HEAD, Initial, MIXTURE, PREDICTION, Part, Tensor, WINDOW_BLOCK, WINDOW_MIXTURE};
use super::spec::ModelSpec;
use super::split::Block;
use super::transformer::{Activation, Biases, Config, Norms, QkNorm, Style};

/// Properties in which a model's layers differ.
#[derive(Clone, Copy, PartialEq, Eq)]
struct LayerKind {
    has_experts: bool,
    has_window: bool,
}

/// Tensors and operations, in the same order.
#[derive(Default)]
struct LayerPiece {
    tensors: Vec<Tensor>,
    operations: Vec<Operation>,
}

impl LayerPiece {
    fn add(&mut self, tensors: impl IntoIterator<Item = Tensor>, operation: Operation) {
        self.tensors.extend(tensors);
        self.operations.push(operation);
    }
}

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
            parts.push(decoder.layer(self.kind(0), BLOCK, self.layers));
        } else {
            let mut kinds: Vec<LayerKind> = Vec::new();
            for kind in (0..self.layers).map(|layer| self.kind(layer)) {
                let place = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
                if place == kinds.len() {
                    kinds.push(kind);
                    parts.push(decoder.layer(kind, if kind.has_window { WINDOW_BLOCK } else { BLOCK }, 0));
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

    fn kind(&self, layer: usize) -> LayerKind {
        let has_experts = self.experts.is_some_and(|experts| experts.has(layer));
        let is_full = self.full_every > 0 && layer % self.full_every == self.full_every - 1;
        LayerKind { has_experts, has_window: self.window.is_some() && !is_full }
    }
}

/// Builder of a decoder's parts.
struct Decoder<'a> {
    config: &'a Config,
    names: TensorNames,
}

impl Decoder<'_> {
    fn projection(&self) -> Initial {
        Normal(0.02 / (2.0 * self.config.layers as f64).sqrt())
    }

    fn table(&self, name: &'static str) -> Tensor {
        let rows = self.config.padded_vocabulary();
        let table = Tensor::new(name, [rows, self.config.channels], Normal(0.02)).padded(rows - self.config.vocabulary);
        table.split(0, &[Block::new(rows, 1)])
    }

    fn norm(&self, piece: &mut LayerPiece, names: [&'static str; 2], width: usize) {
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

    /// Adds a product with a weight (outputs, inputs) and its bias, if any; the bias is split with the outputs.
    fn product(&self, piece: &mut LayerPiece, weight: Tensor, bias: Option<&'static str>) {
        let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
        let bias = bias.map(|name| {
            let bias = Tensor::new(name, [outputs], Zero);
            match &weight.split {
                Some(split) if split.axis == 0 => bias.split(0, &split.blocks),
                _ => bias,
            }
        });
        let has_bias = bias.is_some();
        piece.add([weight].into_iter().chain(bias), Operation::Product { inputs, outputs, has_bias });
    }

    /// Makes one of the four weights of a layer, whose bias its `place` determines.
    fn weight(
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
        self.product(piece, weight, has_bias.then_some(self.names.weight_biases[place]));
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

    /// Makes `count` layers of this kind; `name` is the name of a dense layer.
    fn layer(&self, kind: LayerKind, name: &'static str, count: usize) -> Part {
        let mut piece = LayerPiece::default();
        self.add_layer(&mut piece, kind);
        let name = match (kind.has_experts, name) {
            (false, name) => name,
            (true, WINDOW_BLOCK) => WINDOW_MIXTURE,
            (true, _) => MIXTURE,
        };
        Part { name, count, groups: vec![piece.tensors], operations: piece.operations }
    }

    fn add_layer(&self, piece: &mut LayerPiece, kind: LayerKind) {
        let width = self.config.channels;
        self.norm_before(piece, 0);
        let window = self.config.window.filter(|_| kind.has_window);
        match &self.config.latent {
            Some(latent) => self.add_latent(piece, latent, window),
            None => self.add_attention(piece, window),
        }
        self.norm_after(piece, "post_attention_norm");
        piece.operations.push(Operation::Add { width });
        self.norm_before(piece, 1);
        match self.config.experts.filter(|_| kind.has_experts) {
            Some(experts) => self.add_experts(piece, &experts),
            None => self.add_mlp(piece),
        }
        self.norm_after(piece, "post_ffn_norm");
        piece.operations.push(Operation::Add { width });
    }

    fn add_attention(&self, piece: &mut LayerPiece, window: Option<Window>) {
        let Config { channels: c, heads, groups, head_size: size, projected, .. } = *self.config;
        let (query, keys) = (projected.unwrap_or(heads * size), Block::copied(groups, size));
        let blocks = [Block::new(heads, size), keys, keys];
        self.weight(piece, 0, [(heads + 2 * groups) * size, c], Normal(0.02), 0, &blocks);
        for (name, heads) in [("q_norm", heads), ("k_norm", groups)] {
            let (width, statistics) = match self.config.qk_norm {
                QkNorm::None => continue,
                QkNorm::Head => (size, heads),
                QkNorm::Each => (heads * size, heads),
                QkNorm::All => (heads * size, 1),
            };
            piece.add(
                [Tensor::new(name, [width], One)],
                Operation::Norm { width: heads * size, statistics, vectors: 1 },
            );
        }
        if self.config.rotary.is_some() {
            piece.operations.push(Operation::Rotate { width: (heads + groups) * size });
        }
        let sinks = self
            .config
            .has_sinks
            .then(|| Tensor::new("sinks", [heads], Normal(0.02)).split(0, &[Block::new(heads, 1)]));
        piece.add(sinks, Operation::Attention { heads, groups, size, value: size, window });
        let heads_of_projection = projected.map_or(Block::new(heads, size), |width| Block::new(width, 1));
        self.weight(piece, 1, [c, query], self.projection(), 1, &[heads_of_projection]);
    }

    /// Products with the same input are one: the ones that compute the narrow rows, and without a query rank also the queries.
    fn add_latent(&self, piece: &mut LayerPiece, latent: &Latent, window: Option<Window>) {
        let Config { channels: c, heads, .. } = *self.config;
        let &Latent { query_rank, key_rank, plain_size, rotary_size, value_size: value } = latent;
        let size = latent.size();
        let column = |name, outputs, inputs, pieces: &[Block]| {
            Tensor::new(name, [outputs, inputs], Normal(0.02)).split(0, pieces)
        };
        let shared = key_rank + rotary_size;
        match query_rank {
            Some(rank) => {
                self.product(piece, Tensor::new("wdown", [rank + shared, c], Normal(0.02)), None);
                self.norm(piece, ["q_norm", "q_norm_bias"], rank);
                self.product(piece, column("wq_up", heads * size, rank, &[Block::new(heads, size)]), None);
            }
            None => {
                let blocks = [Block::new(heads, size), Block::copied(1, shared)];
                self.product(piece, column("wq_down", heads * size + shared, c, &blocks), None);
            }
        }
        self.norm(piece, ["kv_norm", "kv_norm_bias"], key_rank);
        let made = plain_size + value;
        self.product(piece, column("wkv_up", heads * made, key_rank, &[Block::new(heads, made)]), None);
        piece.operations.push(Operation::Rotate { width: (heads + 1) * rotary_size });
        piece.operations.push(Operation::Attention { heads, groups: heads, size, value, window });
        self.weight(piece, 1, [c, heads * value], self.projection(), 1, &[Block::new(heads, value)]);
    }

    fn is_gated(&self) -> bool {
        self.config.activation == Activation::Gated
    }

    fn add_mlp(&self, piece: &mut LayerPiece) {
        let Config { channels: c, mlp, .. } = *self.config;
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
            self.product(piece, up, None);
            piece.operations.push(Operation::Activate { inputs: gates * shared, outputs: shared });
            let down = Tensor::new("shared_w2", [c, shared], self.projection()).split(1, &halves[..1]);
            self.product(piece, down, None);
            if experts.has_shared_gate {
                self.product(piece, Tensor::new("shared_gate", [1, c], Normal(0.02)), None);
            }
        }
        let has_bias = self.config.biases.mlp;
        let router = Tensor::new("router", [count, c], Normal(0.02));
        let bias = has_bias.then(|| Tensor::new("router_bias", [count], Zero));
        let route = Operation::Route { width: c, experts: count, top_k, keeps_input: shared == 0 };
        piece.add([router].into_iter().chain(bias), route);
        piece.operations.push(Operation::Dispatch { width: c, top_k });
        let halves = [Block::new(f, 1); 2];
        let bias = |name, width, blocks: &[Block]| {
            let bias = Tensor::new(name, [count, width], Zero).of_experts();
            let bias = if blocks.is_empty() { bias } else { bias.split(1, blocks) };
            has_bias.then_some(bias)
        };
        let up = Tensor::new("experts_w13", [count, gates * f, c], Normal(0.02)).split(1, &halves[..gates]);
        let up = [up.of_experts()].into_iter().chain(bias("experts_b13", gates * f, &halves[..gates]));
        piece.add(up, Operation::Grouped { experts: count, top_k, inputs: c, outputs: gates * f, axis: 0 });
        piece.operations.push(Operation::ActivateCopies { top_k, inputs: gates * f, outputs: f });
        let down = Tensor::new("experts_w2", [count, c, f], self.projection()).split(2, &halves[..1]);
        let down = [down.of_experts()].into_iter().chain(bias("experts_b2", c, &[]));
        piece.add(down, Operation::Grouped { experts: count, top_k, inputs: f, outputs: c, axis: 1 });
        piece.operations.push(Operation::Combine { width: c, top_k });
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
        self.product(&mut piece, joined, None);
        self.add_layer(&mut piece, self.config.kind(self.config.layers.saturating_sub(1)));
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
