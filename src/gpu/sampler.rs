//! Samples clock, power and throttling of GPUs while a run is measured.

use crate::api::{GpuState, Managed, REASONS};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two samples.
const BETWEEN: Duration = Duration::from_millis(100);

/// What was seen of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub count: u32,
    /// Lowest and highest clock in MHz.
    pub clock_mhz: (u32, u32),
    /// The highest clock that the GPU has, in MHz.
    pub most_mhz: u32,
    /// Highest power in milliwatts.
    pub power_mw: Option<u32>,
    /// Number of samples by reason for a lower clock.
    pub reasons: BTreeMap<&'static str, u32>,
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, state: GpuState) {
        let (least, most) = self.clock_mhz;
        let least = if self.count == 0 { state.clock_mhz } else { least.min(state.clock_mhz) };
        self.clock_mhz = (least, most.max(state.clock_mhz));
        self.power_mw = self.power_mw.max(state.power_mw);
        self.count += 1;
        for (_, name) in REASONS.iter().filter(|(bit, _)| state.reasons & bit != 0) {
            *self.reasons.entry(name).or_default() += 1;
        }
    }

    /// Says what slowed the GPU down, and in how many samples; `None` if nothing did.
    pub fn slowed(&self) -> Option<String> {
        let share = |count: u32| (100 * count).div_ceil(self.count.max(1));
        let all: Vec<String> =
            self.reasons.iter().map(|(name, &count)| format!("{name} in {} % of samples", share(count))).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Samples { clock_mhz: (least, most), most_mhz, .. } = self;
        write!(f, "{least} to {most} of {most_mhz} MHz")?;
        self.power_mw.map_or(Ok(()), |power| write!(f, ", at most {} W", power.div_ceil(1000)))?;
        write!(f, ", {} samples", self.count)?;
        self.slowed().map_or(Ok(()), |slowed| write!(f, "; slowed down: {slowed}"))
    }
}

/// A thread that samples GPUs until it is asked for the result.
pub struct Sampler {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Samples>>,
}

impl Sampler {
    /// Samples the GPUs with these PCI addresses; `None` if the driver's management library does not know them all.
    pub fn start(addresses: &[&str]) -> Option<Sampler> {
        let gpus = addresses.iter().map(|pci| Managed::find(pci)).collect::<Option<Vec<_>>>()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        let sample = move || {
            let mut all: Vec<Samples> =
                gpus.iter().map(|gpu| Samples { most_mhz: gpu.most_mhz, ..Samples::default() }).collect();
            loop {
                for (gpu, samples) in gpus.iter().zip(&mut all) {
                    gpu.state().into_iter().for_each(|state| samples.add(state));
                }
                if flag.load(Ordering::Relaxed) {
                    return all;
                }
                std::thread::park_timeout(BETWEEN);
            }
        };
        let thread = std::thread::Builder::new().name("samples".to_string()).spawn(sample).ok()?;
        Some(Sampler { is_over, thread })
    }

    /// Ends sampling, and returns what was seen of each GPU.
    pub fn end(self) -> Vec<Samples> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}
