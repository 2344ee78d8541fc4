//! Options of the simulated machine beyond costs: contended links, deliveries, shared cores, jitter.

use super::values::{one_of, whole};
use crate::cli::Failure;
use clap::Args;
use pipesim_answer::question::Question;
use pipesim_cost::{CostError, Decimal, TimeUnit};
use pipesim_schedule::delivery::Delivery;
use pipesim_sim::event::{EventError, Scope, Sharing};

const SHARINGS: [(&str, &str, Sharing); 3] = [
    ("unlimited", "Messages do not slow each other down", Sharing::Unlimited),
    ("first-come", "One message after the other", Sharing::FirstComeFirstServed),
    ("fair", "All at once, with equal shares of the bandwidth", Sharing::FairShare),
];
const SCOPES: [(&str, &str, Scope); 3] = [
    ("pair", "Each ordered pair of devices has a link", Scope::Pair),
    ("egress", "Each device has one outgoing link", Scope::Egress),
    ("machine", "All devices share one: a bus or a memory", Scope::Machine),
];

/// Options of the event engine. Without any, the sweep engine runs, which gives the same times.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine (any of these switches to the event engine)")]
pub struct EngineOptions {
    /// When a send completes: one-sided, buffered(k) (k slots at the receiver), channel (NCCL: one communication queue per device), channel:per-peer, channel:per-direction, each also with ,front-loaded, ,deferred or ,ahead, batched (sends grouped with receives), megatron, pytorch, pytorch:per-edge, pytorch:deferred or pytorch:2.11 [default: one-sided]
    #[arg(long, value_name = "DELIVERY")]
    pub delivery: Option<Delivery>,
    /// Time for which a message occupies its link, before its latency (comm), in the costs' time unit [default: 0]
    #[arg(long, value_name = "TIME", value_parser = time)]
    transfer: Option<Decimal>,
    /// How messages share a link [default: unlimited; first-come with --transfer; fair with --link-contention]
    #[arg(long, value_parser = one_of(SHARINGS))]
    sharing: Option<Sharing>,
    /// Which messages share a link
    #[arg(long, value_parser = one_of(SCOPES), default_value = "pair")]
    link_scope: Scope,
    /// Factors on --transfer while 1, 2, .. messages share a link; the last applies to more: 1,1.5 [default: 1,2,3,..]
    #[arg(long, value_name = "FACTOR,..", value_delimiter = ',', value_parser = slow_down, requires = "transfer")]
    link_contention: Vec<u32>,
    /// Buffer slots per channel at the receiver, for one-sided delivery [default: unlimited]
    #[arg(long, value_name = "K", value_parser = whole::<u32>(1..))]
    slots: Option<u32>,
    /// Number of CPU cores that all devices share [default: one each]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    cores: Option<u32>,
    /// Factors on op durations while 1, 2, .. cores compute; the last applies to more: 1,1.08 [default: 1]
    #[arg(long, value_name = "FACTOR,..", value_delimiter = ',', value_parser = slow_down)]
    contention: Vec<u32>,
    /// Factor on op durations while a message leaves or reaches their device: 1.2 [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = slow_down)]
    overlap_slowdown: Option<u32>,
    /// Number of neighbouring devices that share a link to the host, on which copies of one direction take turns: 2 [default: 1]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..))]
    host_link_devices: Option<u32>,
    /// Draw op durations at random (log-normal, mean 1) with this relative standard deviation, and give percentiles: 0.1
    #[arg(long, value_name = "SIGMA", value_parser = sigma)]
    jitter: Option<u32>,
    /// Number of random steps for --jitter
    #[arg(long, requires = "jitter", value_name = "N", default_value_t = 1000, value_parser = whole::<u32>(1..=10_000_000))]
    samples: u32,
    /// Random seed for --jitter
    #[arg(long, requires = "jitter", value_name = "N", default_value_t = 0, value_parser = whole::<u64>(..))]
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
    let factor = text.parse::<Decimal>().map_err(|e| e.to_string())?.to_f64();
    match per_mille(text)? {
        found if found < 1000 => Err("expected a factor of 1 or more".to_string()),
        found if (factor * 1000.0 - f64::from(found)).abs() > 1e-6 => Err(format!(
            "expected a factor with at most 3 decimals, found '{text}'; write {}",
            f64::from(found) / 1000.0
        )),
        found => Ok(found),
    }
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
    /// Adds these options to a question.
    pub fn ask(&self, question: &mut Question) {
        let factor = |per_mille: &u32| f64::from(*per_mille) / 1000.0;
        question.delivery = self.delivery;
        question.transfer = self.transfer;
        question.sharing = self.sharing;
        question.link_scope = self.link_scope;
        question.link_contention = self.link_contention.iter().map(factor).collect();
        question.slots = self.slots;
        question.cores = self.cores;
        question.contention = self.contention.iter().map(factor).collect();
        question.overlap_slowdown = self.overlap_slowdown.as_ref().map(factor);
        question.host_link_devices = self.host_link_devices;
        question.jitter = self.jitter.as_ref().map(factor);
        question.samples = self.samples;
        question.jitter_seed = self.jitter_seed;
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
