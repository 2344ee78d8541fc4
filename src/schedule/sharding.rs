//! Collectives between the ops of a device: where it gathers and frees the full parameters of its stages, and reduces their gradients.
//!
//! They are no ops: they compute nothing, and do not belong to a micro-batch. PyTorch's FSDP has them in a device's program
//! ([`fsdp`](crate::fsdp) has its rule), and its schedule files name them as here.

use std::fmt;

/// What a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// Begins to gather the parameters of a stage: it is active from here on.
    Unshard,
    /// Frees them.
    Reshard,
    /// Begins to reduce and scatter the gradients of a stage.
    ReduceGrad,
    /// Compute waits here until they are reduced.
    WaitReduceGrad,
}

impl CollectiveKind {
    /// All kinds.
    pub const ALL: [CollectiveKind; 4] =
        [CollectiveKind::Unshard, CollectiveKind::Reshard, CollectiveKind::ReduceGrad, CollectiveKind::WaitReduceGrad];

    /// Returns PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::Unshard => "UNSHARD",
            CollectiveKind::Reshard => "RESHARD",
            CollectiveKind::ReduceGrad => "REDUCE_GRAD",
            CollectiveKind::WaitReduceGrad => "WAIT_REDUCE_GRAD",
        }
    }
}

/// A collective of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Collective {
    /// What it does.
    pub kind: CollectiveKind,
    /// Stage whose parameters or gradients it moves.
    pub stage: u32,
}

/// As PyTorch writes it: `3UNSHARD`.
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stage, self.kind.name())
    }
}

/// A collective with its place: before op number `before` of its device's program; after the last op, the number of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Number of an op in the program, or the number of ops.
    pub before: usize,
    /// What happens there.
    pub collective: Collective,
}

/// The collectives of all devices, in program order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharding {
    devices: Vec<Vec<Placed>>,
}

impl Sharding {
    /// `devices` has the collectives of each device, by place.
    pub fn new(devices: Vec<Vec<Placed>>) -> Sharding {
        Sharding { devices }
    }

    /// Returns the collectives of `device`, by place.
    pub fn of(&self, device: u32) -> &[Placed] {
        self.devices.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the collectives directly before op number `number` of `device`.
    pub fn before(&self, device: u32, number: usize) -> &[Placed] {
        let all = self.of(device);
        let first = all.partition_point(|placed| placed.before < number);
        let length = all[first..].partition_point(|placed| placed.before == number);
        &all[first..first + length]
    }

    /// Returns the number of all collectives.
    pub fn len(&self) -> usize {
        self.devices.iter().map(Vec::len).sum()
    }

    /// Whether no device has a collective.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many times `device` gathers parameters.
    pub fn gathers(&self, device: u32) -> usize {
        self.of(device).iter().filter(|placed| placed.collective.kind == CollectiveKind::Unshard).count()
    }

    /// Returns the most that the active stages of `device` hold at once; `size` is what the parameters of a stage take.
    pub fn peak(&self, device: u32, size: impl Fn(u32) -> u64) -> u64 {
        let (mut now, mut most) = (0_u64, 0);
        for Placed { collective: Collective { kind, stage }, .. } in self.of(device) {
            match kind {
                CollectiveKind::Unshard => now = now.saturating_add(size(*stage)),
                CollectiveKind::Reshard => now = now.saturating_sub(size(*stage)),
                CollectiveKind::ReduceGrad | CollectiveKind::WaitReduceGrad => {}
            }
            most = most.max(now);
        }
        most
    }
}
