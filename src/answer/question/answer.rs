//! The answer: a prediction of every schedule on every layout, or at every p and m.

use super::case::Case;
use super::memory_cap::MemoryCap;
use super::observer::Observer;
use super::remark::{Remark, layout_remarks};
use super::settings::Question;
use crate::framework::FrameworkVerdict;
use crate::resolve::{Costs, Error, Estimate, Host, Resolved, Variant};
use crate::step_estimate::StepEstimate;
use crate::suggestion::FitRequest;
use pipesim_cost::analytic::Analytic;
use pipesim_models::layout::ParallelConfig;
use pipesim_sim::event::{Each, EventError};
use pipesim_sim::{Prediction, PredictionFigures};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The layout of a prediction on hardware, and the memory of its fullest device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LayoutFigures {
    pub tp: u32,
    pub pp: u32,
    pub dp: u32,
    pub cp: u32,
    /// Of a mixture of experts.
    #[serde(flatten)]
    pub experts: Option<ExpertFigures>,
    pub micro_batch_size: u32,
    pub memory_bytes: u64,
}

/// How experts are folded onto the GPUs of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertFigures {
    pub ep: u32,
    pub etp: u32,
    pub edp: u64,
    pub rounds: u32,
}

impl LayoutFigures {
    fn new(analytic: &Analytic, estimate: &StepEstimate) -> LayoutFigures {
        let ParallelConfig { tp, pp, dp, cp, ep, etp, rounds, micro_batch_size, .. } = analytic.layout;
        let experts = analytic.model.experts.map(|_| ExpertFigures { ep, etp, edp: analytic.layout.edp(), rounds });
        LayoutFigures { tp, pp, dp, cp, experts, micro_batch_size, memory_bytes: estimate.memory.fullest().total }
    }

    /// Returns the figures with their column names.
    pub fn figures(self) -> [(&'static str, f64); 5] {
        [
            ("tp", f64::from(self.tp)),
            ("dp", f64::from(self.dp)),
            ("cp", f64::from(self.cp)),
            ("micro_batch_size", f64::from(self.micro_batch_size)),
            ("memory_bytes", self.memory_bytes as f64),
        ]
    }
}

/// The numbers of one prediction, an entry of `predict --format json`.
#[derive(Clone, Debug, Serialize)]
pub struct Predicted {
    #[serde(flatten)]
    pub figures: PredictionFigures,
    /// The step of a model on hardware; where it does not fit, the smallest change that makes it fit.
    #[serde(flatten)]
    pub estimate: Option<StepEstimate>,
    #[serde(flatten)]
    pub layout: Option<LayoutFigures>,
    /// What the stack's framework says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<FrameworkVerdict>,
}

/// What is known of a schedule while an answer is made.
pub struct Found<'a> {
    pub case: &'a Case,
    /// `None` if it is left out.
    pub prediction: Option<&'a Prediction<'a>>,
    pub estimate: Option<StepEstimate>,
    pub layout: Option<LayoutFigures>,
    pub framework: Option<FrameworkVerdict>,
    /// Number of ops of all schedules that were ordered together with it.
    pub ops: usize,
}

impl<'a> Found<'a> {
    fn left_out(case: &'a Case, ops: usize) -> Found<'a> {
        Found { case, prediction: None, estimate: None, layout: None, framework: None, ops }
    }

    /// Returns the numbers, if it is not left out.
    pub fn predicted(self) -> Option<Predicted> {
        let figures = self.prediction?.prediction.clone();
        Some(Predicted { figures, estimate: self.estimate, layout: self.layout, framework: self.framework })
    }
}

/// Costs of a question.
#[derive(Debug)]
enum CostSource {
    /// Of a model on hardware, one per layout.
    Layouts(Vec<Analytic>),
    Plain(Box<Costs>),
}

/// A question whose files are read.
#[derive(Debug)]
pub struct Prepared {
    question: Question,
    source: CostSource,
}

impl Question {
    /// Reads what the question names, and lists its layouts.
    ///
    /// # Errors
    /// A file, model or hardware that does not exist, or settings that contradict each other.
    pub fn prepare(&self, host: &'static dyn Host, observer: &dyn Observer) -> Result<Prepared, Error> {
        self.check()?;
        let layouts = self.layouts(host, observer)?;
        if !layouts.is_empty() {
            return Ok(Prepared { question: self.clone(), source: CostSource::Layouts(layouts) });
        }
        let layout = self.stage_layout(host)?;
        let costs = self.costs(host, observer)?.with_layout(layout.clone());
        let question = layout.map_or_else(|| Ok(self.clone()), |layout| self.arranged(&layout, host))?;
        Ok(Prepared { question, source: CostSource::Plain(Box::new(costs)) })
    }
}

impl Prepared {
    /// Returns the layouts of the model on hardware, none without one.
    pub fn layouts(&self) -> &[Analytic] {
        match &self.source {
            CostSource::Layouts(layouts) => layouts,
            CostSource::Plain(_) => &[],
        }
    }

    /// Returns the question about each layout, or without hardware the one about the given costs, with its costs.
    ///
    /// # Errors
    /// A schedule that cannot have the layout.
    pub fn questions(&self, host: &'static dyn Host) -> Result<Vec<(Question, Costs)>, Error> {
        match &self.source {
            CostSource::Plain(costs) => Ok(vec![(self.question.clone(), (**costs).clone())]),
            CostSource::Layouts(layouts) => {
                let one = |analytic: &Analytic| {
                    Ok((self.question.under(analytic, host)?, Costs::Analytic(Box::new(analytic.clone()))))
                };
                layouts.iter().map(one).collect()
            }
        }
    }

    /// Predicts each schedule on each layout, or at each p and m, and gives it to `visit`. At several p and m, each is given before the next
    /// is predicted, so that there may be many.
    ///
    /// # Errors
    /// Settings without effect, no schedule that exists, or an error of `visit`.
    pub fn each<E: From<Error>>(
        &self,
        host: &'static dyn Host,
        observer: &dyn Observer,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let question = &self.question;
        let mut pass = Pass {
            question,
            host,
            observer,
            several: question.count() * self.layouts().len().max(1) > 1,
            is_of_layouts: self.layouts().len() > 1,
            any: false,
            refused: None,
            misfits: Vec::new(),
            verdicts: Vec::new(),
            known: Vec::new(),
            chunks: BTreeMap::new(),
        };
        match &self.source {
            CostSource::Layouts(layouts) => {
                for analytic in layouts {
                    let costs = Costs::Analytic(Box::new(analytic.clone()));
                    pass.all(&question.under(analytic, host)?, &costs, visit)?;
                }
            }
            CostSource::Plain(costs) if question.are_several() => {
                question.each_case(costs, host, observer, |case, resolved| {
                    let ops = resolved.as_ref().map_or(0, |resolved| resolved.graph.len());
                    pass.one(question, costs, case, resolved, ops, visit)
                })?;
            }
            CostSource::Plain(costs) => pass.all(question, costs, visit)?,
        }
        pass.end(self)
    }
}

/// Who takes what is found.
pub type Visit<'a, E> = dyn FnMut(Found<'_>) -> Result<(), E> + 'a;

/// One pass over the schedules of a question.
struct Pass<'a> {
    question: &'a Question,
    host: &'static dyn Host,
    observer: &'a dyn Observer,
    /// Whether there are several predictions, so that those that deadlock are left out.
    several: bool,
    /// Whether there are several layouts, so that those without a schedule are left out.
    is_of_layouts: bool,
    /// Whether anything is predicted.
    any: bool,
    /// The first refusal.
    refused: Option<Error>,
    misfits: Vec<Remark>,
    /// By schedule and layout: what the framework says.
    verdicts: Vec<(String, FrameworkVerdict)>,
    known: Vec<&'static str>,
    /// The numbers of stages per device of each schedule.
    chunks: BTreeMap<String, BTreeSet<u32>>,
}

impl Pass<'_> {
    /// Orders the schedules of a question at one p and m, and predicts them. All are ordered before any is predicted, so that a refused layout
    /// leaves nothing behind.
    fn all<E: From<Error>>(&mut self, asked: &Question, costs: &Costs, visit: &mut Visit<'_, E>) -> Result<(), E> {
        let mut cases = Vec::new();
        let ordered = asked.each_case(costs, self.host, self.observer, |case, resolved| {
            cases.push((case, resolved));
            Ok::<(), Error>(())
        });
        if let Err(error) = ordered {
            let layout = costs.analytic().filter(|_| self.is_of_layouts);
            let Some(analytic) = layout else { return Err(error.into()) };
            let (layout, why) = (analytic.layout.to_string(), error.to_string());
            self.observer.remark(&Remark::LayoutLeftOut { layout, why });
            self.refused.get_or_insert(error);
            return Ok(());
        }
        let ops = cases.iter().filter_map(|(_, resolved)| Some(resolved.as_ref()?.graph.len())).sum();
        cases.into_iter().try_for_each(|(case, resolved)| self.one(asked, costs, case, resolved, ops, visit))
    }

    /// Predicts one schedule.
    fn one<E: From<Error>>(
        &mut self,
        asked: &Question,
        costs: &Costs,
        mut case: Case,
        resolved: Option<Resolved>,
        ops: usize,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let Some(resolved) = resolved else { return visit(Found::left_out(&case, ops)) };
        let label = case.label(asked.are_several());
        let prediction = match self.simulate(&resolved, &label) {
            Ok(prediction) => prediction,
            Err(error) => {
                let is_stuck = matches!(error, EventError::Deadlock(_)) && asked.delivery.is_some() && self.several;
                if is_stuck {
                    case.leave_out(&error);
                    if !asked.are_several() {
                        case.remark_left_out(self.observer);
                    }
                }
                let error = Error::Machine { name: label, error };
                if !is_stuck {
                    return Err(error.into());
                }
                self.refused.get_or_insert(error);
                return visit(Found::left_out(&case, ops));
            }
        };
        self.any = true;
        self.known.extend(case.known_schedule());
        if let Some(variant) = Variant::parse(&case.name).ok().filter(|variant| !variant.is_auto()) {
            let chunks = resolved.graph.schedule().placement.chunks();
            self.chunks.entry(variant.base).or_default().insert(chunks);
        }
        let (mut estimate, mut layout, mut framework) = (None, None, None);
        if let Some(analytic) = costs.analytic() {
            let found = self.estimate(asked, &case.name, analytic, &resolved, &prediction)?;
            layout = Some(LayoutFigures::new(analytic, &found));
            estimate = Some(found);
            framework = FrameworkVerdict::of(
                &analytic.as_resolved(&resolved),
                resolved.graph.schedule(),
                case.known_schedule(),
            )?;
            self.verdicts.extend(framework.iter().map(|verdict| (case.schedule.clone(), verdict.clone())));
        }
        visit(Found { case: &case, prediction: Some(&prediction), estimate, layout, framework, ops })
    }

    /// Returns the prediction of a schedule, with percentiles of the makespan if durations are random.
    fn simulate<'r>(&self, resolved: &'r Resolved, label: &str) -> Result<Prediction<'r>, EventError> {
        let busy = self.observer.busy(&format!("predicting {label}"), None);
        let mut predicted = resolved.predict()?;
        drop(busy);
        predicted.prediction.balance.clone_from(&resolved.balance);
        if let Some((jitter, samples)) = self.question.jitter() {
            let busy = self.observer.busy(&format!("{label} with jitter"), Some((samples.into(), "samples")));
            let each: Each<'_> = &|count, work| {
                self.host.each(count, &|number| {
                    work(number);
                    busy.done();
                });
            };
            predicted.prediction.jitter = Some(predicted.spread(jitter, samples, each)?);
        }
        Ok(predicted)
    }

    /// Returns the estimate of a step on hardware. Of a question about one layout, a step that does not fit has a suggestion.
    fn estimate(
        &mut self,
        asked: &Question,
        name: &str,
        analytic: &Analytic,
        resolved: &Resolved,
        prediction: &Prediction<'_>,
    ) -> Result<StepEstimate, Error> {
        let estimate = resolved.estimated(analytic, prediction)?;
        if self.is_of_layouts {
            return Ok(estimate);
        }
        let _busy = self.observer.busy(&format!("searching a layout of {name} that fits"), None);
        let (selection, micro_given) = (asked.selection(self.host)?, !self.question.micro.is_empty());
        let request = FitRequest { name, selection: &selection, analytic, micro_given };
        let estimate = request.checked(&resolved.graph, estimate);
        self.misfits.extend(estimate.misfit.iter().map(|one| Remark::Misfit(Box::new(one.clone()))));
        Ok(estimate)
    }

    /// Notes what is to be said about costs and layout.
    fn end<E: From<Error>>(self, prepared: &Prepared) -> Result<(), E> {
        let (asked, observer) = (self.question, self.observer);
        if let (false, Some(error)) = (self.any, self.refused) {
            return Err(error.into());
        }
        Remark::of_framework(&self.verdicts).iter().for_each(|remark| observer.remark(remark));
        match prepared.layouts() {
            [] => {
                if asked.costs.is_none() && asked.profile.is_none() {
                    observer.remark(&Remark::UnitCosts);
                }
                if asked.costs_per.is_none() && asked.profile.is_none() {
                    if asked.stages.len() > 1 {
                        observer.remark(&Remark::ModelGrows { stages: asked.stages.clone() });
                    }
                    if self.chunks.values().any(|chunks| chunks.len() > 1) {
                        observer.remark(&Remark::SameModel);
                    }
                }
            }
            [analytic] => {
                layout_remarks(analytic, &self.known).iter().for_each(|remark| observer.remark(remark));
                if let Some(cap) = asked.memory_cap.and_then(MemoryCap::units) {
                    observer.remark(&Remark::UnitsOnHardware { cap });
                }
                self.misfits.iter().for_each(|misfit| observer.remark(misfit));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The answer to a question.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// What is predicted, by layout, p, m and schedule.
    pub predictions: Vec<Predicted>,
    /// What is not, with the reason.
    #[serde(skip)]
    pub left_out: Vec<Case>,
    #[serde(skip)]
    pub remarks: Vec<Remark>,
}

/// Keeps the remarks.
#[derive(Default)]
struct Remarks(RefCell<Vec<Remark>>);

impl Observer for Remarks {
    fn remark(&self, remark: &Remark) {
        self.0.borrow_mut().push(remark.clone());
    }
}

/// Answers a question: predicts each schedule on each layout, or at each p and m.
///
/// # Errors
/// Something that does not exist, settings that contradict each other or have no effect, or no schedule that exists for these numbers.
pub fn answer(question: &Question, host: &'static dyn Host) -> Result<Answer, Error> {
    let (remarks, mut predictions, mut left_out) = (Remarks::default(), Vec::new(), Vec::new());
    question.prepare(host, &remarks)?.each(host, &remarks, &mut |found| {
        match found.case.exists() {
            true => predictions.extend(found.predicted()),
            false => left_out.push(found.case.clone()),
        }
        Ok::<(), Error>(())
    })?;
    Ok(Answer { predictions, left_out, remarks: remarks.0.into_inner() })
}
