//! The schedules of a question: names, numbers and options, under a layout or without one.

use super::memory_cap::MemoryCap;
use super::observer::Observer;
use super::remark::{self, Remark};
use super::settings::Question;
use crate::resolve::{Error, Host, PlatformOptions, Selection, Variant, usage};
use pipesim_cost::analytic::Analytic;
use pipesim_language::{Budget, Takes};
use pipesim_models::model_spec::StageLayout;
use pipesim_schedule::open::Order;
use pipesim_schedule::schedule::Overlap;
use pipesim_schedule::slices::Slices;
use pipesim_sim::event::Jitter;

/// The schedules that are asked for by default.
pub const DEFAULT_SCHEDULES: [&str; 4] = ["naive", "gpipe", "1f1b", "zb-v"];

/// Returns a factor in per mille.
fn per_mille(factor: f64) -> u32 {
    (factor * 1000.0).round() as u32
}

impl Question {
    /// Names the schedule if none is named: what frameworks run unless they are told another.
    pub fn name_schedule(&mut self) {
        if self.schedule.is_empty() {
            let usual = if self.chunks.is_some() { "interleaved-1f1b" } else { "1f1b" };
            self.schedule = vec![usual.to_string()];
        }
    }

    /// Returns the names of the schedules, the default ones if none is named.
    pub fn names(&self) -> Vec<String> {
        match self.only {
            Some(number) => self.schedule.iter().skip(number as usize - 1).take(1).cloned().collect(),
            None if self.schedule.is_empty() => DEFAULT_SCHEDULES.map(str::to_string).to_vec(),
            None => self.schedule.clone(),
        }
    }

    /// Returns the first number of devices.
    pub(super) fn devices(&self) -> u32 {
        self.stages.first().copied().unwrap_or(1)
    }

    /// Returns every p with every m.
    pub(super) fn points(&self) -> Vec<(u32, u32)> {
        let micro: &[u32] = if self.micro.is_empty() { &[1] } else { &self.micro };
        self.stages.iter().flat_map(|&p| micro.iter().map(move |&m| (p, m))).collect()
    }

    /// Whether there are several numbers of devices or of micro-batches.
    pub fn are_several(&self) -> bool {
        self.stages.len() > 1 || self.micro.len() > 1
    }

    /// Whether results compare with each other: several p or m, or several schedules with options or a cap.
    pub fn is_comparison(&self) -> bool {
        let names = self.names();
        let has_options = |name: &String| Variant::parse(name).is_ok_and(|variant| !variant.options.is_empty());
        let contest = self.memory_cap.is_some() || names.iter().any(has_options);
        self.are_several() || names.len() > 1 && contest
    }

    /// Returns the number of schedules at all p and m.
    pub fn count(&self) -> usize {
        self.points().len() * self.names().len()
    }

    /// Returns the jitter and the number of random steps, if asked for.
    pub(super) fn jitter(&self) -> Option<(Jitter, u32)> {
        let jitter = Jitter { sigma_per_mille: per_mille(self.jitter?), seed: self.jitter_seed, sample: 0 };
        Some((jitter, self.samples))
    }

    fn platform(&self) -> PlatformOptions {
        PlatformOptions {
            delivery: self.delivery,
            transfer: self.transfer,
            sharing: self.sharing,
            scope: self.link_scope,
            link_contention: self.link_contention.iter().copied().map(per_mille).collect(),
            slots: self.slots,
            cores: self.cores,
            contention: self.contention.iter().copied().map(per_mille).collect(),
            overlap_slowdown: self.overlap_slowdown.map(per_mille),
            devices_per_host_link: self.host_link_devices,
            has_jitter: self.jitter.is_some(),
        }
    }

    /// Returns the request for a schedule at the first p and m.
    ///
    /// # Errors
    /// An option without a value, or lengths that are none of slices.
    pub fn selection(&self, host: &'static dyn Host) -> Result<Selection, Error> {
        let pair = |text: &String| {
            let pair = text.split_once('=').map(|(key, value)| (key.trim().to_string(), value.trim().to_string()));
            pair.ok_or_else(|| usage(format!("`set`: expected KEY=VALUE, as in group=4, found '{text}'")))
        };
        let lengths = (!self.slice_lengths.is_empty()).then_some(&self.slice_lengths);
        let (devices, microbatches) = self.points().first().copied().unwrap_or((1, 1));
        let usual = Budget::default();
        Ok(Selection {
            chunks: self.chunks,
            options: self.set.iter().map(pair).collect::<Result<_, _>>()?,
            slices: lengths.map(|lengths| Slices::of_lengths(lengths)).transpose().map_err(usage)?,
            lenient: self.only.is_some() || self.names().len() > 1,
            memory_cap: self.memory_cap.and_then(MemoryCap::units),
            effort: self.effort.unwrap_or(1),
            balance: self.balance,
            overlap: self.overlap,
            fsdp: self.fsdp(),
            machine: self.platform(),
            budget: Budget { ticks: self.max_ticks.unwrap_or(usual.ticks), ops: self.max_ops, ..usual },
            host,
            ..Selection::new(devices, microbatches)
        })
    }

    /// Returns the question about the layout of `analytic`: its devices and micro-batches, and as many stages per device as it has. Without a
    /// name, several stages per device mean interleaved-1f1b.
    ///
    /// # Errors
    /// A schedule that cannot have the layout.
    pub fn under(&self, analytic: &Analytic, host: &'static dyn Host) -> Result<Question, Error> {
        let layout = &analytic.layout;
        let mut asked = Question { micro: vec![layout.micro], stages: vec![layout.pp], ..self.clone() };
        if let Some(stages) = &layout.layout {
            asked = asked.arranged(stages, host)?;
        }
        if layout.moe_overlap {
            asked.overlap = Overlap::Streams;
            asked.pair_up(layout.chunks, host)?;
        }
        if asked.schedule.is_empty() && asked.chunks.is_some_and(|chunks| chunks > 1) {
            asked.schedule = vec!["interleaved-1f1b".to_string()];
        }
        Ok(asked)
    }

    /// Returns the question with as many stages per device as `layout` has, if the schedules leave that open.
    ///
    /// # Errors
    /// A layout that does not fit the devices.
    pub fn arranged(&self, layout: &StageLayout, host: &'static dyn Host) -> Result<Question, Error> {
        let mut asked = self.clone();
        let chunks = layout.chunks(self.devices()).map_err(|error| usage(format!("`layout`: {error}")))?;
        let selection = self.selection(host)?;
        let takes = |name: &String| Variant::parse(name).and_then(|variant| selection.takes(&variant));
        let fixed = self.schedule.iter().map(takes).any(|takes| takes.is_ok_and(|takes| !takes.chunks));
        let is_named = !self.schedule.is_empty();
        asked.chunks = if fixed || chunks == 1 && !is_named { None } else { Some(chunks) };
        if !is_named {
            let names: &[&str] = if chunks == 1 { &["naive", "gpipe", "1f1b"] } else { &["interleaved-1f1b"] };
            asked.schedule = names.iter().map(ToString::to_string).collect();
        }
        Ok(asked)
    }

    /// Makes schedules hide the communication of experts: interleaved-overlap if none is named.
    fn pair_up(&mut self, chunks: u32, host: &'static dyn Host) -> Result<(), Error> {
        if self.schedule.is_empty() {
            if chunks == 1 && self.devices() > 1 {
                return Err(usage(
                    "expected several virtual stages with `moe-overlap` and a pipeline, as in Megatron; add `chunks` 2",
                ));
            }
            (self.schedule, self.chunks) = (vec!["interleaved-overlap".to_string()], Some(chunks));
            return Ok(());
        }
        for name in &self.schedule {
            if !self.any(std::slice::from_ref(name), host, Order::has_pairs)? {
                return Err(usage(format!(
                    "`moe-overlap` runs forwards next to backwards, and {name} has no such pairs; take -s interleaved-overlap or leave \
                     `moe-overlap` out"
                )));
            }
        }
        Ok(())
    }

    /// Rejects settings that have no effect on any of the schedules `names`, and notes which schedules ignore them.
    ///
    /// # Errors
    /// The first such setting.
    pub fn reject_unused(
        &self,
        names: &[String],
        host: &'static dyn Host,
        observer: &dyn Observer,
    ) -> Result<(), Error> {
        let idle = |option: &str, why: &str| Err(usage(format!("{option}: {} {why}; leave it out", names.join(", "))));
        if self.only.is_some() {
            return Ok(()); // options may be for the others
        }
        self.reject_unknown(names, host, observer)?;
        let is_csv = |name: &String| Variant::parse(name).is_ok_and(|variant| variant.is_csv());
        if self.max_ticks.is_some() && names.iter().all(is_csv) {
            return idle("`max-ticks`", "is a list of ops and needs no evaluation");
        }
        if self.overlap != Overlap::default() && !self.any(names, host, Order::has_pairs)? {
            return idle("`overlap`", "has no overlapped pairs");
        }
        if self.effort.is_some() && !self.any(names, host, Order::is_searched)? {
            let names = names.join(", ");
            return Err(usage(format!("`effort`: the order of {names} is not searched; leave it out")));
        }
        Ok(())
    }

    /// Rejects options that none of several schedules has, and notes which schedules do not have them.
    fn reject_unknown(&self, names: &[String], host: &'static dyn Host, observer: &dyn Observer) -> Result<(), Error> {
        let selection = self.selection(host)?;
        if !selection.lenient || self.chunks.is_none() && self.set.is_empty() && self.slice_lengths.is_empty() {
            return Ok(());
        }
        let mut takes = Vec::new();
        for name in names {
            takes.push((name, selection.takes(&Variant::parse(name)?)?));
        }
        let chunks = self.chunks.map(|v| (format!("`chunks` {v}"), None)).into_iter();
        let set = self.set.iter().map(|pair| (format!("`set` {pair}"), pair.split('=').next().map(str::trim)));
        let lengths = (!self.slice_lengths.is_empty()).then(|| ("`slice-lengths`".to_string(), Some("slices")));
        for (setting, key) in chunks.chain(set).chain(lengths) {
            let known =
                |takes: &Takes| key.map_or(takes.chunks, |key| takes.options.iter().any(|option| option == key));
            let without = takes.iter().filter(|(_, takes)| !known(takes)).map(|(name, _)| (*name).clone());
            let (schedules, is_option): (Vec<String>, bool) = (without.collect(), key.is_some());
            if schedules.len() == names.len() {
                return Err(usage(format!("{}; leave it out", remark::without(&setting, &schedules, is_option))));
            }
            if !schedules.is_empty() {
                observer.remark(&Remark::Ignored { setting, schedules, is_option });
            }
        }
        Ok(())
    }

    /// Whether any schedule cuts its sequences in slices, as far as orders before costs are known tell.
    ///
    /// # Errors
    /// A schedule that does not exist.
    pub fn are_cut(&self, host: &'static dyn Host) -> Result<bool, Error> {
        self.any(&self.names(), host, |order| match order {
            Order::Fixed(schedule) => schedule.slices().is_cut(),
            Order::Open(open) => open.slices.is_cut(),
        })
    }

    /// Whether costs decide the order of any schedule.
    ///
    /// # Errors
    /// A schedule that does not exist.
    pub fn follows_costs(&self, host: &'static dyn Host) -> Result<bool, Error> {
        self.any(&self.names(), host, |order| matches!(order, Order::Open(_)))
    }

    /// Whether `is_so` holds for the order, before costs are known, of any of `names`; for `auto` it does.
    fn any(&self, names: &[String], host: &'static dyn Host, is_so: fn(&Order) -> bool) -> Result<bool, Error> {
        let plain = self.selection(host)?;
        for name in names {
            if Variant::parse(name)?.is_auto() {
                return Ok(true);
            }
            for (devices, microbatches) in self.points() {
                match (Selection { devices, microbatches, ..plain.clone() }).order(name) {
                    Err(error) if self.are_several() && error.is_of_numbers() => {} // may exist for other numbers
                    found => {
                        if is_so(&found?.order) {
                            return Ok(true);
                        }
                        break;
                    }
                }
            }
        }
        Ok(false)
    }
}
