//! The kernels: source text, names, and the grid that each is launched on, all known without a GPU. Arguments, shapes and formulas
//! of a kernel are in its file under `kernels/`; the functions here take the integer arguments of the kernel of the same name, in the
//! same order.

/// Type of the activations. Every kernel exists once for each; arithmetic inside is float32 for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// float32
    F32,
    /// bfloat16
    Bf16,
}

impl Precision {
    /// Name.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "float32",
            Precision::Bf16 => "bfloat16",
        }
    }

    /// Suffix of kernel names: `_f32` or `_bf16`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Precision::F32 => "_f32",
            Precision::Bf16 => "_bf16",
        }
    }

    /// Size of an activation in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }
}

/// Grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads per block, along x.
    pub block: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
}

impl Launch {
    const fn new(grid: [usize; 2], block: usize) -> Launch {
        Launch {
            grid: [clamp(grid[0], MAX_GRID_X), clamp(grid[1], MAX_GRID_Y), 1],
            block: block as u32,
            shared_bytes: 0,
        }
    }

    const fn with_shared_bytes(self, bytes: usize) -> Launch {
        Launch { shared_bytes: clamp(bytes, u32::MAX as usize), ..self }
    }
}

/// Launches with more dynamic shared memory than this require a higher limit of the kernel.
pub const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;

/// Largest head size that the attention kernels support.
pub const MAX_HEAD_SIZE: usize = 128;

const MAX_GRID_X: usize = (1 << 31) - 1;
const MAX_GRID_Y: usize = (1 << 16) - 1;

/// Names and texts of the source files, in the order of the translation unit.
pub const SOURCES: [(&str, &str); 17] = [
    ("common.cuh", include_str!("../../kernels/cuda/common.cuh")),
    ("attention_scalar.cuh", include_str!("../../kernels/cuda/attention_scalar.cuh")),
    ("attention_tile.cuh", include_str!("../../kernels/cuda/attention_tile.cuh")),
    ("attention_tensor.cuh", include_str!("../../kernels/cuda/attention_tensor.cuh")),
    ("attention.cu", include_str!("../../kernels/cuda/attention.cu")),
    ("bias.cu", include_str!("../../kernels/cuda/bias.cu")),
    ("classifier.cu", include_str!("../../kernels/cuda/classifier.cu")),
    ("embedding.cu", include_str!("../../kernels/cuda/embedding.cu")),
    ("gelu.cu", include_str!("../../kernels/cuda/gelu.cu")),
    ("gradient.cu", include_str!("../../kernels/cuda/gradient.cu")),
    ("heads.cu", include_str!("../../kernels/cuda/heads.cu")),
    ("layernorm.cu", include_str!("../../kernels/cuda/layernorm.cu")),
    ("optimizer.cu", include_str!("../../kernels/cuda/optimizer.cu")),
    ("residual.cu", include_str!("../../kernels/cuda/residual.cu")),
    ("rmsnorm.cu", include_str!("../../kernels/cuda/rmsnorm.cu")),
    ("slices.cu", include_str!("../../kernels/cuda/slices.cu")),
    ("swiglu.cu", include_str!("../../kernels/cuda/swiglu.cu")),
];

/// Threads per block of an elementwise kernel.
const ELEMENTWISE_BLOCK: usize = 256;
/// Elements per thread of an elementwise kernel.
const ELEMENTS: usize = 8;
/// Columns per block of a kernel that sums columns, one per thread.
const COLUMNS: usize = 128;
/// Rows per block of a LayerNorm kernel, one per warp.
const WARPS: usize = 4;
const WARP: usize = 32;
/// Queries, or keys, per tile of the attention kernels; four warps process a tile.
const TILE: usize = 64;
const TILE_BLOCK: usize = 128;
/// The same of the wide attention kernels.
const WIDE_TILE: usize = 2 * TILE;
/// Rows per block of `attention_backward_mean`, eight lanes each.
const MEAN_ROWS: usize = 16;

/// Returns all kernels as one translation unit of CUDA C++ without includes. With a `head_size` the attention kernels support only
/// heads of this size, and take fewer registers. Compiler messages name the files of [`SOURCES`].
pub fn text(precision: Precision, head_size: Option<usize>) -> String {
    let mut text = head_size.map_or_else(String::new, |size| format!("#define PIPESIM_HEAD_SIZE {size}\n"));
    if precision == Precision::Bf16 {
        text.push_str("#define PIPESIM_BF16\n");
    }
    for (name, source) in SOURCES {
        text.push_str(&format!("#line 1 \"{name}\"\n"));
        for line in source.lines() {
            // An include becomes an empty line, so that line numbers match the file.
            text.push_str(if line.starts_with("#include") { "" } else { line });
            text.push('\n');
        }
    }
    text
}

/// Number of groups of rows whose gradients of weight and bias a norm sums by themselves: argument G of [`layernorm_backward`]. About
/// four blocks for each multiprocessor of the largest GPUs.
pub const fn norm_groups(rows: usize) -> usize {
    clamp(rows.div_ceil(32), 512) as usize
}

/// Number of groups of rows for [`bias_backward_sums`], its argument G.
pub const fn bias_groups(rows: usize) -> usize {
    clamp(rows.div_ceil(256), 64) as usize
}

/// Whether [`layernorm_backward`] supports this many channels; otherwise [`layernorm_backward_sums`] and [`layernorm_backward_input`] do.
pub const fn has_one_pass(channels: usize) -> bool {
    channels <= 512 * ELEMENTS
}

/// Defines the kernels in alphabetical order: the launch of each by its integer arguments, and the list of names.
macro_rules! kernels {
    ($($(#[$doc:meta])+ $name:ident($precision:tt $(, $size:ident)+) $launch:block)*) => {
        $(
            $(#[$doc])+
            #[allow(clippy::too_many_arguments, reason = "the integer arguments of the kernel, in its order")]
            pub fn $name($precision: Precision $(, $size: usize)+) -> Launch $launch
        )*

        /// Names of the kernels without suffix, in alphabetical order for binary search.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

kernels! {
    /// `adamw_update(master, copy_or_null, gradient, other_or_null, m, v, count, scale_or_null, lr, beta1, beta2, eps, wd,
    /// correction1, correction2)`
    adamw_update(_, count) { elementwise(count) }

    /// `add(out, other, count)`
    add(_, count) { elementwise(count) }

    /// `attention_backward_keys(qkv_gradient, gradient, qkv, log_sums, means, B, T, first, NH, HS)`
    attention_backward_keys(precision, sequences, tokens, _first, heads, size) {
        attention(precision, [sequences, tokens.div_ceil(TILE), heads, size], [4, 6])
    }

    /// `attention_backward_keys_stored(qkv_gradient, slopes, gradient, qkv, log_sums, means, B, T, NH, HS)`
    attention_backward_keys_stored(_, sequences, tokens, heads, size) {
        wide_attention([sequences, tokens, heads, size], 8)
    }

    /// `attention_backward_keys_wide(qkv_gradient, gradient, qkv, log_sums, means, B, T, NH, HS)`
    attention_backward_keys_wide(_, sequences, tokens, heads, size) {
        wide_attention([sequences, tokens, heads, size], 8)
    }

    /// `attention_backward_mean(means, gradient, output, B, T, NH, HS)`
    attention_backward_mean(_, sequences, tokens, heads, _size) {
        let rows = sequences.saturating_mul(tokens).saturating_mul(heads);
        Launch::new([rows.div_ceil(MEAN_ROWS), 1], 8 * MEAN_ROWS)
    }

    /// `attention_backward_queries(qkv_gradient, gradient, qkv, log_sums, means, B, T, first, NH, HS)`
    attention_backward_queries(precision, sequences, tokens, first, heads, size) {
        attention(precision, [sequences, query_tiles(tokens, first), heads, size], [4, 6])
    }

    /// `attention_backward_queries_stored(qkv_gradient, slopes, qkv, B, T, NH, HS)`
    attention_backward_queries_stored(_, sequences, tokens, heads, size) {
        let blocks = tokens.div_ceil(TILE).saturating_mul(heads).saturating_mul(sequences);
        Launch::new([blocks, 1], TILE_BLOCK).with_shared_bytes(2 * (tensor_tile_bytes(TILE) + tensor_tile_bytes(size)))
    }

    /// `attention_backward_queries_wide(qkv_gradient, gradient, qkv, log_sums, means, B, T, NH, HS)`
    attention_backward_queries_wide(_, sequences, tokens, heads, size) {
        wide_attention([sequences, tokens, heads, size], 8)
    }

    /// `attention_forward(out, log_sums, qkv, B, T, first, NH, HS)`
    attention_forward(precision, sequences, tokens, first, heads, size) {
        attention(precision, [sequences, query_tiles(tokens, first), heads, size], [3, 5])
    }

    /// `attention_forward_wide(out, log_sums, qkv, B, T, NH, HS)`
    attention_forward_wide(_, sequences, tokens, heads, size) { wide_attention([sequences, tokens, heads, size], 6) }

    /// `bias_backward_sums(partial, gradient, n, OC, G)`
    bias_backward_sums(_, _rows, channels, groups) { Launch::new([channels.div_ceil(COLUMNS), groups], 2 * COLUMNS) }

    /// `bias_backward_weight(dbias, partial, G, OC)`
    bias_backward_weight(_, _groups, channels) { group_sums(channels) }

    /// `cast(out, in, count)`
    cast(_, count) { elementwise(count) }

    /// `classifier_forward(logits, losses, targets, weight, n, V, Vp)`
    classifier_forward(_, rows, _vocabulary, padded_vocabulary) { logits(rows, padded_vocabulary) }

    /// `classifier_gradient(logits, losses, sums, largest, targets, weight, first, n, V, Vp)`
    classifier_gradient(_, _first, rows, _vocabulary, padded_vocabulary) { logits(rows, padded_vocabulary) }

    /// `classifier_rescale(sums, local, largest, targets, first, n, V)`
    classifier_rescale(_, _first, rows, _vocabulary) {
        Launch::new([rows.div_ceil(ELEMENTWISE_BLOCK), 1], ELEMENTWISE_BLOCK)
    }

    /// `classifier_share(largest, local, logits, targets, first, n, V, Vp)`
    classifier_share(_, _first, rows, _vocabulary, padded_vocabulary) { logits(rows, padded_vocabulary) }

    /// `embedding_backward_position(dwpe, gradient, B, T, C)`
    embedding_backward_position(_, _sequences, tokens, channels) {
        Launch::new([tokens, channels.div_ceil(COLUMNS)], COLUMNS)
    }

    /// `embedding_backward_token(dwte, gradient, ids, starts, order, u, C, first, rows)`
    embedding_backward_token(_, distinct, channels, _first, _rows) {
        Launch::new([distinct, channels.div_ceil(COLUMNS)], COLUMNS)
    }

    /// `embedding_forward(out, tokens, wte, wpe_or_null, n, T, C, first, rows)`
    embedding_forward(_, rows, _tokens, _channels, _first, _held) { Launch::new([rows, 1], 128) }

    /// `gelu_backward_input(out, gradient, input, count)`
    gelu_backward_input(_, count) { elementwise(count) }

    /// `gelu_forward(out, input, count)`
    gelu_forward(_, count) { elementwise(count) }

    /// `heads_collect(fused, wide, n, stride, start, blocks, size, pieces, piece)`
    heads_collect(_, rows, _stride, _start, _blocks, _size, _pieces, _piece) { row_each(rows) }

    /// `heads_expand(out, fused, n, NH, G, HS)`
    heads_expand(_, rows, _heads, _groups, _size) { row_each(rows) }

    /// `heads_reduce(out, gradient, n, NH, G, HS)`
    heads_reduce(_, rows, _heads, _groups, _size) { row_each(rows) }

    /// `heads_rotate(rows, cosines, sines, n, T, heads, pairs, stride, backwards)`
    heads_rotate(_, rows, _tokens, _heads, _pairs, _stride, _backwards) { row_each(rows) }

    /// `heads_spread(wide, fused, n, stride, start, blocks, size, pieces, piece)`
    heads_spread(_, rows, _stride, _start, _blocks, _size, _pieces, _piece) { row_each(rows) }

    /// `layernorm_backward(out, partial, gradient, input, statistics, weight, residual_or_null, n, C, G)`
    layernorm_backward(_, _rows, channels, groups) { Launch::new([groups, 1], row_threads(channels)) }

    /// `layernorm_backward_input(out, gradient, input, statistics, weight, residual_or_null, n, C)`
    layernorm_backward_input(_, rows, _channels) { Launch::new([rows.div_ceil(WARPS), 1], WARPS * WARP) }

    /// `layernorm_backward_sums(partial, gradient, input, statistics, n, C, G)`
    layernorm_backward_sums(_, _rows, channels, groups) { Launch::new([channels.div_ceil(COLUMNS), groups], COLUMNS) }

    /// `layernorm_backward_weight(dweight, dbias, partial, G, C)`
    layernorm_backward_weight(_, _groups, channels) { group_sums(channels) }

    /// `layernorm_forward(out, statistics, input, weight, bias, n, C)`
    layernorm_forward(_, rows, _channels) { Launch::new([rows.div_ceil(WARPS), 1], WARPS * WARP) }

    /// `loss_mean(out, losses, n)`
    loss_mean(_, _rows) { Launch::new([1, 1], 256) }

    /// `maximum(out, other, count)`
    maximum(_, count) { elementwise(count) }

    /// `norm_partial(partial, gradient, other_or_null, count, G)`
    norm_partial(_, _count, groups) { Launch::new([groups, 1], 256) }

    /// `norm_sum(out, partial, G)`
    norm_sum(_, _groups) { Launch::new([1, 1], 256) }

    /// `residual_forward(out, a, b, count)`
    residual_forward(_, count) { elementwise(count) }

    /// `rmsnorm_backward_input(out, gradient, input, statistics, weight, residual_or_null, n, C)`
    rmsnorm_backward_input(_, rows, _channels) { Launch::new([rows.div_ceil(WARPS), 1], WARPS * WARP) }

    /// `rmsnorm_backward_sums(partial, gradient, input, statistics, n, C, G)`
    rmsnorm_backward_sums(_, _rows, channels, groups) { Launch::new([channels.div_ceil(COLUMNS), groups], COLUMNS) }

    /// `rmsnorm_backward_weight(dweight, partial, G, C)`
    rmsnorm_backward_weight(_, _groups, channels) { group_sums(channels) }

    /// `rmsnorm_forward(out, statistics, input, weight, n, C, epsilon)`
    rmsnorm_forward(_, rows, _channels) { Launch::new([rows.div_ceil(WARPS), 1], WARPS * WARP) }

    /// `slice_gather(wide, source, n, t, T, position, stride, has_queries, NH, G, HS)`
    slice_gather(_, rows, _tokens, _whole, _position, _stride, _has_queries, _heads, _groups, _size) { row_each(rows) }

    /// `slice_reduce(out, wide, other_or_null, n, t, T, position, has_queries, NH, G, HS)`
    slice_reduce(_, rows, _tokens, _whole, _position, _has_queries, _heads, _groups, _size) { row_each(rows) }

    /// `strided_copy(out, in, count, length, out_stride, in_stride)`
    strided_copy(_, count, _length, _out_stride, _in_stride) { elementwise(count) }

    /// `swiglu_backward(values, gradient, n, F)`
    swiglu_backward(_, rows, _width) { row_each(rows) }

    /// `swiglu_forward(out, values, n, F)`
    swiglu_forward(_, rows, _width) { row_each(rows) }
}

/// Sums of groups of rows, 32 columns per block, eight warps each.
fn group_sums(channels: usize) -> Launch {
    Launch::new([channels.div_ceil(WARP), 1], 8 * WARP)
}

/// One row of logits per block.
fn logits(rows: usize, padded_vocabulary: usize) -> Launch {
    Launch::new([rows, 1], row_threads(padded_vocabulary))
}

/// Threads of a block for a row, eight elements each.
fn row_threads(columns: usize) -> usize {
    columns.div_ceil(ELEMENTS).next_multiple_of(WARP).clamp(WARP, 512)
}

/// One row per block.
fn row_each(rows: usize) -> Launch {
    Launch::new([rows, 1], 128)
}

fn elementwise(count: usize) -> Launch {
    Launch::new([count.div_ceil(ELEMENTWISE_BLOCK * ELEMENTS), 1], ELEMENTWISE_BLOCK)
}

/// Whether the attention kernels run on tensor cores: with bfloat16 and head sizes that are multiples of 16.
pub const fn on_tensor_cores(precision: Precision, size: usize) -> bool {
    matches!(precision, Precision::Bf16) && size.is_multiple_of(16) && size <= MAX_HEAD_SIZE
}

/// Whether the wide attention kernels support heads of this size.
pub const fn has_wide_attention(precision: Precision, size: usize) -> bool {
    on_tensor_cores(precision, size) && size <= 64
}

/// Blocks of a wide attention kernel.
pub const fn wide_attention_blocks([sequences, tokens, heads]: [usize; 3]) -> usize {
    tokens.div_ceil(WIDE_TILE).saturating_mul(heads).saturating_mul(sequences)
}

/// Most memory for slopes between [`attention_backward_keys_stored`] and [`attention_backward_queries_stored`], in bytes.
const MOST_SLOPES_BYTES: usize = 512 << 20;

/// Bytes of the bfloat16 slopes of `sequences`: every head keeps one tile for each pair of a query tile and a key tile up to it.
pub const fn slopes_bytes([sequences, tokens, heads]: [usize; 3]) -> usize {
    let tiles = tokens.div_ceil(TILE);
    sequences.saturating_mul(heads).saturating_mul(tiles * (tiles + 1) / 2 * TILE * TILE * 2)
}

/// Sequences whose slopes are stored at once; 0 if one takes too much memory, or the kernels do not support such heads.
pub const fn stored_sequences(precision: Precision, [sequences, tokens, heads]: [usize; 3], size: usize) -> usize {
    let of_one = slopes_bytes([1, tokens, heads]);
    if sequences == 0 || of_one == 0 || of_one > MOST_SLOPES_BYTES || !has_wide_attention(precision, size) {
        return 0;
    }
    sequences.div_ceil(sequences.div_ceil(MOST_SLOPES_BYTES / of_one)) // in parts that are as equal as possible
}

/// Tiles of the queries from row `first` on.
fn query_tiles(tokens: usize, first: usize) -> usize {
    tokens.div_ceil(TILE).saturating_sub(first / TILE)
}

/// One block per wide tile of queries (or keys). `tiles` is the number of tiles of 64 rows that a block keeps in shared memory.
fn wide_attention([sequences, tokens, heads, size]: [usize; 4], tiles: usize) -> Launch {
    let blocks = wide_attention_blocks([sequences, tokens, heads]);
    Launch::new([blocks, 1], TILE_BLOCK).with_shared_bytes(tiles * tensor_tile_bytes(size))
}

/// Shared memory of a tile of 64 rows of bfloat16.
const fn tensor_tile_bytes(size: usize) -> usize {
    TILE * (size.next_multiple_of(32) + 8) * 2
}

/// One block per tile of queries (or keys). A head of a sequence has `blocks` tiles. `tiles` is the number of tiles that a block
/// keeps in shared memory: on CUDA cores (besides one of weights), and on tensor cores.
fn attention(precision: Precision, [sequences, blocks, heads, size]: [usize; 4], tiles: [usize; 2]) -> Launch {
    let blocks = blocks.saturating_mul(heads).saturating_mul(sequences);
    let bytes = if on_tensor_cores(precision, size) {
        tiles[1] * tensor_tile_bytes(size)
    } else {
        (tiles[0] * TILE * (size.next_multiple_of(4) + 4) + TILE * (TILE + 4)) * 4
    };
    Launch::new([blocks, 1], TILE_BLOCK).with_shared_bytes(bytes)
}

/// Clamps `value` to 1..=`most`. At a grid's limit, threads of the kernel loop, or the tensor exceeds any device's memory.
const fn clamp(value: usize, most: usize) -> u32 {
    if value == 0 {
        1
    } else if value > most {
        most as u32
    } else {
        value as u32
    }
}
