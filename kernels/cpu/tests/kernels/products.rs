//! Products and linear layers.

use crate::guarded::{Guarded, SIZES, SameBits, Side, compare, everywhere, noise};
use cpu_kernels::linear;
use cpu_kernels::matrix::{Matrix, MatrixMut};
use cpu_kernels::product::{add_product, set_product};

/// `a` (m, k) · `b` (k, n) in double precision.
fn reference(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            let value = f64::from(a[i * k + p]);
            for (out, &b) in out[i * n..][..n].iter_mut().zip(&b[p * n..]) {
                *out += value * f64::from(b);
            }
        }
    }
    out
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns * rows).map(|at| values[at % rows * columns + at / rows]).collect()
}

/// How far sums of `k` products of numbers in [-1, 1) may be off.
fn tolerance(k: usize) -> f64 {
    2e-7 * (k + 4) as f64
}

fn check(shape: [usize; 3], layout: usize, extra: usize, side: Side) -> Vec<f32> {
    let [m, k, n] = shape;
    let (a, b) = (noise(m * k, 1), noise(k * n, 2));
    let expected = reference(&a, &b, shape);
    let what = format!("{shape:?}, layout {layout}");
    let a = Guarded::new(&if layout & 1 == 0 { a } else { transposed(&a, m, k) }, side);
    let b = Guarded::new(&if layout & 2 == 0 { b } else { transposed(&b, k, n) }, side);
    let a = if layout & 1 == 0 { Matrix::new(&a, m, k, k) } else { Matrix::new(&a, k, m, m).transposed() };
    let b = if layout & 2 == 0 { Matrix::new(&b, k, n, n) } else { Matrix::new(&b, n, k, k).transposed() };
    let stride = n + extra;
    let mut out = Guarded::filled((m - 1) * stride + n, side);
    let first = |out: &[f32]| -> Vec<f32> { out.chunks(stride).flat_map(|row| row[..n].to_vec()).collect() };
    set_product(MatrixMut::new(&mut out, m, n, stride), a, b);
    compare(&what, &first(&out), &expected, tolerance(k));
    add_product(MatrixMut::new(&mut out, m, n, stride), a, b);
    let twice: Vec<f64> = expected.iter().map(|value| 2.0 * value).collect();
    compare(&what, &first(&out), &twice, tolerance(k));
    let between = out.chunks(stride).flat_map(|row| &row[n.min(row.len())..]).all(|value| *value == 7.5);
    assert!(between, "{what}: numbers between the rows changed");
    first(&out)
}

#[test]
fn products_of_all_sizes_and_layouts() {
    let odd = SIZES.into_iter().flat_map(|m| SIZES.into_iter().flat_map(move |k| SIZES.map(|n| [m, k, n])));
    // more than one block of the inner index, of columns and of rows
    let large = [[5, 513, 40], [130, 1030, 70], [70, 520, 390], [3, 40, 2100], [1500, 200, 17], [48, 600, 48]];
    for (number, shape) in odd.chain(large).enumerate() {
        let layouts = if number % 3 == 0 || shape[1] > 500 { 0..4 } else { number % 4..number % 4 + 1 };
        for layout in layouts {
            let mut bits = SameBits::default();
            everywhere(|set, side| {
                let found = check(shape, layout, number % 5, side);
                bits.check(&format!("{shape:?}, layout {layout}"), set, &found);
            });
        }
    }
}

#[test]
fn not_a_number_and_infinity_reach_their_row_or_column_and_no_other() {
    for special in [f32::NAN, f32::INFINITY, f32::from_bits(0x7fc0_0001)] {
        for [m, k, n] in [[7, 17, 33], [130, 65, 129], [65, 600, 31]] {
            for layout in 0..4 {
                everywhere(|_, side| {
                    let (row, column) = (m / 2, k - 1);
                    let mut a = vec![0.5; m * k];
                    a[row * k + column] = special;
                    let a = Guarded::new(&if layout & 1 == 0 { a } else { transposed(&a, m, k) }, side);
                    let b = Guarded::new(&vec![0.25; k * n], side);
                    let a =
                        if layout & 1 == 0 { Matrix::new(&a, m, k, k) } else { Matrix::new(&a, k, m, m).transposed() };
                    let b =
                        if layout & 2 == 0 { Matrix::new(&b, k, n, n) } else { Matrix::new(&b, n, k, k).transposed() };
                    let mut out = Guarded::filled(m * n, side);
                    set_product(MatrixMut::new(&mut out, m, n, n), a, b);
                    for (at, &value) in out.iter().enumerate() {
                        let is_special = if special.is_nan() { value.is_nan() } else { value == special };
                        assert_eq!(is_special, at / n == row, "element {at} is {value}");
                    }
                });
            }
        }
    }
}

#[test]
fn an_inner_length_of_nothing_leaves_the_base() {
    everywhere(|_, side| {
        let mut out = Guarded::filled(6, side);
        add_product(MatrixMut::new(&mut out, 2, 3, 3), Matrix::new(&[], 2, 0, 0), Matrix::new(&[], 0, 3, 3));
        assert_eq!(*out, [7.5; 6]);
        set_product(MatrixMut::new(&mut out, 2, 3, 3), Matrix::new(&[], 2, 0, 0), Matrix::new(&[], 0, 3, 3));
        assert_eq!(*out, [0.0; 6]);
    });
}

#[test]
fn linear_layers_forwards_and_backwards() {
    for [n, c, oc] in [[1, 1, 1], [3, 7, 17], [17, 33, 3], [31, 65, 129], [129, 48, 65], [128, 96, 384], [65, 600, 31]]
    {
        let what = format!("{n} tokens, {c} to {oc} channels");
        let (x, w, b, r, dy) = (noise(n * c, 3), noise(oc * c, 4), noise(oc, 5), noise(n * oc, 6), noise(n * oc, 7));
        let product = reference(&x, &transposed(&w, oc, c), [n, c, oc]);
        let input_gradient = reference(&dy, &w, [n, oc, c]);
        let weight_gradient: Vec<f64> =
            reference(&transposed(&dy, n, oc), &x, [oc, n, c]).into_iter().map(|value| value + 7.5).collect();
        let bias_gradient: Vec<f64> =
            (0..oc).map(|o| 7.5 + dy.iter().skip(o).step_by(oc).map(|&value| f64::from(value)).sum::<f64>()).collect();
        let with = |has_bias: bool, has_residual: bool| -> Vec<f64> {
            let bias = |at: usize| if has_bias { f64::from(b[at % oc]) } else { 0.0 };
            let residual = |at: usize| if has_residual { f64::from(r[at]) } else { 0.0 };
            product.iter().enumerate().map(|(at, value)| value + bias(at) + residual(at)).collect()
        };
        let mut bits: [SameBits; 7] = Default::default();
        everywhere(|set, side| {
            let guard = |values: &[f32]| Guarded::new(values, side);
            let (x, w, b, r, dy) = (guard(&x), guard(&w), guard(&b), guard(&r), guard(&dy));
            let mut see = |at: usize, found: &[f32], expected: &[f64], k: usize| {
                compare(&what, found, expected, tolerance(k));
                bits[at].check(&what, set, found);
            };
            let mut out = Guarded::filled(n * oc, side);
            linear::forward(&mut out, &x, &w, &b);
            see(0, &out, &with(true, false), c);
            linear::forward_without_bias(&mut out, &x, &w, oc);
            see(1, &out, &with(false, false), c);
            linear::forward_residual(&mut out, &r, &x, &w, &b);
            see(2, &out, &with(true, true), c);
            linear::forward_residual_without_bias(&mut out, &r, &x, &w, oc);
            see(3, &out, &with(false, true), c);
            let mut dx = Guarded::filled(n * c, side);
            linear::backward_input(&mut dx, &dy, &w, oc);
            see(4, &dx, &input_gradient, oc);
            let (mut dw, mut db) = (Guarded::filled(oc * c, side), Guarded::filled(oc, side));
            linear::backward_weight(&mut dw, &mut db, &dy, &x, oc);
            see(5, &dw, &weight_gradient, n);
            see(6, &db, &bias_gradient, n);
            let mut again = Guarded::filled(oc * c, side);
            linear::backward_weight(&mut again, &mut [], &dy, &x, oc);
            assert_eq!(*again, *dw, "{what}");
        });
    }
}

#[test]
fn the_bits_of_an_element_do_not_depend_on_the_sizes_of_the_matrices() {
    let (m, k, n) = (61, 700, 150);
    let noise = |length: usize, seed: usize| -> Vec<f32> {
        (0..length).map(|i| ((i * 7919 + seed) % 104_729) as f32 / 104_729.0 - 0.5).collect()
    };
    let (a, b) = (noise(m * k, 1), noise(n * k, 2));
    let part = |rows: usize, columns: usize| {
        let mut out = vec![0.0; rows * columns];
        let (a, b) = (Matrix::new(&a, rows, k, k), Matrix::new(&b, columns, k, k).transposed());
        set_product(MatrixMut::new(&mut out, rows, columns, columns), a, b);
        out
    };
    everywhere(|_, _| {
        let whole = part(m, n);
        for (rows, columns) in [(1, 1), (5, 150), (61, 17), (12, 64), (2, 3)] {
            for (index, value) in part(rows, columns).into_iter().enumerate() {
                assert_eq!(value.to_bits(), whole[index / columns * n + index % columns].to_bits());
            }
        }
    });
}
