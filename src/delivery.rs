//! Delivery: what a link promises about when a send completes and what it holds up meanwhile.

use crate::op::{Kind, Op};
use crate::schedule::Schedule;
use std::fmt;
use std::str::FromStr;

/// What a link promises, from `one-sided`, `buffered(k)` or `channel`, also `channel:per-peer` and `channel:per-direction`, each of the
/// three with `,front-loaded` or `,ahead` (`channel:front-loaded`), `batched`, and the presets `megatron`, `pytorch` and `pytorch:2.11`.
/// NCCL is `channel`. Compute never waits for a send of its own, only for what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delivery {
    /// A put needs only a free slot at the receiver; nothing waits for the receiver to arrive.
    #[default]
    OneSided,
    /// A device's sends leave in program order; one completes when one of so many slots of its channel (stage boundary
    /// and direction) is free. At least 1.
    Buffered(u32),
    /// As NCCL's send and receive behave: an entry of a communication queue completes only together with its partner, when
    /// both are at the heads of their queues.
    Channel(ChannelOptions),
    /// [`Channel`](Delivery::Channel) on one queue whose entries are groups, as `batch_isend_irecv` makes them: what a device sends
    /// between two ops and what it receives there from the same device. A group stands in its queue once its sends are made, and
    /// is complete when all its partners' groups have stood at the heads of theirs.
    Batched,
    /// What Megatron-LM's schedules do; see [`Delivery::on`].
    Megatron,
    /// What PyTorch's pipelining does; see [`Delivery::on`].
    PyTorch(PyTorch),
}

/// Which of PyTorch's runtimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PyTorch {
    /// 2.15: a send or receive that stands alone has a communicator for each pair of devices.
    #[default]
    Newest,
    /// 2.11: everything goes through the communicator of all devices.
    V2_11,
}

/// How a device's communication queues are laid out under [`Delivery::Channel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelOptions {
    /// How many queues a device has.
    pub queues: QueueCount,
    /// Where receives stand in them.
    pub receives: Receives,
}

/// How many communication queues a device has; entries of one queue complete in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueCount {
    /// One, for sends and receives alike: one communicator on one stream.
    #[default]
    One,
    /// One for each device that it exchanges data with.
    PerPeer,
    /// One for each device that it sends to and one for each that it receives from.
    PerDirection,
}

/// Where a queue's receives stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receives {
    /// In program order just before the op that uses the data.
    #[default]
    JustInTime,
    /// As early as PyTorch's `_add_send_recv` puts them: into the receiver's program as soon as the send stands in the
    /// sender's, devices taking turns.
    FrontLoaded,
    /// As Megatron-LM's interleaved schedule posts them: right after the forward (or backward) before the one that uses the data;
    /// the first backward's before the forward that stands before it, unless all forwards are warm-up.
    Ahead,
}

/// The order of ops of a schedule of whole backwards and one stage a device, as PyTorch's classes have it.
#[derive(PartialEq, Eq)]
enum Single {
    GPipe,
    OneForwardOneBackward,
}

impl Delivery {
    /// What it is for `schedule`: itself, or what the preset stands for.
    ///
    /// Megatron-LM batches with one stage a device (`send_forward_recv_backward`, `send_backward_recv_forward`); with several it
    /// posts single sends and receives one op ahead (`overlap_p2p_comm`), on a communicator for each pair of devices, of two devices
    /// on one for each direction.
    ///
    /// PyTorch's `Schedule1F1B` batches, its `ScheduleGPipe` sends and receives one by one; all else goes through
    /// `_PipelineScheduleRuntime`: single sends and front-loaded receives.
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
                let queues = if version == PyTorch::Newest { QueueCount::PerPeer } else { QueueCount::One };
                match Single::of(schedule).filter(|_| !several) {
                    Some(Single::OneForwardOneBackward) => Delivery::Batched,
                    Some(Single::GPipe) => channel(queues, Receives::JustInTime),
                    None => channel(queues, Receives::FrontLoaded),
                }
            }
            _ => self,
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
                    // The warm-up's forwards, then backwards and forwards in turn, then the backwards that are left.
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
            Delivery::PyTorch(PyTorch::Newest) => write!(f, "pytorch"),
            Delivery::PyTorch(PyTorch::V2_11) => write!(f, "pytorch:2.11"),
        }
    }
}

/// Why a text is no delivery.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected one-sided, buffered(k) with k from 1, channel[:per-peer|per-direction][,front-loaded|,ahead], batched, megatron, \
     pytorch or pytorch:2.11, found '{found}'{why}"
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
            "pytorch" | "pytorch:2.15" => return Ok(Delivery::PyTorch(PyTorch::Newest)),
            "pytorch:2.11" => return Ok(Delivery::PyTorch(PyTorch::V2_11)),
            _ => {}
        }
        if let Some(rest) = trimmed.strip_prefix("buffered") {
            let inside = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            let slots =
                inside.or_else(|| rest.strip_prefix('=')).ok_or_else(|| error(": give the slots of a channel"))?;
            return match slots.trim().parse() {
                Ok(0) => Err(error(": without a slot no send completes")),
                Ok(slots) => Ok(Delivery::Buffered(slots)),
                Err(_) => Err(error(": the slots of a channel are a whole number")),
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
                "ahead" => receives.replace(Receives::Ahead).is_some(),
                _ => return Err(error(&format!(": no channel option is called '{option}'"))),
            };
            if twice {
                return Err(error(&format!(": '{option}' says once more what another option has said")));
            }
        }
        let (queues, receives) = (queues.unwrap_or_default(), receives.unwrap_or_default());
        Ok(Delivery::Channel(ChannelOptions { queues, receives }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(queues: QueueCount, receives: Receives) -> Delivery {
        Delivery::Channel(ChannelOptions { queues, receives })
    }

    #[test]
    fn is_read_as_it_is_written() {
        for (text, delivery) in [
            ("one-sided", Delivery::OneSided),
            ("buffered(2)", Delivery::Buffered(2)),
            ("channel", channel(QueueCount::One, Receives::JustInTime)),
            ("channel:per-peer", channel(QueueCount::PerPeer, Receives::JustInTime)),
            ("channel:per-direction", channel(QueueCount::PerDirection, Receives::JustInTime)),
            ("channel:front-loaded", channel(QueueCount::One, Receives::FrontLoaded)),
            ("channel:per-peer,front-loaded", channel(QueueCount::PerPeer, Receives::FrontLoaded)),
            ("channel:ahead", channel(QueueCount::One, Receives::Ahead)),
            ("batched", Delivery::Batched),
            ("megatron", Delivery::Megatron),
            ("pytorch", Delivery::PyTorch(PyTorch::Newest)),
            ("pytorch:2.11", Delivery::PyTorch(PyTorch::V2_11)),
        ] {
            assert_eq!(text.parse::<Delivery>().unwrap(), delivery);
            assert_eq!(delivery.to_string(), text);
        }
        assert_eq!("buffered=3".parse::<Delivery>().unwrap(), Delivery::Buffered(3));
        assert_eq!("channel:front-loaded,per-peer".parse(), "channel:per-peer,front-loaded".parse::<Delivery>());
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "onesided",
            "buffered",
            "buffered()",
            "buffered(0)",
            "buffered=-1",
            "buffered(1",
            "buffered(99999999999)",
            "channel:",
            "channels",
            "channel:per-peer,",
            "channel:per-peer,per-peer",
            "channel:per-peer,per-direction",
            "channel:é",
            "channel:ahead,front-loaded",
            "batched:per-peer",
            "pytorch:2.12",
        ] {
            assert!(text.parse::<Delivery>().is_err(), "{text} must be refused");
        }
    }
}
