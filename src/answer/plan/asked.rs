//! A question about all layouts of some GPUs: what its file names, and what is taken from a question about one layout.

use super::flags::Names;
use super::question::{Fixed, Question};
use crate::question::{self, MemoryCap, Observer, hardware, model, stack};
use crate::resolve::{Error, Host, usage};
use pipesim_cost::analytic::Platform;
use pipesim_language as dsl;
use std::collections::BTreeSet;

/// Settings that say how a model is laid out on GPUs, which a search chooses.
const LAYOUT: &str = "schedule stages micro only chunks set slice-lengths overlap max-ticks max-ops effort layers layout balance tp dp cp \
                      micro-batch-size recompute zero shard optimizer-offload overlap-optimizer-offload sequence-parallel ep etp rounds \
                      max-active-stages unshard-lookahead dispatcher cuda-graph moe-overlap delay-wgrad defer-reduce-grad-wait";

fn missing(setting: &str) -> Error {
    usage(format!("expected `{setting}` of a model to plan, found none; give `{setting}`"))
}

impl question::Question {
    /// Returns the question about all layouts of a model. Of a question without `gpus`, they are those of its layout, and `batch` is what its
    /// micro-batches add up to; the schedule belongs to the layout then. The names of the settings that are left out are second.
    ///
    /// # Errors
    /// Settings that a search does not have, or micro-batches whose number differs.
    pub fn of_all_layouts(&self) -> Result<(question::Question, Vec<String>), Error> {
        let mut asked = question::Question {
            model: self.model.clone(),
            hardware: self.hardware.clone(),
            stack: self.stack.clone(),
            framework_version: self.framework_version.clone(),
            memory_cap: self.memory_cap,
            batch: self.batch,
            seq: self.seq,
            precision: self.precision,
            attention: self.attention,
            gpus: self.gpus.clone(),
            fix: self.fix.clone(),
            objective: self.objective,
            risk: self.risk,
            top: self.top,
            tokens: self.tokens,
            days: self.days,
            ..question::Question::default()
        };
        if self.gpus.is_empty() {
            asked.gpus = self.gpus_of_layouts().into_iter().collect();
            asked.batch = self.batch.or_else(|| self.batch_of_layout());
        } else {
            asked.schedule.clone_from(&self.schedule);
        }
        let left = self.beyond(&asked);
        match left.iter().find(|name| !LAYOUT.split(' ').any(|known| known == *name)) {
            Some(name) => Err(usage(format!("plans are made without `{name}`; leave it out"))),
            None => Ok((asked, left)),
        }
    }

    /// Returns the question about its layouts, without the settings of a search, whose names are second.
    pub fn of_its_layouts(&self) -> (question::Question, Vec<String>) {
        let question::Question { gpus, fix, objective, risk, top, tokens, days, .. } = question::Question::default();
        let asked = question::Question { gpus, fix, objective, risk, top, tokens, days, ..self.clone() };
        let left = self.beyond(&asked);
        (asked, left)
    }

    /// Returns the names of the settings that `other` has not.
    fn beyond(&self, other: &question::Question) -> Vec<String> {
        let own: BTreeSet<String> = other.settings(&[]).map(|(name, _)| name).collect();
        self.settings(&[]).map(|(name, _)| name).filter(|name| !own.contains(name)).collect()
    }

    /// Returns the numbers of GPUs of the layouts.
    fn gpus_of_layouts(&self) -> BTreeSet<u32> {
        let times = |found: BTreeSet<u32>, by: &[u32]| -> BTreeSet<u32> {
            found.iter().flat_map(|&gpus| by.iter().map(move |&by| gpus.saturating_mul(by))).collect()
        };
        [&self.stages, &self.tp, &self.dp, &vec![self.cp]].into_iter().fold([1].into(), |found, by| times(found, by))
    }

    /// Returns the sequences per step of the only layout.
    fn batch_of_layout(&self) -> Option<u32> {
        let size = if self.micro_batch_size.is_empty() { &[1][..] } else { &self.micro_batch_size };
        let ([micro], [dp], [size]) = (&self.micro[..], &self.dp[..], size) else { return None };
        micro.checked_mul(*dp)?.checked_mul(*size)?.checked_mul(self.rounds)
    }

    /// Reads what a question about all layouts names.
    ///
    /// # Errors
    /// No model, hardware, batch or number of GPUs; a file that cannot be read; a value that a setting cannot have.
    pub fn planned(&self, host: &'static dyn Host, observer: &dyn Observer) -> Result<Question, Error> {
        let named = |name: &Option<String>, setting| name.clone().ok_or_else(|| missing(setting));
        let (model_name, hardware_name) = (named(&self.model, "model")?, named(&self.hardware, "hardware")?);
        let batch = self.batch.ok_or_else(|| missing("batch"))?;
        let mut machine = Platform { hardware: hardware(&hardware_name, host)?, stack: stack(&self.stack, host)? };
        machine.stack.framework_version.clone_from(&self.framework_version);
        let memory_limit = match self.memory_cap {
            None => None,
            Some(MemoryCap::Bytes(bytes)) => {
                machine.hardware.set_memory(bytes);
                Some(bytes)
            }
            Some(MemoryCap::Units(units)) => {
                return Err(usage(format!("`memory-cap`: expected bytes, found {units}; write {units}GiB")));
            }
        };
        let mut fixed = Fixed::default();
        for text in &self.fix {
            fixed.add(Fixed::parse(text).map_err(|error| usage(format!("`fix`: {error}")))?);
        }
        if !(1..=1000).contains(&self.top) {
            return Err(usage(format!("expected `top` between 1 and 1000, found {}; correct it", self.top)));
        }
        if self.days.is_some() && self.tokens.is_none() {
            return Err(missing("tokens"));
        }
        if self.tokens.is_some_and(|tokens| tokens == 0)
            || self.days.is_some_and(|days| !(days > 0.0 && days.is_finite()))
        {
            return Err(usage("expected `tokens` and `days` above 0; correct them"));
        }
        let model = model(&model_name, self.seq, host, observer)?;
        Ok(Question {
            gpus: self.gpus.clone(),
            precision: self.precision,
            attention: self.attention,
            schedules: self.schedules_to_plan()?,
            fixed,
            objective: self.objective,
            risk: self.risk,
            memory_limit,
            keep: self.top as usize,
            host,
            ..Question::new(model, machine, 1, batch, self.seq)
        })
    }

    /// Returns the schedules to choose from; `all` stands for all that plans can have.
    fn schedules_to_plan(&self) -> Result<Vec<String>, Error> {
        let whole = dsl::names_of_whole();
        if self.schedule.iter().any(|name| name == "all") {
            return Ok(whole.into_iter().map(str::to_string).collect());
        }
        let is_beyond = |name: &str| dsl::names().contains(&name) && !whole.contains(&name);
        match self.schedule.iter().find(|name| is_beyond(name.split(':').next().unwrap_or(name))) {
            Some(name) => Err(usage(format!(
                "`schedules`: plans are of forwards and backwards of whole micro-batches, found {name}; leave it out"
            ))),
            None => Ok(self.schedule.clone()),
        }
    }
}

/// Returns the names in a question.
impl From<&question::Question> for Names {
    fn from(asked: &question::Question) -> Names {
        let [model, hardware] = [&asked.model, &asked.hardware].map(|name| name.clone().unwrap_or_default());
        Names {
            model,
            hardware,
            stack: asked.stack.clone(),
            memory_cap: asked.memory_cap.map(|cap| cap.to_string()),
            framework_version: asked.framework_version.clone(),
        }
    }
}
