//! Questions without an answer: contradictions, and the smallest change that resolves them.

use super::journal::Outcome;
use super::question::{Fixed, Objective, PlanError, Question, divisors};
use super::reason::Reason;
use super::search::{Limits, Search, Silent};
use super::space::Space;
use super::stacks::Abilities;
use pipesim_cost::analytic::Analytic;
use pipesim_schedule::nearest::either;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of GPUs to try, as multiples of the question's.
const MORE: [u32; 4] = [2, 4, 8, 16];
/// Maximum number of GPUs.
pub const MOST_GPUS: u32 = 1 << 20;

fn refuse<T>(text: String) -> Result<T, PlanError> {
    Err(PlanError(text))
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
        let stated = |what: &str, value: u32| format!("expected {what} from 1 up, found {value}; correct it");
        if self.gpus.is_empty() {
            return refuse("expected a number of GPUs, found none; give --gpus 64".to_string());
        }
        let most = self.gpus.iter().copied().max().unwrap_or(0);
        if most > MOST_GPUS {
            return refuse(format!("expected at most {MOST_GPUS} GPUs, found {most}; ask for fewer"));
        }
        for (what, value) in [
            ("--gpus", self.gpus.iter().copied().min().unwrap_or(0)),
            ("--batch", self.batch),
            ("--seq", self.sequence),
        ] {
            if value == 0 {
                return refuse(stated(what, value));
            }
        }
        self.check_degrees()?;
        self.check_abilities()?;
        // checks that are the same for all layouts: precision, sequence, software
        let base = pipesim_models::layout::ParallelConfig { micro: 1, ..self.base() };
        let costs = Analytic::new(self.model, self.machine.clone(), base);
        costs.map(|_| ()).map_err(|error| PlanError(error.to_string()))?;
        for recompute in &self.fixed.recompute {
            let layout = pipesim_models::layout::ParallelConfig { recompute: *recompute, micro: 1, ..self.base() };
            layout.validate(&self.model).map_err(|error| PlanError(error.to_string()))?;
        }
        if self.objective == Objective::Cost && self.machine.hardware.dollars_per_gpu_hour <= 0.0 {
            let name = &self.machine.hardware.name;
            return refuse(format!(
                "expected a price of {name}, found none; give --hardware a file with base = \"{name}\" and dollars_per_gpu_hour = 2.5"
            ));
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
                return refuse(format!(
                    "expected {name} to divide {gpus} GPUs, found {}; choose {}",
                    joined(set),
                    near(name, &divisors(gpus), set)
                ));
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
                if least <= u64::from(MOST_GPUS) { format!(", or ask for --gpus {least}") } else { String::new() };
            return refuse(format!(
                "expected tp, pp, dp and cp to multiply to {} GPUs, found {}, which is {least}; leave {last} out{more}",
                self.gpus[0],
                names.join(" times ")
            ));
        }
        if !self.fixed.ep.is_empty() && !any_gpus(&|gpus| !self.expert_degrees(gpus).is_empty()) {
            let found = joined(&self.fixed.ep);
            return refuse(match self.model.experts {
                None => {
                    format!("expected a mixture of experts for ep, found a dense model and ep={found}; leave ep out")
                }
                Some(experts) => format!(
                    "expected ep to divide the model's {} experts and the GPUs, found {found}; choose {}",
                    experts.count,
                    near("ep", &divisors(gcd(experts.count as u32, self.gpus[0])), &self.fixed.ep)
                ),
            });
        }
        for &own in tp {
            self.model.check_tensor_ranks(own as usize).map_err(|error| PlanError(error.to_string()))?;
        }
        Ok(())
    }

    /// Rejects what the training software cannot do.
    fn check_abilities(&self) -> Result<(), PlanError> {
        let able = Abilities::asked(self);
        let stack = &self.machine.stack.name;
        let wants_pipeline = !self.fixed.pp.is_empty() && !self.fixed.pp.contains(&1);
        if able.schedules.is_empty() && wants_pipeline {
            return refuse(format!(
                "expected a stack with pipeline schedules for pp {}, found {stack}, which has none; leave pp out, or name schedules, as in --schedules 1f1b",
                joined(&self.fixed.pp)
            ));
        }
        if let Some(layers) = &self.fixed.layers {
            let sum: usize = layers.iter().sum();
            if sum != self.model.layers {
                return refuse(format!(
                    "expected layers that add up to the model's {}, found {sum}; change one of them",
                    self.model.layers
                ));
            }
        }
        let layers = self.model.layers + 2;
        let deepest = self.fixed.pp.first().copied().unwrap_or(1) as usize
            * self.fixed.chunks.first().copied().unwrap_or(1) as usize;
        if deepest > layers {
            return refuse(format!(
                "expected at most {layers} stages for {} layers, embedding and head, found {deepest}; choose a smaller pp or fewer chunks",
                self.model.layers
            ));
        }
        if self.fixed.sequence_parallel == Some(true)
            && !self.fixed.tp.is_empty()
            && self.fixed.tp.iter().all(|&tp| tp == 1)
        {
            return refuse(
                "expected tp above 1 with sequence-parallel=on, found 1; leave one of the two out".to_string(),
            );
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
        refuse(format!(
            "expected --batch to be a multiple of dp times micro-batch-size, {least}, found {batch}; choose --batch {near}"
        ))
    }
}

/// Returns the greatest common divisor.
fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
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
fn relaxed(question: &Question) -> Vec<(String, Question)> {
    let mut all = Vec::new();
    let mut add = |is_there: bool, what: &str, change: fn(&mut Fixed)| {
        if is_there {
            let mut other = question.clone();
            change(&mut other.fixed);
            all.push((what.to_string(), other));
        }
    };
    let fixed = &question.fixed;
    add(!fixed.recompute.is_empty(), "leave recompute out of --fix", |fixed| fixed.recompute.clear());
    add(!fixed.zero.is_empty(), "leave zero out of --fix", |fixed| fixed.zero.clear());
    add(fixed.sequence_parallel.is_some(), "leave sequence-parallel out of --fix", |fixed| {
        fixed.sequence_parallel = None
    });
    add(!fixed.micro_batch_size.is_empty(), "leave micro-batch-size out of --fix", |fixed| {
        fixed.micro_batch_size.clear()
    });
    add(fixed.layers.is_some(), "leave layers out of --fix", |fixed| fixed.layers = None);
    add(!fixed.chunks.is_empty(), "leave chunks out of --fix", |fixed| fixed.chunks.clear());
    add(!fixed.dp.is_empty(), "leave dp out of --fix", |fixed| fixed.dp.clear());
    add(!fixed.cp.is_empty(), "leave cp out of --fix", |fixed| fixed.cp.clear());
    add(!fixed.ep.is_empty(), "leave ep out of --fix", |fixed| fixed.ep.clear());
    add(!fixed.tp.is_empty(), "leave tp out of --fix", |fixed| fixed.tp.clear());
    add(!fixed.pp.is_empty(), "leave pp out of --fix", |fixed| fixed.pp.clear());
    if !question.schedules.is_empty() {
        all.push(("leave --schedules out".to_string(), Question { schedules: Vec::new(), ..question.clone() }));
    }
    all
}

fn fits(question: &Question) -> bool {
    let search = Search::new(question).ok();
    search.is_some_and(|search| {
        let limits = Limits { keep: 1, bytes: search.bytes(), allows: &|_, _| true };
        !search.best(&limits, &Silent).best.is_empty()
    })
}

impl Search<'_> {
    /// Returns why there is no plan, with the smallest change that helps.
    pub(super) fn none_fits(&self, ruled_out: &BTreeMap<Reason, u64>) -> PlanError {
        let question = self.question;
        let helps = relaxed(question).into_iter().find(|(_, other)| other.check().is_ok() && fits(other));
        if self.space.candidates.is_empty() || !ruled_out.contains_key(&Reason::Memory) {
            let reasons: Vec<String> = ruled_out.keys().map(|reason| reason.text().to_string()).collect();
            let why =
                if reasons.is_empty() { "the restrictions exclude each other".to_string() } else { reasons.join("; ") };
            let change = helps.map(|(what, _)| what).or_else(|| more_or_fewer(question));
            let change = change.unwrap_or_else(|| "ask for other --gpus or another --batch".to_string());
            return PlanError(format!("expected a layout of {} GPUs, found none: {why}; {change}", question.gpus[0]));
        }
        let least = self.least_memory();
        let cap = gib(self.bytes()).trim_end_matches("GiB").to_string();
        let needs = least.map_or_else(String::new, |bytes| format!(", the smallest needs {}", gib(bytes)));
        let more = || {
            let times = MORE.into_iter().find(|times| {
                let gpus: Vec<u32> = question.gpus.iter().filter_map(|gpus| gpus.checked_mul(*times)).collect();
                let other = Question { gpus, ..question.clone() };
                other.check().is_ok() && fits(&other)
            });
            times.map(|times| format!("ask for --gpus {}", question.gpus[0] * times))
        };
        let smaller = ruled_out.contains_key(&Reason::Micro).then(|| "ask for a smaller --batch".to_string());
        let change = smaller.or_else(|| helps.map(|(what, _)| what)).or_else(more);
        let bytes = least.map(|bytes| format!("GPUs with {}", gib(bytes)));
        let change = change.or(bytes).unwrap_or_else(|| "take a smaller model".to_string());
        PlanError(format!("expected a layout that fits into {cap} GiB, found none{needs}; {change}"))
    }

    /// Returns the least memory that any examined layout needs.
    fn least_memory(&self) -> Option<u64> {
        let bounds = self.outcomes().into_iter().filter_map(|(number, outcome)| match outcome {
            Outcome::TooLarge(bytes) | Outcome::Predicted { bytes, .. } => Some((bytes, number)),
            Outcome::Missing => None,
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
fn more_or_fewer(question: &Question) -> Option<String> {
    let exists =
        |other: &Question| other.check().is_ok() && Space::new(other).is_ok_and(|space| !space.candidates.is_empty());
    let gpus = question.gpus[0];
    let near = (1..=64).flat_map(|by| [gpus.checked_sub(by), gpus.checked_add(by)]).flatten().filter(|&gpus| gpus > 0);
    let found = near.into_iter().find(|&gpus| exists(&Question { gpus: vec![gpus], ..question.clone() }));
    if let Some(found) = found {
        return Some(format!("ask for --gpus {found}"));
    }
    let batch = question.batch;
    let near =
        (1..=64).flat_map(|by| [batch.checked_sub(by), batch.checked_add(by)]).flatten().filter(|&batch| batch > 0);
    let found = near.into_iter().find(|&batch| exists(&Question { batch, ..question.clone() }));
    found.map(|batch| format!("ask for --batch {batch}"))
}
