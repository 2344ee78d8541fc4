//! Delivery: when a send over a link completes, and what waits for it.

use crate::op::{Kind, Op};
use crate::schedule::Schedule;
use std::fmt;
use std::str::FromStr;

/// When a send completes. Parsed from `one-sided`, `buffered(k)`, `channel`, `channel:per-peer`, `channel:per-direction`, each channel
/// also with `,front-loaded`, `,deferred` or `,ahead` (`channel:front-loaded`), `batched`, and the presets `megatron` and `pytorch` (`:2.11`,
/// `:per-edge`, `:deferred`, `:per-edge,deferred`).
/// NCCL is `channel`. Compute never waits for its own sends, only for what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delivery {
    /// A put needs only a free slot at the receiver; nothing waits for the receiver to arrive.
    #[default]
    OneSided,
    /// A device's sends leave in program order; each completes when one of this many slots (at least 1) of its channel (stage boundary and
    /// direction) is free.
    Buffered(u32),
    /// NCCL's send and receive: an entry of a communication queue completes together with its partner, when both are at the heads of their
    /// queues.
    Channel(ChannelOptions),
    /// [`Channel`](Delivery::Channel) on one queue whose entries are groups, as `batch_isend_irecv` makes them: everything that a device
    /// sends to and receives from one other device between two ops. A group enters its queue once its sends are ready, and completes when
    /// all its partners' groups have reached the heads of theirs.
    Batched,
    /// As Megatron-LM's schedules communicate; see [`Delivery::on`].
    Megatron,
    /// As PyTorch's pipelining communicates; see [`Delivery::on`].
    PyTorch(PyTorch),
}

/// Version of PyTorch's runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PyTorch {
    /// 2.15: single sends and receives use one communicator per pair of devices.
    #[default]
    Newest,
    /// 2.11: everything uses the communicator of all devices.
    V2_11,
    /// 2.15 with `pipeline_per_edge_p2p`: one communicator per device that holds a neighbouring stage and direction.
    PerEdge,
    /// 2.15 with `defer_pp_recv`: schedules of several stages per device receive late, see [`Receives::Deferred`].
    Deferred,
    /// 2.15 with both.
    PerEdgeDeferred,
}

impl PyTorch {
    /// All of them.
    pub const ALL: [PyTorch; 5] =
        [PyTorch::Newest, PyTorch::V2_11, PyTorch::PerEdge, PyTorch::Deferred, PyTorch::PerEdgeDeferred];

    /// Returns the name of its preset.
    fn name(self) -> &'static str {
        match self {
            PyTorch::Newest => "pytorch",
            PyTorch::V2_11 => "pytorch:2.11",
            PyTorch::PerEdge => "pytorch:per-edge",
            PyTorch::Deferred => "pytorch:deferred",
            PyTorch::PerEdgeDeferred => "pytorch:per-edge,deferred",
        }
    }

    fn queues(self) -> QueueCount {
        match self {
            PyTorch::Newest | PyTorch::Deferred => QueueCount::PerPeer,
            PyTorch::V2_11 => QueueCount::One,
            PyTorch::PerEdge | PyTorch::PerEdgeDeferred => QueueCount::PerDirection,
        }
    }

    fn receives(self) -> Receives {
        match self {
            PyTorch::Deferred | PyTorch::PerEdgeDeferred => Receives::Deferred,
            _ => Receives::FrontLoaded,
        }
    }
}

/// A device's communication queues under [`Delivery::Channel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelOptions {
    /// Communication queues of a device.
    pub queues: QueueCount,
    /// Where receives are in their queue.
    pub receives: Receives,
}

/// Number of communication queues per device. Entries of one queue complete in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueCount {
    /// One for all sends and receives: one communicator on one stream.
    #[default]
    One,
    /// One per device that it exchanges data with.
    PerPeer,
    /// One per device that it sends to and one per device that it receives from.
    PerDirection,
}

/// When receives enter a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receives {
    /// In program order just before the op that uses the data.
    #[default]
    JustInTime,
    /// As early as PyTorch's `_add_send_recv` inserts them: into the receiver's program as soon as the send is in the sender's, devices taking
    /// turns.
    FrontLoaded,
    /// As `FrontLoaded`, but moved back as PyTorch's `defer_pp_recv` does: each receive just before the op that uses the data, and before a
    /// send to a device of a higher number those from that device that were passed on the way.
    Deferred,
    /// As Megatron-LM's interleaved schedule posts them: right after the forward (or backward) that precedes the one using the data; the
    /// first backward's, before the preceding forward, unless all forwards are warm-up.
    Ahead,
}

/// Orders of PyTorch's classes with whole backwards and one stage per device.
#[derive(PartialEq, Eq)]
enum Single {
    GPipe,
    OneForwardOneBackward,
}

impl Delivery {
    /// Returns the delivery that a preset means for `schedule`, or itself.
    ///
    /// Megatron-LM batches with one stage per device (`send_forward_recv_backward`, `send_backward_recv_forward`). With several stages it
    /// posts single sends and receives one op ahead (`overlap_p2p_comm`), on one communicator per pair of devices, or for two devices one
    /// per direction.
    ///
    /// PyTorch's `Schedule1F1B` batches, and its `ScheduleGPipe` sends and receives one by one; other schedules run in
    /// `_PipelineScheduleRuntime`, with single sends and front-loaded receives. With one communicator per edge, a batch falls apart into
    /// single calls.
    pub fn on(self, schedule: &Schedule) -> Delivery {
        let channel = |queues, receives| Delivery::Channel(ChannelOptions { queues, receives });
        let several = schedule.placement.chunks() * schedule.placement.directions() > 1;
        match self {
            Delivery::Megatron if several && schedule.devices() == 2 => {
                channel(QueueCount::PerDirection, Receives::Ahead)
            }
            Delivery::Megatron if several => channel(QueueCount::PerPeer, Receives::Ahead),
            Delivery::Megatron => Delivery::Batched,
            Delivery::PyTorch(version) => {
                let queues = version.queues();
                match Single::of(schedule).filter(|_| !several) {
                    Some(Single::OneForwardOneBackward) if queues != QueueCount::PerDirection => Delivery::Batched,
                    Some(_) => channel(queues, Receives::JustInTime),
                    None => channel(queues, version.receives()),
                }
            }
            _ => self,
        }
    }
}

impl Delivery {
    /// Returns why `schedule` cannot use this delivery; `None` if it can.
    pub fn refuses(self, schedule: &Schedule) -> Option<&'static str> {
        match self {
            _ if !schedule.shares_vocabulary() => None,
            Delivery::PyTorch(_) => Some("PyTorch's runtime has no passes of a shared vocabulary"),
            Delivery::Megatron => Some("Megatron-LM has no passes of a shared vocabulary"),
            _ => None,
        }
    }
}

impl Single {
    fn of(schedule: &Schedule) -> Option<Single> {
        let all = schedule.microbatches as usize;
        let is = |warmup: &dyn Fn(usize) -> usize| {
            (0..schedule.devices()).all(|device| {
                let program = schedule.program(device);
                let forwards = program.iter().filter(|op| op.kind() == Kind::F).map(|op| op.microbatch());
                let backwards = program.iter().filter(|op| op.kind() == Kind::B).map(|op| op.microbatch());
                let warmup = warmup(device as usize).min(all);
                let is_forward = |(number, op): (usize, &Op)| {
                    // Warm-up forwards, then backwards and forwards in turn, then the remaining backwards.
                    let turn = number < warmup || number + warmup < 2 * all && (number - warmup) % 2 == 1;
                    (op.kind() == Kind::F) == turn
                };
                program.len() == 2 * all
                    && program.iter().enumerate().all(is_forward)
                    && forwards.eq(0..all as u32)
                    && backwards.eq(0..all as u32)
            })
        };
        let devices = schedule.devices() as usize;
        if is(&|device| devices - device) {
            return Some(Single::OneForwardOneBackward);
        }
        is(&|_| all).then_some(Single::GPipe)
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Delivery::OneSided => write!(f, "one-sided"),
            Delivery::Buffered(slots) => write!(f, "buffered({slots})"),
            Delivery::Channel(ChannelOptions { queues, receives }) => {
                let queues = match queues {
                    QueueCount::One => None,
                    QueueCount::PerPeer => Some("per-peer"),
                    QueueCount::PerDirection => Some("per-direction"),
                };
                let receives = match receives {
                    Receives::JustInTime => None,
                    Receives::FrontLoaded => Some("front-loaded"),
                    Receives::Deferred => Some("deferred"),
                    Receives::Ahead => Some("ahead"),
                };
                write!(f, "channel")?;
                for (number, option) in queues.into_iter().chain(receives).enumerate() {
                    write!(f, "{}{option}", if number == 0 { ':' } else { ',' })?;
                }
                Ok(())
            }
            Delivery::Batched => write!(f, "batched"),
            Delivery::Megatron => write!(f, "megatron"),
            Delivery::PyTorch(version) => write!(f, "{}", version.name()),
        }
    }
}

/// A text that is not a delivery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected one-sided, buffered(k) with k from 1, channel[:per-peer|per-direction][,front-loaded|,deferred|,ahead], batched, megatron, \
     pytorch, pytorch:per-edge, pytorch:deferred, pytorch:per-edge,deferred or pytorch:2.11, found '{found}'{why}"
)]
pub struct ParseDeliveryError {
    found: String,
    why: String,
}

impl FromStr for Delivery {
    type Err = ParseDeliveryError;

    fn from_str(text: &str) -> Result<Delivery, ParseDeliveryError> {
        let error = |why: &str| ParseDeliveryError { found: text.chars().take(60).collect(), why: why.to_string() };
        let trimmed = text.trim();
        match trimmed {
            "one-sided" => return Ok(Delivery::OneSided),
            "batched" => return Ok(Delivery::Batched),
            "megatron" => return Ok(Delivery::Megatron),
            "pytorch:2.15" => return Ok(Delivery::PyTorch(PyTorch::Newest)),
            _ => {}
        }
        if let Some(version) = PyTorch::ALL.into_iter().find(|version| version.name() == trimmed) {
            return Ok(Delivery::PyTorch(version));
        }
        if let Some(rest) = trimmed.strip_prefix("buffered") {
            let inside = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            let slots = inside.or_else(|| rest.strip_prefix('=')).ok_or_else(|| error(": give the number of slots"))?;
            return match slots.trim().parse() {
                Ok(0) => Err(error(": no send completes without a slot")),
                Ok(slots) => Ok(Delivery::Buffered(slots)),
                Err(_) => Err(error(": the number of slots is a whole number")),
            };
        }
        let rest = trimmed.strip_prefix("channel").ok_or_else(|| error(""))?;
        let options = match rest.strip_prefix([':', ',']) {
            None if rest.is_empty() => "",
            None => return Err(error("")),
            Some("") => return Err(error(": nothing follows the colon")),
            Some(options) => options,
        };
        let (mut queues, mut receives) = (None, None);
        for option in options.split(',').map(str::trim).filter(|_| !options.is_empty()) {
            let twice = match option {
                "one-queue" => queues.replace(QueueCount::One).is_some(),
                "per-peer" => queues.replace(QueueCount::PerPeer).is_some(),
                "per-direction" => queues.replace(QueueCount::PerDirection).is_some(),
                "just-in-time" => receives.replace(Receives::JustInTime).is_some(),
                "front-loaded" => receives.replace(Receives::FrontLoaded).is_some(),
                "deferred" => receives.replace(Receives::Deferred).is_some(),
                "ahead" => receives.replace(Receives::Ahead).is_some(),
                _ => return Err(error(&format!(": no channel option is called '{option}'"))),
            };
            if twice {
                return Err(error(&format!(": '{option}' contradicts or repeats another option")));
            }
        }
        let (queues, receives) = (queues.unwrap_or_default(), receives.unwrap_or_default());
        Ok(Delivery::Channel(ChannelOptions { queues, receives }))
    }
}
