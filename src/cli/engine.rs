//! What the machine does to a schedule beyond costs: contended links, deliveries, shared cores, chance.

use super::Failure;
use super::choice::one_of;
use super::numbers::whole;
use crate::cost::{CostError, Decimal, TimeUnit};
use crate::delivery::Delivery;
use crate::resolve::MachineOptions;
use crate::sim::event::{EventError, Jitter, Scope, Sharing};
use clap::Args;

const SHARINGS: [(&str, &str, Sharing); 3] = [
    ("unlimited", "Each goes as if it were alone", Sharing::Unlimited),
    ("first-come", "One after the other", Sharing::FirstComeFirstServed),
    ("fair", "All at once, each at an equal share", Sharing::FairShare),
];
const SCOPES: [(&str, &str, Scope); 3] = [
    ("pair", "From one device to one other", Scope::Pair),
    ("egress", "From one device to all others", Scope::Egress),
    ("machine", "From all devices to all others: a bus, a memory", Scope::Machine),
];

/// Options of the event engine; with none of them the sweep engine is used, which agrees with it to the tick.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine (any of these switches to the event engine)")]
pub struct EngineOptions {
    /// When a send completes and what it holds up: one-sided, buffered(k) (slots at the receiver), channel, channel:per-peer or channel:per-direction (NCCL: one communication queue a device, one per peer, one per direction), those with ,front-loaded or ,ahead too, batched (sends together with receives), megatron, pytorch or pytorch:2.11 (as these run the schedule)
    #[arg(long, value_name = "DELIVERY")]
    delivery: Option<Delivery>,
    /// How long a message occupies its link, in time units, before its latency (`comm`)
    #[arg(long, value_name = "TIME", value_parser = time)]
    transfer: Option<Decimal>,
    /// What happens when several messages want one link [default: unlimited; first-come with --transfer; fair with --link-contention]
    #[arg(long, value_parser = one_of(SHARINGS))]
    sharing: Option<Sharing>,
    /// What one link is
    #[arg(long, value_parser = one_of(SCOPES), default_value = "pair")]
    link_scope: Scope,
    /// How long messages occupy a link (--transfer) while 1, 2, .. of them do, as a multiple of alone; the last holds for more: 1,1.5 [default: 1,2,3,..: equal shares]
    #[arg(long, value_name = "FACTOR,..", value_delimiter = ',', value_parser = slow_down, requires = "transfer")]
    link_contention: Vec<u32>,
    /// Buffer slots of each channel at its receiver (one-sided delivery) [default: enough]
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    slots: Option<u32>,
    /// Cores that all devices share [default: one each]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    cores: Option<u32>,
    /// How long ops last while 1, 2, .. of those cores compute, as a multiple of alone; the last holds for more: 1,1.08
    #[arg(long, value_name = "FACTOR,..", value_delimiter = ',', value_parser = slow_down)]
    contention: Vec<u32>,
    /// How much longer ops last while a message leaves for their device or comes from it: 1.2
    #[arg(long, value_name = "FACTOR", value_parser = slow_down)]
    overlap_slowdown: Option<u32>,
    /// Vary every op's duration by chance (log-normal, mean 1) with this standard deviation (0.1: 10 % of each), and give percentiles
    #[arg(long, value_name = "SIGMA", value_parser = sigma)]
    jitter: Option<u32>,
    /// Steps that are drawn for --jitter
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=10_000_000))]
    samples: u32,
    /// Seed of --jitter
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole::<u64>(..))]
    jitter_seed: u64,
}

fn time(text: &str) -> Result<Decimal, String> {
    let number = text.trim_end_matches(char::is_alphabetic);
    let unit = &text[number.len()..];
    text.parse().map_err(|error: CostError| match number.parse::<Decimal>() {
        Ok(_) if TimeUnit::named(unit).is_some() => format!(
            "expected a number in the time unit of the costs, found '{text}'; convert it and leave '{unit}' out"
        ),
        _ => error.to_string(),
    })
}

fn per_mille(text: &str) -> Result<u32, String> {
    let value = text.parse::<Decimal>().map_err(|e| e.to_string())?.to_f64() * 1000.0;
    if value > 1e6 { Err("expected at most 1000".to_string()) } else { Ok(value.round() as u32) }
}

fn slow_down(text: &str) -> Result<u32, String> {
    if text.trim_end().ends_with('%') {
        return Err(format!("expected a factor of 1 or more, found '{text}'; 20 % longer is 1.2"));
    }
    per_mille(text).and_then(|f| if f < 1000 { Err("expected a factor of 1 or more".to_string()) } else { Ok(f) })
}

fn sigma(text: &str) -> Result<u32, String> {
    if let Some(percent) = text.trim_end().strip_suffix('%') {
        let share = percent.trim().parse::<Decimal>().map_err(|error| error.to_string())?.to_f64() / 100.0;
        return Err(format!("expected a standard deviation as a share, found '{text}'; write {share}"));
    }
    match per_mille(text)? {
        0 => Err("expected a standard deviation of 0.001 or more, as in 0.05".to_string()),
        found if found > 1000 => Err("expected a standard deviation of at most 1, as in 0.05".to_string()),
        found => Ok(found),
    }
}

impl EngineOptions {
    /// What is asked of the machine.
    pub fn machine(&self) -> MachineOptions {
        MachineOptions {
            delivery: self.delivery,
            transfer: self.transfer,
            sharing: self.sharing,
            scope: self.link_scope,
            link_contention: self.link_contention.clone(),
            slots: self.slots,
            cores: self.cores,
            contention: self.contention.clone(),
            overlap_slowdown: self.overlap_slowdown,
            has_jitter: self.jitter.is_some(),
        }
    }

    /// Whether a schedule may come to no end here.
    pub fn may_deadlock(&self) -> bool {
        self.delivery.is_some()
    }

    /// The chance that durations vary by, and how many steps to draw.
    pub fn chance(&self) -> Option<(Jitter, u32)> {
        let sigma_per_mille = self.jitter?;
        let jitter = Jitter { sigma_per_mille, seed: self.jitter_seed, sample: 0 };
        Some((jitter, self.samples))
    }
}

impl From<EventError> for Failure {
    fn from(error: EventError) -> Failure {
        match error {
            EventError::Deadlock(_) => Failure::Schedule(error.to_string()),
            EventError::Config(_) | EventError::Overflow => Failure::Usage(error.to_string()),
        }
    }
}
