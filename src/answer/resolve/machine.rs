//! Options of the simulated machine beyond costs, in time units, before the schedule is known.

use super::{Error, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_cost::{CostTable, Decimal};
use pipesim_schedule::delivery::Delivery;
use pipesim_schedule::schedule::Schedule;
use pipesim_sim::event::{Config, EventError, Network, Processor, Put, Scope, Sharing};

/// Options of the event engine. With the defaults the sweep simulates the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlatformOptions {
    /// When a send completes and what it blocks; `None`: one-sided.
    pub delivery: Option<Delivery>,
    /// Time for which a message occupies its link, in time units.
    pub transfer: Option<Decimal>,
    /// How messages share a link; `None`: implied by `transfer` and `link_contention`.
    pub sharing: Option<Sharing>,
    /// What counts as one link.
    pub scope: Scope,
    /// Time that messages occupy a link while 1, 2, .. share it, in per mille of a single one; empty: equal shares.
    pub link_contention: Vec<u32>,
    /// Buffer slots per channel at its receiver; `None`: unlimited.
    pub slots: Option<u32>,
    /// Cores shared by all devices; `None`: one per device.
    pub cores: Option<u32>,
    /// Duration of ops while 1, 2, .. of those cores compute, in per mille of a single one.
    pub contention: Vec<u32>,
    /// Duration of ops while a message leaves or arrives, in per mille.
    pub overlap_slowdown: Option<u32>,
    /// Number of neighbouring devices that share a link to the host; `None`: each has its own.
    pub devices_per_host_link: Option<u32>,
    /// Whether durations vary randomly, which needs fine ticks.
    pub has_jitter: bool,
}

/// Minimum ticks per time unit for fractions of shared work.
const FINE_TICKS: f64 = 1e6;

impl PlatformOptions {
    /// Returns costs in ticks that are fine enough for this machine, and its configuration for `devices`; `None` if the sweep
    /// simulates the step.
    ///
    /// # Errors
    /// Contradictory options, or an overflow of the clock.
    pub fn equip(&self, costs: CostTable, devices: u32) -> Result<(CostTable, Option<Config>), Error> {
        if self.is_plain() {
            return Ok((costs, None));
        }
        let exact = self.is_alone() && self.overlap_slowdown.is_none() && !self.has_jitter;
        let costs = if !exact || self.sharing == Some(Sharing::FairShare) || self.transfer.is_some() {
            self.finer(costs)
        } else {
            costs
        };
        let config = self.config(devices, &costs)?;
        Ok((costs, Some(config)))
    }

    /// Returns costs in ticks that are small compared with ops. --transfer takes a whole number of these ticks, unless that would overflow
    /// the clock.
    fn finer(&self, costs: CostTable) -> CostTable {
        const MOST: u128 = 1_000_000_000_000;
        let long = (costs.longest() as f64).min(costs.units.ticks_per_unit);
        let parts = self.transfer.map_or(1, |time| time.share_parts(costs.units.ticks_per_unit as u64));
        let parts = if parts.saturating_mul(costs.longest()) < MOST { parts as f64 } else { 1.0 };
        let finer = parts * (FINE_TICKS / long / parts).ceil().clamp(1.0, FINE_TICKS);
        costs.finer(finer as u32)
    }

    /// Returns the options for a schedule: on hardware, devices share links to the host as its file says, unless that was given.
    pub(super) fn beside(&self, analytic: Option<&Analytic>, schedule: &Schedule) -> PlatformOptions {
        let shared = analytic.filter(|_| schedule.has_copies()).map(Analytic::devices_per_host_link);
        let shared = shared.filter(|&devices| devices > 1);
        PlatformOptions { devices_per_host_link: self.devices_per_host_link.or(shared), ..self.clone() }
    }

    /// Returns whether each device has its own processor.
    fn is_alone(&self) -> bool {
        self.cores.is_none() && self.contention.is_empty()
    }

    /// Returns whether the sweep simulates the step.
    pub(super) fn is_plain(&self) -> bool {
        let PlatformOptions { delivery, transfer, sharing, slots, overlap_slowdown, has_jitter, .. } = self;
        let timing = transfer.is_none()
            && sharing.is_none()
            && slots.is_none()
            && self.is_alone()
            && self.devices_per_host_link.is_none();
        timing && delivery.is_none() && overlap_slowdown.is_none() && !has_jitter
    }

    /// Returns the configuration of the engine for `devices` under `costs`, without jitter.
    fn config(&self, devices: u32, costs: &CostTable) -> Result<Config, Error> {
        let transfer = match self.transfer {
            None => 0,
            Some(time) => {
                let ticks = time.to_f64() * costs.units.ticks_per_unit;
                if ticks >= 1e15 {
                    return Err(usage("`transfer` overflows the clock; give a smaller time"));
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
            let expected = "`link-contention` sets how fast messages are that share a link";
            return Err(usage(format!("{expected}; leave out `sharing`, or write `sharing` fair")));
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
            devices_per_host_link: self.devices_per_host_link.unwrap_or(1),
        })
    }
}

/// Converts an error of the event engine for `schedule`.
pub(super) fn refused(error: EventError, schedule: &Schedule) -> Error {
    match error {
        EventError::Deadlock(cycle) => Error::Deadlock {
            place: schedule.name.clone(),
            devices: schedule.devices(),
            microbatches: schedule.microbatches,
            cycle: *cycle,
        },
        EventError::Config(_) | EventError::Overflow => usage(error),
    }
}
