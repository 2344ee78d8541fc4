//! What the machine does to a schedule beyond costs, as it is asked for: in time units, before a schedule is known.

use super::Error;
use crate::cost::{CostTable, Decimal};
use crate::delivery::Delivery;
use crate::schedule::Schedule;
use crate::sim::event::{Config, EventError, Network, Processor, Put, Scope, Sharing};

/// Options of the event engine. By default there are none, and the sweep simulates the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineOptions {
    /// When a send completes and what it holds up; `None`: one-sided.
    pub delivery: Option<Delivery>,
    /// How long a message occupies its link, in time units.
    pub transfer: Option<Decimal>,
    /// What happens when several messages need one link; `None`: what `transfer` and `link_contention` imply.
    pub sharing: Option<Sharing>,
    /// What one link is.
    pub scope: Scope,
    /// How long messages occupy a link while 1, 2, .. of them do, per mille of alone; empty: equal shares.
    pub link_contention: Vec<u32>,
    /// Buffer slots of each channel at its receiver; `None`: enough.
    pub slots: Option<u32>,
    /// Cores that all devices share; `None`: one each.
    pub cores: Option<u32>,
    /// How long ops last while 1, 2, .. of those cores compute, per mille of alone.
    pub contention: Vec<u32>,
    /// How long ops last while a message leaves or arrives, per mille of alone.
    pub overlap_slowdown: Option<u32>,
    /// Whether durations will vary by chance, which needs fine ticks.
    pub has_jitter: bool,
}

/// Ticks per time unit that are fine enough for fractions of shared work.
const FINE_TICKS: f64 = 1e6;

impl MachineOptions {
    /// Costs in ticks that are fine enough for this machine, and its configuration for so many devices; `None` where the sweep
    /// simulates the step.
    ///
    /// # Errors
    /// Options that contradict each other, a transfer time that overflows the clock.
    pub fn equip(&self, costs: CostTable, devices: u32) -> Result<(CostTable, Option<Config>), Error> {
        if self.is_plain() {
            return Ok((costs, None));
        }
        let exact = self.is_alone() && self.overlap_slowdown.is_none() && !self.has_jitter;
        let costs = if !exact || self.sharing == Some(Sharing::FairShare) || self.transfer.is_some() {
            costs.finer((FINE_TICKS / costs.ticks_per_unit).ceil().clamp(1.0, FINE_TICKS) as u32)
        } else {
            costs
        };
        let config = self.config(devices, &costs)?;
        Ok((costs, Some(config)))
    }

    /// Whether each device has a processor of its own.
    fn is_alone(&self) -> bool {
        self.cores.is_none() && self.contention.is_empty()
    }

    /// Whether the sweep simulates the step.
    pub(super) fn is_plain(&self) -> bool {
        let MachineOptions { delivery, transfer, sharing, slots, overlap_slowdown, has_jitter, .. } = self;
        let timing = transfer.is_none() && sharing.is_none() && slots.is_none() && self.is_alone();
        timing && delivery.is_none() && overlap_slowdown.is_none() && !has_jitter
    }

    /// The engine's configuration for so many devices under `costs`, without jitter.
    fn config(&self, devices: u32, costs: &CostTable) -> Result<Config, Error> {
        let transfer = match self.transfer {
            None => 0,
            Some(time) => {
                let ticks = time.to_f64() * costs.ticks_per_unit;
                if ticks >= 1e15 {
                    return Err(Error::Usage("--transfer overflows the clock; give a smaller time".to_string()));
                }
                ticks.round() as u64
            }
        };
        let contention = self.link_contention.clone();
        let usual = match self.transfer {
            Some(_) if !contention.is_empty() => Sharing::FairShare,
            Some(_) => Sharing::FirstComeFirstServed,
            None => Sharing::Unlimited,
        };
        let (sharing, scope) = (self.sharing.unwrap_or(usual), self.scope);
        if !contention.is_empty() && sharing != Sharing::FairShare {
            let expected = "--link-contention says how fast messages go that share a link at the same time";
            return Err(Error::Usage(format!("{expected}; leave out --sharing, or write --sharing fair")));
        }
        let shared = Processor {
            devices: (0..devices).collect(),
            cores: self.cores.unwrap_or(devices),
            contention: self.contention.clone(),
        };
        Ok(Config {
            delivery: self.delivery.unwrap_or_default(),
            slots: self.slots,
            network: Network { transfer, sharing, scope, contention, put: Put::Apart },
            processors: if self.is_alone() { Vec::new() } else { vec![shared] },
            overlap_per_mille: self.overlap_slowdown.unwrap_or(1000),
            jitter: None,
        })
    }
}

/// Why a machine does not run `schedule`.
pub(super) fn refused(error: EventError, schedule: &Schedule) -> Error {
    match error {
        EventError::Deadlock(cycle) => Error::Deadlock {
            place: schedule.name.clone(),
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            cycle: *cycle,
        },
        EventError::Config(_) | EventError::Overflow => Error::Usage(error.to_string()),
    }
}
