//! Questions without an answer: contradictions, and the smallest change that resolves them.

use super::journal::LayoutOutcome;
use super::question::{Fixed, Question, divisors};
use super::reason::{PlanError, Reason, Remedy};
use super::search::{Limits, Search, Silent};
use super::space::Space;
use super::stacks::Abilities;
use crate::question::Objective;
use pipesim_cost::analytic::Analytic;
use pipesim_cost::gcd;
use pipesim_models::layout::Zero;
use pipesim_schedule::nearest::either;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of GPUs to try, as multiples of the question's.
const MORE: [u32; 4] = [2, 4, 8, 16];
/// Maximum number of GPUs.
pub const MOST_GPUS: u32 = 1 << 20;

/// Fixed values in the order in which leaving one out is tried.
const RELAXED: &str = "recompute shard zero sequence-parallel dispatcher cuda-graph moe-overlap delay-wgrad optimizer-offload micro-batch-size layers chunks dp cp ep tp pp";

fn refuse<T>(expected: impl Into<String>, found: impl ToString, remedy: impl Into<Remedy>) -> Result<T, PlanError> {
    Err(PlanError::new(expected, found, remedy))
}

/// Formats bytes in GiB, rounded up so that the number suffices.
fn gib(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << 30);
    format!("{}.{}GiB", tenths / 10, tenths % 10)
}

fn joined(set: &BTreeSet<u32>) -> String {
    set.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
}

impl Question {
    /// Rejects a question that contradicts itself.
    ///
    /// # Errors
    /// The first contradiction, with the smallest change that helps.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.gpus.is_empty() {
            return refuse("a number of GPUs", "none", "give `gpus` 64");
        }
        let most = self.gpus.iter().copied().max().unwrap_or(0);
        if most > MOST_GPUS {
            return refuse(format!("at most {MOST_GPUS} GPUs"), most, "ask for fewer");
        }
        let least = self.gpus.iter().copied().min().unwrap_or(0);
        for (setting, value) in [("gpus", least), ("batch", self.batch), ("seq", self.sequence)] {
            if value == 0 {
                return refuse(format!("`{setting}` from 1 up"), value, "correct it");
            }
        }
        self.check_degrees()?;
        self.check_abilities()?;
        // checks that are the same for all layouts: precision, sequence, software
        let base = pipesim_models::layout::ParallelConfig { micro: 1, ..self.base() };
        let costs = Analytic::new(self.model, self.machine.clone(), base);
        costs.map_err(PlanError::refused)?;
        for recompute in &self.fixed.recompute {
            let layout = pipesim_models::layout::ParallelConfig { recompute: *recompute, micro: 1, ..self.base() };
            layout.validate(&self.model).map_err(PlanError::refused)?;
        }
        if self.objective == Objective::Cost && self.machine.hardware.dollars_per_gpu_hour <= 0.0 {
            let name = &self.machine.hardware.name;
            let file = format!("a file with base = \"{name}\" and dollars_per_gpu_hour = 2.5");
            return refuse(format!("a price of {name}"), "none", format!("give `hardware` {file}"));
        }
        Ok(())
    }

    /// Rejects fixed degrees that no number of GPUs allows.
    fn check_degrees(&self) -> Result<(), PlanError> {
        let Fixed { tp, pp, dp, cp, .. } = &self.fixed;
        let sets = [("tp", tp), ("pp", pp), ("dp", dp), ("cp", cp)];
        let any_gpus = |fits: &dyn Fn(u32) -> bool| self.gpus.iter().any(|&gpus| fits(gpus));
        let near = |name: &str, all: &[u32], set: &BTreeSet<u32>| {
            let wanted = set.first().copied().unwrap_or(1);
            let below = all.iter().rev().find(|&&d| d <= wanted);
            let above = all.iter().find(|&&d| d > wanted);
            let near: Vec<String> = below.into_iter().chain(above).map(|d| format!("{name}={d}")).collect();
            either(&near)
        };
        for (name, set) in sets {
            if !set.is_empty() && !any_gpus(&|gpus| set.iter().any(|&own| gpus.is_multiple_of(own))) {
                let gpus = self.gpus[0];
                let choose = format!("choose {}", near(name, &divisors(gpus), set));
                return refuse(format!("{name} to divide {gpus} GPUs"), joined(set), choose);
            }
        }
        let given: Vec<_> = sets.iter().filter(|(_, set)| !set.is_empty()).collect();
        let least: u64 = given.iter().map(|(_, set)| u64::from(*set.first().unwrap_or(&1))).product();
        let products = products(&sets);
        if !any_gpus(&|gpus| {
            products.iter().any(
                |&(product, open)| {
                    if open { u64::from(gpus).is_multiple_of(product) } else { u64::from(gpus) == product }
                },
            )
        }) {
            let names: Vec<String> = given.iter().map(|(name, set)| format!("{name} {}", joined(set))).collect();
            let last = given.last().map_or("one", |(name, _)| name);
            let more =
                if least <= u64::from(MOST_GPUS) { format!(", or ask for `gpus` {least}") } else { String::new() };
            return refuse(
                format!("tp, pp, dp and cp to multiply to {} GPUs", self.gpus[0]),
                format!("{}, which is {least}", names.join(" times ")),
                format!("leave {last} out{more}"),
            );
        }
        if !self.fixed.ep.is_empty() && !any_gpus(&|gpus| !self.expert_degrees(gpus).is_empty()) {
            let found = joined(&self.fixed.ep);
            let Some(experts) = self.model.experts else {
                return refuse("a mixture of experts for ep", format!("a dense model and ep={found}"), "leave ep out");
            };
            let near = near("ep", &divisors(gcd(experts.count as u64, self.gpus[0].into()) as u32), &self.fixed.ep);
            let expected = format!("ep to divide the model's {} experts and the GPUs", experts.count);
            return refuse(expected, found, format!("choose {near}"));
        }
        for &own in tp {
            self.model.check_tensor_ranks(own as usize).map_err(PlanError::refused)?;
        }
        Ok(())
    }

    /// Rejects what the training software cannot do.
    fn check_abilities(&self) -> Result<(), PlanError> {
        let able = Abilities::asked(self);
        let stack = &self.machine.stack.name;
        if !self.fixed.shard.is_empty() && self.fixed.zero == [Zero::None] {
            let found = format!("shard={} with zero=0", joined(&self.fixed.shard));
            return refuse("states that ZeRO shards", found, "choose zero=1, 2 or 3, or leave shard out");
        }
        let wants_pipeline = !self.fixed.pp.is_empty() && !self.fixed.pp.contains(&1);
        if able.schedules.is_empty() && wants_pipeline {
            return refuse(
                format!("a stack with pipeline schedules for pp {}", joined(&self.fixed.pp)),
                format!("{stack}, which has none"),
                "leave pp out, or name schedules, as in `schedules` 1f1b",
            );
        }
        let layers = self.model.layers;
        let sums =
            self.fixed.layers.iter().map(|layers| layers.iter().fold(0_usize, |sum, &one| sum.saturating_add(one)));
        if let Some(sum) = sums.into_iter().find(|&sum| sum != layers) {
            return refuse(format!("layers that add up to the model's {layers}"), sum, "change one of them");
        }
        let first = |set: &BTreeSet<u32>| set.first().copied().unwrap_or(1) as usize;
        let (deepest, most) = (first(&self.fixed.pp) * first(&self.fixed.chunks), layers + 2);
        if deepest > most {
            let expected = format!("at most {most} stages for {layers} layers, embedding and head");
            return refuse(expected, deepest, "choose a smaller pp or fewer chunks");
        }
        let is_alone = !self.fixed.tp.is_empty() && self.fixed.tp.iter().all(|&tp| tp == 1);
        if self.fixed.sequence_parallel == BTreeSet::from([true]) && is_alone {
            return refuse("tp above 1 with sequence-parallel=on", 1, "leave one of the two out");
        }
        self.check_batch()
    }

    /// Rejects fixed replicas and micro-batches that do not divide the batch.
    fn check_batch(&self) -> Result<(), PlanError> {
        let Fixed { dp, micro_batch_size: sizes, .. } = &self.fixed;
        let one = BTreeSet::from([1]);
        let [dps, size] = [dp, sizes].map(|set| if set.is_empty() { &one } else { set });
        let each = dps.iter().flat_map(|&d| size.iter().map(move |&b| u64::from(d) * u64::from(b)));
        let batch = u64::from(self.batch);
        let products: Vec<u64> = each.collect();
        if products.iter().any(|&product| batch.is_multiple_of(product)) {
            return Ok(());
        }
        let least = products.into_iter().min().unwrap_or(1);
        let near = (batch / least).max(1) * least;
        let expected = format!("`batch` to be a multiple of dp times micro-batch-size, {least}");
        refuse(expected, batch, format!("choose `batch` {near}"))
    }
}

/// Returns all products of fixed degrees, and whether a degree is not fixed.
fn products(sets: &[(&str, &BTreeSet<u32>)]) -> Vec<(u64, bool)> {
    let open = sets.iter().any(|(_, set)| set.is_empty());
    let mut all = vec![1_u64];
    for (_, set) in sets.iter().filter(|(_, set)| !set.is_empty()) {
        all = all.iter().flat_map(|&product| set.iter().map(move |&own| product * u64::from(own))).collect();
    }
    all.into_iter().map(|product| (product, open)).collect()
}

/// Returns the questions with one restriction less, each with advice to leave it out.
fn relaxed(question: &Question) -> impl Iterator<Item = (Remedy, Question)> {
    let fixed = RELAXED.split(' ').filter_map(|key| {
        let mut other = question.clone();
        other.fixed.clear(key);
        (other.fixed != question.fixed).then_some((Remedy::Unfix(key), other))
    });
    let any = Question { schedules: Vec::new(), ..question.clone() };
    let mut offloaded = question.clone();
    offloaded.fixed.optimizer_offload = Some(1.0);
    let offloads = Abilities::of(&question.machine.stack).recompute_parts && question.fixed.optimizer_offload.is_none();
    let offloaded = offloads.then_some(("give `fix` optimizer-offload=1".into(), offloaded));
    let schedules = (!question.schedules.is_empty()).then_some(("leave `schedules` out".into(), any));
    fixed.chain(schedules).chain(offloaded)
}

fn fits(question: &Question) -> bool {
    let search = Search::new(question).ok();
    search.is_some_and(|search| {
        let limits = Limits { keep: 1, bytes: question.bytes(), allows: &|_, _| true };
        !search.best(&limits, &Silent).best.is_empty()
    })
}

impl Search<'_> {
    /// Returns why there is no plan, with the smallest change that helps.
    pub(super) fn none_fits(&self, ruled_out: &BTreeMap<Reason, u64>) -> PlanError {
        let question = self.question;
        let helps = relaxed(question).find(|(_, other)| other.check().is_ok() && fits(other)).map(|(what, _)| what);
        if self.space.candidates.is_empty() || !ruled_out.contains_key(&Reason::Memory) {
            let refusal = self.refusal();
            let text = |reason: &Reason| match (reason, &refusal) {
                (Reason::Framework, Some(refusal)) => refusal.clone(),
                _ => reason.text().to_string(),
            };
            let reasons: Vec<String> = ruled_out.keys().map(text).collect();
            let why =
                if reasons.is_empty() { "the restrictions exclude each other".to_string() } else { reasons.join("; ") };
            let change = helps.or_else(|| more_or_fewer(question));
            let change = change.unwrap_or_else(|| "ask for other `gpus` or another `batch`".into());
            return PlanError::new(format!("a layout of {} GPUs", question.gpus[0]), format!("none: {why}"), change);
        }
        let least = self.least_memory();
        let cap = gib(question.bytes()).trim_end_matches("GiB").to_string();
        let refusal = self.refusal().map_or_else(String::new, |why| format!(", and of the others the first: {why}"));
        let needs = least.map_or_else(String::new, |bytes| format!(", the smallest needs {}", gib(bytes)));
        let more = || {
            let times = MORE.into_iter().find(|times| {
                let gpus: Vec<u32> = question.gpus.iter().filter_map(|gpus| gpus.checked_mul(*times)).collect();
                let other = Question { gpus, ..question.clone() };
                other.check().is_ok() && fits(&other)
            });
            times.map(|times| Remedy::Ask { setting: "gpus", value: question.gpus[0] * times })
        };
        let smaller = ruled_out.contains_key(&Reason::Micro).then(|| "ask for a smaller `batch`".into());
        let bytes = || least.map(|bytes| format!("GPUs with {}", gib(bytes)).into());
        let change = smaller.or(helps).or_else(more).or_else(bytes).unwrap_or_else(|| "take a smaller model".into());
        PlanError::new(format!("a layout that fits into {cap} GiB"), format!("none{needs}{refusal}"), change)
    }

    /// Returns the least memory that any examined layout needs.
    fn least_memory(&self) -> Option<u64> {
        let bounds = self.outcomes().into_iter().filter_map(|(number, outcome)| match outcome {
            LayoutOutcome::TooLarge(bytes) | LayoutOutcome::Predicted { bytes, .. } => Some((bytes, number)),
            LayoutOutcome::Missing | LayoutOutcome::Refused => None,
        });
        let mut bounds: Vec<(u64, u32)> = bounds.collect();
        bounds.sort_unstable();
        let mut least = None;
        for (bound, number) in bounds {
            if least.is_some_and(|least| least <= bound) {
                break;
            }
            least = least.into_iter().chain(self.bytes_of(number)).min();
        }
        least
    }
}

/// Returns the nearest number of GPUs or batch for which there are layouts.
fn more_or_fewer(question: &Question) -> Option<Remedy> {
    let exists =
        |other: &Question| other.check().is_ok() && Space::new(other).is_ok_and(|space| !space.candidates.is_empty());
    let near = |setting: &'static str, own: u32, with: &dyn Fn(u32) -> Question| {
        let all = (1..=64).flat_map(|by| [own.checked_sub(by), own.checked_add(by)]).flatten();
        let value = all.filter(|&value| value > 0).find(|&value| exists(&with(value)))?;
        Some(Remedy::Ask { setting, value })
    };
    near("gpus", question.gpus[0], &|gpus| Question { gpus: vec![gpus], ..question.clone() })
        .or_else(|| near("batch", question.batch, &|batch| Question { batch, ..question.clone() }))
}
