//! Sizes of a mixture of experts, and of multi-head latent attention.

use super::sizes::InvalidSizes;

/// Experts of a decoder's layers (Shazeer et al., arXiv 1701.06538; DeepSeekMoE, arXiv 2401.06066).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of routed experts per layer.
    pub count: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// Width of all shared experts together, which every token passes; 0 without.
    pub shared_width: usize,
    /// Whether a gate of each token scales what the shared experts say.
    pub has_shared_gate: bool,
    /// Width of the rows of the routed experts, if narrower than the hidden state: two products per token make and undo them (Nemotron-3).
    pub latent: Option<usize>,
    /// Whether the routed experts' narrow output has a norm.
    pub has_latent_norm: bool,
    /// Number of first layers that have a dense MLP.
    pub dense_first: usize,
    /// Every n-th of the other layers has experts; 1: all.
    pub every: usize,
    /// Groups of experts among which the router chooses first; 1 without.
    pub router_groups: usize,
    /// Groups that a token's experts come from, which limits the nodes that it visits.
    pub group_top_k: usize,
}

impl Experts {
    /// Experts in every layer, without shared ones or groups.
    pub const fn new(count: usize, top_k: usize, width: usize) -> Experts {
        Experts {
            count,
            top_k,
            width,
            shared_width: 0,
            has_shared_gate: false,
            latent: None,
            has_latent_norm: false,
            dense_first: 0,
            every: 1,
            router_groups: 1,
            group_top_k: 1,
        }
    }

    /// Returns whether layer number `layer` has experts.
    pub fn has(&self, layer: usize) -> bool {
        let every = self.every.max(1);
        layer.checked_sub(self.dense_first).is_some_and(|place| place % every == every - 1)
    }

    /// Returns whether any of `layers` has experts.
    pub(super) fn are_in_any_of(&self, layers: usize) -> bool {
        self.dense_first.saturating_add(self.every.max(1)) <= layers
    }

    /// Checks that a layer of these sizes can exist.
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        let &Experts { count, top_k, width, shared_width, router_groups: groups, group_top_k: per_token, .. } = self;
        let sizes =
            [("experts", count), ("experts per token", top_k), ("expert width", width), ("router groups", groups)];
        in_range("a mixture", sizes)?;
        in_range("latent experts", [("row width", self.latent.unwrap_or(1))])?;
        if shared_width > 1 << 24 {
            return Err(InvalidSizes::SharedExperts { found: shared_width });
        }
        if top_k > count {
            return Err(InvalidSizes::ExpertsPerToken { experts: count, found: top_k });
        }
        if !count.is_multiple_of(groups) || !(1..=groups).contains(&per_token) {
            return Err(InvalidSizes::RouterGroups { experts: count, groups, per_token });
        }
        let within = per_token * (count / groups);
        if top_k > within {
            return Err(InvalidSizes::GroupExperts { groups: per_token, within, found: top_k });
        }
        Ok(())
    }
}

/// Checks sizes of a part of a model.
pub(super) fn in_range<const N: usize>(
    of: &'static str,
    sizes: [(&'static str, usize); N],
) -> Result<(), InvalidSizes> {
    let wrong = sizes.into_iter().find(|(_, size)| !(1..=1 << 24).contains(size));
    wrong.map_or(Ok(()), |(name, size)| Err(InvalidSizes::Part { of, name, size }))
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries, keys and values come from narrow rows. All
/// heads have keys and values of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the row from which queries are made; `None`: they are made from the hidden state.
    pub query_rank: Option<usize>,
    /// Width of the row from which keys and values are made.
    pub key_rank: usize,
    /// Channels of a query or key without position.
    pub plain_size: usize,
    /// Channels of a query or key with rotary position; all heads share the keys' channels.
    pub rotary_size: usize,
    /// Channels of a value.
    pub value_size: usize,
}

impl Latent {
    /// Returns the channels of a query or key.
    pub const fn size(&self) -> usize {
        self.plain_size + self.rotary_size
    }

    /// Checks that attention of these sizes can exist.
    pub(super) fn check(&self) -> Result<(), InvalidSizes> {
        let sizes = [
            ("query rank", self.query_rank.unwrap_or(1)),
            ("key and value rank", self.key_rank),
            ("channels of keys without position", self.plain_size),
            ("channels of keys with position", self.rotary_size),
            ("channels of values", self.value_size),
        ];
        in_range("latent attention", sizes)
    }
}
