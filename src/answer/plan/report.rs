//! Plans as a report: tables, JSON and CSV.

use super::answer::{Plan, Plans};
use super::flags::{Names, PlanFlags, Target, flags};
use super::reason::PlanError;
use super::search::Search;
use crate::question::Objective;
use pipesim_cost::analytic::{Analytic, StepTime, TimePart};
use pipesim_models::layout::{ParallelConfig, Zero};
use pipesim_report::{Report, Table, csv_cell, gibibytes, number, percent, quantity};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Columns of the CSV, and where each is in a plan's JSON.
const COLUMNS: [(&str, &str); 30] = [
    ("gpus", "/gpus"),
    ("schedule", "/schedule"),
    ("tp", "/tp"),
    ("pp", "/pp"),
    ("dp", "/dp"),
    ("cp", "/cp"),
    ("ep", "/ep"),
    ("micro_batch_size", "/micro_batch_size"),
    ("microbatches", "/microbatches"),
    ("chunks", "/chunks"),
    ("recompute", "/recompute"),
    ("zero", "/zero"),
    ("shard", "/shard"),
    ("sequence_parallel", "/sequence_parallel"),
    ("layers", "/layers"),
    ("iteration_s", "/iteration_s"),
    ("iteration_low_s", "/iteration_interval_s/0"),
    ("iteration_high_s", "/iteration_interval_s/1"),
    ("tokens_per_second_per_gpu", "/tokens_per_second_per_gpu"),
    ("mfu", "/mfu"),
    ("memory_bytes", "/memory_bytes"),
    ("compute_s", "/time_s/compute"),
    ("tensor_parallel_exposed_s", "/time_s/tensor_parallel_exposed"),
    ("expert_parallel_exposed_s", "/time_s/expert_parallel_exposed"),
    ("imbalance_s", "/time_s/imbalance"),
    ("pipeline_bubble_s", "/time_s/pipeline_bubble"),
    ("data_parallel_exposed_s", "/time_s/data_parallel_exposed"),
    ("optimizer_s", "/time_s/optimizer"),
    ("other_s", "/time_s/other"),
    ("tie", "/tie"),
];

/// Label of the user's own layout.
const YOURS: &str = "yours";

/// The best plans with everything that is shown of them.
pub struct PlanReport<'a> {
    pub search: &'a Search<'a>,
    pub plans: &'a Plans,
    pub names: Names,
    /// Why plan 1 is the best, and what would beat it.
    pub why: Option<[String; 2]>,
    /// A layout that is shown below the plans, as `yours`.
    pub mine: Option<Plan>,
    /// What is shown above the plans.
    pub first: Option<Table>,
}

/// Returns a value as a cell of the CSV.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => csv_cell(text),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<_>>().join(" "),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

impl PlanReport<'_> {
    /// Returns a plan as options of a program.
    ///
    /// # Errors
    /// As [`flags`].
    pub fn flags(&self, plan: &Plan, target: Target) -> Result<PlanFlags, PlanError> {
        let question = self.search.question;
        let costs = Analytic::new(question.model, question.machine.clone(), plan.layout.clone());
        let target = target.of_version(self.search.framework());
        flags(plan, &costs.map_err(PlanError::refused)?, target, &self.names)
    }

    /// Returns the programs that plans are written for first: the framework of the stack, and this program.
    ///
    /// # Errors
    /// A framework's file that cannot be read.
    pub fn targets(&self) -> Result<Vec<Target>, PlanError> {
        let own = self.search.framework();
        let is_own = |target: &Target| match (target, own) {
            (Target::Framework(one), Some(own)) => one.name() == own.name(),
            (Target::Framework(_), None) => target.name() == "megatron",
            (Target::Pipesim, _) => true,
        };
        Ok(Target::all()?.into_iter().filter(is_own).map(|target| target.of_version(own)).collect())
    }

    fn has_several_sizes(&self) -> bool {
        self.search.question.gpus.len() > 1
    }

    /// Returns what is planned: `llama-3-70b on 64 h100-sxm`.
    pub fn title(&self) -> String {
        let question = self.search.question;
        let gpus = question.gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        format!("{} on {gpus} {}", self.names.model, question.machine.hardware.name)
    }

    /// Returns the plans, the parts of their time, and the layouts that were ruled out.
    pub fn report(&self) -> Report {
        Report {
            title: self.title(),
            verdict: self.why.as_ref().map_or_else(String::new, |[why, beats]| format!("{why} {beats}")),
            extra_tables: self.tables(),
            ..Report::default()
        }
    }

    /// Returns the tables, in the order in which they are shown.
    pub(super) fn tables(&self) -> Vec<Table> {
        self.first.iter().cloned().chain([self.plans_table(), self.times_table(), self.ruled_out_table()]).collect()
    }

    fn plans_table(&self) -> Table {
        let question = self.search.question;
        let is_priced = question.objective == Objective::Cost;
        let (several, has_experts) = (self.has_several_sizes(), question.model.experts.is_some());
        let mut header = vec!["plan"];
        header.extend(several.then_some("GPUs"));
        header.extend(["tp", "pp", "dp", "cp"]);
        header.extend(has_experts.then_some("ep"));
        header.extend([
            "schedule",
            "micro-batch",
            "recompute",
            "ZeRO",
            "SP",
            "iteration",
            "tokens/s/GPU",
            "MFU",
            "memory",
        ]);
        header.extend(is_priced.then_some("$/M tokens"));
        let row = |(label, plan): (String, &Plan)| {
            let ParallelConfig { tp, pp, dp, cp, chunks, micro_batch_size, recompute, zero, sequence_parallel, .. } =
                &plan.layout;
            let mut cells = vec![label];
            cells.extend(several.then(|| plan.layout.gpus().to_string()));
            cells.extend([tp, pp, dp, cp].map(u32::to_string));
            cells.extend(has_experts.then(|| plan.layout.ep.to_string()));
            let chunks = if *chunks > 1 && plan.names_chunks { format!(" v={chunks}") } else { String::new() };
            let split = if plan.layout.layers.is_some() { ", layers moved" } else { "" };
            cells.push(if *pp == 1 { "–".to_string() } else { format!("{}{chunks}{split}", plan.schedule) });
            cells.push(format!("{micro_batch_size} × {}", plan.layout.micro));
            cells.push(recompute.to_string());
            let shared = plan.layout.shard.map_or(zero.to_string(), |shard| format!("{zero}, shard {shard}"));
            cells.push(if *zero == Zero::None { "–".to_string() } else { shared });
            cells.push(if *sequence_parallel { "yes" } else { "–" }.to_string());
            let [low, high] = plan.estimate.iteration_interval_s.map(|seconds| number(1e3 * seconds));
            cells.push(format!("{} ({low} to {high})", quantity(1e3 * plan.estimate.iteration_s, "ms")));
            cells.push(number(plan.estimate.tokens_per_second_per_gpu));
            cells.push(percent(plan.estimate.mfu));
            cells.push(gibibytes(plan.memory_bytes()));
            let price = question.machine.hardware.dollars_per_gpu_hour;
            cells.extend(is_priced.then(|| format!("{:.4}", plan.dollars_per_million_tokens(price))));
            cells
        };
        let tie = |plan: &Plan| if plan.is_tie { " tie" } else { "" };
        let degrees =
            |plan: &Plan| [plan.layout.gpus(), plan.layout.tp.into(), plan.layout.pp.into(), plan.layout.dp.into()];
        let mut labelled: Vec<(usize, (String, &Plan))> = Vec::new();
        for (label, plan) in self.labelled(|rank, plan| format!("{rank}{}", tie(plan))) {
            let same = labelled.iter().find(|(_, (_, other))| degrees(other) == degrees(plan)).map(|(row, _)| *row);
            let (row, label) = match (label.as_str(), same) {
                (YOURS, _) => (usize::MAX, label),
                (_, Some(row)) => (row, format!("  {label}")),
                _ => (labelled.len(), label),
            };
            labelled.push((row, (label, plan)));
        }
        labelled.sort_by_key(|(row, _)| *row);
        let rows = labelled.into_iter().map(|(_, labelled)| row(labelled)).collect();
        let caption = format!(
            "Best layouts of {} ({} G parameters) for {} sequences of {} tokens per step, with {}, within {}{}",
            self.names.model,
            number(question.model.spec().parameters() as f64 / 1e9),
            question.batch,
            question.sequence,
            question.machine.stack.name,
            gibibytes(self.search.question.bytes()),
            self.outside()
        );
        Table::new(caption, &header, rows)
    }

    /// Says in what no published run is like which plans.
    fn outside(&self) -> String {
        let mut plans: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (label, plan) in self.labelled(|rank, _| rank.to_string()) {
            plan.estimate.outside.iter().for_each(|why| plans.entry(why).or_default().push(label.clone()));
        }
        let said = plans.iter().map(|(why, labels)| format!("{why} (plan {})", labels.join(", ")));
        if plans.is_empty() { String::new() } else { format!("; {}", said.collect::<Vec<_>>().join("; ")) }
    }

    /// Returns the plans with their labels, by rank from 1, and the layout that is shown below them.
    fn labelled(&self, label: impl Fn(usize, &Plan) -> String) -> impl Iterator<Item = (String, &Plan)> {
        let plans = (1..).zip(&self.plans.plans).map(move |(rank, plan)| (label(rank, plan), plan));
        plans.chain(self.mine.iter().map(|plan| (YOURS.to_string(), plan)))
    }

    fn times_table(&self) -> Table {
        let has_experts = self.search.question.model.experts.is_some();
        let is_shown = |part: &TimePart| has_experts || part.title != "experts";
        let ms = |seconds: f64| quantity(1e3 * seconds, "ms");
        let row = |(label, plan): (String, &Plan)| {
            let parts = plan.estimate.time_s.parts().into_iter().filter(is_shown).map(|part| ms(part.seconds));
            [label, ms(plan.estimate.iteration_s)].into_iter().chain(parts).collect()
        };
        let titles = StepTime::default().parts().into_iter().filter(is_shown).map(|part| part.title);
        let header: Vec<&str> = ["plan", "iteration"].into_iter().chain(titles).collect();
        Table::new("Parts of an iteration", &header, self.labelled(|rank, _| rank.to_string()).map(row).collect())
    }

    fn ruled_out_table(&self) -> Table {
        let rows = self.plans.ruled_out.iter();
        let rows = rows.map(|(reason, count)| vec![reason.text().to_string(), number(*count as f64)]).collect();
        let caption = format!(
            "{} layouts considered, {} predicted in full; the others were ruled out",
            number(self.plans.considered as f64),
            number(self.plans.evaluated as f64)
        );
        Table::new(caption, &["reason", "layouts"], rows)
    }

    fn plan_json(&self, plan: &Plan) -> Value {
        let l = &plan.layout;
        let [mut flags, mut notes, mut refused] = [(); 3].map(|()| Map::new());
        let all = Target::all().unwrap_or_default();
        for target in all.into_iter().filter(|target| matches!(target, Target::Framework(_))) {
            let name = target.name().to_string();
            match self.flags(plan, target) {
                Ok(found) => {
                    flags.insert(name.clone(), Value::from(found.text));
                    notes.extend((!found.notes.is_empty()).then(|| (name, Value::from(found.notes))));
                }
                Err(why) => drop(refused.insert(name, Value::from(why.to_string()))),
            }
        }
        let mut found = json!({
            "schedule": plan.schedule,
            "gpus": l.gpus(),
            "tp": l.tp,
            "pp": l.pp,
            "dp": l.dp,
            "cp": l.cp,
            "ep": l.ep,
            "micro_batch_size": l.micro_batch_size,
            "microbatches": l.micro,
            "chunks": l.chunks,
            "recompute": l.recompute.to_string(),
            "stage_layout": plan.estimate.stage_layout,
            "zero": l.zero as u8,
            "sequence_parallel": l.sequence_parallel,
            "layers": plan.estimate.layers,
            "iteration_s": plan.estimate.iteration_s,
            "iteration_interval_s": plan.estimate.iteration_interval_s,
            "iteration_interval_50_s": plan.estimate.iteration_interval_50_s,
            "outside": plan.estimate.outside,
            "tokens_per_second_per_gpu": plan.estimate.tokens_per_second_per_gpu,
            "mfu": plan.estimate.mfu,
            "memory_bytes": plan.memory_bytes(),
            "time_s": plan.estimate.time_s,
            "tie": plan.is_tie,
            "command": self.flags(plan, Target::Pipesim).unwrap_or_default().text,
            "flags": flags,
            "notes": notes,
            "refused": refused,
        });
        if let Some(shard) = l.shard {
            found["shard"] = shard.into();
        }
        for (name, value) in l.options().named() {
            found[name.replace('-', "_")] = if value.is_empty() { true.into() } else { value.into() };
        }
        if l.optimizer_offload > 0.0 {
            found["optimizer_offload"] = l.optimizer_offload.into();
        }
        found
    }

    /// Returns the plans with all their figures.
    pub fn json(&self) -> Value {
        let plans: Vec<Value> = self.plans.plans.iter().map(|plan| self.plan_json(plan)).collect();
        let ruled_out: Map<String, Value> = self
            .plans
            .ruled_out
            .iter()
            .map(|(reason, count)| (reason.name().to_string(), Value::from(*count)))
            .collect();
        let [why, beats] = self.why.clone().unwrap_or_default();
        json!({
            "schema_version": 1,
            "framework": self.search.framework().map(|one| json!({"name": one.name(), "title": one.title(), "version": one.version()})),
            "plans": plans,
            "considered": self.plans.considered,
            "evaluated": self.plans.evaluated,
            "ruled_out": ruled_out,
            "why": why,
            "what_would_beat_it": beats,
            "complete": !self.plans.is_stopped,
        })
    }

    /// Returns a CSV row per plan.
    pub fn csv(&self) -> String {
        let header = COLUMNS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",");
        let mut text = format!("rank,{header}\n");
        for (rank, plan) in self.plans.plans.iter().enumerate() {
            let plan = self.plan_json(plan);
            let cells = COLUMNS.iter().map(|(_, place)| plan.pointer(place).map(cell).unwrap_or_default());
            text += &format!("{},{}\n", rank + 1, cells.collect::<Vec<_>>().join(","));
        }
        text
    }
}
