//! Accelerators that are known by name and have no table: none is another one's misspelling.

use pipesim_schedule::nearest::words;

/// A name's beginning, and the built-in hardware with the most similar chip; empty if none is similar.
const PRODUCTS: [(&str, &str); 51] = [
    ("h200-nvl", "h200-sxm"),
    ("h800-pcie", "h800-sxm"),
    ("h20-3e", "h20"),
    ("a100-pcie", "a100-sxm-80gb"),
    ("a100x", "a100-sxm-80gb"),
    ("a800-pcie", "a800-sxm-80gb"),
    ("a30", "a100-sxm-40gb"),
    ("a2", ""),
    ("a10", ""),
    ("a10g", ""),
    ("a16", ""),
    ("a40", ""),
    ("a6000", ""),
    ("b100", "b200"),
    ("b40", ""),
    ("gb10", ""),
    ("dgx-spark", ""),
    ("vr200", ""),
    ("rubin", ""),
    ("l4", "l40s"),
    ("l20", "l40s"),
    ("l40", "l40s"),
    ("k80", ""),
    ("p100", ""),
    ("t4", ""),
    ("v100", ""),
    ("rtx-3090", "rtx-4090"),
    ("rtx-4080", "rtx-4090"),
    ("rtx-4090-d", "rtx-4090"),
    ("rtx-4090d", "rtx-4090"),
    ("rtx-5080", "rtx-4090"),
    ("rtx-5090", "rtx-4090"),
    ("rtx-6000-ada", "l40s"),
    ("rtx-a6000", ""),
    ("rtx-pro-6000", ""),
    ("mi50", ""),
    ("mi100", ""),
    ("mi210", ""),
    ("mi250", ""),
    ("mi250x", ""),
    ("mi300a", "mi300x"),
    ("mi308x", "mi300x"),
    ("mi350x", "mi355x"),
    ("gaudi", ""),
    ("tpu", ""),
    ("trainium", ""),
    ("trn", ""),
    ("inferentia", ""),
    ("ascend", ""),
    ("910b", ""),
    ("mtt", ""),
];

/// Words before a product's name.
const VENDORS: &[&str] =
    &["nvidia", "geforce", "tesla", "amd", "radeon", "instinct", "intel", "google", "aws", "huawei"];

/// Returns the product that a name begins with, and the built-in hardware to base a table of it on.
pub(super) fn product(name: &str) -> Option<(&'static str, Option<&'static str>)> {
    let asked = words(name);
    let first = asked.iter().position(|word| !VENDORS.contains(&word.as_str()))?;
    let begins = |product: &str| asked[first..].starts_with(&words(product));
    let found = PRODUCTS.iter().filter(|(product, _)| begins(product)).max_by_key(|(product, _)| product.len());
    found.map(|(product, base)| (*product, (!base.is_empty()).then_some(*base)))
}
