//! Attention of a decoder's layers: of the hidden state, from narrow rows, and to keys that an indexer chooses.

use super::decoder::Decoder;
use super::layer_kind::{SelfAttention, Sparse};
use super::layer_piece::LayerPiece;
use super::mixture::Latent;
use super::operation::{Operation, ScanWork, Window};
use super::part::Initial::{Normal, One, Zero};
use super::part::Tensor;
use super::split::Block;
use super::transformer::{Config, QkNorm};

impl Decoder<'_> {
    pub(super) fn add_attention(&self, piece: &mut LayerPiece, attention: &SelfAttention) {
        match &self.config.latent {
            Some(latent) if attention.is_latent => self.add_latent(piece, latent, attention),
            _ => self.add_plain(piece, attention),
        }
    }

    /// Products with the same input are one: queries with their gate, keys, and values.
    fn add_plain(&self, piece: &mut LayerPiece, attention: &SelfAttention) {
        let Config { channels: c, projected, .. } = *self.config;
        let &SelfAttention { heads, groups, size, value, keys_are_values, gate, .. } = attention;
        let (keys, gates) = (Block::copied(groups, size), gate.width(heads, value));
        let mut blocks = vec![Block::new(heads, size), keys];
        let made = if keys_are_values { 0 } else { groups * value };
        blocks.extend((made > 0).then_some(Block::copied(groups, value)));
        blocks.extend((gates > 0).then(|| Block::new(heads, gates / heads)));
        // queries and keys of an indexer, of which ranks have copies
        let index = attention.sparse.filter(|sparse| !sparse.is_shared).map_or(0, |own| (own.heads + 1) * own.size);
        blocks.extend((index > 0).then_some(Block::copied(1, index)));
        self.weight(piece, 0, [heads * size + groups * size + made + gates + index, c], Normal(0.02), 0, &blocks);
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
        if let Some(sparse) = attention.sparse.filter(|sparse| !sparse.is_shared) {
            self.add_block_indexer(piece, &sparse);
        }
        self.add_core(piece, attention, projected);
    }

    /// Adds the scores, the gate, and the output's projection.
    fn add_core(&self, piece: &mut LayerPiece, attention: &SelfAttention, projected: Option<usize>) {
        let &SelfAttention { heads, groups, size, value, window, gate, .. } = attention;
        let chosen = attention.sparse.map(|sparse| Window { tokens: sparse.chosen, is_chunked: false });
        let sinks = attention.has_sinks;
        let sinks = sinks.then(|| Tensor::new("sinks", [heads], Normal(0.02)).split(0, &[Block::new(heads, 1)]));
        let window = chosen.or(window);
        piece.add(sinks, Operation::Attention { heads, groups, size, value, window });
        self.add_output(piece, [heads, value], gate.width(heads, value), projected);
    }

    fn add_output(&self, piece: &mut LayerPiece, [heads, value]: [usize; 2], gates: usize, projected: Option<usize>) {
        let width = heads * value;
        if gates > 0 {
            piece.operations.push(Operation::Gate { width, gates });
        }
        let held = projected.map_or(Block::new(heads, value), |width| Block::new(width, 1));
        let shape = [self.config.channels, projected.unwrap_or(width)];
        self.weight(piece, 1, shape, self.projection(), 1, &[held]);
    }

    /// Products with the same input are one: the ones that compute the narrow rows, and without a query rank also the queries.
    fn add_latent(&self, piece: &mut LayerPiece, latent: &Latent, attention: &SelfAttention) {
        let Config { channels: c, heads, .. } = *self.config;
        let &Latent { query_rank, key_rank, plain_size, rotary_size, value_size: value } = latent;
        let size = latent.size();
        let column = |name, outputs, inputs, pieces: &[Block]| {
            Tensor::new(name, [outputs, inputs], Normal(0.02)).split(0, pieces)
        };
        let shared = key_rank + rotary_size;
        // of an indexer, keys and weights come from the hidden state, and queries from the queries' narrow rows
        let index = attention.sparse.filter(|sparse| !sparse.is_shared);
        let [wide, narrow] = index.map_or([0; 2], |own| [own.size + own.heads, own.heads * own.size]);
        match query_rank {
            Some(rank) => {
                piece.product(Tensor::new("wdown", [rank + shared + wide, c], Normal(0.02)));
                self.norm(piece, ["q_norm", "q_norm_bias"], rank);
                let blocks = [Block::new(heads, size), Block::copied(1, narrow)];
                piece.product(column("wq_up", heads * size + narrow, rank, &blocks[..1 + usize::from(narrow > 0)]));
            }
            None => {
                let shared = shared + wide + narrow;
                let blocks = [Block::new(heads, size), Block::copied(1, shared)];
                piece.product(column("wq_down", heads * size + shared, c, &blocks));
            }
        }
        self.norm(piece, ["kv_norm", "kv_norm_bias"], key_rank);
        let made = plain_size + value;
        piece.product(column("wkv_up", heads * made, key_rank, &[Block::new(heads, made)]));
        piece.operations.push(Operation::Rotate { width: (heads + 1) * rotary_size });
        let gates = attention.gate.width(heads, value);
        if gates > 0 {
            piece.product(column("attention_gate", gates, c, &[Block::new(heads, gates / heads)]));
        }
        match attention.sparse {
            None => {
                let window = attention.window;
                piece.operations.push(Operation::Attention { heads, groups: heads, size, value, window });
            }
            Some(sparse) => self.add_absorbed(piece, latent, &sparse),
        }
        self.add_output(piece, [heads, value], gates, None);
    }

    /// Attention to chosen keys in the latent space, where all heads share one key, whose first channels are the value. The product that
    /// makes keys and values is absorbed by queries and outputs, with as many FLOPs.
    fn add_absorbed(&self, piece: &mut LayerPiece, latent: &Latent, sparse: &Sparse) {
        let heads = self.config.heads;
        let &Latent { key_rank, plain_size, rotary_size, .. } = latent;
        if !sparse.is_shared {
            let &Sparse { heads: n, size: d, .. } = sparse;
            piece.tensors.extend([Tensor::new("index_norm", [d], One), Tensor::new("index_norm_bias", [d], Zero)]);
            piece.operations.push(Operation::Index { heads: n, size: d, has_sum: true });
        }
        // besides the attention's own: queries before they are absorbed, outputs before the values' product, and chosen indices
        let work = ScanWork {
            kept: heads * (plain_size + key_rank),
            floats: sparse.chosen,
            moved: heads * (plain_size + 2 * key_rank),
            kernels: 2,
            ..ScanWork::default()
        };
        piece.operations.push(Operation::Scan(work));
        let window = Some(Window { tokens: sparse.chosen, is_chunked: false });
        let size = key_rank + rotary_size;
        piece.operations.push(Operation::Attention { heads, groups: 1, size, value: key_rank, window });
    }

    /// An indexer that scores keys and chooses blocks of them: MiniMax-M3.
    fn add_block_indexer(&self, piece: &mut LayerPiece, sparse: &Sparse) {
        let &Sparse { heads: n, size: d, .. } = sparse;
        for (name, heads) in [("index_q_norm", n), ("index_k_norm", 1)] {
            let norm = Operation::Norm { width: heads * d, statistics: heads, vectors: 1 };
            piece.add([Tensor::new(name, [d], One)], norm);
        }
        piece.operations.push(Operation::Index { heads: n, size: d, has_sum: false });
    }
}
