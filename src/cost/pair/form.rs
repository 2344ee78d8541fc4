//! Closed forms for chunks of equal layers.

use super::LayerOps;

/// Times of a layer's sub-ops by name, in ns.
struct Named {
    attn_f: u64,
    dispatch_f: u64,
    mlp_f: u64,
    combine_f: u64,
    combine_b: u64,
    mlp_b: u64,
    mlp_w: u64,
    dispatch_b: u64,
    attn_b: u64,
    attn_w: u64,
}

impl Named {
    fn of(layer: &LayerOps) -> Named {
        Named {
            attn_f: layer.attn.forward,
            dispatch_f: layer.dispatch.forward,
            mlp_f: layer.mlp.forward,
            combine_f: layer.combine.forward,
            combine_b: layer.combine.input,
            mlp_b: layer.mlp.input,
            mlp_w: layer.mlp.weights,
            dispatch_b: layer.dispatch.input,
            attn_b: layer.attn.input,
            attn_w: layer.attn.weights,
        }
    }
}

/// Returns how long the forward and the backward of `layers` equal layers take next to each other, in ns, with weights delayed and
/// nothing on a side stream.
///
/// M is the time from the start of `mlp_B` to the start of `attn_B` and `combine_F`, Q from there to the next `mlp_B`.
pub fn equal_layers(layer: &LayerOps, layers: u64) -> u64 {
    if layers == 0 {
        return 0;
    }
    let t = Named::of(layer);
    let m = ((t.mlp_b + t.mlp_w).max(t.dispatch_f) + t.mlp_f).max(t.mlp_b.max(t.dispatch_f) + t.dispatch_b);
    let last = (t.attn_b + t.attn_w).max(t.combine_f);
    let q = (t.attn_b.max(t.combine_f) + t.combine_b).max(last + t.attn_f);
    t.combine_b.max(t.attn_f) + layers * m + (layers - 1) * q + last
}

/// Returns how long the forward of `layers` equal layers takes alone, in ns.
pub fn forward_alone(layer: &LayerOps, layers: u64) -> u64 {
    let t = Named::of(layer);
    layers * (t.attn_f + t.dispatch_f + t.mlp_f + t.combine_f)
}

/// Returns how long the backward of `layers` equal layers takes alone, in ns: products for weights hide the communication after
/// them.
pub fn backward_alone(layer: &LayerOps, layers: u64) -> u64 {
    if layers == 0 {
        return 0;
    }
    let t = Named::of(layer);
    let each = t.mlp_b + t.mlp_w.max(t.dispatch_b) + t.attn_b;
    t.combine_b + layers * each + (layers - 1) * t.combine_b.max(t.attn_w) + t.attn_w
}
