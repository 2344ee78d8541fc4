//! The table of links.

use super::super::gpu::{Copy, MakeEnds, Nccl, Nvshmem, Staged};
use super::{Refusal, Setting, local};
use crate::ranks::{Lost, Ranks};
use pipesim_schedule::delivery::{ChannelOptions, Delivery, QueueCount, Receives};

/// A kind of link: a row of [`LINKS`].
#[derive(Debug)]
pub struct LinkKind {
    /// Name for `--link`.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// Condition for devices other than GPUs; `None` if they cannot use it.
    hosts: Option<&'static str>,
    /// Condition for GPUs.
    gpus: &'static str,
    /// Delivery between GPUs for a requested `--delivery`; `None` if unsupported.
    delivers: fn(Delivery) -> Option<Delivery>,
    /// Rank in the automatic choice; `None` if never chosen automatically.
    preference: fn(&Setting<'_>) -> Option<u8>,
    /// Checks its requirements.
    probe: fn(&Setting<'_>) -> Result<(), Refusal>,
    /// Whether messages between GPUs go through the hosts' memory.
    pub staged: bool,
    /// Creates its ends between GPUs.
    pub(crate) ends: MakeEnds,
}

/// All links.
pub static LINKS: [LinkKind; 5] = [
    LinkKind {
        name: "local",
        about: "The hosts' shared memory, between threads or ranks of one machine",
        hosts: Some(""),
        gpus: " (through the hosts' memory)",
        delivers: one_sided,
        preference: |_| Some(4),
        probe: local::one_machine,
        staged: true,
        ends: Staged::ends,
    },
    LinkKind {
        name: "copy",
        about: "Peer copies and events, between processes through shared handles (cuda)",
        hosts: None,
        gpus: "",
        delivers: one_sided,
        preference: |_| Some(2),
        probe: Copy::probe,
        staged: false,
        ends: Copy::ends,
    },
    LinkKind {
        name: "nvshmem",
        about: "NVSHMEM puts with signal on a stream; one rank per device (cuda)",
        hosts: None,
        gpus: " (one rank per device)",
        delivers: one_sided,
        preference: |setting| Nvshmem::is_best(setting).then_some(1),
        probe: Nvshmem::probe,
        staged: false,
        ends: Nvshmem::ends,
    },
    LinkKind {
        name: "nccl",
        about: "NCCL sends and receives, which meet (cuda)",
        hosts: None,
        gpus: " (one GPU per device)",
        delivers: queues,
        preference: |_| None,
        probe: Nccl::probe,
        staged: false,
        ends: Nccl::ends,
    },
    LinkKind {
        name: "mpi",
        about: "MPI between machines, shared memory within; under mpirun",
        hosts: Some(" under mpirun"),
        gpus: " under mpirun",
        delivers: one_sided,
        preference: |_| Some(3),
        probe: local::under_mpirun,
        staged: true,
        ends: Staged::ends,
    },
];

/// A link with its guarantees.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// The link.
    pub link: &'static LinkKind,
    /// Its guarantees; between CPU threads they are emulated.
    pub delivery: Delivery,
}

impl Default for Transport {
    fn default() -> Transport {
        Transport { link: &LINKS[0], delivery: Delivery::OneSided }
    }
}

impl LinkKind {
    /// Checks that it can connect the devices of `setting`.
    pub fn check(&self, setting: &Setting<'_>) -> Result<(), Refusal> {
        let outcome = if self.is_legal(setting.gpus) {
            (self.probe)(setting)
        } else {
            let legal: Vec<&str> =
                LINKS.iter().filter(|link| link.is_legal(setting.gpus)).map(|link| link.name).collect();
            Err(Refusal::of(format!("these devices use `link` {}; leave `link` out", legal.join(" or "))))
        };
        outcome.map_err(|refusal| Refusal { why: format!("`link` {}: {}", self.name, refusal.why), ..refusal })
    }

    fn is_legal(&self, gpus: bool) -> bool {
        gpus || self.hosts.is_some()
    }

    /// Returns the best usable link. All ranks must call this together.
    pub fn best(setting: &Setting<'_>) -> Result<&'static LinkKind, Lost> {
        let mut ranked: Vec<_> = LINKS.iter().filter_map(|link| Some(((link.preference)(setting)?, link))).collect();
        ranked.sort_by_key(|&(place, _)| place);
        for (_, link) in ranked {
            // All ranks must choose the same link.
            let able = setting.ranks.exchange(vec![u8::from(link.check(setting).is_ok())])?;
            if able.iter().all(|able| *able == [1]) {
                return Ok(link);
            }
        }
        Ok(&LINKS[0])
    }

    /// Returns its delivery for a requested `--delivery`. Hosts emulate every delivery, in shared memory.
    pub fn delivery(&self, gpus: bool, ranks: &Ranks, asked: Delivery) -> Result<Delivery, Refusal> {
        if !gpus && asked != Delivery::OneSided && !ranks.share_memory() {
            return Err(Refusal::of(format!(
                "`delivery` {asked}: expected ranks that share memory, in which it is emulated, found ranks that do not; use one \
                 machine, or leave `delivery` out"
            )));
        }
        let promised = if gpus { (self.delivers)(asked) } else { Some(asked) };
        promised.ok_or_else(|| {
            let why = format!("GPUs under `link` {} do not deliver so; leave `delivery` out", self.name);
            Refusal::of(format!("`delivery` {asked}: {why}"))
        })
    }

    /// Describes which devices and links can be combined.
    pub fn legal_pairs() -> String {
        let with_hosts: Vec<String> =
            LINKS.iter().filter_map(|link| link.hosts.map(|terms| link.name.to_string() + terms)).collect();
        let gpus = LINKS.iter().filter(|link| link.hosts.is_none()).chain(LINKS.iter().filter(|l| l.hosts.is_some()));
        let with_gpus: Vec<String> = gpus.map(|link| link.name.to_string() + link.gpus).collect();
        let (last, first) = with_gpus
            .split_last()
            .map_or((String::new(), String::new()), |(last, first)| (last.clone(), first.join(", ")));
        format!(
            "Legal device and link pairs: cpu and timed with {}; cuda with {first}, and {last}.",
            with_hosts.join(", and with ")
        )
    }
}

/// Delivery of one-sided puts.
fn one_sided(asked: Delivery) -> Option<Delivery> {
    (asked == Delivery::OneSided).then_some(asked)
}

/// Delivery of NCCL: any queues whose receives are posted just before their data is used; by default one per peer and direction. The
/// meaning of a preset depends on the schedule.
fn queues(asked: Delivery) -> Option<Delivery> {
    match asked {
        Delivery::OneSided => {
            Some(Delivery::Channel(ChannelOptions { queues: QueueCount::PerDirection, ..ChannelOptions::default() }))
        }
        Delivery::Channel(options) if options.receives == Receives::JustInTime => Some(asked),
        Delivery::Batched | Delivery::Megatron | Delivery::PyTorch(_) => Some(asked),
        _ => None,
    }
}
