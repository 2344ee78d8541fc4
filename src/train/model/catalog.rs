//! The groups of tensors of a description: which parts have them, and where their squares are added up.

use crate::compute::Side;
use pipesim_models::model_spec::ModelSpec;
use std::ops::Range;

/// Where the tensors of a group come from.
pub struct Origin {
    /// Tensors of [`Parameters`](super::parameters::Parameters), and which layer of them.
    pub tensors: Vec<(usize, Option<usize>)>,
    /// Number of its elements here.
    pub length: usize,
    /// Number of its partial square of the gradient norm; `None` if another device squares it.
    pub square: Option<usize>,
    /// The elements that are squared, of its tensors one after the other; `None`: all.
    pub counted: Option<Vec<Range<usize>>>,
}

/// A group of tensors of the description.
pub struct Entry {
    /// Number of the group among all of the model, the same for both parts that share one.
    pub first: usize,
    pub tensors: Vec<usize>,
    /// Repetitions of the part.
    pub count: usize,
    pub is_shared: bool,
    pub side: Side,
    /// Number of the partial square of the first repetition, and from one repetition to the next.
    pub square: usize,
    pub stride: usize,
}

/// The groups of a description, by part.
pub struct Catalog {
    pub groups: Vec<Vec<Entry>>,
}

impl Catalog {
    /// Returns the groups of this description.
    pub fn new(spec: &ModelSpec) -> Catalog {
        let names: Vec<&str> = spec.tensors().map(|(_, tensor)| tensor.name).collect();
        let number = |name: &str| names.iter().position(|known| *known == name).unwrap_or_default();
        let tied: Vec<&str> = spec.parts.iter().flat_map(|part| part.tensors().filter_map(|t| t.tied)).collect();
        let mut groups: Vec<Vec<Entry>> = Vec::new();
        for part in &spec.parts {
            let (square, mut own) = (spec.square(part.name, 0), 0);
            let stride = spec.square(part.name, 1) - square;
            let mut entries = Vec::new();
            for group in &part.groups {
                // a tensor that another part owns goes by that one's name
                let tensors: Vec<usize> = group.iter().map(|t| number(t.tied.unwrap_or(t.name))).collect();
                let is_own = group.iter().any(|tensor| tensor.tied.is_none());
                let is_shared = group.iter().any(|t| t.tied.is_some() || tied.contains(&t.name));
                let first = tensors.first().copied().unwrap_or_default();
                let mut owner = groups.iter().flatten().filter(|entry: &&Entry| entry.first == first);
                let (square, stride, count) = match owner.next().filter(|_| !is_own) {
                    Some(entry) => (entry.square, entry.stride, entry.count),
                    None => (square + own, stride, part.count),
                };
                let side = if is_own { Side::Own } else { Side::Shared };
                entries.push(Entry { first, tensors, count, is_shared, side, square, stride });
                own += usize::from(is_own);
            }
            groups.push(entries);
        }
        Catalog { groups }
    }
}
