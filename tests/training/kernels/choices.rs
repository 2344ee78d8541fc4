//! Kernels that replace others, compared with their predecessors, and offsets beyond 2^32 elements.

use super::Argument::{Address, Float, Int};
use super::*;

/// Wide attention next to the narrow one, which is compared with the CPU: the same bits. Tokens end within a tile, within the first and
/// the second half of a wide one, and at its end.
#[test]
fn wide_attention_has_the_bits_of_the_narrow_one() {
    let mut random = Random::new(22);
    let emulator = emulator(Precision::Bf16);
    for (i, (tokens, size)) in [(1, 64), (65, 16), (128, 64), (130, 32), (200, 48), (257, 64)].into_iter().enumerate() {
        let (b, heads, offset) = (1 + i % 2, 1 + i % 3, i % 4 / 3);
        let (c, rows) = (heads * size, b * heads * tokens);
        let shape = Shape { sequences: b, tokens, heads, groups: heads, size };
        let qkv = emulator.rounded(random.values(b * tokens * 3 * c, 1.5));
        let gradient = emulator.rounded(random.values(b * tokens * c, 1.0));
        let (log_sums, means) = (random.values(rows, 1.0), random.values(rows, 1.0));
        let run = |wide: bool| {
            let kernel = |name: &'static str, narrow: Launch, other: Launch, buffers: &[&Buffer]| {
                let first: &[Argument] = if wide { &[] } else { &[Int(0)] };
                let ints = [&[Int(b), Int(tokens)], first, &[Int(heads), Int(size)]];
                let (name, launch) = if wide { (format!("{name}_wide"), other) } else { (name.into(), narrow) };
                emulator.launch(&name, launch, buffers, &ints.concat());
            };
            let (out, sums) = (emulator.outputs(b * tokens * c), Buffer::output_floats(rows));
            let [qkv, gradient] = [&qkv, &gradient].map(|values| emulator.acts_at(values, offset));
            let p = Precision::Bf16;
            let launch = kernel::attention_forward(p, b, tokens, 0, heads, size);
            let other = kernel::attention_forward_wide(p, b, tokens, heads, size);
            kernel("attention_forward", launch, other, &[&out, &sums, &qkv]);
            let found = emulator.outputs(b * tokens * 3 * c);
            let [log_sums, means] = [&log_sums, &means].map(|values| Buffer::from_floats(values));
            let operands = [&found, &gradient, &qkv, &log_sums, &means];
            let launch = kernel::attention_backward_keys(p, b, tokens, 0, heads, size);
            let other = kernel::attention_backward_keys_wide(p, b, tokens, heads, size);
            kernel("attention_backward_keys", launch, other, &operands);
            let launch = kernel::attention_backward_queries(p, b, tokens, 0, heads, size);
            let other = kernel::attention_backward_queries_wide(p, b, tokens, heads, size);
            kernel("attention_backward_queries", launch, other, &operands);
            [out, sums, found]
        };
        let (narrow, wide) = (run(false), emulator.twice(|| run(true)));
        for (what, (narrow, wide)) in ["out", "log sums", "gradient"].into_iter().zip(narrow.iter().zip(&wide)) {
            assert!(narrow.content() == wide.content(), "{what} of {shape:?}");
        }
        assert!(emulator.read(&wide[2]).iter().all(|value| value.is_finite()), "{shape:?}");
    }
}

/// Slopes that one kernel stores and the next one reads give the bits of kernels that compute them twice.
#[test]
fn stored_slopes_give_the_bits_of_computed_ones() {
    let (mut random, p) = (Random::new(23), Precision::Bf16);
    let emulator = emulator(p);
    for (i, (t, size)) in [(1, 64), (65, 16), (128, 64), (130, 32), (200, 48), (257, 64)].into_iter().enumerate() {
        let (b, heads, offset) = (1 + i % 2, 1 + i % 3, i % 4 / 3);
        let (c, rows, tiles) = (heads * size, b * heads * t, t.div_ceil(64));
        let qkv = emulator.acts_at(&emulator.rounded(random.values(b * t * 3 * c, 1.5)), offset);
        let gradient = emulator.acts_at(&emulator.rounded(random.values(b * t * c, 1.0)), offset);
        let [log_sums, means] = [(); 2].map(|()| Buffer::from_floats(&random.values(rows, 1.0)));
        let sizes = [Int(b), Int(t), Int(heads), Int(size)];
        let computed = emulator.outputs(b * t * 3 * c);
        let operands = [&computed, &gradient, &qkv, &log_sums, &means];
        let launch = kernel::attention_backward_keys_wide(p, b, t, heads, size);
        emulator.launch("attention_backward_keys_wide", launch, &operands, &sizes);
        let launch = kernel::attention_backward_queries_wide(p, b, t, heads, size);
        emulator.launch("attention_backward_queries_wide", launch, &operands, &sizes);
        let [stored, _] = emulator.twice(|| {
            let slopes = emulator.outputs(b * heads * tiles * (tiles + 1) / 2 * 64 * 64);
            assert_eq!(kernel::slopes_bytes([b, t, heads]), emulator.read(&slopes).len() * p.bytes());
            let stored = emulator.outputs(b * t * 3 * c);
            let launch = kernel::attention_backward_keys_stored(p, b, t, heads, size);
            let operands = [&stored, &slopes, &gradient, &qkv, &log_sums, &means];
            emulator.launch("attention_backward_keys_stored", launch, &operands, &sizes);
            let launch = kernel::attention_backward_queries_stored(p, b, t, heads, size);
            emulator.launch("attention_backward_queries_stored", launch, &[&stored, &slopes, &qkv], &sizes);
            [stored, slopes]
        });
        assert!(stored.content() == computed.content(), "{t} tokens, heads of {size}");
        assert!(emulator.read(&stored).iter().all(|value| value.is_finite()), "{t} tokens, heads of {size}");
    }
}

#[test]
fn slopes_are_stored_in_equal_parts_of_at_most_512_mib() {
    let parts = |sequences, tokens, size| kernel::stored_sequences(Precision::Bf16, [sequences, tokens, 12], size);
    // 136 pairs of tiles of 8 KiB for each of 12 heads
    assert_eq!(kernel::slopes_bytes([32, 1024, 12]), 32 * 12 * 136 * 8192);
    assert_eq!([1, 32, 40, 41, 96].map(|sequences| parts(sequences, 1024, 64)), [1, 32, 40, 21, 32]);
    assert_eq!([parts(0, 1024, 64), parts(1, 16384, 64), parts(1, 1024, 128)], [0; 3]);
    assert_eq!(kernel::stored_sequences(Precision::F32, [1, 1024, 12], 64), 0);
}

/// What a warp reads of shared memory for 64 products of a row, with heads of 64 channels: as left operands, then as right ones, in reads
/// of 512 bytes. Narrow warps have 16 rows. Wide ones have 32, keep the queries of the forward, and in the backward for the keys read
/// these again for each half of a tile. Of 128 tokens narrow warps work on 12 squares of 16 rows and 64 columns, wide ones on 6 of 32.
#[test]
fn wide_attention_reads_less_shared_memory() {
    if skipped_on_gpu("the emulator counts") {
        return;
    }
    let emulator = emulator(Precision::Bf16);
    let (p, tokens, size) = (Precision::Bf16, 128, 64);
    let zeros = |count: usize| emulator.acts(&vec![0.0; count]);
    let (out, qkv, gradient) = (zeros(tokens * 3 * size), zeros(tokens * 3 * size), zeros(tokens * size));
    let [sums, means] = [(); 2].map(|()| Buffer::from_floats(&vec![0.0; tokens]));
    let backward = [&out, &gradient, &qkv, &sums, &means];
    let reads = |name: &str, launch: Launch, ints: &[Argument]| {
        let buffers = if name.contains("forward") { &[&out, &sums, &qkv][..] } else { &backward };
        emulator.matrix_reads();
        emulator.launch(name, launch, buffers, ints);
        emulator.matrix_reads()
    };
    let narrow = [Int(1), Int(tokens), Int(0), Int(1), Int(size)];
    let wide = [Int(1), Int(tokens), Int(1), Int(size)];
    let launch = kernel::attention_forward(p, 1, tokens, 0, 1, size);
    assert_eq!(reads("attention_forward", launch, &narrow), 12 * (4 + 2 * 16));
    let launch = kernel::attention_forward_wide(p, 1, tokens, 1, size);
    assert_eq!(reads("attention_forward_wide", launch, &wide), 6 * (2 * 16) + 4 * 8);
    let launch = kernel::attention_backward_keys(p, 1, tokens, 0, 1, size);
    assert_eq!(reads("attention_backward_keys", launch, &narrow), 12 * (2 * 4 + 4 * 16));
    let launch = kernel::attention_backward_keys_wide(p, 1, tokens, 1, size);
    assert_eq!(reads("attention_backward_keys_wide", launch, &wide), 6 * (2 * 2 * 8 + 4 * 16));
    let launch = kernel::attention_backward_queries(p, 1, tokens, 0, 1, size);
    assert_eq!(reads("attention_backward_queries", launch, &narrow), 12 * (2 * 4 + 3 * 16));
    let launch = kernel::attention_backward_queries_wide(p, 1, tokens, 1, size);
    assert_eq!(reads("attention_backward_queries_wide", launch, &wide), 6 * (2 * 8 + 3 * 16));
    // slopes and keys of 3 pairs of tiles, by 4 warps of 16 rows
    let slopes = zeros(3 * 64 * 64);
    let launch = kernel::attention_backward_queries_stored(p, 1, tokens, 1, size);
    emulator.matrix_reads();
    emulator.launch("attention_backward_queries_stored", launch, &[&out, &slopes, &qkv], &wide);
    assert_eq!(emulator.matrix_reads(), 3 * 4 * (4 + 16));
}

/// Rows of a micro-batch whose logits have more than 2^32 elements.
const MANY_ROWS: usize = 100_000;

/// The last two rows of 100,000 rows of GPT-2's padded logits, 5.03e9 elements: only their blocks run, and only they have memory, behind
/// an address that lies as far before them as the elements of the other rows. Offsets of 32 bits would leave it.
#[test]
fn offsets_of_logits_have_64_bits() {
    if skipped_on_gpu("only the emulator runs some blocks of a grid") {
        return;
    }
    let (v, padded, here) = (50_257, 50_304, 2);
    let mut random = Random::new(25);
    let emulator = emulator(Precision::Bf16);
    let (logits, ids) = (emulator.rounded(random.values(here * padded, 8.0)), random.words(here, v));
    let before = MANY_ROWS - here;
    let targets = Buffer::from_words(&[vec![0; before], ids.clone()].concat());
    let far = |buffer: &Buffer| Address(buffer.address().wrapping_sub((before * padded * 2) as u64));
    let last = |floats: Vec<f32>| floats[floats.len() - here..].to_vec();
    let run = |name: &str, launch: Launch, arguments: &[Argument]| {
        assert_eq!(launch.grid, [MANY_ROWS as u32, 1, 1]);
        emulator.blocks(before, here);
        emulator.launch(name, launch, &[], arguments);
        emulator.blocks(0, 0);
    };

    let mut expected = logits.chunks(padded).flat_map(|row| &row[..v]).copied().collect::<Vec<f32>>();
    let rows = expected.chunks_mut(v).zip(&ids);
    let expected_losses: Vec<f32> =
        rows.map(|(row, id)| reference::classifier_forward(row, v, v, &[*id], 0.25) as f32).collect();
    let check = |what: &str, gradient: &Buffer, losses: &Buffer| {
        let found: Vec<f32> = emulator.read(gradient).chunks(padded).flat_map(|row| &row[..v]).copied().collect();
        compare(what, "far rows", &found, &expected, emulator.tolerance());
        compare(what, "far losses", &last(losses.floats()), &expected_losses, TOLERANCE);
    };
    let (gradient, losses) = (emulator.acts(&logits), Buffer::output_floats(MANY_ROWS));
    let launch = kernel::classifier_forward(Precision::Bf16, MANY_ROWS, v, padded);
    let sizes = [Float(0.25), Int(MANY_ROWS), Int(v), Int(padded)];
    let places = [far(&gradient), Argument::Buffer(&losses), Argument::Buffer(&targets)];
    run("classifier_forward", launch, &[&places[..], &sizes].concat());
    gradient.check("classifier_forward");
    losses.check("classifier_forward");
    check("classifier_forward", &gradient, &losses);
    let [largest, local] = [MANY_ROWS, 3 * MANY_ROWS].map(Buffer::output_floats);
    let (gradient, losses) = (emulator.acts(&logits), Buffer::output_floats(MANY_ROWS));
    let sizes = [Int(0), Int(MANY_ROWS), Int(v), Int(padded)];
    let launch = kernel::classifier_share(Precision::Bf16, 0, MANY_ROWS, v, padded);
    let places = [Argument::Buffer(&largest), Argument::Buffer(&local), far(&gradient), Argument::Buffer(&targets)];
    run("classifier_share", launch, &[&places[..], &sizes].concat());
    let sums = Buffer::output_floats(2 * MANY_ROWS);
    let launch = kernel::classifier_rescale(Precision::Bf16, 0, MANY_ROWS, v);
    emulator.launch("classifier_rescale", launch, &[&sums, &local, &largest, &targets], &sizes[..3]);
    let launch = kernel::classifier_gradient(Precision::Bf16, 0, MANY_ROWS, v, padded);
    let places = [&losses, &sums, &largest, &targets].map(Argument::Buffer);
    run("classifier_gradient", launch, &[&[far(&gradient)], &places[..], &[Float(0.25)], &sizes].concat());
    gradient.check("classifier_gradient");
    check("classifier_gradient", &gradient, &losses);
}
