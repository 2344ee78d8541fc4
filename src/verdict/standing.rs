//! Where a layout stands among all: its rank, what the best one would save, and the smallest change that helps.

use crate::calibration::StepCalibration;
use crate::judgement::{Asked, Change};
use pipesim_answer::framework::{facts, framework};
use pipesim_answer::plan::{self, Fixed, LayoutOutcome, Plan, PlanError, PlanReport, Reason, Search, Silent, Target};
use pipesim_answer::question::Question;
use pipesim_answer::resolve::{Error, Host, usage};
use pipesim_frameworks::ObjectionKind;
use pipesim_models::layout::{ParallelConfig, Recompute};
use pipesim_report::{gibibytes, number};
use serde::Serialize;

/// Share of the step from which on a change helps: half of the mean error of predictions of dense models.
const HELPS: f64 = 0.03;

/// Plans of a search that are predicted as changes of a layout.
const TRIED: usize = 4;

/// A change of a few settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallChange {
    /// Settings, each with its value before and after: `recompute full -> none`.
    pub settings: Vec<String>,
    /// Its predicted step, in seconds.
    pub iteration_s: f64,
    /// Share of the step that it saves.
    pub saves: f64,
    /// Options of the framework that it adds or changes.
    pub add: Vec<String>,
    /// Options of the framework that it leaves out.
    pub leave_out: Vec<String>,
}

/// Where a layout stands; the key `mine` of `plan --format json`.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// All of it in a sentence.
    pub sentence: String,
    /// Its place by predicted time; `None`: it does not fit, or is behind the `ranked` fastest.
    pub rank: Option<usize>,
    /// Layouts that were put in order of their time; with a calibration, only the plans that were kept.
    pub ranked: usize,
    /// Layouts that were considered.
    pub considered: u64,
    /// What the training framework says against it.
    pub refused: Option<String>,
    /// Its predicted step, in seconds.
    pub iteration_s: f64,
    /// Memory of its fullest device, in bytes.
    pub memory_bytes: u64,
    /// Whether that is within the limit of plans.
    pub fits: bool,
    /// Share of the step that plan 1 saves; negative: the layout is faster than any plan.
    pub best_saves: Option<f64>,
    /// The change of the fewest settings that saves at least 3 %.
    pub smallest: Option<SmallChange>,
    /// The layout as a plan.
    #[serde(skip)]
    pub plan: Plan,
}

/// A layout that a question asks about, among the plans of a search.
struct Mine<'a> {
    report: &'a PlanReport<'a>,
    asked: &'a Asked<'a>,
    plan: Plan,
    target: Target,
    calibration: Option<&'a StepCalibration>,
}

/// Returns where the only layout of `mine` stands among the plans of `report`, which are as many as were kept.
///
/// # Errors
/// The question is not about one layout of a model on hardware, or has no answer.
pub fn standing(
    mine: &Question,
    report: &PlanReport<'_>,
    calibration: Option<&StepCalibration>,
    host: &'static dyn Host,
) -> Result<Standing, Error> {
    let schedule = mine.schedule.first().map_or("1f1b", String::as_str);
    let asked = Asked::new(mine, schedule, host)?;
    let mut estimate = asked.predict(&Change::Question(Box::new(mine.clone())))?;
    if let Some(calibration) = calibration {
        calibration.correct(&mut estimate);
    }
    let name = schedule.split(':').next().unwrap_or(schedule).to_string();
    let layout = asked.analytic.layout.clone();
    let plan =
        Plan { schedule: name, names_chunks: layout.chunks > 1, layout, estimate, preference: None, is_tie: false };
    let seconds = plan.estimate.iteration_s;
    let memory_bytes = plan.memory_bytes();
    let fits = memory_bytes <= report.search.question.bytes();
    let (faster, ranked) = faster(report, seconds, calibration.is_some());
    let plans = &report.plans.plans;
    let is_last = plans.last().is_some_and(|last| last.estimate.iteration_s < seconds);
    let left = [Reason::Slower, Reason::Unsearched, Reason::Predicted];
    let left = if calibration.is_some() { &left[..] } else { &left[..2] };
    let is_known = !is_last || !left.iter().any(|reason| report.plans.ruled_out.contains_key(reason));
    let refused = refused(&asked, &plan.schedule)?;
    let best = plans.first();
    let targets = report.targets().unwrap_or_default();
    let target = targets.into_iter().next().unwrap_or(Target::Pipesim);
    let mine = Mine { report, asked: &asked, plan, target, calibration };
    let smallest = mine.smallest()?;
    let Mine { plan, .. } = mine;
    let mut standing = Standing {
        sentence: String::new(),
        rank: (fits && is_known).then_some(faster + 1),
        ranked,
        considered: report.plans.considered,
        refused,
        iteration_s: seconds,
        memory_bytes,
        fits,
        best_saves: best.map(|best| 1.0 - best.estimate.iteration_s / seconds),
        smallest,
        plan,
    };
    standing.sentence = standing.said(report.search.question.bytes(), calibration.is_some());
    Ok(standing)
}

/// Returns the number of layouts that fit and take less than `seconds`, and of how many. A calibration corrects kept plans alone; without
/// one, all layouts count that were predicted, as those without a prediction are slower than all plans.
fn faster(report: &PlanReport<'_>, seconds: f64, is_calibrated: bool) -> (usize, usize) {
    let times: Vec<f64> = if is_calibrated {
        report.plans.plans.iter().map(|plan| plan.estimate.iteration_s).collect()
    } else {
        let limit = report.search.question.bytes();
        let time = |outcome| match outcome {
            LayoutOutcome::Predicted { bytes, iteration_s } if bytes <= limit => Some(iteration_s),
            _ => None,
        };
        report.search.outcomes().into_values().filter_map(time).collect()
    };
    (times.iter().filter(|time| **time < seconds).count(), times.len())
}

/// Returns what the training framework says against a layout, options that users must add aside.
fn refused(asked: &Asked<'_>, schedule: &str) -> Result<Option<String>, Error> {
    let Some(own) = framework(&asked.analytic.machine.stack)? else { return Ok(None) };
    let is_built_in = !schedule.contains(['.', '/']);
    let found = own.objections(&facts(&asked.analytic, is_built_in.then_some(schedule))).unwrap_or_default();
    // a split of its own is taken as the job's framework makes it
    let is_split = asked.question.layout.is_some();
    let counts = |kind: ObjectionKind| kind == ObjectionKind::Refused || kind != ObjectionKind::Needs && !is_split;
    let first = found.into_iter().find(|one| counts(one.kind));
    Ok(first.map(|one| format!("{} {} refuses it ({})", own.title(), own.version(), one.error)))
}

/// Returns the fastest of some plans.
fn fastest(plans: impl Iterator<Item = Plan>) -> Option<Plan> {
    plans.min_by(|a, b| a.estimate.iteration_s.total_cmp(&b.estimate.iteration_s))
}

/// Settings of a layout as a search fixes them, each with its value.
fn settings(layout: &ParallelConfig) -> Vec<(&'static str, String)> {
    vec![
        ("tp", layout.tp.to_string()),
        ("pp", layout.pp.to_string()),
        ("cp", layout.cp.to_string()),
        ("ep", layout.ep.to_string()),
        ("micro-batch-size", layout.micro_batch_size.to_string()),
        ("chunks", layout.chunks.to_string()),
        ("recompute", layout.recompute.to_string()),
        ("zero", (layout.zero as u8).to_string()),
        ("sequence-parallel", layout.sequence_parallel.to_string()),
        ("shard", layout.shard.map_or("all".to_string(), |shard| shard.to_string())),
    ]
}

impl Mine<'_> {
    /// Finds the change of one setting that saves the most, or of two if one does not help.
    fn smallest(&self) -> Result<Option<SmallChange>, Error> {
        let all = settings(&self.plan.layout);
        // `shard`, the last one, follows the others
        let count = all.len() - 1;
        let singles = (0..count).map(|one| vec![one]);
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| vec![one, other]));
        for (free, tried) in [(singles.collect::<Vec<_>>(), TRIED), (pairs.collect(), 1)] {
            let mut found: Vec<Plan> = if tried > 1 { self.near().collect() } else { Vec::new() };
            for free in free {
                found.extend(self.with_free(&all, &free, tried).map_err(usage)?);
            }
            let changed = |plan: &Plan| settings(&plan.layout).iter().zip(&all).filter(|(a, b)| a != b).count();
            let first = |a: &Plan, b: &Plan| {
                changed(a).cmp(&changed(b)).then(a.estimate.iteration_s.total_cmp(&b.estimate.iteration_s))
            };
            let best = found.into_iter().filter(|plan| self.saves(plan) >= HELPS).min_by(first);
            if let Some(found) = best {
                return Ok(Some(self.change(&found)));
            }
        }
        Ok(None)
    }

    /// Returns the best plan with the settings of the layout, those at `free` aside.
    fn with_free(
        &self,
        all: &[(&'static str, String)],
        free: &[usize],
        keep: usize,
    ) -> Result<Option<Plan>, PlanError> {
        let is_fixed = |at: usize| !free.contains(&at) && at + 1 < all.len();
        let fixed = all.iter().enumerate().filter(|(at, _)| is_fixed(*at));
        let options = self.plan.layout.options();
        let text: String = fixed.map(|(_, (name, value))| format!("{name}={value},")).collect();
        let text = format!(
            "{text}dispatcher={},cuda-graph={},moe-overlap={},delay-wgrad={}",
            options.dispatcher, options.cuda_graph, options.moe_overlap, options.delay_wgrad
        );
        let asked = self.report.search.question;
        let gpus = u32::try_from(self.plan.layout.gpus()).into_iter().collect();
        let question =
            plan::Question { fixed: Fixed::parse(&text).map_err(PlanError::Refused)?, gpus, keep, ..asked.clone() };
        // without an answer, no layout is like that, or none fits
        let found = Search::new(&question).and_then(|search| search.plans(&Silent)).ok();
        let plans = found.map_or_else(Vec::new, |found| found.plans);
        Ok(fastest(plans.into_iter().filter_map(|plan| self.as_own(plan))))
    }

    /// Returns the layout with another micro-batch size or recomputation, where it fits; a search may have other experts' groups.
    fn near(&self) -> impl Iterator<Item = Plan> {
        let own = &self.plan.layout;
        let sizes = [own.micro_batch_size.checked_mul(2), own.micro_batch_size.checked_div(2)];
        let per_pipeline = u64::from(own.micro) * u64::from(own.micro_batch_size);
        let sized = sizes.into_iter().flatten().filter(move |&size| size > 0 && per_pipeline % u64::from(size) == 0);
        let sized = sized.filter_map(move |micro_batch_size| {
            let micro = u32::try_from(per_pipeline / u64::from(micro_batch_size)).ok()?;
            Some(ParallelConfig { micro_batch_size, micro, ..own.clone() })
        });
        let stored = [Recompute::None, Recompute::Selective].into_iter().filter(|what| *what != own.recompute);
        let stored = stored.map(|recompute| ParallelConfig { recompute, ..own.clone() });
        let limit = self.report.search.question.bytes();
        let plans = sized.chain(stored).map(|layout| Plan { layout, ..self.plan.clone() });
        plans.filter_map(|plan| self.as_own(plan)).filter(move |plan| plan.memory_bytes() <= limit)
    }

    /// Predicts a plan with what a search leaves open, such as routing, as it is.
    fn as_own(&self, mut plan: Plan) -> Option<Plan> {
        plan.estimate = self.asked.predict(&Change::Question(Box::new(self.with_layout(&plan)))).ok()?;
        if let Some(calibration) = self.calibration {
            calibration.correct(&mut plan.estimate);
        }
        Some(plan)
    }

    /// Returns the question with the layout of a plan.
    fn with_layout(&self, plan: &Plan) -> Question {
        let ParallelConfig {
            tp,
            pp,
            dp,
            cp,
            ep,
            chunks,
            micro_batch_size,
            recompute,
            zero,
            shard,
            sequence_parallel,
            ..
        } = plan.layout;
        let own = &self.plan.layout;
        let mut question = Question {
            tp: vec![tp],
            stages: vec![pp],
            dp: vec![dp],
            cp,
            ep,
            micro_batch_size: vec![micro_batch_size],
            recompute,
            zero,
            shard,
            sequence_parallel,
            ..self.asked.question.clone()
        };
        if (pp, chunks) != (own.pp, own.chunks) {
            question.layout = None;
            question.layers = plan.layout.layers.clone().unwrap_or_default();
            question.chunks = (chunks > 1).then_some(chunks);
            question.schedule = vec![plan.schedule.clone()];
        }
        question
    }

    fn saves(&self, other: &Plan) -> f64 {
        1.0 - other.estimate.iteration_s / self.plan.estimate.iteration_s
    }

    fn change(&self, to: &Plan) -> SmallChange {
        let (from, after) = (settings(&self.plan.layout), settings(&to.layout));
        let changed = from.into_iter().zip(after).filter(|(before, after)| before != after);
        let mut changes: Vec<String> =
            changed.map(|((name, before), (_, after))| format!("{name} {before} -> {after}")).collect();
        if changes.is_empty() {
            changes.push(format!("layers {} -> {}", self.plan.estimate.stage_layout, to.estimate.stage_layout));
        }
        let [before, after] = [&self.plan, to].map(|plan| self.options(plan));
        let without = |all: &[String], other: &[String]| -> Vec<String> {
            all.iter().filter(|option| !other.contains(option)).cloned().collect()
        };
        let add = without(&after, &before);
        let named = |option: &String| option.split_once(' ').map_or(option.clone(), |(name, _)| name.to_string());
        let mut leave_out = without(&before, &after);
        leave_out.retain(|option| !add.iter().any(|added| named(added) == named(option)));
        SmallChange { settings: changes, iteration_s: to.estimate.iteration_s, saves: self.saves(to), add, leave_out }
    }

    /// Returns the options that a plan is in its framework, each with its values.
    fn options(&self, plan: &Plan) -> Vec<String> {
        let text = self.report.flags(plan, self.target).map_or_else(|_| String::new(), |flags| flags.text);
        let text = text.replace("\\\n", " ");
        let mut options: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match options.last_mut() {
                Some(last) if !word.starts_with("--") => *last = format!("{last} {word}"),
                _ if word.starts_with("--") => options.push(word.to_string()),
                _ => {}
            }
        }
        options
    }
}

impl Standing {
    /// Says all of it, for plans that may use `limit` bytes and may be corrected.
    fn said(&self, limit: u64, is_calibrated: bool) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let place = match self.rank {
            _ if !self.fits => {
                let [needed, limit] = [self.memory_bytes, limit].map(gibibytes);
                format!("Yours does not fit into memory (it needs {needed} of {limit})")
            }
            Some(rank) if is_calibrated => {
                let [rank, of] = [rank, self.ranked].map(|count| number(count as f64));
                format!("Yours is rank {rank} of the {of} plans that were corrected")
            }
            Some(rank) => {
                format!("Yours is rank {} of {}", number(rank as f64), number(self.considered as f64))
            }
            None => format!(
                "Yours is behind the first {} of {}",
                number(self.ranked as f64),
                number(self.considered as f64)
            ),
        };
        let mut text = format!("{place}, predicted to take {} s", number(self.iteration_s));
        if let Some(refused) = &self.refused {
            text += &format!("; {refused}");
        }
        self.plan.estimate.outside.iter().for_each(|why| text += &format!("; {why}"));
        text += &match self.best_saves {
            Some(share) if share > 0.0 => format!("; plan 1 would save {}", percent(share)),
            Some(share) => format!("; plan 1 would take {} more", percent(-share)),
            None => "; no plan fits".to_string(),
        };
        match &self.smallest {
            Some(change) => {
                text += &format!("; the smallest change that helps saves {}: ", percent(change.saves));
                text += &change.settings.join(", ");
                let add = (!change.add.is_empty()).then(|| format!("set {}", change.add.join(" ")));
                let leave = (!change.leave_out.is_empty()).then(|| format!("leave out {}", change.leave_out.join(" ")));
                let options: Vec<String> = add.into_iter().chain(leave).collect();
                if !options.is_empty() {
                    text += &format!(" ({})", options.join("; "));
                }
            }
            None => text += "; no change of one or two settings saves 3 %",
        }
        text + "."
    }
}
